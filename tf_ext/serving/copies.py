# SPDX-License-Identifier: Apache-2.0
"""Copies models of several processes into one process."""

import tempfile
import typing

import numpy.typing as npt

from tf_ext._compat.models import Functional, layers_of
from tf_ext._keras import keras
from tf_ext.layers import adapted
from tf_ext.layers.retrieval import Retrieval
from tf_ext.serving.signature import Signature
from tf_ext.tables import shadow
from tf_ext.tables.find import tables_of
from tf_ext.training.building import example_of


def copy_of(
    model: keras.Model,
    signature: Signature,
    weights: list[npt.NDArray[typing.Any]],
) -> keras.Model:
    """Returns a model with the same configuration, local to this process.

    Args:
      model: keras.Model.
      signature: Signature of its inputs.
      weights: the result of `model.get_weights()`.

    Returns:
      keras.Model, whose tables are empty.

    Raises:
      ValueError: if the model cannot be created from its configuration.
    """
    try:
        copy = _from_config(model)
        if not copy.built:
            signature.call(copy, example_of(signature.specs))
    except (NotImplementedError, TypeError) as error:
        raise ValueError(
            f"Model {model.name!r} of several processes is exported as a copy, "
            "which its `get_config` and `from_config` cannot create: implement "
            "them, or export snapshots of its tables (export_snapshots) with "
            f"the same model made without a strategy. They failed with: {error}"
        ) from error
    names = [table.name for table in tables_of(model)]
    found = [table.name for table in tables_of(copy)]
    if names != found or len(copy.weights) != len(weights):
        raise ValueError(
            f"Model {model.name!r} and its copy by `from_config` must have "
            f"the same tables and weights. Received: {len(weights)} weights "
            f"and the tables {names}, and {len(copy.weights)} and {found}"
        )
    for variable, value in zip(copy.weights, weights):
        if shadow.holds_values(variable):
            variable.assign(value)
    adapted.finalize(copy)
    for old, new in zip(layers_of(model), layers_of(copy)):
        if hasattr(old, "save_assets"):  # Vocabularies.
            with tempfile.TemporaryDirectory() as folder:
                old.save_assets(folder)
                new.load_assets(folder)
        elif isinstance(old, Retrieval):
            new.index(old.ids, old.embeddings)
    return copy


def _from_config(model: keras.Model) -> keras.Model:
    if isinstance(model, (Functional, keras.Sequential)):
        return keras.models.clone_model(model)
    return type(model).from_config(model.get_config())
