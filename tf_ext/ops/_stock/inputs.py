# SPDX-License-Identifier: Apache-2.0
"""The inputs of `ops.hash_category`, checked with stock ops."""

import math
from collections.abc import Collection, Sequence

import tensorflow as tf

from tf_ext.ops._stock.checks import check


class Input:
    """One input: a batch of bags.

    Args:
      values: string, int64, int32 or float32 `[batch_size, ...]`; or `[n]`,
        with row_splits.
      row_splits: int64 `[batch_size + 1]`, or None.
      weights: float32, one for each value, or None.

    Attributes:
      values: the argument.
      row_splits: the argument.
      weights: float32 `[n]`, or None.
      per_bag: int, the number of values in every bag; None if it is not known
        statically or varies.
      sizes: int64 `[batch_size]`, the sizes of the bags according to
        row_splits, set by `check_inputs`; None without row_splits.
    """

    def __init__(
        self,
        values: tf.Tensor,
        row_splits: tf.Tensor | None,
        weights: tf.Tensor | None,
    ) -> None:
        self.values = values
        self.row_splits = row_splits
        self.weights = None if weights is None else tf.reshape(weights, [-1])
        self.sizes: tf.Tensor | None = None
        self.per_bag: int | None = None
        inner = values.shape[1:]
        if row_splits is None and inner.is_fully_defined():
            self.per_bag = math.prod(inner)

    def flat(self) -> tf.Tensor:
        """The values, `[n]`."""
        if self.values.shape.rank == 1:
            return self.values
        return tf.reshape(self.values, [-1])

    def batch_size(self) -> tf.Tensor:
        """The batch size, an int64 scalar."""
        if self.row_splits is not None:
            return tf.size(self.row_splits, tf.int64) - 1
        return tf.shape(self.values, tf.int64)[0]

    def static_batch_size(self) -> int | None:
        """The batch size, or None if it is not known statically."""
        if self.row_splits is None:
            return self.values.shape[0] if self.values.shape.rank else None
        size = self.row_splits.shape[0]
        return None if size is None else size - 1

    def bag_sizes(self, batch: tf.Tensor) -> tf.Tensor:
        """The sizes of the bags, int64 `[batch_size]`."""
        if self.sizes is not None:
            return self.sizes
        if self.per_bag is None:
            per_bag = tf.reduce_prod(tf.shape(self.values, tf.int64)[1:])
        else:
            per_bag = tf.constant(self.per_bag, tf.int64)
        return tf.fill(tf.reshape(batch, [1]), per_bag)


def inputs_of(
    values: Sequence[tf.Tensor],
    row_splits: Sequence[tf.Tensor | None] | None,
    weights: Sequence[tf.Tensor | None] | None,
) -> list[Input]:
    """Makes inputs from the arguments of the op.

    Args:
      values: see the op.
      row_splits: see the op. A vector of unknown static size is assumed not to
        be empty.
      weights: see the op.

    Returns:
      List of Input.
    """

    def there(
        tensors: Sequence[tf.Tensor | None] | None, dtype: tf.DType
    ) -> list[tf.Tensor | None]:
        found = []
        for tensor in tensors or [None] * len(values):
            if tensor is not None:
                tensor = tf.convert_to_tensor(tensor, dtype)
            if tensor is not None and tensor.shape == [0]:
                tensor = None
            found.append(tensor)
        return found

    splits = there(row_splits, tf.int64)
    weighted = there(weights, tf.float32)
    return [
        Input(tf.convert_to_tensor(one), *more)
        for one, *more in zip(values, splits, weighted, strict=True)
    ]


def check_inputs(
    inputs: Sequence[Input], alike: Collection[int]
) -> list[tf.Operation]:
    """Checks that inputs are consistent, and sets the sizes of their bags.

    Args:
      inputs: list of Input.
      alike: the indices of inputs whose batch size is checked by another op.

    Returns:
      List of the ops that raise, empty if everything was checked statically.
    """
    checks = [*_check_splits(inputs), *_check_weights(inputs)]
    # The Pack op of _check_splits compares the batch sizes of all inputs that
    # have row_splits, so one of them is enough.
    distinct = [
        one
        for place, one in enumerate(inputs)
        if one.row_splits is None and place not in alike
    ]
    distinct += [one for one in inputs if one.row_splits is not None][:1]
    static = {one.static_batch_size() for one in distinct}
    if len(distinct) == 1 or (len(static) == 1 and None not in static):
        return checks
    sizes = tf.stack([one.batch_size() for one in distinct])
    return checks + check(
        tf.reduce_all(tf.equal(sizes, sizes[0])),
        "All inputs must have the same batch size.",
    )


def _check_splits(inputs: Sequence[Input]) -> list[tf.Operation]:
    ragged = [one for one in inputs if one.row_splits is not None]
    if not ragged:
        return []
    splits = tf.stack([one.row_splits for one in ragged])
    sizes = splits[:, 1:] - splits[:, :-1]
    for one, its_sizes in zip(ragged, tf.unstack(sizes, len(ragged))):
        one.sizes = its_sizes
    ends = tf.stack([tf.size(one.values, tf.int64) for one in ragged])
    fine = [
        tf.reduce_all(tf.equal(splits[:, 0], 0)),
        tf.reduce_all(sizes >= 0),
        tf.reduce_all(tf.equal(splits[:, -1], ends)),
    ]
    return check(
        tf.reduce_all(fine),
        "All row_splits must start at 0, not decrease, and end at the number "
        "of values.",
    )


def _check_weights(inputs: Sequence[Input]) -> list[tf.Operation]:
    weighted = [one for one in inputs if one.weights is not None]
    if not weighted:
        return []
    return check(
        tf.reduce_all(
            [
                tf.equal(tf.size(one.weights), tf.size(one.values))
                for one in weighted
            ]
        ),
        "There must be one weight for each value.",
    )
