# SPDX-License-Identifier: Apache-2.0
"""One version of a store, as requests are answered from it."""

import typing
from collections.abc import Mapping

import numpy as np

from tf_ext import _core
from tf_ext._checks import listed
from tf_ext._splits import row_splits
from tf_ext.serving import folder
from tf_ext.serving.lookups import sequences
from tf_ext.serving.lookups.bags import ColumnHasher
from tf_ext.serving.lookups.columns import (
    Column,
    Layout,
    read_column,
)
from tf_ext.serving.lookups.features import (
    Array,
    Feature,
    Signs,
    read_feature,
)
from tf_ext.serving.lookups.row_store import RowStore
from tf_ext.serving.lookups.tables import Table, find_weights, read_tables
from tf_ext.serving.sinks.sink import Manifest, SinkError

_KINDS = ("published", "split")


class Embedding(typing.NamedTuple):
    """An input of the dense part.

    Attributes:
      input: string, its name.
      mask: string, the name of the input with the mask; or None.
      row_splits: string, the name of the input with row splits; or None.
      column: Column.
      table: string, the name of the table.
      features: dict from the keys that the column reads to the names of the
        features in requests.
    """

    input: str
    mask: str | None
    row_splits: str | None
    column: Column
    table: str
    features: dict[str, str]


class _Bags(typing.NamedTuple):
    """The bags of a column whose rows are combined.

    Attributes:
      about: Embedding.
      signs: int64 `[m]`.
      row_splits: int64 `[batch_size + 1]`.
      weights: float32 `[m]`, or None.
    """

    about: Embedding
    signs: Signs
    row_splits: Signs
    weights: Array | None

    def outputs(self, rows: Array, inverse: Array) -> dict[str, Array]:
        """The inputs of the dense part."""
        combined = _core.combine_bags(
            rows,
            inverse,
            self.row_splits,
            self.weights,
            [self.about.column.combiner],
        )
        return {self.about.input: combined}


class _Positions(typing.NamedTuple):
    """The positions of a sequence.

    Attributes:
      about: Embedding.
      layout: Layout.
      kept: sequences.Kept.
    """

    about: Embedding
    layout: Layout
    kept: sequences.Kept

    @property
    def signs(self) -> Signs:
        """The signs at the positions that have one."""
        return self.kept.signs

    def outputs(self, rows: Array, inverse: Array) -> dict[str, Array]:
        """The inputs of the dense part."""
        about, kept = self.about, self.kept
        placed = sequences.place(self.layout, kept, rows[inverse])
        outputs = {about.input: placed}
        if about.mask:
            outputs[about.mask] = kept.mask
        if about.row_splits:
            outputs[about.row_splits] = row_splits(kept.counts)
        return outputs


