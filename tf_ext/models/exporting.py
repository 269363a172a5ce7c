# SPDX-License-Identifier: Apache-2.0
"""`Model.export`: Keras's SavedModels for serving."""

import inspect
import os
import typing
from collections.abc import Callable

from tf_ext._compat.models import Functional
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.layers import click_inputs
from tf_ext.models.recorded_call import export_signature


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
    """
    if not IS_KERAS_3:
        _export_with_rows(model, filepath, *args, **kwargs)
        return
    given = inspect.signature(keras_export).bind(filepath, *args, **kwargs)
    if given.arguments.get("input_signature") is None:
        inputs = (
            model.input
            if isinstance(model, Functional)
            else export_signature(model.tf_ext_call)
        )
        if inputs is not None:
            inputs = click_inputs.exported(model, inputs)
            given.arguments["input_signature"] = [inputs]
    keras_export(*given.args, **given.kwargs)


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
        specs = export_signature(model.tf_ext_call)
    if specs is None:
        (specs,), _ = model.save_spec()
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.tf_ext_rows = [table.rows.served for table in model.tables]
    inputs = click_inputs.exported(model, specs)
    archive.add_endpoint("serve", model.__call__, [inputs])
    archive.write_out(filepath, *args, **kwargs)
