"""Functional models whose inputs `tf_ext.data.hash_columns` has replaced."""

import contextlib
import typing
from collections.abc import Iterator, Mapping

import tensorflow as tf

from tf_ext._compat.models import Functional, readers_of
from tf_ext._keras import keras
from tf_ext.data.worker_batches import batch_size_of
from tf_ext.layers import EmbeddingFeatures
from tf_ext.layers.hashed_inputs import (
    Replaced,
    hashed_features,
    replaced_in,
)


@contextlib.contextmanager
def replaced_inputs(
    model: keras.Model, args: tuple[typing.Any, ...]
) -> Iterator[tuple[typing.Any, ...]]:
    """Makes a functional model take hashed features for its own inputs.

    Keras passes the layers of such a model what it was made with. In place of
    features that are gone it gets empty ones, which nothing reads: layers find
    the hashed columns beside them.

    Args:
      model: keras.Model, of any kind.
      args: of its call.

    Yields:
      The arguments to call Keras with.

    Raises:
      ValueError: something else than a layer of tables reads such a feature.
    """
    replaced = replaced_in(args[0]) if args else None
    if replaced is None or not isinstance(model, Functional):
        yield args
        return
    given, own = dict(args[0]), _inputs_of(model)
    for key, symbolic in own.items():
        if key in replaced.features:
            _check_readers(model, key, symbolic)
            given[key] = _empty(symbolic, replaced)
    wanted = {k: v for k, v in given.items() if k in own}
    with hashed_features(replaced):
        yield (wanted, *args[1:])


def _inputs_of(model: keras.Model) -> dict[str, typing.Any]:
    """The symbolic inputs of a functional model, by key."""
    if isinstance(model.input, Mapping):
        return dict(model.input)
    return {one.name: one for one in tf.nest.flatten(model.input)}


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


def _empty(symbolic: typing.Any, replaced: Replaced) -> tf.Tensor:
    """A dense feature of the batch's size, of zeros or without values."""
    size = batch_size_of(replaced.columns)
    inner = [n or 0 for n in symbolic.shape[1:]]
    return tf.zeros(tf.stack([size, *inner]), symbolic.dtype)
