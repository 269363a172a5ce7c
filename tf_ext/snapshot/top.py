# SPDX-License-Identifier: Apache-2.0
"""Finds the rows of a snapshot that are the largest by some value."""

import datetime
import os
import typing

import numpy as np
import numpy.typing as npt

from tf_ext._checks import check_count, refuse
from tf_ext.snapshot.files import (
    Chain,
    Progress,
    read_again_if_replaced,
    read_chain,
)
from tf_ext.snapshot.reader import Snapshot
from tf_ext.snapshot.row_filter import norms
from tf_ext.snapshot.storage import normalised

NORM, SHOW, CLICK, LAST_SEEN = "norm", "show", "click", "last_seen"
ORDERS = (NORM, SHOW, CLICK, LAST_SEEN)

# Of `last_seen` in seconds.
_EPOCH = datetime.datetime(2020, 1, 1)


class TopRows(typing.NamedTuple):
    """The first rows in an order.

    Attributes:
      signs: int64 `[n]`.
      values: float64 `[n]`, what the rows are ordered by, from the largest;
        NaN counts as the largest. Equal ones are in the order of their signs.
      weights: `[n, dim]`, as `Snapshot.chunks` returns them.
    """

    signs: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    weights: npt.NDArray[typing.Any]


def top_rows(
    path: str | os.PathLike[str],
    by: str,
    count: int,
    progress: Progress | None = None,
) -> TopRows:
    """Finds the largest, most shown or most recently pushed rows.

    In memory are `count` rows, and what `Snapshot.chunks` keeps. A delta is
    merged with its bases.

    Args:
      path: path-like, the snapshot.
      by: "norm", the Euclidean norm of the weights, or the name of a field that
        has one value.
      count: int, the most rows to return.
      progress: optional function that is called with the bytes of each chunk
        that has been read.

    Raises:
      DamagedSnapshotError: if the snapshot is damaged; names file and byte.
      SnapshotConflictError: if saves repeatedly replaced the snapshot.
      ValueError: if rows do not have the field, or for another argument.
    """
    check_count("top", "count", count, 1)
    path = normalised(path)

    def find(chain: Chain) -> TopRows:
        return _find(Snapshot(chain), by, count, progress)

    return read_again_if_replaced(path, lambda: read_chain(path), find)


def _find(
    snapshot: Snapshot, by: str, count: int, progress: Progress | None
) -> TopRows:
    fields = ["weights"]
    if by != NORM:
        if snapshot.fields.get(by, ("", 0))[1] != 1:
            _refuse(snapshot, by)
        fields.append(by)
    _, dim = snapshot.fields["weights"]
    found = TopRows(
        np.empty(0, np.int64), np.empty(0), np.empty((0, dim), np.float32)
    )
    for signs, values in snapshot.chunks(fields, progress):
        weights = values["weights"]
        of_rows = norms(weights) if by == NORM else values[by][:, 0]
        rows = TopRows(signs, of_rows.astype(np.float64), weights)
        if len(found.signs) == count:
            # Almost no row of a large table is among the first.
            rows = _take(rows, ~(rows.values < found.values[-1]))
        found = _first(found, rows, count)
    return found


def _refuse(snapshot: Snapshot, by: str) -> typing.NoReturn:
    there = [NORM, *(name for name in ORDERS if name in snapshot.fields)]
    allowed = (
        f"{' or '.join(there)} for table {snapshot.manifest.label!r}, whose "
        f"rows have the fields {', '.join(snapshot.fields)}: tables made with "
        "`statistics` also have show or click, and those with an eviction "
        "policy by time last_seen"
    )
    refuse("top", "by", allowed, by)


def _first(some: TopRows, more: TopRows, count: int) -> TopRows:
    if not len(more.signs):
        return some
    rows = TopRows(*map(np.concatenate, zip(some, more, strict=True)))
    sizes = np.where(np.isnan(rows.values), np.inf, rows.values)
    return _take(rows, np.lexsort((rows.signs, -sizes))[:count])


def _take(rows: TopRows, which: npt.NDArray[typing.Any]) -> TopRows:
    return TopRows(*(each[which] for each in rows))


def in_words(by: str, value: float, unit: str | None) -> str:
    """A value for people to read.

    Args:
      by: string, as of `top_rows`.
      value: float.
      unit: "step" or "second", that of `last_seen`; None without it.
    """
    if by == LAST_SEEN and value < 0:
        return "never"
    if by == LAST_SEEN and unit == "second":
        return f"{_EPOCH + datetime.timedelta(seconds=value)} UTC"
    if value.is_integer():
        return f"{value:,.0f}"
    return f"{value:.6g}"
