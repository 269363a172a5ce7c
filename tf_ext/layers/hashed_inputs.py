# SPDX-License-Identifier: Apache-2.0
"""Whether a layer hashes its features, or finds them hashed."""

import typing
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf_ext._batch_source import HashedColumns
from tf_ext._checks import check_mapping
from tf_ext._compat.calls import is_building_by_shapes
from tf_ext.feature_column.bags import HashedBatch, hash_batch
from tf_ext.feature_column.column import Column
from tf_ext.feature_column.hashed_features import (
    KEY,
    Hashed,
    by_identity,
    identity_of,
    join,
    keys_read,
)

_Inputs = Mapping[str, typing.Any]


def replaced_in(inputs: object) -> HashedColumns | None:
    """What is hashed in the features of a batch; None if nothing is."""
    if not isinstance(inputs, Mapping) or KEY not in inputs:
        return None
    columns = by_identity(inputs[KEY])
    read = [keys_read(identity) for identity in columns]
    return HashedColumns(columns, frozenset().union(*read) - inputs.keys())


def find_hashed(
    layer: str,
    columns: Sequence[Column],
    inputs: _Inputs,
    elsewhere: HashedColumns | None,
) -> Hashed | None:
    """The hashed columns of a layer; None if it is to hash raw features.

    Args:
      layer: string, its name.
      columns: list of Column.
      inputs: dict of its inputs.
      elsewhere: HashedColumns of the `BatchSource`, if the inputs have none.

    Raises:
      ValueError: some columns are hashed and others are not, or features are
        gone that others read.
    """
    check_mapping("EmbeddingFeatures", inputs)
    replaced = replaced_in(inputs) or elsewhere
    if replaced is None:
        return None
    absent = [c for c in columns if identity_of(c) not in replaced.columns]
    if not absent:
        return replaced.columns
    read = set().union(*(keys_read(identity_of(c)) for c in absent))
    if len(absent) == len(columns) and not read & replaced.features:
        return None
    wanted = identity_of(absent[0])
    alike = [
        other
        for other in replaced.columns
        if keys_read(other) & keys_read(wanted)
    ]
    raise ValueError(
        f"Column {absent[0].name!r} of layer {layer!r} is not among those that "
        "tf_ext.data.hash_columns has hashed. Give it all columns of the "
        f"layer. The column is {wanted}; hashed of the same features are: "
        f"{', '.join(alike) or 'none'}."
    )


def hash_inputs(
    layer: str,
    columns: Sequence[Column],
    inputs: _Inputs,
    elsewhere: HashedColumns | None,
    return_error: bool,
) -> HashedBatch:
    """The batch of a layer's columns, from features hashed or raw.

    Args:
      layer: string, its name.
      columns: list of Column.
      inputs: dict of its inputs.
      elsewhere: as of `find_hashed`.
      return_error: bool, as of `hash_batch`.
    """
    inputs = _with_types(columns, inputs)
    hashed = find_hashed(layer, columns, inputs, elsewhere)
    if hashed is not None:
        return join(columns, hashed)
    return hash_batch(columns, inputs, return_error)


def _with_types(columns: Sequence[Column], inputs: _Inputs) -> _Inputs:
    """Gives features that Keras made up the types that columns take.

    It builds a loaded model by shapes, with floats, which ids and strings are
    not. Nothing is computed with them, so any values will do.
    """
    if not isinstance(inputs, Mapping):
        return inputs
    wrong = {
        key: part.type_of_absent()
        for column in columns
        for part in column.parts
        for key in part.keys
        if key != part.weights
        and part.boundaries is None
        and _is_symbolic_float(inputs.get(key))
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
