# SPDX-License-Identifier: Apache-2.0
"""Whether losses of parts of a batch are means or sums, and may be."""

import typing

import tensorflow as tf

# Reductions that are means over samples, regardless of weights.
_MEANS = ("sum_over_batch_size", "mean", "auto")
# Reductions whose gradients add up, as those of each sample do.
_SUMS = ("sum", "none", None)


def check_losses(losses: typing.Any) -> None:
    """Raises ValueError for a loss that is not a mean over the batch.

    Args:
      losses: what `compile` is given.
    """
    for loss in tf.nest.flatten(losses):
        reduction = getattr(loss, "reduction", "mean")
        if reduction not in _MEANS:
            raise ValueError(
                f"Loss {getattr(loss, 'name', loss)!r} has the reduction "
                f"{reduction!r}: under MultiWorkerMirroredStrategy a loss must "
                "be the sum over the global batch divided by its number of "
                "samples. Use reduction='sum_over_batch_size'."
            )


def check_losses_of_replicas(losses: typing.Any, strategy: str) -> None:
    """Raises ValueError for losses whose gradients replicas cannot add up.

    Args:
      losses: what `compile` is given.
      strategy: string, the name of the strategy.
    """
    found = sorted(map(str, _reductions(losses)))
    allowed = [set(_MEANS), set(map(str, _SUMS))]
    if not any(set(found) <= one for one in allowed):
        raise ValueError(
            "Argument `loss` of compile must be all means, or all sums, "
            f"under {strategy}, whose replicas may have different numbers of "
            f"samples. Received: reductions {', '.join(found)}. Use "
            "reduction='sum_over_batch_size' for all."
        )


def losses_add_up(losses: typing.Any) -> bool:
    """Whether losses of parts of a batch add up to that of the batch.

    Args:
      losses: what `compile` was given.
    """
    reductions = _reductions(losses)
    return bool(reductions) and reductions <= set(_SUMS)


def _reductions(losses: typing.Any) -> set[str | None]:
    return {
        getattr(loss, "reduction", "mean")
        for loss in tf.nest.flatten(losses)
        if loss is not None
    }
