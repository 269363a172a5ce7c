# SPDX-License-Identifier: Apache-2.0
"""`Model.export`: Keras's SavedModels for serving."""

import inspect
import os
import typing
from collections.abc import Callable

import tensorflow as tf

from tf_ext._compat.models import Functional
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.layers import click_inputs
from tf_ext.layers.hashed_inputs import replaced_in
from tf_ext.models.recorded_call import (
    export_signature,
    is_of_hashed_features,
    recorded_inputs,
)


def export(
    model: keras.Model,
    keras_export: Callable[..., typing.Any],
    filepath: str | os.PathLike[str],
    *args: typing.Any,
    **kwargs: typing.Any,
) -> None:
    """Calls `keras.Model.export`, with inputs that predictions need.

    Args:
      model: tf_ext.Model.
      keras_export: the method of the model's Keras class.
      filepath: its argument.
      *args: more of them.
      **kwargs: more of them.

    Raises:
      ValueError: a subclassed model has not been called with raw features, or
        in Keras 3 has ragged or sparse ones.
    """
    if not IS_KERAS_3:
        _export_with_rows(model, filepath, *args, **kwargs)
        return
    given = inspect.signature(keras_export).bind(filepath, *args, **kwargs)
    if given.arguments.get("input_signature") is None:
        if isinstance(model, Functional):
            inputs = model.input
        else:
            _check_recorded(model)
            inputs = export_signature(model.tf_ext_call)
        if inputs is not None:
            inputs = click_inputs.exported(model, inputs)
            given.arguments["input_signature"] = [inputs]
    keras_export(*given.args, **given.kwargs)


def _check_recorded(model: keras.Model) -> None:
    """Raises ValueError if a subclassed model was not called as it will be."""
    record = model.tf_ext_call
    if record is None:
        return
    if is_of_hashed_features(record):
        raise ValueError(
            f"Model {model.name!r} has been called only with features that "
            "tf_ext.data.hash_columns or tf_ext.data.read(columns=) has "
            "hashed. An export takes raw features: call it with them once."
        )
    leaves = tf.nest.flatten(recorded_inputs(record))
    composite = tf.RaggedTensorSpec | tf.SparseTensorSpec
    if IS_KERAS_3 and any(isinstance(leaf, composite) for leaf in leaves):
        raise ValueError(
            f"Model {model.name!r} has ragged or sparse features, which Keras "
            "3 does not export. Use tf_ext.serving.export."
        )


def _export_with_rows(
    model: keras.Model,
    filepath: str | os.PathLike[str],
    *args: typing.Any,
    **kwargs: typing.Any,
) -> None:
    """As tf_keras, which exports no resources but TensorFlow's tables."""
    specs = None
    if not isinstance(model, Functional):
        # Keras saves the dtypes that mixed precision casts inputs to.
        _check_recorded(model)
        specs = export_signature(model.tf_ext_call)
    if specs is None:
        (specs,), _ = model.save_spec()
        if replaced_in(specs) is not None:
            specs = recorded_inputs(model.tf_ext_call)
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.tf_ext_rows = [table.rows.served for table in model.tables]
    inputs = click_inputs.exported(model, specs)
    archive.add_endpoint("serve", model.__call__, [inputs])
    archive.write_out(filepath, *args, **kwargs)
