# SPDX-License-Identifier: Apache-2.0
r"""The signs of feature values, with stock ops.

Adjacent columns that differ only in namespace and input are hashed together,
because the time of a graph with many small ops is mostly their overhead.
"""

import itertools
import math
import typing
from collections.abc import Hashable, Sequence

import tensorflow as tf

from tf_ext.ops._stock import inputs as stock_inputs
from tf_ext.ops._stock import parts as stock_parts
from tf_ext.ops._stock import ragged, singles
from tf_ext.ops._stock.checks import check
from tf_ext.ops._stock.inputs import Input
from tf_ext.ops._stock.parts import Part, Values

_NAMESPACE_END = b"\x1f"
_PART_END = "\x1e"
_MOST_SIGNS = 2**31 - 1
_TOO_MANY = (
    f"The batch makes more than {_MOST_SIGNS} signs, the most that one call "
    "can make. Use a smaller batch, or shorter bags in crosses."
)


class Hashed(typing.NamedTuple):
    """The result of `ops.hash_category`."""

    signs: tf.Tensor
    sign_splits: tf.Tensor
    sign_weights: tf.Tensor
    error: tf.Tensor


class Column(typing.NamedTuple):
    """How a column computes signs from its parts."""

    namespace: str
    bucket_size: int
    identity: bool
    parts: Sequence[Part]

    def prefix(self) -> bytes:
        """The prefix of the texts that are hashed."""
        return tf.compat.as_bytes(self.namespace) + _NAMESPACE_END


class _Texts(typing.NamedTuple):
    """The texts to hash for some adjacent columns.

    Attributes:
      texts: string `[m]`, including the namespace; or int64 `[m]`, the signs.
      sizes: int64 `[columns * batch_size]`, the sizes of the bags; None if all
        have `per_bag` values.
      per_bag: int.
      weights: float32 `[m]`, or None.
      columns: int, the number of columns.
    """

    texts: tf.Tensor
    sizes: tf.Tensor | None
    per_bag: int
    weights: tf.Tensor | None
    columns: int = 1

    def bag_sizes(self, batch: tf.Tensor) -> tf.Tensor:
        """The sizes of the bags, int64 `[columns * batch_size]`."""
        if self.sizes is not None:
            return self.sizes
        return tf.fill(
            tf.reshape(self.columns * batch, [1]),
            tf.constant(self.per_bag, tf.int64),
        )


def _columns(
    namespaces: Sequence[str],
    bucket_sizes: Sequence[int],
    identity: Sequence[bool],
    part_counts: Sequence[int],
    part_inputs: Sequence[int],
    part_bucket_sizes: Sequence[int],
    part_has_missing: Sequence[bool],
    part_missing: Sequence[str],
    part_boundary_counts: Sequence[int],
    part_boundaries: Sequence[float],
) -> list[Column]:
    """The columns that the op's attributes describe."""
    boundaries = iter(part_boundaries)
    parts = iter(
        [
            Part(
                place,
                bucket_size,
                text if has_missing else None,
                tuple(itertools.islice(boundaries, count)),
            )
            for place, bucket_size, has_missing, text, count in zip(
                part_inputs,
                part_bucket_sizes,
                part_has_missing,
                part_missing,
                part_boundary_counts,
                strict=True,
            )
        ]
    )
    return [
        Column(
            namespace,
            bucket_size,
            takes_signs,
            list(itertools.islice(parts, count)),
        )
        for namespace, bucket_size, takes_signs, count in zip(
            namespaces, bucket_sizes, identity, part_counts, strict=True
        )
    ]


def hash_category(
    values: Sequence[tf.Tensor],
    row_splits: Sequence[tf.Tensor] | None,
    weights: Sequence[tf.Tensor] | None,
    attributes: dict[str, typing.Any],
    return_error: bool,
    name: str | None,
) -> Hashed:
    """Replaces the op of `ops.hash_category`.

    Args:
      values: as there.
      row_splits: as there.
      weights: as there.
      attributes: dict of the others, all of them.
      return_error: is not used.
      name: as there.

    Returns:
      Hashed. `error` is always "", because invalid inputs raise.

    Raises:
      tf.errors.InvalidArgumentError: if inputs are inconsistent, or a cross
        has more than 2^31 - 1 signs.
    """
    del return_error
    with tf.name_scope(name or "hash_category"):
        inputs = stock_inputs.inputs_of(values, row_splits, weights)
        return _hash(inputs, _columns(**attributes))


