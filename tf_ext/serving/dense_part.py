# SPDX-License-Identifier: Apache-2.0
"""The dense part of a model, as a function of the embeddings."""

import re
import typing
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf_ext._batch_source import Given, source_with
from tf_ext._keras import keras
from tf_ext.feature_column.column import Column
from tf_ext.layers import adapted
from tf_ext.layers.click_inputs import reached
from tf_ext.serving import signature as signatures
from tf_ext.serving.served_model import check_ops, resources_of, variables_of
from tf_ext.tables.sparse_table import SparseTable
from tf_ext.training.building import example_of

_OWN_OPS = "TfExt>"


class Embedding(typing.NamedTuple):
    """An input of the dense part: the combined embedding of a column.

    Attributes:
      name: string, the name of the input.
      table: SparseTable.
      column: Column.
      features: dict that maps the keys of the features and weights that the
        column reads to the names of the model's inputs, or to None if the model
        computes them. Absent ones have no key.
      mask: string, the name of the input with the mask of a padded sequence;
        None if the model does not use it, and for other columns.
      row_splits: string, the name of the input with the row splits of a ragged
        sequence, whose values are the input `name`; None for other columns.
    """

    name: str
    table: SparseTable
    column: Column
    features: dict[str, str | None]
    mask: str | None = None
    row_splits: str | None = None

    def spec(self) -> tf.TensorSpec:
        """The input's spec: float32, whatever the model's compute dtype."""
        shape = self.column.output_shape(self.table.dim)
        if self.row_splits:
            # The positions of all samples, one after the other.
            return tf.TensorSpec([None, shape[-1]], tf.float32, self.name)
        return tf.TensorSpec([None, *shape], tf.float32, self.name)

    def mask_spec(self) -> tf.TensorSpec:
        """The spec of the input with the mask of a sequence."""
        length, _ = self.column.output_shape(self.table.dim)
        return tf.TensorSpec([None, length], tf.bool, self.mask)

    def row_splits_spec(self) -> tf.TensorSpec:
        """The spec of the input with the row splits of a ragged sequence."""
        return tf.TensorSpec([None], tf.int64, self.row_splits)


class DensePart(typing.NamedTuple):
    """The dense part of a model.

    Attributes:
      module: tf.Module that holds the variables and resources of `function`.
      function: tf.ConcreteFunction with one keyword argument per input, which
        returns a dict of outputs.
      embeddings: list of Embedding.
      others: dict that maps the names of the other inputs to their names in
        the model.
      specs: dict of the specs of the model's inputs.
    """

    module: tf.Module
    function: typing.Any
    embeddings: Sequence[Embedding]
    others: dict[str, str]
    specs: dict[str, tf.TypeSpec]


def cut(model: keras.Model, taken: signatures.Signature) -> DensePart:
    """Cuts a model in two at the outputs of `EmbeddingFeatures`.

    Args:
      model: keras.Model with tables.
      taken: signatures.Signature of the model's inputs.

    Returns:
      DensePart.

    Raises:
      ValueError: if the model cannot be cut; the message says why.
    """
    probe = _Probe(model, taken)
    names = _Names()
    embeddings = [
        one._replace(
            name=names.free(one.name),
            mask=one.mask and names.free(one.mask),
            row_splits=one.row_splits and names.free(one.row_splits),
        )
        for one in probe.embeddings
    ]
    others = {names.free(key): key for key in probe.needed}
    name_of = {key: name for name, key in others.items()}

    def dense(**given: tf.Tensor) -> dict[str, tf.Tensor]:
        absent = taken.unpack(example_of(taken.specs))
        batch = {
            key: given[name_of[key]] if key in name_of else absent[key]
            for key in taken.tensors
        }
        take = iter([_given(embeddings[i], given) for i in probe.order])
        with (
            source_with(given=lambda *_: next(take)),
            # Versions have the statistics of their points.
            adapted.read_from_variables(model),
        ):
            outputs = taken.call(model, taken.pack(batch))
        return signatures.name_outputs(outputs)

    arguments = {one.name: one.spec() for one in embeddings}
    arguments |= {one.mask: one.mask_spec() for one in embeddings if one.mask}
    arguments |= {
        one.row_splits: one.row_splits_spec()
        for one in embeddings
        if one.row_splits
    }
    for name, key in others.items():
        spec = taken.tensors[key]
        arguments[name] = tf.TensorSpec(spec.shape, spec.dtype, name)
    function = tf.function(dense, autograph=False)
    concrete = function.get_concrete_function(**arguments)
    _check_reads(model, concrete)
    check_ops(concrete, model.name)
    module = tf.Module()
    # A SavedModel contains only tracked objects.
    module.dense_variables = variables_of(model, concrete)
    module.resources = resources_of(model, concrete)
    specs = signatures.flatten(taken.specs, taken.specs)
    return DensePart(module, concrete, embeddings, others, specs)


def _given(one: Embedding, tensors: Mapping[str, tf.Tensor]) -> Given:
    """An embedding of the function's arguments, and its mask."""
    output = tensors[one.name]
    if one.row_splits:
        # Validated, because clients may send anything.
        splits = tensors[one.row_splits]
        return Given(tf.RaggedTensor.from_row_splits(output, splits), None)
    mask = tensors[one.mask] if one.mask else None
    if mask is None and one.column.has_mask:
        # The outputs do not depend on it.
        mask = tf.ones(tf.shape(output)[:2], tf.bool)
    return Given(output, mask)


