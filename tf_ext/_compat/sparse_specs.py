# SPDX-License-Identifier: Apache-2.0
"""Specs of sparse batches that TensorFlow can split."""

import tensorflow as tf


class CuttableSparseSpec(tf.SparseTensorSpec):
    """A spec of sparse batches that TensorFlow can split, or make empty.

    TensorFlow splits a batch as a tensor with a serialized value for each
    sample, and cannot deserialize an empty one.

    Seen in: TensorFlow 2.18 to 2.21.
    """

    def _batch(self, batch_size):
        return type(self)([batch_size, *self.shape], self.dtype)

    def _unbatch(self):
        return type(self)(self.shape[1:], self.dtype)

    def _from_compatible_tensor_list(self, tensor_list):
        read = super()._from_compatible_tensor_list
        sizes = [0, *(size or 0 for size in self.shape[1:])]
        return tf.cond(
            tf.size(tensor_list[0]) > 0,
            lambda: read(tensor_list),
            lambda: tf.SparseTensor(
                tf.zeros([0, len(sizes)], tf.int64),
                tf.zeros([0], self.dtype),
                sizes,
            ),
        )
