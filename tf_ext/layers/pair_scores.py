# SPDX-License-Identifier: Apache-2.0
"""Scores of positives and negatives, for losses that compare them."""

import typing

import tensorflow as tf

from tf_ext._checks import refuse
from tf_ext._keras import keras


class QueryLoss(keras.layers.Layer):
    """A layer whose outputs are the losses of queries."""

    def __init__(self, **kwargs: typing.Any) -> None:
        super().__init__(**{"autocast": False, "dtype": "float32", **kwargs})
        self.supports_masking = True
        self.built = True

    def compute_output_spec(
        self, queries: typing.Any, *_: typing.Any, **__: typing.Any
    ) -> typing.Any:
        """The losses' shape for Keras 3's functional models."""
        return keras.KerasTensor(queries.shape[:-1], "float32")


class Pairs(typing.NamedTuple):
    """Queries with their samples, `p` of them, whatever their shape was.

    queries, positives: float32 `[p, dim]`; negatives: `[n, dim]` that all
    share, or `[p, n, dim]`; mask: bool `[p, n]`, which are negatives, or None.
    """

    queries: tf.Tensor
    positives: tf.Tensor
    negatives: tf.Tensor
    mask: tf.Tensor | None

    @property
    def shared(self) -> bool:
        """Whether all queries have the same negatives."""
        return bool(self.negatives.shape.rank == 2)

    def positive_scores(self) -> tf.Tensor:
        """Inner products of queries and positives, `[p]`."""
        return tf.reduce_sum(self.queries * self.positives, 1)

    def negative_scores(self) -> tf.Tensor:
        """Inner products of queries and negatives, `[p, n]`."""
        if self.shared:
            return tf.matmul(self.queries, self.negatives, transpose_b=True)
        return tf.linalg.matvec(self.negatives, self.queries)

    def mean_of_negatives(self, values: tf.Tensor) -> tf.Tensor:
        """The means of values `[p, n]` over negatives; 0 where none is."""
        if self.mask is None:
            count = tf.cast(tf.maximum(tf.shape(values)[1], 1), tf.float32)
            return tf.reduce_sum(values, 1) / count
        count = tf.math.count_nonzero(self.mask, 1, dtype=tf.float32)
        sums = tf.reduce_sum(tf.where(self.mask, values, 0.0), 1)
        return sums / tf.maximum(count, 1.0)


class PairLoss(QueryLoss):
    """The loss of a query with a positive and its negatives."""

    _name_in_errors = ""

    def call(
        self,
        queries: tf.Tensor,
        positives: tf.Tensor,
        negatives: tf.Tensor,
        negatives_mask: tf.Tensor | None = None,
        sample_mask: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """The losses; see the class."""
        owner = self._name_in_errors
        pairs = to_pairs(owner, queries, positives, negatives, negatives_mask)
        return to_losses(owner, self.losses_of(pairs), queries, sample_mask)

    def losses_of(self, pairs: Pairs) -> tf.Tensor:
        """The losses of queries, `[p]`."""
        raise NotImplementedError


def to_pairs(
    owner: str,
    queries: typing.Any,
    positives: typing.Any,
    negatives: typing.Any,
    negatives_mask: typing.Any,
) -> Pairs:
    """Checks the arguments of a loss, and flattens their shapes.

    Raises:
      ValueError: they have other shapes or dtypes than the loss takes.
    """
    shape = "[batch_size, dim] or [batch_size, length, dim]"
    queries = floats(owner, "queries", queries, shape, (2, 3))
    rank, dim = queries.shape.rank, queries.shape[-1]
    shape = "of the shape of queries"
    positives = floats(owner, "positives", positives, shape, (rank,))
    if not positives.shape.is_compatible_with(queries.shape):
        refuse(owner, "positives", f"floats {shape}", positives.shape)
    shape = f"[n, {dim}], or of the shape of queries with n before dim"
    negatives = floats(owner, "negatives", negatives, shape, (2, rank + 1))
    n = negatives.shape[-2]
    allowed = tf.TensorShape([n, dim])
    if negatives.shape.rank > 2:
        allowed = queries.shape[:-1].concatenate(allowed)
    if not negatives.shape.is_compatible_with(allowed):
        refuse(owner, "negatives", f"floats {shape}", negatives.shape)
    if negatives_mask is not None:
        of_all = queries.shape[:-1].concatenate([n])
        negatives_mask = bools(owner, "negatives_mask", negatives_mask, of_all)
        width = tf.shape(negatives)[-2]
        count = tf.reduce_prod(tf.shape(queries)[:-1])
        negatives_mask = tf.reshape(negatives_mask, [count, width])
    if rank == 3:
        if negatives.shape.rank == 4:
            negatives = _flat(negatives)
        queries, positives = _flat(queries), _flat(positives)
    return Pairs(queries, positives, negatives, negatives_mask)


def _flat(vectors: tf.Tensor) -> tf.Tensor:
    """The first two dimensions in one, also of no elements at all."""
    shape = tf.shape(vectors)
    return tf.reshape(vectors, tf.concat([[shape[0] * shape[1]], shape[2:]], 0))


def floats(
    owner: str,
    argument: str,
    value: typing.Any,
    shape: str,
    ranks: tuple[int, ...],
) -> tf.Tensor:
    """A tensor in float32; ValueError for other ranks, or no floats."""
    value = tf.convert_to_tensor(value)
    if not value.dtype.is_floating or value.shape.rank not in ranks:
        found = f"{value.dtype.name} {value.shape}"
        refuse(owner, argument, f"floats {shape}", found)
    return tf.cast(value, tf.float32)


def bools(
    owner: str, argument: str, value: typing.Any, shape: tf.TensorShape
) -> tf.Tensor:
    """A tensor of bools; ValueError for other shapes, or no bools."""
    value = tf.convert_to_tensor(value)
    if value.dtype != tf.bool or not value.shape.is_compatible_with(shape):
        found = f"{value.dtype.name} {value.shape}"
        refuse(owner, argument, f"bools {shape}", found)
    return value


def to_losses(
    owner: str, losses: tf.Tensor, queries: tf.Tensor, sample_mask: typing.Any
) -> tf.Tensor:
    """Losses `[p]` in the shape of the queries, 0 where masked.

    Args:
      owner: the name of the loss.
      losses: float32 `[p]`.
      queries: as the user gave them.
      sample_mask: bool of the shape of the queries without dim, or None.
    """
    queries = tf.convert_to_tensor(queries)
    shape = queries.shape[:-1]
    losses = tf.reshape(losses, tf.shape(queries)[:-1])
    losses = tf.ensure_shape(losses, shape)
    if sample_mask is None:
        return losses
    sample_mask = bools(owner, "sample_mask", sample_mask, shape)
    return tf.where(sample_mask, losses, 0.0)
