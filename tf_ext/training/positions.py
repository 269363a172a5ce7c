# SPDX-License-Identifier: Apache-2.0
"""Where epochs of a number of steps are in their data."""


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
    epoch: int, step: int, steps: int, batches: int | None
) -> tuple[int, int, int]:
    """Where training goes on behind a step, and in which place of the data.

    Args:
      epoch: int, from 0.
      step: int, the steps of the epoch that were made.
      steps: int, as of `batches_before`.
      batches: int, as of `batches_before`.

    Returns:
      `(epoch, step, read)`: of the next epoch if the data ended with this one;
      and how many batches of the dataset were read.
    """
    read = batches_before(epoch, steps, batches) + step
    if batches is not None and 0 < batches <= read:
        epoch, step = epoch + 1, 0
        read = batches_before(epoch, steps, batches)
    return epoch, step, read


def epochs_of(steps: int, batches: int) -> int:
    """How many epochs go through a dataset; arguments as above."""
    return -(-batches // steps)
