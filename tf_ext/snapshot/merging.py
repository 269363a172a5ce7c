# SPDX-License-Identifier: Apache-2.0
"""Merges the rows of several snapshots."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tf_ext import _core
from tf_ext.snapshot import adam_steps, row_values
from tf_ext.snapshot.counting import entries_of
from tf_ext.snapshot.files import Chain, Progress
from tf_ext.snapshot.manifest import Manifest, RowField
from tf_ext.snapshot.reader import files_of, latest_rows, signs_of
from tf_ext.snapshot.row_mapping import SavedRows
from tf_ext.snapshot.row_values import Rows

PRIORITY, MEAN, SHOW = RULES = ("priority", "mean", "show")

# Rows that are in memory together, and are yielded together.
_BYTES_AT_ONCE = 256 << 20
_ROWS_AT_ONCE = 1 << 14
# What tables may differ in: what is true of new rows alone.
_MAY_DIFFER = ("name", "seed", "initializer", "admission", "unknown")
_START = "optimizer.initial_accumulator_value"


def check(chains: Sequence[Chain], by: str) -> None:
    """Raises ValueError unless the rows of snapshots can be merged.

    Args:
      chains: a list of chains.
      by: string, one of RULES.
    """
    (path, manifest), *others = (chain[-1] for chain in chains)
    mine = entries_of(manifest.config)
    for where, other in others:
        theirs = entries_of(other.config)
        for key in sorted(mine.keys() | theirs.keys()):
            if key.partition(".")[0] in _MAY_DIFFER or key == _START:
                continue
            if mine.get(key) != theirs.get(key):
                raise ValueError(
                    f"The rows of {path} and {where} cannot be merged: `{key}` "
                    f"is {mine.get(key)!r} in the first and "
                    f"{theirs.get(key)!r} in the second. Transform one of them "
                    "first, so that they are alike."
                )
        _check_shared(path, manifest, where, other)
    if by == SHOW and all(field.name != SHOW for field in manifest.fields):
        raise ValueError(
            f"The rows of {path} cannot be merged by 'show': they have no "
            "statistics. Use 'priority' or 'mean'."
        )


def _check_shared(
    path: str, manifest: Manifest, where: str, other: Manifest
) -> None:
    counts = [shared_rows(each.config) for each in (manifest, other)]
    if counts[0] != counts[1]:
        raise ValueError(
            f"The rows of {path} and {where} cannot be merged: ids without a "
            f"row share {counts[0]} rows in the first and {counts[1]} in the "
            "second."
        )


def shared_rows(config: str) -> int:
    """How many rows ids without one share: `unknown_buckets` of the table."""
    entries = entries_of(config)
    if entries.get("unknown") != "shared":
        return 0
    return int(entries.get("unknown.buckets", "1"))


def parts_of(chains: Sequence[Chain]) -> int:
    """In how many parts snapshots are read to merge them."""
    total = sum(manifest.bytes for chain in chains for _, manifest in chain)
    return 1 if len(chains) == 1 else max(1, -(-total // _BYTES_AT_ONCE))


def merged(
    chains: Sequence[Chain],
    whole: Sequence[SavedRows],
    by: str,
    progress: Progress,
    skipped: int = 0,
) -> Iterator[Iterator[Rows]]:
    """The rows of several snapshots, each sign once.

    A part of all signs after the other is in memory, with all of their rows.

    Args:
      chains: list of chains, the one that takes precedence first.
      whole: list of SavedRows, one for each.
      by: string, one of RULES: which row of a sign stays, or their mean.
      progress: function that is called with the bytes of each chunk.
      skipped: int, how many parts are not read.

    Yields:
      An iterator of each part, to be used up before the next: uint8
      `[n, row_bytes]`.
    """
    parts = parts_of(chains)
    for part in range(skipped):
        progress(bytes_of(chains, (part, parts)))
    for part in range(skipped, parts):
        yield _merged(chains, whole, by, progress, (part, parts))


def longest(whole: Sequence[SavedRows]) -> int:
    """Which table has made most steps of dense Adam, at which all go on."""
    return max(range(len(whole)), key=lambda n: whole[n].clocks.steps)


def _at_step(steps: int, saved: SavedRows, rows: Rows) -> Rows:
    """Rows whose moments are as of a step of dense Adam."""
    if not saved.moves or saved.clocks.steps == steps:
        return rows
    factors = adam_steps.factors(saved.config, steps, saved.clocks.steps)
    rows = rows.copy()
    for field in saved.fields:
        if field.name in factors:
            values = row_values.get(rows, field) * factors[field.name]
            row_values.put(rows, field, values)
    return rows


def bytes_of(chains: Sequence[Chain], part: tuple[int, int]) -> int:
    """The bytes that are read to merge a part."""
    return sum(
        file.bytes
        for chain in chains
        for _, manifest in chain
        for file in files_of(manifest, part)
    )


def _merged(
    chains: Sequence[Chain],
    whole: Sequence[SavedRows],
    by: str,
    progress: Progress,
    part: tuple[int, int],
) -> Iterator[Rows]:
    fields = chains[0][-1][1].fields
    reduce = {PRIORITY: _first, MEAN: _mean, SHOW: _most_shown}[by]
    found = []
    steps = whole[longest(whole)].clocks.steps
    for chain, saved in zip(chains, whole, strict=True):
        for rows in latest_rows(chain, progress, part=part):
            # RowMapping says how far they have been shrunk.
            found.append(_at_step(steps, saved, saved(rows)))
    if sum(map(len, found)) == 0:
        return
    rows = np.concatenate(found)
    del found
    # Stable, so that the first of a sign's rows is that of the first table.
    order = np.argsort(signs_of(rows), kind="stable")
    signs = signs_of(rows)[order]
    first = np.flatnonzero(np.r_[True, signs[1:] != signs[:-1]])
    for begin in range(0, len(first), _ROWS_AT_ONCE):
        end = begin + _ROWS_AT_ONCE
        upto = first[end] if end < len(first) else len(order)
        some = rows[order[first[begin] : upto]]
        yield reduce(some, first[begin:end] - first[begin], fields)


_Starts = npt.NDArray[np.int64]


def _first(rows: Rows, starts: _Starts, fields: Sequence[RowField]) -> Rows:
    del fields
    return rows[starts]


def _most_shown(
    rows: Rows, starts: _Starts, fields: Sequence[RowField]
) -> Rows:
    [show] = [field for field in fields if field.name == SHOW]
    shown = row_values.get(rows, show)[:, 0]
    group = np.zeros(len(rows), np.int64)
    group[starts[1:]] = 1
    # Of equally shown ones, the one of the first table.
    order = np.lexsort((np.arange(len(rows)), -shown, np.cumsum(group)))
    return rows[order[starts]]


def _mean(rows: Rows, starts: _Starts, fields: Sequence[RowField]) -> Rows:
    """Means of floats; sums of statistics; the latest of steps and times."""
    made = rows[starts].copy()
    counts = np.diff(np.r_[starts, len(rows)])
    several = np.flatnonzero(counts > 1)
    if not len(several):
        return made
    of_several = np.repeat(counts > 1, counts)
    rows, counts = rows[of_several], counts[several]
    starts = np.r_[0, np.cumsum(counts)[:-1]]
    changed = made[several]
    for field in fields[1:]:
        values = row_values.get(rows, field)
        if field.name == _core.SHRUNK_FIELD:
            values = np.ascontiguousarray(values).view("<i8")
            values = np.maximum.reduceat(values, starts).view("<i4")
        elif field.dtype == "int32":
            values = np.maximum.reduceat(values, starts)
        else:
            values = np.add.reduceat(values.astype(np.float64), starts)
            if field.name not in ("show", "click"):
                values /= counts[:, np.newaxis]
        row_values.put(changed, field, values)
    made[several] = changed
    return made
