# SPDX-License-Identifier: Apache-2.0
"""Inputs of models that nothing but the clicks of their tables needs.

Clicks are counted in training alone. So predictions need no such input, and
served models do not have it.
"""

import typing
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tf_ext._batch_source import source_with
from tf_ext._compat.graphs import in_other_function
from tf_ext._compat.models import (
    Functional,
    keys_given,
    layers_of,
    readers_of,
)
from tf_ext._keras import keras
from tf_ext.data.worker_batches import batch_size_of
from tf_ext.layers import EmbeddingFeatures
from tf_ext.tables.sparse_table import SparseTable


def inputs_by_key(model: keras.Model) -> dict[str, typing.Any]:
    """The symbolic inputs of a functional model, by key."""
    if isinstance(model.input, Mapping):
        return dict(model.input)
    return {one.name: one for one in tf.nest.flatten(model.input)}


def is_flat(model: keras.Model) -> bool:
    """Whether the inputs of a functional model are a list of tensors."""
    inputs = model.input
    return isinstance(inputs, list | tuple) and (
        len(tf.nest.flatten(inputs)) == len(inputs)
    )


def layers_that_count(
    model: keras.Model, symbolic: typing.Any
) -> frozenset[EmbeddingFeatures]:
    """The layers that take an input for their `click`, if nothing else does.

    Args:
      model: functional keras.Model.
      symbolic: one of its inputs.

    Returns:
      Set of EmbeddingFeatures, of nested models too; empty if the input is
      needed for anything else, or for nothing.
    """
    found: set[EmbeddingFeatures] = set()
    if any(symbolic is one for one in tf.nest.flatten(model.output)):
        return frozenset()
    for reader in readers_of(model, symbolic):
        if isinstance(reader, keras.layers.InputLayer):
            continue
        keys = keys_given(reader, symbolic)
        if not keys:
            return frozenset()
        if isinstance(reader, EmbeddingFeatures):
            is_read = bool(keys & _keys_read(reader))
            if not is_read and reader.click not in keys:
                continue  # It is given a dict of more than it reads.
            its_click = not is_read and keys == {reader.click}
            layers = frozenset([reader]) if its_click else frozenset()
        elif isinstance(reader, Functional):
            own = inputs_by_key(reader)
            parts = [layers_that_count(reader, own[key]) for key in keys]
            layers = frozenset().union(*parts) if all(parts) else frozenset()
        else:
            layers = frozenset()
        if not layers:
            return frozenset()
        found |= layers
    return frozenset(found)


def _keys_read(layer: EmbeddingFeatures) -> set[str]:
    """The keys of the features of a layer's columns."""
    return {
        key
        for columns in layer.columns
        for column in columns
        for part in column.parts
        for key in part.keys
    }


def zeros_for(spec: typing.Any, batch_size: tf.Tensor) -> tf.Tensor:
    """A dense feature of zeros, or without values, in place of another.

    Args:
      spec: KerasTensor or tf.TensorSpec of the other.
      batch_size: int64 scalar.
    """
    inner = [n or 0 for n in spec.shape[1:]]
    return tf.zeros(tf.stack([batch_size, *inner]), spec.dtype)


def clicks_of(
    model: keras.Model, specs: typing.Any
) -> dict[str | int, tf.TensorSpec]:
    """The inputs of a model that predictions do not need, because of clicks.

    Args:
      model: keras.Model of any kind.
      specs: structure of `tf.TypeSpec` of its inputs.

    Returns:
      Their specs, by key, or by place if the inputs are a list or a tuple.
    """
    if not isinstance(model, Functional) or isinstance(model, keras.Sequential):
        return _unread_clicks(model, specs)
    found: dict[str | int, tf.TensorSpec] = {
        key: tf.TensorSpec([None, *symbolic.shape[1:]], symbolic.dtype)
        for key, symbolic in inputs_by_key(model).items()
        if layers_that_count(model, symbolic)
    }
    if isinstance(model.input, Mapping):
        return {**found}
    if not is_flat(model):
        return {}
    keys = enumerate(inputs_by_key(model))
    return {place: found[key] for place, key in keys if key in found}


