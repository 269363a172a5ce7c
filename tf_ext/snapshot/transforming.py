# SPDX-License-Identifier: Apache-2.0
"""Rewrites snapshots for tables of another shape, rule, type or set of rows."""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import typing
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tf_ext import _core
from tf_ext import _rates_by_name as rates_by_name
from tf_ext._checks import is_int, refuse
from tf_ext.snapshot import manifest as manifests
from tf_ext.snapshot import merging
from tf_ext.snapshot.clocks import ABSENT_STATE, CLOCK_FIELDS, encoded
from tf_ext.snapshot.compatibility import warn_of_lost_weights
from tf_ext.snapshot.counting import entries_of
from tf_ext.snapshot.files import (
    Chain,
    Progress,
    ids,
    read_again_if_replaced,
    read_chain,
)
from tf_ext.snapshot.manifest import MAX_DIM, Manifest
from tf_ext.snapshot.reader import (
    Snapshot,
    common_shards,
    latest_blocks,
    signs_of,
)
from tf_ext.snapshot.resharding import counter_bytes, counters_of_shard
from tf_ext.snapshot.row_filter import Condition, RowFilter
from tf_ext.snapshot.row_mapping import RowMapping, SavedRows, rule_entries
from tf_ext.snapshot.row_values import Rows, get
from tf_ext.snapshot.storage import normalised
from tf_ext.snapshot.writer import Content, times_read, write

_Path = str | os.PathLike[str]
# The core's rule for rows that cannot be trained.
_NO_RULE = "none"
_START = "initial_accumulator_value"
_VECTOR = "unknown.vector"


class _Optimizer(typing.Protocol):
    """A `tf_ext.optimizers.SparseOptimizer`."""

    def table_config(self) -> dict[str, str]:
        """The entries of a table's configuration."""


