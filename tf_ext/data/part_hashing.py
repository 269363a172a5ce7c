# SPDX-License-Identifier: Apache-2.0
"""Hashing of records where they were parsed, without tensors of strings.

Columns of features that TensorFlow's own operations convert, and those whose
output depends on the batch, are left to it.
"""

import dataclasses
import typing
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext import _core
from tf_ext.data.field import DTYPES, WEIGHT_SUFFIX, Field
from tf_ext.data.parts import Bag, Part, text_of
from tf_ext.data.schema import Schema
from tf_ext.feature_column.column import Column, describe
from tf_ext.feature_column.hashed_features import (
    KEY,
    identity_of,
    key_of,
    keys_read,
)
from tf_ext.feature_column.part import Part as ColumnPart

try:
    import pyarrow as pa
except ImportError:
    pa = None

# How many signs a column has of a record.
ONE, AT_MOST_ONE, ANY = range(3)
_CONVERSIONS = ("relate", "convert", "converted_type", "type_of_absent")
# What an entry is called among the arrays of a Part.
_SIGNS = f"{KEY}:"
_PRESENT = f"{KEY} present:"
_WEIGHTS = f"{KEY} weights:"


class Entry(typing.NamedTuple):
    """Columns that share an entry of hashed features.

    Attributes:
      columns: list of Column, several only if none has more than one value.
      kind: ONE, AT_MOST_ONE or ANY.
      is_weighted: bool.
    """

    columns: Sequence[Column]
    kind: int
    is_weighted: bool

    @property
    def key(self) -> str:
        """Its key among the hashed features."""
        return key_of(self.columns)

    @property
    def signs(self) -> str:
        """The name of its signs in a Part."""
        return _SIGNS + self.key

    @property
    def present(self) -> str:
        """The name of what says in a Part which signs there are."""
        return _PRESENT + self.key

    @property
    def weights(self) -> str:
        """The name of its weights in a Part."""
        return _WEIGHTS + self.key


class PartHasher:
    """Hashes the records of a schema.

    Args:
      schema: Schema.
      columns: list of Column, whose identities differ.
      keep: keys of features that stay.

    Attributes:
      entries: list of Entry, of the columns that it hashes.
      others: list of the other columns.
      replaced: frozenset of the fields that are gone, and of their weights.
    """

    def __init__(
        self, schema: Schema, columns: Sequence[Column], keep: Collection[str]
    ) -> None:
        fields = {field.name: field for field in schema.features}
        counts = {column: _count_of(column, fields) for column in columns}
        self.others = [c for c, count in counts.items() if count is None]
        shared = {
            count: [
                c
                for c, its in counts.items()
                if its == count and not c.is_weighted
            ]
            for count in (ONE, AT_MOST_ONE)
        }
        self.entries = [
            Entry(some, count, False) for count, some in shared.items() if some
        ]
        self.entries += [
            Entry([column], ANY, column.is_weighted)
            for column, count in counts.items()
            if count == ANY or (count is not None and column.is_weighted)
        ]
        ones = [entry for entry in self.entries if entry.kind == ONE]
        several = [entry for entry in self.entries if entry.kind != ONE]
        self._ones = _Hasher(ones, fields) if ones else None
        self._several = _Hasher(several, fields) if several else None
        hashed = [column for entry in self.entries for column in entry.columns]
        self.replaced = frozenset(_read_by(hashed)).difference(
            _read_by(self.others), keep
        )

    def __call__(self, part: Part) -> Part:
        """A Part with the signs of its records."""
        gone = self.replaced
        dense = {k: v for k, v in part.dense.items() if k not in gone}
        bags = {k: v for k, v in part.bags.items() if k not in gone}
        if self._ones is not None:
            [entry] = self._ones.entries
            dense[entry.signs] = self._ones.rows(part)
        if self._several is not None:
            self._several.add(part, dense, bags)
        return Part(part.rows, dense, bags)


class _Hasher:
    """Hashes the columns of entries."""

    def __init__(
        self, entries: Sequence[Entry], fields: dict[str, Field]
    ) -> None:
        self.entries = entries
        columns = [column for entry in entries for column in entry.columns]
        sources = {
            _source(part, fields[part.key])
            for column in columns
            for part in column.parts
        }
        self._sources = sorted(sources, key=str)
        self._names = [source.name for source in self._sources]
        place_of = {source: i for i, source in enumerate(self._sources)}
        self._columns = _core.HashedColumns(
            [_described(column, fields, place_of) for column in columns]
        )

    def rows(self, part: Part) -> npt.NDArray[np.int64]:
        """The signs of columns that have one of each record, `[rows, n]`."""
        values = [source.read(part).values for source in self._sources]
        return self._columns.hash_rows(self._names, values, part.rows)

    def add(
        self, part: Part, dense: dict[str, typing.Any], bags: dict[str, Bag]
    ) -> None:
        """Adds the signs of columns of any number."""
        inputs = [source.read(part) for source in self._sources]
        signs, splits, weights = self._columns.hash(
            self._names,
            [one.values for one in inputs],
            [one.splits for one in inputs],
            [one.weights for one in inputs],
            part.rows,
        )
        first = 0
        for entry in self.entries:
            last = first + len(entry.columns) * part.rows
            begin, end = splits[first], splits[last]
            own, ends = signs[begin:end], splits[first : last + 1] - begin
            if entry.kind == AT_MOST_ONE:
                present = np.diff(ends) > 0
                matrix = np.zeros(len(present), np.int64)
                matrix[present] = own
                for name, flat in (
                    (entry.signs, matrix),
                    (entry.present, present),
                ):
                    shaped = flat.reshape(len(entry.columns), part.rows)
                    dense[name] = np.ascontiguousarray(shaped.T)
            else:
                bags[entry.signs] = Bag(own, ends)
            if entry.is_weighted:
                bags[entry.weights] = Bag(weights[begin:end], ends)
            first = last