def _hash(inputs: list[Input], columns: Sequence[Column]) -> Hashed:
    runs = [
        [column for _, column in run]
        for _, run in itertools.groupby(
            enumerate(columns), lambda item: _run_key(inputs, *item)
        )
    ]
    alike = {column.parts[0].input for run in runs for column in run[1:]}
    alike -= {run[0].parts[0].input for run in runs}
    checks = stock_inputs.check_inputs(inputs, alike)
    with tf.control_dependencies(checks):
        batch = tf.identity(inputs[0].batch_size())
        hasher = _Hasher(inputs, batch)
        found = [
            hasher.of_like_columns(run)
            if len(run) > 1
            else hasher.of_column(run[0])
            for run in runs
        ]
        splits = _splits(found, batch)
    static = inputs[0].static_batch_size()
    if static is not None:
        splits.set_shape([len(columns) * static + 1])
    signs = _signs(found)
    if all(one.sizes is None and one.per_bag == 1 for one in found):
        singles.mark_singles([signs, splits], len(columns))
    return Hashed(signs, splits, _weights(found), tf.constant(""))


def _run_key(inputs: list[Input], place: int, column: Column) -> Hashable:
    """A key that is equal for columns that can be hashed together."""
    first = column.parts[0]
    source = inputs[first.input]
    if (
        len(column.parts) > 1
        or source.per_bag is None
        or source.weights is not None
    ):
        return place
    return (
        source.values.dtype,
        tuple(source.values.shape[1:]),
        first.missing,
        bool(first.boundaries),
        column.bucket_size,
        column.identity,
    )


