# SPDX-License-Identifier: Apache-2.0
"""Where epochs of a number of steps are in their data."""


def batches_before(epoch: int, steps: int, batches: int | None) -> int:
    """How many batches of a dataset come before an epoch.

    Epochs go on in the dataset until an epoch ends with it, maybe early; the
    next one begins it again.

    Args:
      epoch: int, from 0.
      steps: int, the most steps of an epoch.
      batches: int, those of the dataset; None if that is unknown, or if they do
        not end.

    Example:
      >>> [batches_before(epoch, steps=3, batches=8) for epoch in range(4)]
      [0, 3, 6, 0]
    """
    if not batches:
        return epoch * steps
    return epoch % epochs_of(steps, batches) * steps


def epochs_of(steps: int, batches: int) -> int:
    """How many epochs go through a dataset; arguments as above."""
    return -(-batches // steps)
