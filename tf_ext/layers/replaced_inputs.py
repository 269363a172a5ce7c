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
    own = inputs_by_key(model)
    replaced = replaced_in(args[0])
    given = _by_key(model, own, args[0], replaced is not None)
    if given is None:
        yield args
        return
    absent = {key: one for key, one in own.items() if key not in given}
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
        if isinstance(args[0], Mapping) and not given.keys() <= own.keys():
            _check_complete(model, own, given)
            args = ({key: given[key] for key in own}, *args[1:])
        yield args
        return
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


def _by_key(
    model: keras.Model,
    own: dict[str, typing.Any],
    inputs: typing.Any,
    is_hashed: bool,
) -> dict[str, typing.Any] | None:
    """The features of a batch by key, or None for a call with anything else.

    keras.Input, for one, makes another model.

    Args:
      model: functional keras.Model.
      own: as of `inputs_by_key`.
      inputs: of a call: a dict; or a list, from which inputs for clicks may be
        left out.
      is_hashed: bool, whether features are hashed.
    """
    if isinstance(inputs, Mapping):
        given = dict(inputs)
    elif isinstance(inputs, list | tuple) and is_flat(model):
        names = list(own)
        if len(inputs) < len(own):
            names = [k for k in own if not layers_that_count(model, own[k])]
        if len(inputs) != len(names):
            return None
        given = dict(zip(names, inputs))
    else:
        return None
    leaves = tf.nest.flatten(given)
    if not is_hashed and not all(isinstance(one, _KINDS) for one in leaves):
        return None
    return given


def _check_complete(
    model: keras.Model,
    own: dict[str, typing.Any],
    given: dict[str, typing.Any],
) -> None:
    """Raises ValueError for a batch that has others and lacks an input.

    Keras 3 pairs the values of a dict with the inputs by the order of their
    keys: one more, and all that follow would be taken for others.
    """
    for key in own:
        if key not in given:
            raise ValueError(
                f"Model {model.name!r} has the input {key!r}, which is not "
                f"among the features it is called with: {', '.join(given)}."
            )


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
