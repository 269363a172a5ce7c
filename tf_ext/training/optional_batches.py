# SPDX-License-Identifier: Apache-2.0
"""Batches as scalars.

A function of a batch takes Python as long for its arguments as for the rest of
a call, if the batch has many tensors.
"""

import tensorflow as tf

from tf_ext.data.worker_batches import batch_size_of
from tf_ext.training.feeds import Batch, Spec


def as_optional(*batch: Batch) -> tf.Tensor:
    """A scalar that holds the tensors of a batch, whatever their shapes."""
    tensors = tf.nest.flatten(batch, expand_composites=True)
    return tf.raw_ops.OptionalFromValue(components=tensors)


def from_optional(optional: tf.Tensor, element_spec: Spec) -> Batch:
    """The batch of which `as_optional` made a scalar.

    Args:
      optional: variant scalar.
      element_spec: nested structure of `tf.TypeSpec`, the batch.
    """
    specs = tf.nest.flatten(element_spec, expand_composites=True)
    tensors = tf.raw_ops.OptionalGetValue(
        optional=optional,
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
    )
    return tf.nest.pack_sequence_as(
        element_spec, tensors, expand_composites=True
    )


def with_sizes(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Batches and their sizes: `(variant scalar, int64 scalar)`.

    Args:
      dataset: tf.data.Dataset of batches.
    """
    # TensorFlow runs a map in parallel, and so reads ahead of it.
    return dataset.scan(
        0,
        lambda state, *batch: (
            state,
            (as_optional(*batch), batch_size_of(batch)),
        ),
    )
