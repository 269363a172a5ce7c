# SPDX-License-Identifier: Apache-2.0
"""The signs of values outside of a batch, by the op that hashes batches."""

import typing

import tensorflow as tf

from tf_ext import ops
from tf_ext._checks import refuse
from tf_ext.feature_column import bags, features, structure
from tf_ext.feature_column.column import Column

_OWNER = "signs"


def signs_of(column: Column, values: typing.Any) -> tf.Tensor:
    """As `Column.signs`.

    Args:
      column: Column.
      values: as there.
    """
    parts = column.parts
    given = [values] if len(parts) == 1 else values
    if not isinstance(given, list | tuple) or len(given) != len(parts):
        refuse(
            _OWNER,
            "values",
            f"a list of {len(parts)} arrays, one for each part of the cross "
            f"{column.name!r}",
            values,
        )
    tensors = [
        structure.to_tensor(part.key, one) for part, one in zip(parts, given)
    ]
    shape = tf.shape(tensors[0])
    for one in tensors:
        if not isinstance(one, tf.Tensor) or not one.shape.is_compatible_with(
            tensors[0].shape
        ):
            refuse(
                _OWNER,
                "values",
                "dense, and of one shape for all parts of a cross",
                values,
            )
    if tensors[0].shape.num_elements() == 0:
        # Nothing tells the type of an empty list.
        return tf.zeros(shape, tf.int64)
    flat = []
    for part, one in zip(parts, tensors):
        features.check_type(part, features.op_type(part, one.dtype))
        flat.append(tf.reshape(features.op_values(part, one), [-1]))
    found = ops.hash_category(
        flat, **bags.describe([column], list(range(len(parts))))
    ).signs
    if tf.executing_eagerly() and found.shape != flat[0].shape:
        missing = flat[0].shape[0] - found.shape[0]
        raise ValueError(
            f"Argument `values` of {_OWNER} must hold no missing values, which "
            f"have no sign: column {column.name!r} leaves out NaN and what its "
            f"`missing` says. Received: {missing} of them"
        )
    return tf.reshape(found, shape)
