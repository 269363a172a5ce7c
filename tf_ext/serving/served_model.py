# SPDX-License-Identifier: Apache-2.0
"""Traces models with stock TensorFlow ops."""

import functools
import os
import pathlib
import typing
from collections.abc import Iterator

import tensorflow as tf

from tf_ext._batch_source import source_with
from tf_ext._compat.graphs import in_other_function
from tf_ext._compat.models import layers_of
from tf_ext._keras import keras
from tf_ext.ops._stock.allowed import foreign_ops, nodes_of
from tf_ext.serving.signature import Signature, name_outputs
from tf_ext.serving.stock_table import StockTable
from tf_ext.serving.variable_files import fill_variables
from tf_ext.serving.warmup import SIGNATURE
from tf_ext.tables.sparse_table import SparseTable

# Stock ops that run Python functions, which servers cannot do.
_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


class ServedModel(tf.Module):
    """The object that is saved as a SavedModel.

    Args:
      model: keras.Model, built.
      tables: dict from the model's tables to the StockTables that replace them.
      signature: Signature of the model's inputs.

    Raises:
      ValueError: if the model has an op that is not TensorFlow's or that runs
        Python, or if a tf.function in it reads a table.
    """

    def __init__(
        self,
        model: keras.Model,
        tables: dict[SparseTable, StockTable],
        signature: Signature,
    ) -> None:
        super().__init__()
        # The model is not an attribute, because SavedModels contain all tracked
        # objects, and its tables would be among them.
        by_id = {id(table): stock for table, stock in tables.items()}
        kept_by: list[SparseTable] = []

        def call(inputs: typing.Any) -> typing.Any:
            graph = tf.compat.v1.get_default_graph()

            def lookup(
                table: SparseTable, signs: tf.Tensor, statistics: int
            ) -> tf.Tensor:
                if in_other_function(graph):
                    kept_by.append(table)
                    raise RuntimeError(f"{table.name} in another function")
                return by_id[id(table)].lookup(signs, statistics)

            with source_with(lookup=lookup):
                return model(signature.complete(inputs), training=False)

        function = functools.partial(tf.function, autograph=False)
        try:
            traced = function(
                call, input_signature=[signature.specs]
            ).get_concrete_function()
        except Exception as error:
            if not kept_by:
                raise
            raise ValueError(
                f"Model {model.name!r} cannot be exported: a tf.function in "
                f"it reads the table {kept_by[0].name!r}, and would continue "
                "to read the exported rows; call the layer outside of it."
            ) from error

        # Both endpoints call the same concrete function. If `call` were a
        # tf.function, saving would trace it again, and the SavedModel would
        # contain the model's graph twice.
        def serve(inputs: typing.Any) -> typing.Any:
            return traced(inputs)

        def serve_named(inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return name_outputs(traced(signature.pack(inputs)))

        self.serve = function(serve, input_signature=[signature.specs])
        self._default = function(
            serve_named, input_signature=[signature.tensors]
        ).get_concrete_function()
        check_ops(self._default, model.name)
        self.tables = list(tables.values())
        self.resources = resources_of(model, self._default)
        self.variables_ = list(self._default.variables)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the SavedModel."""
        tf.saved_model.save(
            self,
            os.fspath(path),
            signatures={SIGNATURE: self._default},
        )
        fill_variables(
            pathlib.Path(path, "variables", "variables"),
            {
                ("tables", str(index), name): file
                for index, table in enumerate(self.tables)
                for name, file in table.files.items()
            },
        )


def step_of(model: keras.Model) -> int | None:
    """The training step of a model; None if it is not compiled."""
    optimizer = getattr(model, "optimizer", None)
    iterations = getattr(optimizer, "iterations", None)
    return None if iterations is None else int(tf.convert_to_tensor(iterations))


def check_model(model: typing.Any, function: str) -> None:
    """Raises TypeError unless this is a Keras model.

    Args:
      model: what was passed as one.
      function: string, the name of the public function, for the error.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"Argument `model` of {function} must be a Keras model, and comes "
            f"first. Received: model={model!r}. Load a model that was saved "
            "with keras.models.load_model."
        )


def check_built(model: keras.Model, function: str) -> None:
    """Raises ValueError unless a model is built.

    Args:
      model: keras.Model.
      function: string, the name of the public function, for the error.
    """
    check_model(model, function)
    if not model.built:
        raise ValueError(
            f"Argument `model` of {function} must be built: call it, or train "
            f"it. Received: {model.name!r}, which is not"
        )


def check_ops(function: typing.Any, label: str) -> None:
    """Raises ValueError for ops that are not TensorFlow's or that run Python.

    Args:
      function: tf.ConcreteFunction.
      label: string, the model's name.
    """
    graph = function.graph.as_graph_def()
    foreign = set(foreign_ops(graph))
    for node in nodes_of(graph):
        if node.op in _PYTHON_OPS:
            raise ValueError(
                f"Model {label!r} cannot be exported: {node.name!r} runs "
                "Python (tf.py_function or tf.numpy_function), which servers "
                "do not have. Write it with ops of TensorFlow."
            )
        if node.op in foreign:
            raise ValueError(
                f"Model {label!r} cannot be exported: {node.name!r} is an op "
                f"{node.op}, which TensorFlow does not have. Write its layer "
                "with ops of TensorFlow, or use model.export and servers that "
                "load the op."
            )


def resources_of(model: keras.Model, function: typing.Any) -> list[typing.Any]:
    """The resources of a model's layers, such as lookup tables, in use.

    Args:
      model: keras.Model.
      function: tf.ConcreteFunction; only resources that it captures are
        returned.
    """
    captured = {id(tensor) for tensor in function.captured_inputs}
    found = {}
    for resource in _all_resources(model):
        if id(resource.resource_handle) in captured:
            found[id(resource)] = resource
    return list(found.values())


def _all_resources(model: keras.Model) -> Iterator[typing.Any]:
    kind = tf.saved_model.experimental.TrackableResource
    for layer in [model, *layers_of(model)]:
        if isinstance(layer, SparseTable):
            continue
        for child in tf.train.TrackableView(layer).descendants():
            if isinstance(child, kind):
                yield child
