# SPDX-License-Identifier: Apache-2.0
"""Records as few flat arrays, and the batches that are cut from them.

The dense fields of a type are one matrix, and strings are bytes and offsets
until a batch is made of them: a string is copied into a tensor once.
"""

import dataclasses
import typing
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext._splits import row_splits
from tf_ext.data.errors import Malformed
from tf_ext.data.field import DTYPES, WEIGHT_SUFFIX, Field
from tf_ext.data.schema import Schema
from tf_ext.ops.bags import text_ops

try:
    import pyarrow as pa
except ImportError:
    pa = None

# Numbers, or an array of Arrow of bytes.
Values: typing.TypeAlias = typing.Any


class Bag(typing.NamedTuple):
    """The values of all rows, one after the other, and int64 row splits."""

    values: Values
    splits: npt.NDArray[np.int64]


@dataclasses.dataclass
class Part:
    """Well-formed records.

    Attributes:
      rows: int, their number.
      dense: dict from names to values.
      bags: dict from names to Bags.
    """

    rows: int
    dense: dict[str, Values]
    bags: dict[str, Bag]

    def slice(self, begin: int, end: int) -> "Part":
        """The rows from `begin` up to `end`."""
        if (begin, end) == (0, self.rows):
            return self
        bags = {}
        for name, (values, splits) in self.bags.items():
            some = splits[begin : end + 1]
            bags[name] = Bag(values[some[0] : some[-1]], some - some[0])
        dense = {name: v[begin:end] for name, v in self.dense.items()}
        return Part(end - begin, dense, bags)

    def take(self, rows: npt.NDArray[np.int64]) -> "Part":
        """The given rows, which rise."""
        bags = {}
        for name, (values, splits) in self.bags.items():
            lengths = np.diff(splits)
            is_kept = np.zeros(self.rows, bool)
            is_kept[rows] = True
            places = np.flatnonzero(np.repeat(is_kept, lengths))
            bags[name] = Bag(values.take(places), row_splits(lengths[rows]))
        dense = {name: values.take(rows) for name, values in self.dense.items()}
        return Part(len(rows), dense, bags)


class Parsed(typing.NamedTuple):
    """A block of a file, parsed.

    part: the well-formed records; records: the number of all records;
    malformed: the others; unit: what their numbers are those of.
    """

    part: Part
    records: int
    malformed: list[Malformed]
    unit: str = "line"


def concat(parts: Sequence[Part]) -> Part:
    """Parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    dense = {
        name: _concat([part.dense[name] for part in parts])
        for name in parts[0].dense
    }
    bags = {}
    for name in parts[0].bags:
        of_parts = [part.bags[name] for part in parts]
        lengths = [np.diff(bag.splits) for bag in of_parts]
        bags[name] = Bag(
            _concat([bag.values for bag in of_parts]),
            row_splits(np.concatenate(lengths)),
        )
    return Part(sum(part.rows for part in parts), dense, bags)


def _concat(values: list[Values]) -> Values:
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    return pa.concat_arrays(values)


class Layout:
    """Where in a list of tensors the fields of a Part are.

    Attributes:
      signature: list of `tf.TensorSpec` of the tensors.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._dense: dict[str, list[Field]] = {}
        self._bags: list[tuple[str, str]] = []
        for field in schema.used:
            if not field.bag:
                self._dense.setdefault(field.dtype, []).append(field)
                continue
            self._bags.append((field.name, field.dtype))
            if field.weight_separator is not None:
                self._bags.append((field.name + WEIGHT_SUFFIX, "float32"))
        self.signature: list[tf.TensorSpec] = []
        for dtype, fields in self._dense.items():
            self._add(dtype, [len(fields), None])
        for _, dtype in self._bags:
            self._add(dtype, [1, None])
            self.signature.append(tf.TensorSpec([None], tf.int64))

    def _add(self, dtype: str, shape: list[int | None]) -> None:
        if dtype == "string":
            self.signature.append(tf.TensorSpec([None], tf.uint8))
            dtype = "int64"
        self.signature.append(tf.TensorSpec(shape, DTYPES[dtype]))

    def tensors(self, part: Part) -> list[npt.NDArray[typing.Any]]:
        """A Part as arrays of `signature`."""
        arrays = []
        for fields in self._dense.values():
            arrays += _matrix([part.dense[field.name] for field in fields])
        for name, _ in self._bags:
            bag = part.bags[name]
            arrays += [*_matrix([bag.values]), bag.splits]
        return arrays

    def batch(
        self, tensors: Sequence[tf.Tensor], rows: tf.Tensor
    ) -> typing.Any:
        """Some rows, as an element of the dataset.

        Args:
          tensors: list of tensors of `signature`.
          rows: int64 `[n]`, their indices.
        """
        values: dict[str, typing.Any] = {}
        left = iter(tensors)
        for dtype, fields in self._dense.items():
            columns = _gathered(dtype, left, rows, len(fields))
            for field, column in zip(fields, columns, strict=True):
                values[field.name] = column
        for name, dtype in self._bags:
            own = [next(left) for _ in range(3 if dtype == "string" else 2)]
            size = tf.gather(own[-1], tf.size(own[-1]) - 1)
            places = tf.gather(_ragged(tf.range(size), own[-1]), rows)
            [flat] = _gathered(dtype, iter(own), places.values, 1)
            values[name] = places.with_values(flat)
        names = [field.name for field in self._schema.used]
        names += [name for name in values if name not in names]
        return self._schema.split({name: values[name] for name in names})


def _matrix(columns: list[Values]) -> list[npt.NDArray[typing.Any]]:
    """Columns of a type as one matrix, of strings as text and offsets."""
    if isinstance(columns[0], np.ndarray):
        return [np.stack(columns)]
    texts = []
    offsets = np.zeros([len(columns), len(columns[0]) + 1], np.int64)
    position = 0
    for of_column, column in zip(offsets, columns, strict=True):
        _, ends, text = column.buffers()
        if not len(column):
            continue
        ends = np.frombuffer(ends, np.int32)[column.offset :][: len(column) + 1]
        texts.append(np.frombuffer(text or b"", np.uint8)[ends[0] : ends[-1]])
        np.add(ends, position - int(ends[0]), out=of_column, casting="unsafe")
        position = int(of_column[-1])
    return [np.concatenate(texts or [np.empty(0, np.uint8)]), offsets]


def _gathered(
    dtype: str, tensors: typing.Any, rows: tf.Tensor, count: int
) -> list[tf.Tensor]:
    if dtype == "string":
        text, offsets = next(tensors), next(tensors)
        return text_ops.strings_of_columns(text, offsets, rows, count)
    return tf.unstack(tf.gather(next(tensors), rows, axis=1), count)


def _ragged(values: tf.Tensor, splits: tf.Tensor) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)
