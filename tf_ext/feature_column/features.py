# SPDX-License-Identifier: Apache-2.0
"""Checks that the features of a batch are what columns need.

A feature here is anything with a `dtype` and a `shape`: a tensor, or a symbolic
input such as `keras.Input`. A part is a `CategoryColumn`.
"""

import collections.abc
import typing

import tensorflow as tf

if typing.TYPE_CHECKING:
    from tf_ext.feature_column.category_column import CategoryColumn

_Inputs = collections.abc.Mapping[str, typing.Any]

_AS_INT64 = (tf.bool, tf.int8, tf.int16, tf.uint8, tf.uint16, tf.uint32)
_AS_IS = (tf.string, tf.int32, tf.int64)


def check_mapping(
    owner: str,
    inputs: object,
    argument: str = "inputs",
    values: str = "features",
) -> None:
    """Raises ValueError unless `inputs`, an argument of `owner`, is a dict."""
    if not isinstance(inputs, collections.abc.Mapping):
        raise ValueError(
            f"Argument `{argument}` of {owner} must be a dict of {values} by "
            f"key. Received: {argument} of type {type(inputs).__name__}"
        )


def check_present(part: "CategoryColumn", inputs: _Inputs) -> None:
    """Raises if the inputs lack the feature of a part, or its weights."""
    if part.key not in inputs:
        if not part.optional:
            raise ValueError(
                f"The feature {part.key!r} of column {part.name!r} is missing "
                f"from the inputs. Present are: {names(inputs)}. Pass it, or "
                "make the column with optional=True for an empty bag."
            )
    elif part.weights is not None and part.weights not in inputs:
        raise ValueError(
            f"The weights {part.weights!r} of column {part.name!r} are missing "
            f"from the inputs. Present are: {names(inputs)}."
        )


def check_feature(part: "CategoryColumn", inputs: _Inputs) -> None:
    """Raises if a feature that is present is not what a part takes."""
    feature = inputs[part.key]
    check_rank(part.key, tf.TensorShape(feature.shape))
    check_type(part, op_type(part, tf.as_dtype(feature.dtype)))
    if part.weights is not None:
        check_weights_type(part, tf.as_dtype(inputs[part.weights].dtype))


def op_type(part: "CategoryColumn", dtype: tf.DType) -> tf.DType:
    """The type of `op_values` of a type.

    Raises:
      ValueError: a column takes no values of the type.
    """
    if dtype in _AS_IS:
        return dtype
    if dtype in _AS_INT64:
        return tf.int64
    if dtype.is_floating:
        return tf.float32
    if dtype == tf.uint64:
        return type_of_absent(part)
    raise ValueError(
        f"The feature {part.key!r} must be of strings, integers, booleans or "
        f"floats, but is of {dtype.name}: cast it to one of them."
    )


def op_values(part: "CategoryColumn", values: tf.Tensor) -> tf.Tensor:
    """A part's values as the op takes them.

    A uint64 has the sign of its decimal text, or of its bits if it is a sign
    itself.
    """
    dtype = op_type(part, values.dtype)
    if values.dtype != tf.uint64:
        return tf.cast(values, dtype)
    if dtype == tf.string:
        return tf.strings.as_string(values)
    if dtype == tf.int64:
        return tf.bitcast(values, tf.int64)
    return tf.cast(values, dtype)


def check_type(part: "CategoryColumn", dtype: tf.DType) -> None:
    """Raises if a part does not take values of a type of `op_type`."""
    if dtype == tf.float32 and part.boundaries is None:
        raise ValueError(
            f"The feature {part.key!r} has floats, which cannot be ids, and "
            f"column {part.name!r} has no boundaries: give it some, or cast "
            "the feature to integers or strings."
        )
    if dtype == tf.string and part.boundaries is not None:
        raise ValueError(
            f"The feature {part.key!r} is of strings, but column {part.name!r} "
            "has boundaries, which need numbers: use tf.strings.to_number."
        )
    if dtype == tf.string and part.hashing == "identity":
        raise ValueError(
            f"The feature {part.key!r} is of strings, but column {part.name!r} "
            'has hashing="identity", which needs integers.'
        )


def check_rank(key: str, shape: tf.TensorShape) -> None:
    """Raises if a feature has no batch dimension."""
    if shape.rank == 0:
        raise ValueError(
            f"The feature {key!r} must have a batch dimension, but is a scalar."
        )


def check_sequence(part: "CategoryColumn", name: str, inputs: _Inputs) -> None:
    """Raises if a feature that is present has no positions for a sequence."""
    shape = tf.TensorShape(inputs[part.key].shape)
    if shape.rank not in (None, 1, 2):
        raise ValueError(
            f"The feature {part.key!r} of the sequence {name!r} must be of "
            f"shape [batch_size, length] or [batch_size], but is of {shape}."
        )


def check_weights_type(part: "CategoryColumn", dtype: tf.DType) -> None:
    """Raises if weights are not floats."""
    if not dtype.is_floating:
        raise ValueError(
            f"The weights {part.weights!r} of column {part.name!r} must be "
            f"floats, but are of {dtype.name}."
        )


def type_of_absent(part: "CategoryColumn") -> tf.DType:
    """A type that the part takes, also with its `missing`; of uint64, too."""
    if part.boundaries is not None:
        return tf.float32
    return tf.int64 if part.hashing == "identity" else tf.string


def names(inputs: collections.abc.Iterable[str]) -> str:
    """The keys of inputs, as a text for messages."""
    return ", ".join(sorted(map(repr, inputs))) or "none"