class ServedVersion:
    """What a manifest describes, and its rows.

    Args:
      manifest: dict.
      store: RowStore of it.
      where: string, for messages.

    Attributes:
      manifest: dict.
      embeddings: list of Embedding.

    Raises:
      SinkError: the manifest is damaged, or of another format.
    """

    def __init__(self, manifest: Manifest, store: RowStore, where: str) -> None:
        self.manifest = manifest
        self._store = store
        found = manifest.get("format"), manifest.get("kind")
        if found[0] != folder.FORMAT or found[1] not in _KINDS:
            raise SinkError(
                f"{where} is of format {found[0]!r} and kind {found[1]!r}; "
                f"this version of tf_ext reads format {folder.FORMAT} of kinds "
                f"{' and '.join(_KINDS)}."
            )
        try:
            tables = read_tables(manifest)
            self.embeddings = [
                _read_embedding(one, tables) for one in manifest["embeddings"]
            ]
            pooled = [e for e in self.embeddings if not e.column.sequence]
            # The columns of all requests, described to the core once.
            self._pooled, self._hasher = pooled, None
            if pooled:
                columns = [(one.column, one.features) for one in pooled]
                self._hasher = ColumnHasher(columns)
            self._sequences = [
                (one, one.column.sequence, sequences.hasher_of(one.column))
                for one in self.embeddings
                if one.column.sequence
            ]
            self._needed = [
                (
                    [one.features[key] for key in part.keys],
                    part.optional,
                    one.column.name,
                )
                for one in self.embeddings
                for part in one.column.parts
                if part.key in one.features
            ]
            self._ragged = {
                name: about["kind"] != "dense"
                for name, about in manifest.get("features", {}).items()
            }
            _check_computed(manifest, where)
        except (
            AttributeError,
            KeyError,
            OverflowError,
            TypeError,
            ValueError,
        ) as error:
            raise SinkError(f"{where} is damaged: {error!r}.") from None
        self._tables: dict[str, Table] = {t.name: t for t in tables.values()}

    @property
    def widths(self) -> dict[str, int]:
        """The bytes of a row of each table."""
        return {name: table.width for name, table in self._tables.items()}

    def read(self, features: Mapping[str, typing.Any]) -> dict[str, Feature]:
        """The features of a request that columns read.

        Raises:
          ValueError: one is missing, or not as it must be.
        """
        read: dict[str, Feature] = {}
        for its, optional, column in self._needed:
            if optional and its[0] not in features:
                continue
            for name in its:
                if name in read:
                    continue
                if name not in features:
                    raise ValueError(
                        f"The feature {name!r} of column {column!r} is "
                        f"missing. Present are: {listed(features)}."
                    )
                read[name] = read_feature(
                    name, features[name], self._ragged.get(name)
                )
        return read

    def embed(
        self, features: Mapping[str, Feature], batch_size: int
    ) -> dict[str, Array]:
        """The embeddings of columns, as inputs of the dense part.

        Args:
          features: dict of Feature, by name.
          batch_size: int, of all of them.
        """
        read = self._hash(features, batch_size)
        signs: dict[str, list[Signs]] = {}
        for one in read:
            signs.setdefault(one.about.table, []).append(one.signs)
        unique = {
            name: _core.unique(np.concatenate(its))
            for name, its in signs.items()
        }
        weights = find_weights(
            self._store,
            self._tables,
            {name: found for name, (found, _) in unique.items()},
        )
        outputs: dict[str, Array] = {}
        begin = dict.fromkeys(signs, 0)
        for one in read:
            table = one.about.table
            first = begin[table]
            begin[table] += len(one.signs)
            inverse = unique[table][1][first : begin[table]]
            outputs |= one.outputs(weights[table], inverse)
        return outputs

    def _hash(
        self, features: Mapping[str, Feature], batch_size: int
    ) -> list[_Bags | _Positions]:
        read: list[_Bags | _Positions] = []
        for one, layout, hasher in self._sequences:
            its = {
                key: features[name]
                for key, name in one.features.items()
                if name in features
            }
            kept = sequences.keep(one.column, hasher, its, batch_size)
            read.append(_Positions(one, layout, kept))
        if self._hasher is None:
            return read
        bags = self._hasher.hash(features, batch_size)
        splits = bags.row_splits
        for place, one in enumerate(self._pooled):
            first = place * batch_size
            own = splits[first : first + batch_size + 1]
            values = slice(own[0], own[-1])
            weights = None
            if one.column.is_weighted and bags.weights is not None:
                weights = bags.weights[values]
            its_bags = _Bags(one, bags.signs[values], own - own[0], weights)
            read.append(its_bags)
        return read


def _read_embedding(
    about: Mapping[str, typing.Any], tables: Mapping[str, Table]
) -> Embedding:
    column = read_column(about["column"], about["kind"], about["config"])
    if column.combiner is None and column.sequence is None:
        raise ValueError(f"column {column.name!r} has no combiner")
    features = {
        # Where the model computes a feature, it has the name of its key.
        key: key if name is None else name
        for key, name in about["features"].items()
    }
    for part in column.parts:
        absent = [key for key in part.keys if key not in features]
        if absent and not (part.optional and part.key in absent):
            raise ValueError(f"column {column.name!r} reads {absent[0]!r}")
    return Embedding(
        about["input"],
        about.get("mask"),
        about.get("row_splits"),
        column,
        tables[about["file"]].name,
        features,
    )


def _check_computed(manifest: Manifest, where: str) -> None:
    """Raises SinkError for features whose names have two meanings.

    A feature that the model computes is given by its key.
    """
    inputs = {one["of_model"] for one in manifest["inputs"]}
    inputs |= {*manifest.get("features", ())}
    computed: dict[tuple[str, str, str], int] = {}
    for one in manifest["embeddings"]:
        inputs |= {name for name in one["features"].values() if name}
        for key, name in one["features"].items():
            if name is None:
                place = (key, one["file"], one["column"])
                computed[place] = computed.get(place, 0) + 1
    for (key, _, column), count in computed.items():
        if key in inputs or count > 1:
            raise SinkError(
                f"Column {column!r} of {where} reads a feature {key!r} that "
                "the model computes, and which is not the only one of that "
                "name: rename it in the model."
            )
