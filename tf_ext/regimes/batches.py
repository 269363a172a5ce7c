# SPDX-License-Identifier: Apache-2.0
"""The samples of all workers' shares of a batch, with gradients."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_ext.distribute.collectives import Collectives
from tf_ext.ops.exchange import exchange_ops


def gather_batch(
    workers: Collectives, tensors: Sequence[tf.Tensor]
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Gathers what each worker has of a batch.

    Args:
      workers: `tf_ext.distribute.collectives.Collectives`.
      tensors: list of float32 or int64 `[b, ...]`, of one `b`, which each
        worker has its own of.

    Returns:
      `(gathered, offset)`: list of `[sum of all b, ...]`, in the order of
      ranks, and int64 scalar, the index of this worker's first sample.
    """
    size = tf.shape(tensors[0], tf.int64)[0]
    sizes = workers.gather(size[tf.newaxis])[:, 0]
    offset = tf.cumsum(sizes, exclusive=True)[workers.rank]
    return [_gather(workers, one, sizes) for one in tensors], offset


def gather_replicas(
    context: tf.distribute.ReplicaContext, tensors: Sequence[tf.Tensor]
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """As `gather_batch`, of the shares of a process's replicas."""
    size = tf.shape(tensors[0], tf.int64)[0]
    sizes = context.all_gather(size[tf.newaxis], axis=0)
    replica = context.replica_id_in_sync_group
    offset = tf.gather(tf.cumsum(sizes, exclusive=True), replica)
    return [context.all_gather(one, axis=0) for one in tensors], offset


def _gather(
    workers: Collectives, tensor: tf.Tensor, sizes: tf.Tensor
) -> tf.Tensor:
    if not tensor.dtype.is_floating:
        return _all_gather(workers, tensor, sizes)

    @tf.custom_gradient
    def gather(
        values: tf.Tensor,
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        gathered = _all_gather(workers, values, sizes)
        return gathered, lambda gradient: _scatter(workers, gradient, sizes)

    return gather(tensor)


def _all_gather(
    workers: Collectives, tensor: tf.Tensor, sizes: tf.Tensor
) -> tf.Tensor:
    shape = [1, *tensor.shape[1:]]
    dim = tf.TensorShape(shape).num_elements()
    flat = tf.reshape(tensor, [-1, dim])

    def pack(width: tf.Tensor) -> tf.Tensor:
        row = tf.reshape(flat, [-1])
        row = tf.pad(row, [[0, width - tf.size(row, tf.int64)]])
        return tf.tile(row[tf.newaxis], [workers.size, 1])

    received = workers.all_to_all(
        pack, tensor.dtype, tf.reduce_max(sizes) * dim
    )
    [rows] = exchange_ops.exchange_unpack(received, sizes[tf.newaxis], [dim])
    return tf.reshape(rows, [-1, *shape[1:]])


def _scatter(
    workers: Collectives, gradient: tf.Tensor, sizes: tf.Tensor
) -> tf.Tensor:
    """The gradient of this worker's samples, from the losses of all workers."""
    dim = tf.TensorShape([1, *gradient.shape[1:]]).num_elements()
    flat = tf.reshape(gradient, [-1, dim])
    received = workers.all_to_all(
        lambda width: exchange_ops.exchange_pack(
            [flat], [sizes], tf.zeros([workers.size, 0]), width
        ),
        tf.float32,
        tf.reduce_max(sizes) * dim,
    )
    own = tf.fill([workers.size], sizes[workers.rank])
    [rows] = exchange_ops.exchange_unpack(received, own[tf.newaxis], [dim])
    parts = tf.reshape(rows, [workers.size, -1, dim])
    return tf.reshape(tf.reduce_sum(parts, 0), [-1, *gradient.shape[1:]])
