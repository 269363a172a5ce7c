"""Records as few flat tensors, which batches are cut from.

A Part has the dense fields of a type in one matrix, so that a batch is a slice
for each type rather than for each field.
"""

import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext.data.schema import DTYPES, WEIGHT_SUFFIX, Field, Schema


class Part(typing.NamedTuple):
    """Well-formed records.

    rows: their number; tensors: as `Layout` orders them.
    """

    rows: int
    tensors: list[tf.Tensor]


class Layout:
    """Where the tensors of a Part are.

    Attributes:
      dense: dict from types to lists of the dense Fields of that type: a matrix
        `[fields, rows]` each.
      bags: list of `(name, dtype)`: values and int64 row splits each.
      dtypes: list of tf.DType of all tensors.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.dense: dict[str, list[Field]] = {}
        self.bags: list[tuple[str, str]] = []
        for field in schema.used:
            if not field.bag:
                self.dense.setdefault(field.dtype, []).append(field)
                continue
            self.bags.append((field.name, field.dtype))
            if field.weight_separator is not None:
                self.bags.append((field.name + WEIGHT_SUFFIX, "float32"))
        self.dtypes = [DTYPES[dtype] for dtype in self.dense]
        for _, dtype in self.bags:
            self.dtypes += [DTYPES[dtype], tf.int64]

    def set_shapes(self, tensors: Sequence[tf.Tensor]) -> None:
        """Sets the static shapes of tensors from Python."""
        fields = [len(fields) for fields in self.dense.values()]
        for index, tensor in enumerate(tensors):
            is_dense = index < len(fields)
            tensor.set_shape([fields[index], None] if is_dense else [None])

    def part(
        self,
        rows: int,
        dense: dict[str, tf.Tensor],
        bags: dict[str, tuple[tf.Tensor, tf.Tensor]],
    ) -> Part:
        """A Part of matrices by type, and of `(values, splits)` by name."""
        tensors = [dense[dtype] for dtype in self.dense]
        for name, _ in self.bags:
            tensors += bags[name]
        return Part(rows, tensors)

    def batch(
        self, tensors: Sequence[tf.Tensor], rows: tf.Tensor | slice
    ) -> typing.Any:
        """Some rows of a Part, as an element of the dataset.

        Args:
          tensors: those of a Part.
          rows: a slice, or int64 `[n]`, the indices.
        """
        values = {}
        left = iter(tensors)
        for fields in self.dense.values():
            matrix = _columns(next(left), rows)
            for field, column in zip(
                fields, tf.unstack(matrix, len(fields)), strict=True
            ):
                values[field.name] = column
        for name, _ in self.bags:
            bag = _ragged(next(left), next(left))
            is_slice = isinstance(rows, slice)
            values[name] = bag[rows] if is_slice else tf.gather(bag, rows)
        names = [field.name for field in self._schema.used]
        names += [name for name in values if name not in names]
        return self._schema.split({name: values[name] for name in names})

    def slice(self, part: Part, begin: int, end: int) -> Part:
        """The rows of a Part from `begin` up to `end`."""
        if (begin, end) == (0, part.rows):
            return part
        left, tensors = iter(part.tensors), []
        for _ in self.dense:
            tensors.append(next(left)[:, begin:end])
        for _ in self.bags:
            bag = _ragged(next(left), next(left))[begin:end]
            tensors += [bag.values, bag.row_splits]
        return Part(end - begin, tensors)

    def concat(self, parts: Sequence[Part]) -> Part:
        """Parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(part.tensors for part in parts), strict=True)
        tensors = [tf.concat(next(columns), 1) for _ in self.dense]
        for _ in self.bags:
            bags = map(_ragged, next(columns), next(columns))
            bag = tf.concat(list(bags), 0)
            tensors += [bag.values, bag.row_splits]
        return Part(sum(part.rows for part in parts), tensors)


def _columns(matrix: tf.Tensor, rows: tf.Tensor | slice) -> tf.Tensor:
    if isinstance(rows, slice):
        return matrix[:, rows]
    return tf.gather(matrix, rows, axis=1)


def _ragged(values: tf.Tensor, splits: tf.Tensor) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)
