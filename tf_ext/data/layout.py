# SPDX-License-Identifier: Apache-2.0
"""The tensors of records, and the batches that are cut from them.

The dense fields of a type are one matrix, and strings are bytes and offsets
until a batch is made of them: a string is copied into a tensor once.
"""

import typing
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext.data.field import DTYPES, WEIGHT_SUFFIX, Field
from tf_ext.data.part_hashing import ANY, AT_MOST_ONE, Entry, PartHasher
from tf_ext.data.parts import Part, Values, decoded, text_of
from tf_ext.data.schema import Schema
from tf_ext.feature_column.hashed_features import KEY
from tf_ext.ops.bags import text_ops


class Layout:
    """Where in a list of tensors the fields of a Part are.

    Args:
      schema: Schema.
      hasher: PartHasher, which has hashed the Parts; or None.

    Attributes:
      signature: list of `tf.TensorSpec` of the tensors.
    """

    def __init__(
        self, schema: Schema, hasher: PartHasher | None = None
    ) -> None:
        self._schema = schema
        self._entries = () if hasher is None else hasher.entries
        self._dense: dict[str, list[Field]] = {}
        # By entry, the names of matrices.
        self._matrices: list[tuple[str, tf.DType, int]] = []
        self._bags: list[tuple[str, str]] = []
        left_out = frozenset() if hasher is None else hasher.replaced
        self._fields = [f for f in schema.used if f.name not in left_out]
        if self._entries and KEY in [field.name for field in self._fields]:
            raise ValueError(
                f"The schema has a field {KEY!r}, which is where a batch has "
                "its hashed columns. Give the field another name."
            )
        for field in self._fields:
            if not field.bag:
                self._dense.setdefault(field.dtype, []).append(field)
                continue
            self._bags.append((field.name, field.dtype))
        self._bags += [
            (field.name + WEIGHT_SUFFIX, "float32")
            for field in schema.used
            if field.weight_separator is not None
            and field.name + WEIGHT_SUFFIX not in left_out
        ]
        for entry in self._entries:
            if entry.kind == ANY:
                self._bags.append((entry.signs, "int64"))
                if entry.is_weighted:
                    self._bags.append((entry.weights, "float32"))
                continue
            count = len(entry.columns)
            self._matrices.append((entry.signs, tf.int64, count))
            if entry.kind == AT_MOST_ONE:
                self._matrices.append((entry.present, tf.bool, count))
        self.signature: list[tf.TensorSpec] = []
        for dtype, fields in self._dense.items():
            self._add(dtype, len(fields))
        for _, kind, count in self._matrices:
            self.signature.append(tf.TensorSpec([None, count], kind))
        for _, dtype in self._bags:
            self._add(dtype, 1)
            self.signature.append(tf.TensorSpec([None], tf.int64))

    def _add(self, dtype: str, columns: int) -> None:
        if dtype == "string":
            self.signature.append(tf.TensorSpec([None], tf.uint8))
            self.signature.append(tf.TensorSpec([columns, None], tf.int64))
        else:
            self.signature.append(tf.TensorSpec([None, columns], DTYPES[dtype]))

    def tensors(self, part: Part) -> list[npt.NDArray[typing.Any]]:
        """A Part as arrays of `signature`."""
        arrays = []
        for fields in self._dense.values():
            arrays += _matrix([part.dense[field.name] for field in fields])
        arrays += [part.dense[name] for name, _, _ in self._matrices]
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
        for name, _, _ in self._matrices:
            values[name] = tf.gather(next(left), rows)
        for name, dtype in self._bags:
            own = [next(left) for _ in range(3 if dtype == "string" else 2)]
            if dtype != "string":
                values[name] = tf.gather(_ragged(own[0][:, 0], own[1]), rows)
                continue
            size = tf.gather(own[-1], tf.size(own[-1]) - 1)
            places = tf.gather(_ragged(tf.range(size), own[-1]), rows)
            [flat] = _gathered(dtype, iter(own), places.values, 1)
            values[name] = places.with_values(flat)
        hashed = {e.key: self._entry(e, values) for e in self._entries}
        names = [field.name for field in self._fields]
        names += [name for name in values if name not in names]
        found = self._schema.split({name: values[name] for name in names})
        if hashed:
            features = found[0] if isinstance(found, tuple) else found
            features[KEY] = hashed
        return found

    def _entry(
        self, entry: Entry, values: dict[str, typing.Any]
    ) -> dict[str, typing.Any]:
        """Takes the tensors of an entry out of `values`."""
        found = {"signs": values.pop(entry.signs)}
        if entry.kind == AT_MOST_ONE:
            found["present"] = values.pop(entry.present)
        if entry.is_weighted:
            found["weights"] = values.pop(entry.weights)
        return found


def _matrix(columns: list[Values]) -> list[npt.NDArray[typing.Any]]:
    """Columns of a type as one matrix, of strings as text and offsets."""
    if isinstance(columns[0], np.ndarray):
        # By row: TensorFlow gathers rows many times as fast as single numbers.
        return [np.stack(columns, axis=1)]
    texts = []
    offsets = np.zeros([len(columns), len(columns[0]) + 1], np.int64)
    position = 0
    for of_column, column in zip(offsets, columns, strict=True):
        ends, text = text_of(decoded(column))
        texts.append(text[ends[0] : ends[-1]])
        of_column[:] = ends  # int64 from here on, as the sum of all texts is.
        of_column += position - int(ends[0])
        position = int(of_column[-1])
    return [np.concatenate(texts), offsets]


def _gathered(
    dtype: str, tensors: typing.Any, rows: tf.Tensor, count: int
) -> list[tf.Tensor]:
    if dtype == "string":
        text, offsets = next(tensors), next(tensors)
        return text_ops.strings_of_columns(text, offsets, rows, count)
    return tf.unstack(tf.gather(next(tensors), rows), count, axis=1)


def _ragged(values: tf.Tensor, splits: tf.Tensor) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)
