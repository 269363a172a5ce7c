# SPDX-License-Identifier: Apache-2.0
"""What deltas change: the last row of each sign, and what was erased."""

import typing
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tf_ext import _core
from tf_ext.snapshot.files import (
    Chain,
    Progress,
    no_progress,
    read_base,
    read_changes,
    read_chunks,
)
from tf_ext.snapshot.manifest import DamagedSnapshotError, Manifest
from tf_ext.snapshot.reader import (
    field_values,
    latest_rows,
    row_dtype,
    signs_of,
)

_NONE = np.empty(0, np.int64)


class Changes(typing.NamedTuple):
    """A part of the changes of some deltas.

    Attributes:
      signs: int64 `[n]`, of rows that were inserted or updated.
      weights: `[n, dim]`, of their dtype; float32 for bfloat16.
      erased: int64 `[m]`, signs without a row, which may not have had one.
    """

    signs: npt.NDArray[np.int64]
    weights: npt.NDArray[typing.Any]
    erased: npt.NDArray[np.int64]


def changes_of(
    deltas: Chain, progress: Progress = no_progress
) -> Iterator[Changes]:
    """Reads what consecutive deltas change, each sign once.

    In memory are a chunk and a set of all signs, 11 to 22 bytes per sign.

    Args:
      deltas: list of `(path, Manifest)`, in the order of their application.
      progress: function that is called with the bytes of each chunk.

    Yields:
      Changes.

    Raises:
      DamagedSnapshotError: if a file is damaged, at the latest after its last
        part; names file and byte.
    """
    settled = _core.SignSet()
    for path, manifest in reversed(deltas):
        for file in manifest.files:
            for chunk in read_chunks(path, manifest, file, progress, True):
                after = _unsettled(settled, chunk.erased_after)
                new = settled.add_from_the_end(signs_of(chunk.rows))
                before = _unsettled(settled, chunk.erased_before)
                signs, weights = _weights(manifest, chunk.rows[new])
                yield Changes(signs, weights, np.concatenate([before, after]))


def all_of(chain: Chain, progress: Progress = no_progress) -> Iterator[Changes]:
    """Reads all rows of a chain, from its full snapshot on, each sign once.

    Args:
      chain: list of `(path, Manifest)`.
      progress: see `changes_of`.

    Yields:
      Changes, without erased signs.

    Raises:
      DamagedSnapshotError: see `changes_of`.
    """
    for rows in latest_rows(chain, progress):
        yield Changes(*_weights(chain[-1][1], rows), _NONE)


def deltas_since(chain: Chain, held: str | None) -> Chain | None:
    """The deltas of a chain behind one of its snapshots.

    If the snapshot is of the chain before, they begin with deltas of that,
    which have been read as a whole, so that damage in what the chain does not
    need hinders nobody.

    Args:
      chain: list of `(path, Manifest)`, starting with the full snapshot.
      held: string, the id of a snapshot; None for none.

    Returns:
      List of `(path, Manifest)`, or None if they do not go back to it.
    """
    links: Sequence[tuple[str, Manifest]] = list(chain)
    for index, (_, manifest) in enumerate(links):
        if manifest.id == held:
            return links[index + 1 :]
    before = _deltas_to(*links[0], held) if held else None
    return None if before is None else [*before, *links[1:]]


def _deltas_to(path: str, manifest: Manifest, held: str) -> Chain | None:
    """The deltas from an earlier snapshot to a full one."""
    links: list[tuple[str, Manifest]] = []
    base = ("", "")
    begun: set[str] = set()  # Such that a circle of chains is found.
    try:
        while base[1] != held:
            if links:
                path, manifest = read_base(*links[0])
            if manifest.base is None:
                found = read_changes(path, manifest)
                if found is None or manifest.id in begun:
                    return None
                begun.add(manifest.id)
                path, manifest = found
            links.insert(0, (path, manifest))
            base = manifest.base or base
        for path, manifest in links:
            for file in manifest.files:
                for _ in read_chunks(path, manifest, file, no_progress):
                    pass
    except (OSError, DamagedSnapshotError):
        return None
    return links


def _unsettled(
    settled: typing.Any, signs: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Those of the signs that were not settled, which they are from now on."""
    return signs[settled.add_from_the_end(signs)]


def _weights(
    manifest: Manifest, rows: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[typing.Any]]:
    table = np.ascontiguousarray(rows).view(row_dtype(manifest))[:, 0]
    dtype = manifest.fields[1].dtype
    return (
        np.ascontiguousarray(table["sign"]),
        field_values(table["weights"], dtype),
    )
