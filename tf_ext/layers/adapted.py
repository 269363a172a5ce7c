# SPDX-License-Identifier: Apache-2.0
"""The statistics that layers have found in `adapt`.

`keras.layers.Normalization`, and `Discretization` of tf_keras, compute with
constants that they make of their variables in `adapt` and in Keras's loaders.
They stay as they were if anything else assigns these.
"""

import contextlib
import typing
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tf_ext._compat.models import layers_of
from tf_ext._keras import keras


def finalize(layer: typing.Any) -> None:
    """Has layers compute with the statistics that were assigned.

    Call it after variables were assigned. Functions of `fit`, `evaluate` and
    `predict` that have others as constants are made again.

    Args:
      layer: keras.Model or layer; layers inside of it are included.
    """
    stale = [one for one in _normalizations_in(layer) if not _is_final(one)]
    for one in stale:
        one.finalize_state()
    stale += [one for one in _discretizations_in(layer) if _discretize(one)]
    for kind in ("train", "test", "predict") if stale else ():
        if getattr(layer, f"{kind}_function", None) is not None:
            getattr(layer, f"make_{kind}_function")(force=True)


@contextlib.contextmanager
def read_from_variables(layer: typing.Any) -> Iterator[None]:
    """A graph that is traced in the block reads statistics from variables.

    The boundaries of a Discretization cannot be tensors.

    Args:
      layer: as of `finalize`.
    """
    found = _normalizations_in(layer)
    before = [(one.mean, one.variance) for one in found]
    for one in found:
        one.finalize_state()
    try:
        yield
    finally:
        for one, (mean, variance) in zip(found, before, strict=True):
            one.mean, one.variance = mean, variance


def _normalizations_in(layer: typing.Any) -> list[typing.Any]:
    """The built ones, without those with the statistics as arguments."""
    return [
        one
        for one in layers_of(layer)
        if isinstance(one, keras.layers.Normalization)
        and hasattr(one, "adapt_mean")
    ]


def _is_final(layer: typing.Any) -> bool:
    return all(
        np.array_equal(
            np.ravel(tf.convert_to_tensor(constant)),
            np.ravel(tf.cast(tf.convert_to_tensor(variable), constant.dtype)),
        )
        for constant, variable in (
            (layer.mean, layer.adapt_mean),
            (layer.variance, layer.adapt_variance),
        )
    )


def _discretizations_in(layer: typing.Any) -> list[typing.Any]:
    """Those that have been adapted; in Keras 3 they have no variables."""
    return [
        one
        for one in layers_of(layer)
        if isinstance(one, keras.layers.Discretization)
        and isinstance(getattr(one, "summary", None), tf.Variable)
        and one.summary.numpy().size
    ]


def _discretize(layer: typing.Any) -> bool:
    """Makes boundaries of the summary; whether they were others."""
    before = list(layer.bin_boundaries or [])
    layer.finalize_state()
    return list(layer.bin_boundaries) != before
