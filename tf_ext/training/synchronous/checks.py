# SPDX-License-Identifier: Apache-2.0
"""Checks of models that synchronous workers train."""

import typing

from tf_ext._compat.models import layers_of
from tf_ext._keras import keras
from tf_ext.layers.batch_normalization import BatchNormalization
from tf_ext.optimizers import Optimizer


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
