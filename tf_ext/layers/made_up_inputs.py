# SPDX-License-Identifier: Apache-2.0
"""Features that Keras makes up to build a loaded model, by their shapes.

They are floats, which ids and strings are not. Nothing is computed with them,
so any values of the right types will do.
"""

import typing
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf_ext._compat.calls import is_building_by_shapes
from tf_ext.feature_column.column import Column

_Inputs = Mapping[str, typing.Any]


def with_types(columns: Sequence[Column], inputs: _Inputs) -> _Inputs:
    """Gives made-up features the types that columns take.

    Args:
      columns: list of Column.
      inputs: dict of a layer's inputs.

    Returns:
      The inputs, with other tensors in place of floats that are made up.
    """
    if not isinstance(inputs, Mapping):
        return inputs
    wrong = {
        part.key: part.type_of_absent()
        for column in columns
        for part in column.parts
        if part.boundaries is None and _is_symbolic_float(inputs.get(part.key))
    }
    if not wrong or not is_building_by_shapes():
        return inputs
    return {
        **inputs,
        **{key: _as(inputs[key], dtype) for key, dtype in wrong.items()},
    }


def _is_symbolic_float(value: typing.Any) -> bool:
    return tf.is_symbolic_tensor(value) and value.dtype.is_floating


def _as(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype == tf.string:
        return tf.strings.as_string(value)
    return tf.cast(value, dtype)
