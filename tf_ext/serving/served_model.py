# SPDX-License-Identifier: Apache-2.0
"""Traces models with stock TensorFlow ops."""

import functools
import os
import pathlib
import typing
from collections.abc import Iterator

import tensorflow as tf

from tf_ext._batch_source import source_with
from tf_ext._compat.models import layers_of
from tf_ext._keras import keras, tf_variable
from tf_ext.ops._stock.allowed import foreign_ops, nodes_of
from tf_ext.serving.signature import Signature, name_outputs
from tf_ext.serving.stock_table import StockTables
from tf_ext.serving.warmup import SIGNATURE
from tf_ext.tables.sparse_table import SparseTable

# Stock ops that run Python functions, which servers cannot do.
_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def save(
    path: pathlib.Path,
    model: keras.Model,
    tables: StockTables,
    signature: Signature,
) -> None:
    """Writes a model as a SavedModel, whose `tables` are still empty.

    Args:
      path: pathlib.Path, the folder of the SavedModel.
      model: keras.Model, built.
      tables: StockTables, in place of the model's tables.
      signature: Signature of the model's inputs.

    Raises:
      ValueError: if the model has an op that is not TensorFlow's or that runs
        Python, or if a tf.function in it reads a table.
    """

    def call(inputs: typing.Any) -> typing.Any:
        graph = tf.compat.v1.get_default_graph()
        with source_with(lookup=functools.partial(tables.lookup, graph)):
            return signature.call(model, inputs)

    function = functools.partial(tf.function, autograph=False)
    try:
        traced = function(
            call, input_signature=[signature.specs]
        ).get_concrete_function()
    except Exception as error:
        if tables.hidden is None:
            raise
        raise ValueError(
            f"Model {model.name!r} cannot be exported: a tf.function in it "
            f"reads the table {tables.hidden!r}, and would continue to read "
            "the exported rows; call the layer outside of it."
        ) from error

    # Both endpoints call the same concrete function. If `call` were a
    # tf.function, saving would trace it again, and the SavedModel would
    # contain the model's graph twice.
    def serve(inputs: typing.Any) -> typing.Any:
        return traced(inputs)

    def serve_named(inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return name_outputs(traced(signature.pack(inputs)))

    default = function(
        serve_named, input_signature=[signature.tensors]
    ).get_concrete_function()
    check_ops(default, model.name)
    # A SavedModel contains all tracked objects. The model is not one of them,
    # because its tables would be, too.
    module = tf.Module()
    module.serve = function(serve, input_signature=[signature.specs])
    module.tables = list(tables.of.values())
    module.resources = resources_of(model, default)
    module.variables_ = variables_of(model, default)
    tf.saved_model.save(module, os.fspath(path), {SIGNATURE: default})


def check_ops(function: typing.Any, name: str) -> None:
    """Raises ValueError for ops that are not TensorFlow's or that run Python.

    Args:
      function: tf.ConcreteFunction.
      name: string, the model's.
    """
    graph = function.graph.as_graph_def()
    foreign = set(foreign_ops(graph))
    for node in nodes_of(graph):
        if node.op in _PYTHON_OPS:
            raise ValueError(
                f"Model {name!r} cannot be exported: {node.name!r} runs "
                "Python (tf.py_function or tf.numpy_function), which servers "
                "do not have. Write it with ops of TensorFlow."
            )
        if node.op in foreign:
            raise ValueError(
                f"Model {name!r} cannot be exported: {node.name!r} is an op "
                f"{node.op}, which TensorFlow does not have. Write its layer "
                "with ops of TensorFlow, or use model.export and servers that "
                "load the op."
            )


def variables_of(model: keras.Model, function: typing.Any) -> list[typing.Any]:
    """The variables that a function reads, also by ops of their resources.

    Args:
      model: keras.Model.
      function: tf.ConcreteFunction.
    """
    captured = {id(tensor) for tensor in function.captured_inputs}
    found = {id(variable): variable for variable in function.variables}
    for weight in model.weights:
        variable = tf_variable(weight)
        if id(getattr(variable, "handle", None)) in captured:
            found.setdefault(id(variable), variable)
    return list(found.values())


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
