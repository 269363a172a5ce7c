# SPDX-License-Identifier: Apache-2.0
"""The rows of one version: in a sink that finds rows, or in memory."""

import abc
import pathlib
import typing
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from tf_ext._sorted import find_sorted
from tf_ext.serving.lookups.features import Array, Signs
from tf_ext.serving.sinks import row_bytes
from tf_ext.serving.sinks.sink import FoundRows, Manifest, Rows, Sink
from tf_ext.snapshot import parquet as row_groups

_SUFFIX = ".parquet"

# Signs, and rows or weights of each.
Parts: typing.TypeAlias = Iterator[tuple[Signs, Array]]


class RowStore(abc.ABC):
    """Rows of a version, as bytes."""

    @abc.abstractmethod
    def find(self, signs: Mapping[str, Signs]) -> dict[str, FoundRows]:
        """Finds rows of tables, in one round trip; see `Sink.find_rows`."""


class SinkRows(RowStore):
    """The rows of a version that a sink finds."""

    def __init__(self, sink: Sink, manifest: Manifest) -> None:
        self._sink, self._manifest = sink, manifest

    def find(self, signs: Mapping[str, Signs]) -> dict[str, FoundRows]:
        return self._sink.find_rows(self._manifest, signs)


class MemoryRows(RowStore):
    """Rows in memory.

    Args:
      parts: dict from tables to iterables of `(signs [n], rows [n, width])`,
        each sign once.
    """

    def __init__(
        self, parts: Mapping[str, Iterable[tuple[Signs, Array]]]
    ) -> None:
        self._tables = {name: _sorted(its) for name, its in parts.items()}

    def find(self, signs: Mapping[str, Signs]) -> dict[str, FoundRows]:
        found = {}
        for name, wanted in signs.items():
            known, rows = self._tables[name]
            places, there = find_sorted(known, wanted)
            found[name] = FoundRows(rows[places[there]], there)
        return found


def _sorted(parts: Iterable[tuple[Signs, Array]]) -> tuple[Signs, Rows]:
    """The signs in ascending order, and their rows."""
    read = list(parts)
    if not read:
        return np.zeros(0, np.int64), np.zeros([0, 0], np.uint8)
    signs = np.concatenate([part[0] for part in read])
    order = np.argsort(signs)
    rows = np.concatenate([part[1] for part in read])
    del read
    return signs[order], rows[order]


def rows_of_sink(sink: Sink, manifest: Manifest) -> RowStore:
    """The rows of a version, in memory if the sink cannot find some."""
    if type(sink).find_rows is not Sink.find_rows:
        return SinkRows(sink, manifest)
    names = [table_name(about) for about in manifest["tables"]]
    version = manifest["version"]
    return MemoryRows({n: sink.read_rows(version, n) for n in names})


def rows_of_split(folder: pathlib.Path, manifest: Manifest) -> RowStore:
    """The rows of a version of `export_split`, in memory."""

    def parts(about: Mapping[str, typing.Any]) -> Parts:
        for signs, weights in read_split_rows(folder, about):
            yield signs, row_bytes.encode(weights, "float32", "")

    return MemoryRows({table_name(t): parts(t) for t in manifest["tables"]})


def read_split_rows(
    folder: pathlib.Path, about: Mapping[str, typing.Any]
) -> Parts:
    """Reads the rows of a table of a split export.

    Args:
      folder: pathlib.Path of the version.
      about: dict, what the manifest says of the table.

    Yields:
      `(signs int64 [n], weights float32 [n, dim])`.
    """
    _, parquet = row_groups.import_pyarrow()
    with parquet.ParquetFile(folder / about["file"]) as file:
        for batch in file.iter_batches():
            vectors = batch["vector"].flatten().to_numpy()
            yield (
                batch["sign"].to_numpy(),
                vectors.reshape(len(batch), about["dim"]),
            )


def table_name(about: Mapping[str, typing.Any]) -> str:
    """What a sink calls the table that a manifest describes."""
    return str(about["file"]).removesuffix(_SUFFIX)
