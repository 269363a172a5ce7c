# SPDX-License-Identifier: Apache-2.0
"""The weight of a replica's loss in that of the global batch.

Keras gives the mean loss of every replica the same weight, however many samples
it has. In a step of `fit` a replica's loss counts by its samples instead, and
has to do so before its gradient is computed: what a layer sums over replicas
sends gradients of other replicas' losses back.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tf_ext.regimes.table_interface import TableSlices


class ReplicaWeight:
    """How much a replica's loss counts in a training or test step.

    Attributes:
      value: float32 scalar tensor: the number of replicas times the samples
        here, divided by the samples of all, where losses are means divided by
        the number of replicas; 1 where they are sums. 0 without samples.
      in_step: bool, whether the model's step has begun.
      in_library_step: bool, whether the step that is running is one of Keras
        or TensorFlow Recommenders, whose loss is what `compute_loss` returns.
      is_applied: bool, whether the step has weighted a loss.
      share_of_losses: function to a float32 scalar tensor, by which losses of
        layers are multiplied, or None. See `losses_of_layers`.
    """

    def __init__(self, value: tf.Tensor) -> None:
        self.value = value
        self.in_step = False
        self.in_library_step = False
        self.is_applied = False
        self.share_of_losses: Callable[[], tf.Tensor] | None = None


@contextlib.contextmanager
def library_step(weight: ReplicaWeight) -> Iterator[None]:
    """A context in which `compute_loss` alone weights the loss."""
    before, weight.in_library_step = weight.in_library_step, True
    try:
        yield
    finally:
        weight.in_library_step = before


def weigh_computed_loss(
    weight: ReplicaWeight | None, loss: tf.Tensor
) -> tf.Tensor:
    """Weights what `compute_loss` returns, in a step of a library.

    A step of a model's own may add to it before it computes gradients.

    Args:
      weight: ReplicaWeight of the step, or None.
      loss: tensor.

    Returns:
      The same loss, whose gradient is multiplied by the weight.
    """
    if weight is None or not weight.in_library_step:
        return loss
    return _weighted_loss(loss, weight)


def weigh_own_loss(weight: ReplicaWeight | None, loss: tf.Tensor) -> tf.Tensor:
    """As `weigh_computed_loss`, for the loss of a model's own step."""
    if weight is None or weight.in_library_step:
        return loss
    return _weighted_loss(loss, weight)


def losses_of_layers(
    weight: ReplicaWeight | None, losses: list[tf.Tensor]
) -> list[tf.Tensor]:
    """The losses that layers have added, as a step is to see them.

    A mean over no samples is NaN, which would remain in metrics. And steps of
    TensorFlow Recommenders add them up undivided on every replica.

    Args:
      weight: ReplicaWeight of the step, or None.
      losses: list of tensors.
    """
    if weight is None or not losses:
        return losses
    kept = [_where_samples(loss, weight) for loss in losses]
    if weight.share_of_losses is None:
        return kept
    share = weight.share_of_losses()
    return [
        _weighted_loss(loss, weight) * tf.cast(share, loss.dtype)
        for loss in kept
    ]


def weighted(
    weight: ReplicaWeight | None,
    dense: list[tf.Tensor],
    slices: TableSlices,
    multiply: Callable[[Sequence[tf.Tensor], tf.Tensor], list[tf.Tensor]],
) -> tuple[list[tf.Tensor], TableSlices]:
    """A replica's gradients as they count in the sum over replicas.

    Those of a replica without samples may be NaN, and do not count. A step that
    has not weighted its loss has all of them weighted, which is the same
    unless a layer sums over replicas.

    Args:
      weight: ReplicaWeight of the step, or None.
      dense: list of gradients of variables.
      slices: list of `(table, tf.IndexedSlices)`.
      multiply: function of a list of tensors and a float32 scalar tensor, to
        their products, in which NaN times 0 is 0.

    Returns:
      `(dense, slices)`.
    """
    if weight is None:
        return dense, slices
    factor = weight.value
    if weight.is_applied:
        factor = tf.cast(factor > 0, tf.float32)
    gradients = [*dense, *(grad for _, grad in slices)]
    products = multiply(
        [g.values if _is_sliced(g) else g for g in gradients], factor
    )
    gradients = [
        tf.IndexedSlices(product, grad.indices, grad.dense_shape)
        if _is_sliced(grad)
        else product
        for grad, product in zip(gradients, products)
    ]
    tables = [table for table, _ in slices]
    return gradients[: len(dense)], list(zip(tables, gradients[len(dense) :]))


def _is_sliced(gradient: tf.Tensor | tf.IndexedSlices) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


def _weighted_loss(loss: tf.Tensor, weight: ReplicaWeight) -> tf.Tensor:
    weight.is_applied = True

    @tf.custom_gradient
    def weighted(
        loss: tf.Tensor,
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return upstream * tf.cast(weight.value, upstream.dtype)

        return _where_samples(loss, weight), gradient

    return weighted(tf.convert_to_tensor(loss))


def _where_samples(loss: tf.Tensor, weight: ReplicaWeight) -> tf.Tensor:
    return tf.where(weight.value > 0, loss, tf.zeros_like(loss))