class _Hasher:
    """Computes the texts of a batch."""

    def __init__(self, inputs: list[Input], batch: tf.Tensor) -> None:
        self._inputs = inputs
        self._batch = batch
        self._read: dict[tuple[int, str | None], Values] = {}

    def _values(self, part: Part) -> Values:
        """The values of a part; each input is read only once."""
        key = part.input, part.missing
        if key not in self._read:
            source = self._inputs[part.input]
            self._read[key] = stock_parts.read(part, source, self._batch)
        return self._read[key]

    def of_like_columns(self, columns: list[Column]) -> _Texts:
        """Texts of columns that differ in namespace, input and boundaries."""
        part = columns[0].parts[0]
        sources = [self._inputs[column.parts[0].input] for column in columns]
        per_bag = typing.cast(int, sources[0].per_bag)
        bags = len(columns) * self._batch
        # The Pack op checks that all inputs have the same batch size.
        values = tf.stack([source.values for source in sources])
        keep = None
        if part.can_drop(values.dtype):
            keep = stock_parts.is_there(part, values)
        if part.boundaries:
            values = tf.stack(
                [
                    stock_parts.numbers_of(c.parts[0].boundaries, s.values)
                    for c, s in zip(columns, sources)
                ]
            )
        if keep is None:
            texts = self._like_texts(columns, values)
            return _Texts(texts, None, per_bag, None, len(columns))
        sizes = tf.reshape(tf.cast(keep, tf.int64), tf.stack([bags, per_bag]))
        places = tf.reshape(tf.where(tf.reshape(keep, [-1])), [-1])
        values = tf.gather(tf.reshape(values, [-1]), places)
        texts = self._like_texts(
            columns, values, places // (self._batch * per_bag)
        )
        return _Texts(texts, tf.reduce_sum(sizes, 1), 0, None, len(columns))

    def _like_texts(
        self,
        columns: list[Column],
        values: tf.Tensor,
        places: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """The texts of values, `[m]`.

        Args:
          columns: list of Column.
          values: the values of all columns, stacked; with `places`, `[m]`.
          places: int64 `[m]`, the index of each value's column, or None.
        """
        if columns[0].identity:
            return tf.reshape(tf.cast(values, tf.int64), [-1])
        texts = stock_parts.texts_of((), columns[0].bucket_size, values)
        prefixes = [column.prefix() for column in columns]
        if places is not None:
            return tf.strings.join([tf.gather(prefixes, places), texts])
        if texts.shape.rank != 2:
            texts = tf.reshape(
                texts, [len(columns), tf.size(texts) // len(columns)]
            )
        # AddV2 does not support strings, and StringJoin does not broadcast.
        prefixes = tf.constant(prefixes)[:, tf.newaxis]
        return tf.reshape(tf.raw_ops.Add(x=prefixes, y=texts), [-1])

    def of_column(self, column: Column) -> _Texts:
        if len(column.parts) > 1:
            return self._of_cross(column)
        [part] = column.parts
        values = self._values(part)
        if column.identity:
            texts = tf.cast(values.values, tf.int64)
        else:
            texts = stock_parts.texts_of(
                part.boundaries, column.bucket_size, values.values
            )
            texts = tf.strings.join([column.prefix(), texts])
        return _Texts(texts, values.sizes, values.per_bag, values.weights)

    def _of_cross(self, column: Column) -> _Texts:
        """Texts of the Cartesian product of the parts' bags."""
        parts = [self._values(part) for part in column.parts]
        texts = [
            stock_parts.texts_of(part.boundaries, part.bucket_size, one.values)
            for part, one in zip(column.parts, parts)
        ]
        weights = [one.weights for one in parts]
        sizes = None
        if any(one.sizes is not None or one.per_bag != 1 for one in parts):
            sizes, places = self._picks(parts)
            texts = list(map(tf.gather, texts, places))
            weights = [
                None if weight is None else tf.gather(weight, place)
                for weight, place in zip(weights, places)
            ]
        joined = tf.strings.join(texts, _PART_END)
        if column.bucket_size:
            joined = stock_parts.bucket_of(joined, column.bucket_size)
        joined = tf.strings.join([column.prefix(), joined])
        return _Texts(joined, sizes, 1, _product(weights))

    def _picks(self, parts: list[Values]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """The Cartesian product of the parts' bags, the last varying fastest.

        Returns:
          `(sizes, places)`: int64 `[batch_size]`, the number of signs of each
          bag; and for each part int64 `[m]`, the indices of its values.
        """
        self._check_known_sizes(parts)
        sizes = [part.bag_sizes(self._batch) for part in parts]
        product = _products(sizes)
        bag, rest = ragged.repeat_and_count(tf.range(self._batch), product)
        places = []
        for part, size in zip(parts[::-1], sizes[::-1]):
            if part.sizes is None and part.per_bag == 1:
                places.append(bag)
                continue
            start = tf.gather(tf.cumsum(size, exclusive=True), bag)
            size = tf.gather(size, bag)
            others = rest // size
            places.append(start + rest - others * size)
            rest = others
        return product, places[::-1]

    def _check_known_sizes(self, parts: list[Values]) -> None:
        """Rejects too many signs if their number is known statically.

        TensorFlow would otherwise fold them into a constant before the check
        runs.
        """
        batch = self._inputs[0].static_batch_size()
        if batch is None or any(part.sizes is not None for part in parts):
            return
        if batch * math.prod(part.per_bag for part in parts) > _MOST_SIGNS:
            raise tf.errors.InvalidArgumentError(None, None, _TOO_MANY)


def _products(sizes: list[tf.Tensor]) -> tf.Tensor:
    """The number of signs of each bag; rejects too many signs."""
    limit = tf.constant(_MOST_SIGNS + 1, tf.int64)
    product = sizes[0]
    for size in sizes[1:]:
        # At most 2^31 times the size of a bag, which cannot overflow.
        product = tf.minimum(product * size, limit)
    fits = check(tf.reduce_sum(product) < limit, _TOO_MANY)
    with tf.control_dependencies(fits):
        return tf.identity(product)


def _product(weights: list[tf.Tensor | None]) -> tf.Tensor | None:
    """The product of the weights that are not None, in the parts' order."""
    product = None
    for weight in weights:
        if weight is not None:
            product = weight if product is None else product * weight
    return product


def _signs(found: list[_Texts]) -> tf.Tensor:
    """The signs of all columns; adjacent texts are hashed with one op."""
    signs = []
    for dtype, run in itertools.groupby(found, lambda one: one.texts.dtype):
        texts = _joined([one.texts for one in run])
        if dtype == tf.string:
            prints = tf.raw_ops.Fingerprint(data=texts, method="farmhash64")
            texts = tf.bitcast(prints, tf.int64)
        signs.append(texts)
    return _joined(signs)


def _splits(found: list[_Texts], batch: tf.Tensor) -> tf.Tensor:
    per_bag = {None if one.sizes is not None else one.per_bag for one in found}
    if len(per_bag) == 1 and None not in per_bag:
        columns = sum(one.columns for one in found)
        return tf.range(columns * batch + 1) * per_bag.pop()
    return ragged.splits_of(_joined([one.bag_sizes(batch) for one in found]))


def _weights(found: list[_Texts]) -> tf.Tensor:
    if all(one.weights is None for one in found):
        return tf.zeros([0], tf.float32)
    return _joined(
        [
            tf.ones(tf.shape(one.texts), tf.float32)
            if one.weights is None
            else one.weights
            for one in found
        ]
    )


def _joined(tensors: list[tf.Tensor]) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, 0)