def transform(
    path: _Path,
    out: _Path,
    *,
    dim: int | None = None,
    projection: npt.ArrayLike | _Path | None = None,
    name: str | None = None,
    optimizer: "str | _Optimizer | None" = None,
    dtype: str | None = None,
    slot_dtype: str | None = None,
    keep: Condition | Sequence[Condition] = (),
    drop: Condition | Sequence[Condition] = (),
    merge: _Path | Sequence[_Path] = (),
    by: str = merging.PRIORITY,
    progress: Progress | None = None,
) -> Manifest:
    """Rewrites a snapshot for a table of another shape.

    All changes that are asked for are made in one pass over the rows. A delta
    is merged with its bases. The result is a full snapshot with the shards of
    `path`, for a table that has the arguments of the saved one, but for those
    that are given here:

    - `dim`: a larger one adds positions, whose weights and slots are those of
      new rows of the resulting table: they depend on its seed and name, the
      sign and the position alone. A smaller one keeps the first positions, to
      the bit. With `projection`, weights are multiplied by a matrix, in
      float64, and all slots are those of new rows. A vector that ids without a
      row read gets zeros, or is multiplied, too.
    - `optimizer`: slots are taken over if the saved rows have all that the rule
      needs, such as the momentum of "lion" from "momentum"; otherwise all are
      those of new rows. `SparseAdam(absent="decay")` has one number of steps
      for all rows: moments of lazy Adam are corrected by the steps that each
      row has made, and the table's correction is over; with the global one,
      moments stay, as of a model that has been trained for long. FTRL loses
      weights without its slots at the next push of their row, which is logged.
    - `dtype`, `slot_dtype`: values are rounded to the nearest one, as by
      `SparseTable.load` with `convert=True`.
    - `name`: rows stay as they are. Ids without a row begin with other weights,
      because these depend on the table's name.

    Rows are selected after merging, before all other changes. `keep` and `drop`
    take conditions:

    - a string such as "show >= 3", "last_seen < 1000" or "norm == 0": `sign`,
      `norm` (the Euclidean norm of the weights) or a field of one value; an
      operator, `<`, `<=`, `>`, `>=`, `==` or `!=`; and a number;
    - signs, an int64 array or the path of a `.npy` file. A row does not say
      which column it is of: the signs of a column are those of its vocabulary,
      `column.signs(values)` or `tf_ext.hashing.hash_category(values, key)`;
      with `hashing="identity"`, they are the values, and "sign < 1000" will do;
    - a function of signs, int64 `[n]`, and fields, `{name: [n, count]}` as
      `Snapshot.chunks` yields them, that returns bool `[n]`;
    - a list of these. Rows stay for which all of `keep` and none of `drop`
      hold, and those that ids without a row share.

    Tables that are merged must be alike in dim, rule, types and statistics.
    `by` decides about a sign that is in several of them: "priority" takes the
    row of the first, `path` being before `merge`; "show" that with the most
    occurrences; "mean" the mean of weights and slots, the sum of statistics and
    the latest of steps and times. Moments of `SparseAdam(absent="decay")`
    become those of the table that has made most steps. Rows are read in parts
    of 256 MiB: the files of larger snapshots with few shards are read several
    times.

    Counters of ids that wait for a row are copied, but for those that signs, or
    a condition on `sign`, drop. When tables are merged, those of the first are.

    In memory are a chunk, or, if the snapshots of a chain differ in shards or
    tables are merged, one for each of up to 128 shards; the signs of deltas;
    with conditions on fields, those of one file of the full snapshot, 11 to 22
    bytes each; when tables are merged, about 1 GiB.

    If the process is killed, the same call goes on: what had been written is
    recorded about every 256 MiB of reading, or 64 chunks for each file that is
    open. Shards that are complete are not read again. The others are, to check
    them, but rows that were made are not made again. The call begins anew if
    arguments, sources or the version of tf_ext are others, if what was left is
    damaged, and if a condition is a function; where files cannot be read before
    they are closed (`gs://...`), from the last complete files. An exception,
    such as KeyboardInterrupt, leaves nothing to resume.

    Args:
      path: path-like, the snapshot, which stays as it is.
      out: path-like, a directory that is empty or does not exist, or has only
        what a process left that was killed.
      dim: int or None, from 1 to 65,536.
      projection: array `[dim, new dim]` of finite numbers, or the path of a
        `.npy` file.
      name: string or None, the name of the table.
      optimizer: a `tf_ext.optimizers.SparseOptimizer`; or the name of a rule,
        as `SparseTable` takes it, or "momentum".
      dtype: "float32", "float16" or "bfloat16", of weights.
      slot_dtype: "float32" or "bfloat16", of slots.
      keep: condition, or list of conditions.
      drop: condition, or list of conditions.
      merge: path-like, or list of these, the snapshots to merge into `path`.
      by: "priority", "mean" or "show".
      progress: function that is called with the bytes of each chunk that has
        been read, and once with those that need not be read again; or None.

    Returns:
      The Manifest of the new snapshot. With `dtype` or `slot_dtype`, its
      `conversion` says how many values were rounded.

    Raises:
      DamagedSnapshotError: if a snapshot is damaged; names file and byte.
      SnapshotConflictError: if another process wrote to `out` at the same time,
        or repeatedly replaced a snapshot.
      OSError: if the file system fails.
      ValueError: if an argument is not as above, or tables cannot be merged;
        before anything is written. After any error, `out` holds no files.

    Example:
      >>> import tempfile
      >>> table = tf_ext.SparseTable("user", dim=2)
      >>> _ = table.pull([7, 9], training=True)
      >>> with tempfile.TemporaryDirectory() as root:
      ...     _ = table.save(f"{root}/2")
      ...     _ = tf_ext.snapshot.transform(
      ...         f"{root}/2", f"{root}/3", dim=3, drop=np.array([9]))
      ...     wider = tf_ext.SparseTable("user", dim=3)
      ...     wider.load(f"{root}/3").rows
      1
      >>> bool(tf.reduce_all(wider.pull([7])[:, :2] == table.pull([7])))
      True
    """
    paths = [normalised(each) for each in (path, *_paths(merge))]
    out = normalised(out, "transform", "out")
    if by not in merging.RULES:
        refuse("transform", "by", " or ".join(map(repr, merging.RULES)), by)
    matrix = _matrix(projection)
    changes = functools.partial(
        _changed, dim, matrix, name, optimizer, dtype, slot_dtype
    )

    def run(links: Chain) -> Manifest:
        chains = _chains(links)
        rows = _Transformed(
            chains,
            changes(entries_of(chains[0][-1][1].config)),
            matrix,
            keep,
            drop,
            by,
        )
        shards = chains[0][-1][1].shards
        manifest = write(rows.content, out, shards, progress)
        if dtype is None and slot_dtype is None:
            return manifest
        return dataclasses.replace(manifest, conversion=rows.conversion)

    return read_again_if_replaced(
        paths[0],
        lambda: list(itertools.chain.from_iterable(map(read_chain, paths))),
        run,
    )


def bytes_to_read(paths: Sequence[_Path]) -> int:
    """The bytes of the files that `transform` reads, for a progress bar.

    Args:
      paths: list of path-likes, the snapshot and those that are merged.
    """
    chains = [read_chain(normalised(path)) for path in paths]
    manifest = chains[0][-1][1]
    parts = merging.parts_of(chains)
    rows = sum(merging.bytes_of(chains, (part, parts)) for part in range(parts))
    rows *= times_read(_parts(chains), manifest.shards)
    return rows + counter_bytes(manifest, manifest.shards)


def _parts(chains: Sequence[Chain]) -> int:
    """In how many parts rows are read that have files of their own."""
    return common_shards(chains[0]) if len(chains) == 1 else 1