def _unread_clicks(
    model: keras.Model, specs: typing.Any
) -> dict[str | int, tf.TensorSpec]:
    """As `clicks_of`, of a model whose graph has to be traced."""
    if not isinstance(specs, Mapping):
        return {}
    clicks = {
        layer.click
        for layer in layers_of(model)
        if isinstance(layer, EmbeddingFeatures)
    }
    wanted = [
        key
        for key, spec in specs.items()
        if key in clicks and isinstance(spec, tf.TensorSpec)
    ]
    if not wanted:
        return {}
    names: dict[str, str] = {}

    def note(batch: dict[str, typing.Any]) -> None:
        names.update({key: batch[key].name for key in wanted})

    graph = _traced(model, specs, note)
    if graph is None:
        return {}  # Where it is traced for a purpose, the error says why.
    used = reached(graph.outputs)
    return {key: specs[key] for key in wanted if names[key] not in used}


def _traced(
    model: keras.Model,
    specs: Mapping[str, typing.Any],
    note: Callable[[dict[str, typing.Any]], None] = lambda _: None,
) -> typing.Any:
    """The graph of predictions, without rows; None if there is an error."""

    def call(batch: dict[str, typing.Any]) -> typing.Any:
        graph = tf.compat.v1.get_default_graph()
        note(batch)

        def lookup(
            table: SparseTable, signs: tf.Tensor, statistics: int
        ) -> tf.Tensor:
            if in_other_function(graph):
                # It would keep the rows of this trace.
                raise RuntimeError(f"{table.name} in another function")
            return tf.zeros([tf.size(signs), table.dim + statistics])

        with source_with(lookup=lookup):
            return model(batch, training=False)

    try:
        function = tf.function(call, autograph=False)
        return function.get_concrete_function(dict(specs)).graph
    except Exception:
        return None


def reached(outputs: Sequence[tf.Tensor]) -> set[str]:
    """The names of all tensors on which `outputs` depend."""
    found = {output.name for output in outputs}
    waiting = [output.op for output in outputs]
    seen = set()
    while waiting:
        operation = waiting.pop()
        if operation.name not in seen:
            seen.add(operation.name)
            found.update(one.name for one in operation.inputs)
            waiting += [one.op for one in operation.inputs]
            waiting += operation.control_inputs
    return found


def without(
    structure: typing.Any, clicks: Mapping[str | int, tf.TensorSpec]
) -> typing.Any:
    """Inputs of a model, or their specs, without those of `clicks_of`."""
    if not clicks:
        return structure
    if isinstance(structure, Mapping):
        return {k: v for k, v in structure.items() if k not in clicks}
    return type(structure)(
        value for place, value in enumerate(structure) if place not in clicks
    )


def completed(
    inputs: typing.Any, clicks: Mapping[str | int, tf.TensorSpec]
) -> typing.Any:
    """Inputs with zeros for those of `clicks_of`; the inverse of `without`."""
    if not clicks:
        return inputs
    size = batch_size_of(inputs)
    zeros = {key: zeros_for(spec, size) for key, spec in clicks.items()}
    if isinstance(inputs, Mapping):
        return {**inputs, **zeros}
    others = iter(inputs)
    return [
        zeros[place] if place in zeros else next(others)
        for place in range(len(inputs) + len(zeros))
    ]


def exported(model: keras.Model, specs: typing.Any) -> typing.Any:
    """The inputs of a model that `Model.export` writes, without clicks.

    Args:
      model: keras.Model.
      specs: structure of `tf.TypeSpec`, or in Keras 3 KerasTensors, of all
        inputs.
    """
    others = without(specs, clicks_of(model, specs))
    # A `call` may ask for what it does not need.
    if not isinstance(model, Functional) and others is not specs:
        return specs if _traced(model, others) is None else others
    return others
