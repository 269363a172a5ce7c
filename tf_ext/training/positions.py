# SPDX-License-Identifier: Apache-2.0
"""Where epochs of a number of steps are in their data."""

import tensorflow as tf


def batches_of(dataset: tf.data.Dataset, most: int) -> int:
    """How many batches a dataset has.

    One of unknown length is read, to its end or a little further than asked.

    Args:
      dataset: tf.data.Dataset.
      most: int, up to how many batches matter.

    Returns:
      int; negative if they do not end, or if there are more than `most`.
    """
    known = int(dataset.cardinality())
    if known != tf.data.UNKNOWN_CARDINALITY:
        return known
    zero = tf.constant(0, tf.int64)
    count = int(dataset.take(most + 1).reduce(zero, lambda n, *_: n + 1))
    return count if count <= most else known


def batches_before(epoch: int, steps: int, batches: int | None) -> int:
    """How many batches of a dataset come before an epoch.

    Epochs go on in the dataset until an epoch ends with it, maybe early; the
    next one begins it again.

    Args:
      epoch: int, from 0.
      steps: int, the most steps of an epoch.
      batches: int, those of the dataset, as its `cardinality`; at most 0, or
        None, if that is unknown, or if they do not end.

    Example:
      >>> [batches_before(epoch, steps=3, batches=8) for epoch in range(4)]
      [0, 3, 6, 0]
    """
    if batches is None or batches <= 0:
        return epoch * steps
    return epoch % epochs_of(steps, batches) * steps


def place_of(
    epoch: int, step: int, steps: int, batches: int | None, first: int = 0
) -> tuple[int, int, int]:
    """Where training goes on behind a step, and in which place of the data.

    Args:
      epoch: int, from 0.
      step: int, the steps of the epoch that were made.
      steps: int, as of `batches_before`.
      batches: int, as of `batches_before`.
      first: int, the epoch that began the data.

    Returns:
      `(epoch, step, read)`: of the next epoch if the data ended with this one;
      and how many batches of the dataset were read.
    """
    read = batches_before(epoch - first, steps, batches) + step
    if batches is not None and 0 < batches <= read:
        epoch, step = epoch + 1, 0
        read = batches_before(epoch - first, steps, batches)
    return epoch, step, read


def epochs_of(steps: int, batches: int) -> int:
    """How many epochs go through a dataset; arguments as above."""
    return -(-batches // steps)