def _paths(merge: _Path | Sequence[_Path]) -> Sequence[_Path]:
    return [merge] if isinstance(merge, str | os.PathLike) else merge


def _chains(links: Chain) -> list[Chain]:
    """Chains that were concatenated."""
    chains: list[list[tuple[str, Manifest]]] = []
    for path, manifest in links:
        if manifest.base is None:
            chains.append([])
        chains[-1].append((path, manifest))
    return list(chains)


class _Transformed:
    """The rows that are written.

    Args:
      chains: list of chains, the first one being of the snapshot that others
        are merged into.
      changes: dict of the entries of the new configuration.
      matrix: float64 `[dim, new dim]` or None.
      keep: condition, or list of conditions.
      drop: condition, or list of conditions.
      by: string, the rule of merging.
    """

    def __init__(
        self,
        chains: Sequence[Chain],
        changes: dict[str, str],
        matrix: npt.NDArray[np.float64] | None,
        keep: Condition | Sequence[Condition],
        drop: Condition | Sequence[Condition],
        by: str,
    ) -> None:
        self._chains, self._by, self._matrix = chains, by, matrix
        merging.check(chains, by)
        self._whole = [SavedRows(*chain[-1]) for chain in chains]
        path, manifest = chains[0][-1]
        self._path, self._manifest = path, manifest
        self._filter = RowFilter(keep, drop, Snapshot(chains[0]).fields)
        saved = entries_of(manifest.config)
        self._has_shared_rows = merging.shared_rows(manifest.config) > 0
        text = "".join(f"{key}={changes[key]}\n" for key in sorted(changes))
        state = dict(manifest.state)
        if ABSENT_STATE in state:
            longest = chains[merging.longest(self._whole)][-1][1]
            state[ABSENT_STATE] = longest.state[ABSENT_STATE]
        shrinkage = self._whole[0].clocks.shrinkage
        manifest = dataclasses.replace(manifest, state=dict(state))
        self._mapping = RowMapping(path, manifest, text, matrix, shrinkage)
        warn_of_lost_weights(changes["name"], self._mapping.new)
        state.pop(ABSENT_STATE, None)
        if rule_entries(saved) != rule_entries(changes):
            state.pop("optimizer", None)
        if self._mapping.absent_state:
            state[ABSENT_STATE] = encoded(self._mapping.absent_state)
        if len(chains) > 1:
            state |= _columns([chain[-1][1].state for chain in chains])
        self._new_manifest = dataclasses.replace(
            manifest,
            label=changes["name"],
            config=self._mapping.config,
            state=state,
            fields=self._mapping.fields,
            row_bytes=self._mapping.row_bytes,
        )

    @property
    def content(self) -> Content:
        """What is written."""
        chains = self._chains
        return Content(
            self._path,
            self._new_manifest,
            _parts(chains),
            self._rows,
            self._counters,
            self._made_of,
            self._mapping.counted,
        )

    @property
    def _made_of(self) -> typing.Any:
        if self._filter.identity is None:
            return None
        matrix = self._matrix
        return [
            [ids(chain) for chain in self._chains],
            self._by,
            self._filter.identity,
            None if matrix is None else hashlib.sha256(matrix.data).hexdigest(),
        ]

    @property
    def conversion(self) -> manifests.Conversion:
        """What has been rounded."""
        return self._mapping.conversion

    def _rows(
        self, part: tuple[int, int], progress: Progress, skipped: int
    ) -> Iterator[Iterator[Rows]]:
        blocks: Iterator[Iterator[Rows]]
        if len(self._chains) > 1:
            blocks = merging.merged(
                self._chains, self._whole, self._by, progress, skipped
            )
        else:
            # Of two rows of a sign, the earlier one must not be selected alone.
            repeated = not self._filter.reads_fields
            read = latest_blocks(
                self._chains[0], progress, repeated, part, skipped
            )
            blocks = (map(self._whole[0], block) for block in read)
        for block in blocks:
            yield self._mapping(map(self._selected, block))

    def _selected(self, rows: Rows) -> Rows:
        return rows if self._filter.is_trivial else rows[self._stay(rows)]

    def _stay(self, rows: Rows) -> npt.NDArray[np.bool_]:
        signs = signs_of(rows)
        if self._filter.reads_fields:
            fields = {
                field.name: get(rows, field)
                for field in self._manifest.fields[1:]
                if field.name not in CLOCK_FIELDS
            }
            stay = self._filter(signs, fields)
        else:
            stay = self._filter.of_signs(signs)
        if self._has_shared_rows:
            # They belong to the ids that have no row, whatever is selected.
            config = self._manifest.config
            stay |= _core.shared_signs(config, signs) == signs
        return stay

    def _counters(
        self, shard: int, shards: int, progress: Progress
    ) -> npt.NDArray[np.uint8]:
        counters = counters_of_shard(
            self._path, self._manifest, shard, shards, progress
        )
        return counters[self._filter.of_signs(signs_of(counters))]


