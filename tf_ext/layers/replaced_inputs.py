# SPDX-License-Identifier: Apache-2.0
"""Functional models called without all of their inputs.

`tf_ext.data.hash_columns` replaces features, and predictions need no clicks.
"""

import contextlib
import typing
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from tf_ext._batch_source import batch_source, source_with
from tf_ext._compat.models import Functional, readers_of
from tf_ext._keras import keras
from tf_ext.data.worker_batches import batch_size_of
from tf_ext.layers import EmbeddingFeatures
from tf_ext.layers.click_inputs import (
    inputs_by_key,
    is_flat,
    layers_that_count,
    zeros_for,
)
from tf_ext.layers.hashed_inputs import replaced_in

# Of features.
_KINDS = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor, np.ndarray)


@contextlib.contextmanager
def replaced_inputs(
    model: keras.Model, args: tuple[typing.Any, ...]
) -> Iterator[tuple[typing.Any, ...]]:
    """Makes a functional model take a batch without some of its own inputs.

    Keras passes the layers of such a model what it was made with. In place of
    features that are gone it gets empty ones, which nothing reads: layers find
    the hashed columns beside them, and know that they have no clicks.

    Args:
      model: keras.Model, of any kind.
      args: of its call.

    Yields:
      The arguments to call Keras with.

    Raises:
      ValueError: something else than a layer of tables reads such a feature.
    """
    if not args or not isinstance(model, Functional):
        yield args
        return
    replaced = replaced_in(args[0])
    given, absent = _by_key(model, args[0], replaced is not None)
    size = None
    without_click: set[EmbeddingFeatures] = set()
    for key, symbolic in absent.items():
        if replaced is not None and key in replaced.features:
            _check_readers(model, key, symbolic)
        else:
            layers = layers_that_count(model, symbolic)
            if not layers:
                continue  # Keras says that it is missing.
            without_click |= layers
        if size is None:
            size = batch_size_of(
                given if replaced is None else replaced.columns
            )
        given[key] = zeros_for(symbolic, size)
    if replaced is None and not without_click:
        yield (_without_others(model, args[0], given), *args[1:])
        return
    own = inputs_by_key(model)
    # Keras does not take arrays beside tensors.
    wanted = {
        key: tf.convert_to_tensor(one) if isinstance(one, np.ndarray) else one
        for key, one in given.items()
        if key in own
    }
    outer = batch_source()
    with source_with(
        hashed=outer.hashed if replaced is None else replaced,
        without_click=outer.without_click | without_click,
    ):
        yield (wanted, *args[1:])


def _without_others(
    model: keras.Model, inputs: typing.Any, given: dict[str, typing.Any]
) -> typing.Any:
    """The inputs of a call, without features that the model does not have.

    Keras 3 pairs the values of a dict with the inputs by the order of their
    keys: one more, and all that follow would be taken for others.

    Args:
      model: functional keras.Model.
      inputs: of its call.
      given: as of `_by_key`.

    Raises:
      ValueError: the batch has others, and lacks one of the model's.
    """
    own = inputs_by_key(model)
    if not isinstance(inputs, Mapping) or given.keys() <= own.keys():
        return inputs
    for key in own:
        if key not in given:
            raise ValueError(
                f"Model {model.name!r} has the input {key!r}, which is not "
                f"among the features it is called with: {', '.join(given)}."
            )
    return {key: given[key] for key in own}


def _by_key(
    model: keras.Model, inputs: typing.Any, is_hashed: bool
) -> tuple[dict[str, typing.Any], dict[str, typing.Any]]:
    """What a functional model is given, and its symbolic inputs that are not.

    Both are empty unless it is called with a batch: keras.Input, for one, makes
    another model.

    Args:
      model: functional keras.Model.
      inputs: of a call: a dict; or a list, from which inputs for clicks may be
        left out.
      is_hashed: bool, whether features are hashed.
    """
    own = inputs_by_key(model)
    if isinstance(inputs, Mapping):
        given = dict(inputs)
    elif isinstance(inputs, list | tuple) and is_flat(model):
        names = list(own)
        if len(inputs) < len(own):
            names = [k for k in own if not layers_that_count(model, own[k])]
        if len(inputs) != len(names):
            return {}, {}
        given = dict(zip(names, inputs))
    else:
        return {}, {}
    leaves = tf.nest.flatten(given)
    if not is_hashed and not all(isinstance(one, _KINDS) for one in leaves):
        return {}, {}
    return given, {k: one for k, one in own.items() if k not in given}


def _check_readers(model: keras.Model, key: str, symbolic: typing.Any) -> None:
    for reader in readers_of(model, symbolic):
        finds_it_hashed = isinstance(reader, EmbeddingFeatures) and (
            reader.click != key
        )
        if not (finds_it_hashed or isinstance(reader, keras.layers.InputLayer)):
            raise ValueError(
                f"The feature {key!r} is not in the batch, because "
                "tf_ext.data.hash_columns has hashed it, but layer "
                f"{reader.name!r} of model {model.name!r} reads it, too. Let "
                f"it stay there: hash_columns(..., keep=[{key!r}])."
            )
