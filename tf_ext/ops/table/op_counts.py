# SPDX-License-Identifier: Apache-2.0
"""What the ops of this process have counted since it started."""

import ctypes
import dataclasses
import typing

from tf_ext.ops import _library

# The order of cc/ops/table/op_counts.cc.
_STATS = (
    "rows",
    "free_rows",
    "slab_bytes",
    "index_bytes",
    "counter_bytes",
    "waiting",
    "updated",
    "admitted",
    "evicted",
    "saturated",
)
_Visit = ctypes.CFUNCTYPE(
    None,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int64,
)


@dataclasses.dataclass(frozen=True)
class OpCounts:
    """The successful calls of an op.

    Attributes:
      signs: int, how many it was called with.
      seconds: float, how long all calls took.
      calls: list of ints, the calls by duration: those of at most the first of
        `ProcessCounts.bounds`, at most the second, ..., and the rest.
    """

    signs: int
    seconds: float
    calls: list[int]


@dataclasses.dataclass
class TableCounts:
    """Of all tables of one name that are or were in this process.

    Attributes:
      pull: OpCounts.
      push: OpCounts.
      step: int, the step of the latest push; -1 before the first.
      stats: dict of string -> int, sums of the statistics of the tables that
        exist; None if there is none.
    """

    pull: OpCounts
    push: OpCounts
    step: int = -1
    stats: dict[str, int] | None = None


@dataclasses.dataclass
class ProcessCounts:
    """What `read_counts` returns.

    Attributes:
      bounds: list of floats, the upper bounds of the durations that `OpCounts`
        are divided by, in seconds.
      hashing: OpCounts, of the hashing of features.
      tables: dict of table name -> TableCounts.
    """

    bounds: list[float]
    hashing: OpCounts
    tables: dict[str, TableCounts]


def read_counts() -> ProcessCounts:
    r"""Reads the counts of this process.

    It runs no op, so that it neither fixes TensorFlow's devices, nor waits
    where ops wait for a task that does not answer. It takes microseconds for
    each table.

    Returns:
      A `ProcessCounts`.

    Example:
      >>> from tf_ext.ops.table import op_counts
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=an_example\noptimizer=sgd")
      >>> rows = tf_ext.ops.sparse_table_pull(handle, [7, 8, 9], dim=2,
      ...     training=True)
      >>> counts = op_counts.read_counts().tables["an_example"]
      >>> counts.pull.signs, sum(counts.pull.calls), counts.stats["rows"]
      (3, 1, 3)
    """
    found: dict[tuple[str, str], list[int]] = {}

    def visit(kind: bytes, table: bytes, values: typing.Any, n: int) -> None:
        found[kind.decode(), table.decode(errors="replace")] = values[:n]

    _function()(_Visit(visit))
    return ProcessCounts(
        bounds=[bound / 1e9 for bound in found["bounds", ""]],
        hashing=_op_counts(found["hash", ""]),
        tables={
            table: TableCounts(
                pull=_op_counts(pull),
                push=_op_counts(found["push", table]),
                step=found["step", table][0],
                stats=_stats(found.get(("stats", table))),
            )
            for (kind, table), pull in found.items()
            if kind == "pull"
        },
    )


def _function() -> typing.Any:
    _library.library()
    # The copy that TensorFlow has loaded, as it is the same file.
    function = ctypes.CDLL(_library.PATH).tf_ext_visit_counts
    function.argtypes, function.restype = [_Visit], None
    return function


def _op_counts(values: list[int]) -> OpCounts:
    signs, nanoseconds, *calls = values
    return OpCounts(signs, nanoseconds / 1e9, calls)


def _stats(values: list[int] | None) -> dict[str, int] | None:
    if values is None:
        return None
    return dict(zip(_STATS, values, strict=True))