def _changed(
    dim: int | None,
    matrix: npt.NDArray[np.float64] | None,
    name: str | None,
    optimizer: str | _Optimizer | None,
    dtype: str | None,
    slot_dtype: str | None,
    entries: dict[str, str],
) -> dict[str, str]:
    """The entries of the new table's configuration."""
    changed = dict(entries)
    if dim is not None and (not is_int(dim) or not 1 <= dim <= MAX_DIM):
        refuse("transform", "dim", f"an int from 1 to {MAX_DIM}", dim)
    if matrix is not None:
        if str(matrix.shape[0]) != entries.get("dim"):
            refuse(
                "transform",
                "projection",
                f"[{entries.get('dim')}, new dim], as the saved rows have that "
                "dim",
                list(matrix.shape),
            )
        if dim not in (None, matrix.shape[1]):
            allowed = f"{matrix.shape[1]}, as of `projection`, or left out"
            refuse("transform", "dim", allowed, dim)
        dim = matrix.shape[1]
    if dim is not None:
        changed["dim"] = str(int(dim))
        if _VECTOR in entries:
            changed[_VECTOR] = _resized(entries[_VECTOR], int(dim), matrix)
    if name is not None:
        if not isinstance(name, str) or not name.isprintable() or not name:
            refuse("transform", "name", "a printable text, or None", name)
        changed["name"] = name
    types = _core.field_types()
    for argument, value, use in (
        ("dtype", dtype, "of_weights"),
        ("slot_dtype", slot_dtype, "of_slots"),
    ):
        allowed_types = [each for each in types if types[each][use]]
        if value is None:
            continue
        if value not in allowed_types:
            allowed = " or ".join(map(repr, allowed_types)) + ", or None"
            refuse("transform", argument, allowed, value)
        changed[argument] = value
    if optimizer is not None:
        for key in rule_entries(changed):
            del changed[key]
        changed |= _rule_entries(optimizer, int(changed["dim"]))
    return changed


def _resized(
    text: str, dim: int, matrix: npt.NDArray[np.float64] | None
) -> str:
    """The vector of ids without a row, of another dim."""
    vector = np.array(text.split(","), np.float64)
    if matrix is not None:
        vector = vector @ matrix
    vector = np.pad(vector[:dim], (0, max(0, dim - len(vector))))
    return ",".join(str(np.float32(value)) for value in vector)


def _rule_entries(optimizer: str | _Optimizer, dim: int) -> dict[str, str]:
    rules = [rule for rule in _core.update_rules() if rule != _NO_RULE]
    entries: Callable[[], dict[str, str]] | None = getattr(
        optimizer, "table_config", None
    )
    if entries is not None:
        return entries()
    if optimizer not in rules:
        allowed = (
            f"a tf_ext.optimizers.SparseOptimizer, one of {rules}, or None"
        )
        refuse("transform", "optimizer", allowed, optimizer)
    lines = {"optimizer": str(optimizer)}
    for key in _core.update_rule(optimizer)["identity"]:
        # What the name stands for in a SparseTable.
        if key["name"] == _START:
            lines[f"optimizer.{_START}"] = repr(rates_by_name.adagrad(dim)[1])
    return lines


def _columns(states: Sequence[dict[str, str]]) -> dict[str, str]:
    """The record of which columns read the rows, of merged tables."""
    found: set[tuple[str, str]] = set()
    for state in states:
        try:
            found |= {
                (str(name), str(how))
                for name, how in json.loads(state.get("columns", "[]"))
            }
        except (RecursionError, TypeError, ValueError):
            return {}  # Loading warns about it.
    return {"columns": json.dumps(sorted(found))}


def _matrix(
    projection: npt.ArrayLike | _Path | None,
) -> npt.NDArray[np.float64] | None:
    if projection is None:
        return None
    given: typing.Any = projection
    try:
        if isinstance(given, str | os.PathLike):
            with open(given, "rb") as file:
                given = np.lib.format.read_array(file, allow_pickle=False)
        matrix = np.asarray(given)
    except ValueError as error:
        allowed = f"a matrix, or a file that numpy.save wrote ({error})"
        refuse("transform", "projection", allowed, projection)
    if (
        matrix.ndim != 2
        or matrix.dtype.kind not in "fiu"
        or not np.isfinite(matrix).all()
        or not 1 <= matrix.shape[1] <= MAX_DIM
    ):
        allowed = (
            f"a matrix [dim, new dim] of finite numbers (it is {matrix.dtype} "
            f"{list(matrix.shape)})"
        )
        refuse("transform", "projection", allowed, projection)
    return matrix.astype(np.float64)
