# SPDX-License-Identifier: Apache-2.0
"""Checks of models that synchronous workers train."""

import typing

import tensorflow as tf

from tf_ext._compat.models import layers_of
from tf_ext._keras import keras
from tf_ext.layers.batch_normalization import BatchNormalization
from tf_ext.optimizers import Optimizer

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


def check_optimizer(optimizer: typing.Any) -> None:
    """Raises ValueError for an optimizer that sums gradients itself.

    Args:
      optimizer: what `compile` is given.
    """
    for part in getattr(optimizer, "optimizers", ()):
        if not isinstance(part, Optimizer):
            raise ValueError(
                f"{type(part).__name__} of the composed optimizer gives the "
                "workers' gradients the same weight, whatever the sizes of "
                "their shares. Under MultiWorkerMirroredStrategy wrap each: "
                "tf_ext.optimizers.Optimizer(your_optimizer)."
            )


def check_layers(model: keras.Model) -> None:
    """Raises ValueError for layers that need the global batch.

    Args:
      model: keras.Model under a MultiWorkerMirroredStrategy.
    """
    for layer in layers_of(model):
        if (
            isinstance(layer, keras.layers.BatchNormalization)
            and not isinstance(layer, BatchNormalization)
            and not getattr(layer, "synchronized", False)
        ):
            raise ValueError(
                f"Layer {layer.name!r} normalises by the statistics of a "
                "worker's share of the batch, which may be empty. Use "
                "tf_ext.layers.BatchNormalization, which takes those of the "
                "global batch."
            )
