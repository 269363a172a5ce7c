# SPDX-License-Identifier: Apache-2.0
"""Casts the inputs of subclassed models as Keras does, but not those of ids.

Those of functional models are checked: Keras casts them to the dtypes of
`keras.Input`, which fails for strings without the name of the feature.

Under a mixed precision policy, a Keras model casts all floats that it is called
with to its compute dtype. That would put an age of 19.98 into the bucket of 20,
and make a timestamp infinite.
"""

import typing
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tf_ext._compat.models import Functional, layers_of
from tf_ext._keras import keras
from tf_ext.feature_column.hashed_features import KEY
from tf_ext.layers import EmbeddingFeatures
from tf_ext.layers.click_inputs import inputs_by_key, is_flat


def cast_inputs(model: keras.Model, arguments: typing.Any) -> typing.Any:
    """Casts floats to the compute dtype, except for those that columns read.

    Functional models take their inputs in the dtypes of `keras.Input` instead,
    and models with `autocast=False` as they come.

    Features are known by their keys. Without keys, all floats stay as they are
    if there is a column that reads floats.

    Args:
      model: tf_ext.Model.
      arguments: structure of arguments of its call.

    Raises:
      ValueError: a functional model is given strings for numbers, or numbers
        for strings.
    """
    if isinstance(model, Functional):
        _check_strings(model, arguments)
        return arguments
    if not model.tf_ext_autocast:
        return arguments
    read = set(_keys_of_floats(model))

    def cast(value: typing.Any, is_named: bool) -> typing.Any:
        if isinstance(value, dict):
            return {
                key: one if key == KEY or key in read else cast(one, True)
                for key, one in value.items()
            }
        if isinstance(value, (list, tuple)):
            parts = [cast(one, is_named) for one in value]
            if hasattr(value, "_fields"):
                return type(value)(*parts)
            return type(value)(parts)
        if not read or is_named:
            return _cast(value, model.compute_dtype)
        return value

    return cast(arguments, False)


def _check_strings(model: keras.Model, arguments: typing.Any) -> None:
    """Raises ValueError if an input is a string where its Input is not."""
    args, kwargs = arguments
    given = args[0] if args else kwargs.get("inputs")
    if isinstance(given, dict):
        values = given
    elif isinstance(given, (list, tuple)) and is_flat(model):
        values = dict(zip(inputs_by_key(model), given))
    else:
        return
    for key, symbolic in inputs_by_key(model).items():
        dtype = getattr(values.get(key), "dtype", None)
        wanted = tf.as_dtype(symbolic.dtype)
        if dtype is None or _is_string(dtype) == _is_string(wanted):
            continue
        found = "string" if _is_string(dtype) else tf.as_dtype(dtype).name
        raise ValueError(
            f"The feature {key!r} must be of {wanted.name}, the dtype of its "
            f"keras.Input, but is of {found}. Convert it, or make its "
            f"keras.Input with dtype={found!r}."
        )


def _is_string(dtype: typing.Any) -> bool:
    if isinstance(dtype, np.dtype):
        return dtype.kind in "OSTU"
    return tf.as_dtype(dtype) == tf.string


def _keys_of_floats(model: keras.Model) -> Iterator[str]:
    """The keys of the floats that columns of a model's layers read."""
    for layer in layers_of(model):
        if not isinstance(layer, EmbeddingFeatures):
            continue
        if layer.click is not None:
            yield layer.click
        for columns in layer.columns:
            for column in columns:
                for part in column.parts:
                    if part.boundaries is not None:
                        yield part.key
                    if part.weights is not None:
                        yield part.weights


def _cast(value: typing.Any, dtype: str) -> typing.Any:
    kinds = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)
    is_float = isinstance(value, kinds) and value.dtype.is_floating
    if isinstance(value, np.ndarray):
        is_float = np.issubdtype(value.dtype, np.floating)
    return tf.cast(value, dtype) if is_float else value