def _read_by(columns: Sequence[Column]) -> set[str]:
    return set().union(*(keys_read(identity_of(one)) for one in columns))


class _Values(typing.NamedTuple):
    values: typing.Any
    splits: npt.NDArray[np.int64] | None
    weights: npt.NDArray[np.float32] | None


@dataclasses.dataclass(frozen=True)
class _Source:
    """A field that columns read, as the core takes it.

    Attributes:
      key: string, the name of the field.
      weights: string, the field of its weights; or None.
      dtype: string, of what is hashed: "string", "int64" or "float32".
    """

    key: str
    weights: str | None
    dtype: str

    @property
    def name(self) -> str:
        """The name for messages."""
        return f"The feature {self.key!r}"

    def read(self, part: Part) -> _Values:
        """The values of a Part."""
        splits, weights = None, None
        if self.key in part.bags:
            values, splits = part.bags[self.key]
        else:
            values = part.dense[self.key]
        if self.weights in part.bags:
            weights = part.bags[self.weights].values
        elif self.weights is not None:
            weights = part.dense[self.weights]
        return _Values(self._converted(values), splits, weights)

    def _converted(self, values: typing.Any) -> typing.Any:
        if self.dtype != "string":
            if self.dtype == "int64" and values.dtype == np.uint64:
                return values.view(np.int64)  # A sign of the same bits.
            return values.astype(self.dtype, copy=False)
        if isinstance(values, np.ndarray):
            values = pa.array(values).cast(pa.string())
        if pa.types.is_dictionary(values.type):
            return *text_of(values.dictionary), values.indices.to_numpy()
        return text_of(values)


def _source(part: ColumnPart, field: Field) -> _Source:
    """What a part of a column reads; `Part.convert` has the same types."""
    dtype = DTYPES[field.dtype]
    if dtype == tf.uint64:
        dtype = part.type_of_absent()
    name = "int64" if dtype == tf.int32 else dtype.name
    return _Source(field.name, part.weights, name)


def _count_of(column: Column, fields: dict[str, Field]) -> int | None:
    """ONE, AT_MOST_ONE or ANY; None of a column that is left to TensorFlow."""
    if column.sequence is not None:
        return None
    counts = [_count_of_part(part, fields) for part in column.parts]
    known = [count for count in counts if count is not None]
    # Signs of a product of bags take far more memory than the bags.
    if len(known) < len(counts) or counts.count(ANY) > 1:
        return None
    return max(known)


def _count_of_part(part: ColumnPart, fields: dict[str, Field]) -> int | None:
    if part.key not in fields or any(
        getattr(type(part), name) is not getattr(ColumnPart, name)
        for name in _CONVERSIONS
    ):
        return None
    field = fields[part.key]
    if part.weights is not None:
        is_own = part.weights == part.key + WEIGHT_SUFFIX
        if field.bag:
            # The lengths of other bags may differ.
            is_aligned = is_own and (
                part.weights not in fields or fields[part.weights].bag
            )
        else:
            weights = fields.get(part.weights)
            is_aligned = weights is not None and not weights.bag
        if not is_aligned:
            return None
    if field.bag:
        return ANY
    is_float = _source(part, field).dtype == "float32"
    # NaN is no value.
    can_miss = part.missing is not None or is_float
    return AT_MOST_ONE if can_miss else ONE


def _described(
    column: Column, fields: dict[str, Field], place_of: dict[_Source, int]
) -> tuple[typing.Any, ...]:
    """A column as `_core.HashedColumns` takes it."""
    sources = [_source(part, fields[part.key]) for part in column.parts]
    of_op = describe([column], [place_of[source] for source in sources])
    boundaries = iter(of_op["part_boundaries"])
    parts = [
        (
            place,
            bucket_size,
            missing if has_missing else None,
            [next(boundaries) for _ in range(count)],
        )
        for place, bucket_size, has_missing, missing, count in zip(
            of_op["part_inputs"],
            of_op["part_bucket_sizes"],
            of_op["part_has_missing"],
            of_op["part_missing"],
            of_op["part_boundary_counts"],
            strict=True,
        )
    ]
    [namespace], [size] = of_op["namespaces"], of_op["bucket_sizes"]
    [identity] = of_op["identity"]
    return namespace, size, identity, parts


def features_of(schema: Schema) -> dict[str, typing.Any]:
    """The specs of all features of a schema, by key."""
    specs: dict[str, typing.Any] = {}
    for field in schema.used:
        dtype = DTYPES[field.dtype]
        specs[field.name] = (
            tf.RaggedTensorSpec([None, None], dtype)
            if field.bag
            else tf.TensorSpec([None], dtype)
        )
        if field.weight_separator is not None:
            specs[field.name + WEIGHT_SUFFIX] = tf.RaggedTensorSpec(
                [None, None], tf.float32
            )
    found = schema.split(specs)
    return found[0] if isinstance(found, tuple) else found