class _Probe:
    """Finds the embeddings and the other inputs that a model uses.

    Args:
      model: keras.Model.
      taken: signatures.Signature of the model.

    Attributes:
      embeddings: list of distinct Embeddings, with their preferred names.
      order: list of int, the index in `embeddings` for each call, in the order
        of the calls.
      needed: list of strings, the tensors of `taken` that outputs depend on.
    """

    def __init__(self, model: keras.Model, taken: signatures.Signature) -> None:
        self.embeddings: list[Embedding] = []
        self.order: list[int] = []
        self._model = model
        self._places: dict[typing.Any, int] = {}
        self._masks: dict[int, tf.Tensor] = {}
        self._inputs: dict[str, tuple[str, ...]] = {}
        self._graph: typing.Any = None

        # Does not use `taken.pack`: its checks would depend on all inputs.
        def call(batch: typing.Any) -> typing.Any:
            self._graph = tf.compat.v1.get_default_graph()
            leaves = signatures.flatten(batch, taken.specs)
            self._inputs = {k: _tensors(leaf) for k, leaf in leaves.items()}
            with source_with(given=self._give):
                return taken.call(model, batch)

        function = tf.function(call, autograph=False)
        graph = function.get_concrete_function(taken.specs).graph
        if not self.order:
            raise ValueError(
                f"Model {model.name!r} cannot be split: no EmbeddingFeatures "
                "was called while it was traced. A `call` that is a "
                "tf.function hides its layers: remove the decorator."
            )
        used = reached(graph.outputs)
        leaves = signatures.flatten(taken.specs, taken.specs)
        self.embeddings = [
            one
            if place in self._masks and self._masks[place].name in used
            else one._replace(mask=None)
            for place, one in enumerate(self.embeddings)
        ]
        # If one tensor of an input is needed, all of them are.
        self.needed = [
            name
            for key, found in self._inputs.items()
            if used & {*found}
            for name in signatures.Signature({key: leaves[key]}).tensors
        ]

    def _give(
        self,
        table: SparseTable,
        column: Column,
        inputs: Mapping[str, typing.Any],
    ) -> Given:
        if tf.compat.v1.get_default_graph() is not self._graph:
            raise ValueError(
                f"Model {self._model.name!r} cannot be split: EmbeddingFeatures"
                f" on table {table.name!r} is called inside of a tf.function, "
                "a loop or a condition. Call it outside of them."
            )
        read = {
            key: _tensors(inputs[key])
            for part in column.parts
            for key in part.keys
            if key in inputs
        }
        place = (id(table), column, tuple(sorted(read.items())))
        if place not in self._places:
            self._places[place] = len(self.embeddings)
            name = f"{table.name}__{column.name}"
            self.embeddings.append(
                Embedding(
                    name,
                    table,
                    column,
                    {key: self._input_of(found) for key, found in read.items()},
                    f"{name}__mask",
                    f"{name}__row_splits" if column.ragged else None,
                )
            )
        index = self._places[place]
        self.order.append(index)
        one = self.embeddings[index]
        output = _placeholder(one.spec())
        if column.ragged:
            splits = _placeholder(one.row_splits_spec())
            return Given(tf.RaggedTensor.from_row_splits(output, splits), None)
        if not column.has_mask:
            return Given(output, None)
        if index not in self._masks:
            mask = _placeholder(self.embeddings[index].mask_spec())
            self._masks[index] = mask
        return Given(output, self._masks[index])

    def _input_of(self, tensors: tuple[str, ...]) -> str | None:
        """The name of the model's input with these tensors, or None."""
        for key, found in self._inputs.items():
            if found == tensors:
                return key
        return None


def _placeholder(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.compat.v1.placeholder(spec.dtype, spec.shape)


def _tensors(feature: typing.Any) -> tuple[str, ...]:
    """The names of the tensors that a feature consists of."""
    flat = tf.nest.flatten(feature, expand_composites=True)
    return tuple(
        one.name if tf.is_symbolic_tensor(one) else f"constant {id(one)}"
        for one in flat
    )


class _Names:
    """Unique names of inputs that are valid as keyword arguments."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def free(self, wanted: str) -> str:
        """Returns an unused name that is similar to the wanted one."""
        text = re.sub(r"[^A-Za-z0-9_]", "_", wanted)
        # Names of nodes must not begin with "_", nor keywords with a digit.
        text = text if text[:1].isalpha() else f"input_{text}"
        name, count = text, 1
        while name.lower() in self._taken:
            count += 1
            name = f"{text}_{count}"
        self._taken.add(name.lower())
        return name


def _check_reads(model: keras.Model, function: typing.Any) -> None:
    """Raises ValueError if a table is read outside of EmbeddingFeatures."""
    for operation in function.graph.get_operations():
        if operation.type.startswith(_OWN_OPS):
            raise ValueError(
                f"Model {model.name!r} cannot be split: it uses the op "
                f"{operation.type} outside of its EmbeddingFeatures, which is "
                "where it is cut. Have one of them read the table."
            )
