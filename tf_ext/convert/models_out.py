# SPDX-License-Identifier: Apache-2.0
"""A model with tables as a Keras model without them."""

import typing
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext._checks import refuse
from tf_ext._compat.functional_graphs import Call, flat_outputs
from tf_ext._compat.models import is_compiled
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.convert.compiling import compile_options
from tf_ext.convert.copies import ModelCopy, functional
from tf_ext.convert.rows_in import check_column, log_notes
from tf_ext.convert.rows_out import (
    KerasLayers,
    make_layers,
    vocabulary_of,
)
from tf_ext.convert.slots import copy_slots, note_of_batches
from tf_ext.convert.table_slots import Kept, copy_rows
from tf_ext.feature_column.column import Column
from tf_ext.layers import EmbeddingFeatures
from tf_ext.optimizers.dense import deserialize
from tf_ext.tables.sparse_table import SparseTable
from tf_ext.training.building import wrapped_optimizers

_OWNER = "model_to_keras"


class KerasModel(typing.NamedTuple):
    """A Keras model that was made of one with tables.

    Attributes:
      model: `keras.Model` of Keras's own layers.
      left: dict of int, by the names of tables: how many rows are in no
        vocabulary, and so not in the model.
      notes: tuple of strings, a sentence for each thing that is not as in the
        model with tables.
    """

    model: typing.Any
    left: dict[str, int]
    notes: tuple[str, ...]


def model_to_keras(
    model: keras.Model,
    vocabularies: Mapping[str, typing.Any],
    unknown: npt.ArrayLike | None = None,
) -> KerasModel:
    """Makes a Keras model without tables, of plain lookups and Embeddings.

    It predicts the same for all values of the vocabularies, and has the
    optimizer's state, slots of rows included where Keras's optimizer has the
    formula of the tables' rule. The model with tables stays as it is.

    A column becomes a lookup and an Embedding, which those of one namespace and
    table share, as do all with `hashing="identity"` of a table, and what
    combines the rows: "sum", "mean", "sqrtn", or nothing for sequences. Its
    features must be dense inputs, `[batch_size]` or `[batch_size, n]`. Crosses,
    buckets, boundaries, weights and `cvm` are refused.

    Args:
      model: functional `tf_ext.Model`.
      vocabularies: dict of the values of columns by their namespaces, each as
        of `to_keras`: tables have signs, but no values.
      unknown: as of `to_keras`, for tables of one dim.

    Returns:
      `KerasModel`, whose model is compiled if `model` is.

    Raises:
      ValueError: a layer, a column or a vocabulary is none of these; the
        sentence names it.

    Example:
    >>> import tf_ext
    >>> from tf_ext._keras import keras
    >>> inputs = {"user": keras.Input((), dtype="string", name="user")}
    >>> user = tf_ext.feature_column.category_column("user")
    >>> table = tf_ext.SparseTable("user", dim=2)
    >>> table.import_rows(user.signs(["bob"]), {"weights": [[1.0, 2.0]]})
    1
    >>> outputs = tf_ext.layers.EmbeddingFeatures([user], table)(inputs)
    >>> model = tf_ext.Model(inputs, outputs)
    >>> left = tf_ext.convert.model_to_keras(model, {"user": ["bob", "cat"]})
    >>> left.model({"user": tf.constant(["bob"])}).numpy()
    array([[1., 2.]], dtype=float32)
    >>> left.left
    {'user': 0}
    """
    if not isinstance(vocabularies, Mapping):
        refuse(
            _OWNER,
            "vocabularies",
            "a dict of lists by the namespaces of columns",
            vocabularies,
        )
    copy = ModelCopy(_OWNER, functional(_OWNER, model))
    calls = [c for c in copy.calls if isinstance(c.layer, EmbeddingFeatures)]
    if not calls:
        raise ValueError(
            f"Argument `model` of {_OWNER} must have a layer "
            "tf_ext.layers.EmbeddingFeatures, not inside of another layer. "
            "Received: a model without one"
        )
    for table in {t.name: t for c in calls for t in c.layer.tables}.values():
        if table.rows.regime.processes.count > 1:
            raise ValueError(
                f"Argument `model` of {_OWNER} must have tables that one "
                f"process has. Received: table {table.name!r} with shards in "
                "several workers. Save the model, and load it in one process"
            )
    made = _Made(vocabularies, unknown, [call.layer for call in calls])
    for call in calls:
        _replace(copy, call, made)
    inputs = copy.inputs
    result = keras.Model(inputs, copy.outputs(), name=model.name)
    pairs = copy.copy_variables()
    inner, left_out = None, []
    if is_compiled(model) and model.optimizer is not None:
        [ours] = wrapped_optimizers(model.optimizer)
        inner = ours.inner_optimizer
        result.compile(
            deserialize(ours.get_config()["dense"]),
            **compile_options(_OWNER, model),
        )
        result.optimizer.build(result.trainable_variables)
        left_out = copy_slots(inner, result.optimizer, pairs)
        # Of tf_ext.optimizers.Optimizer, which steps for it.
        batches = tf.convert_to_tensor(getattr(ours, "_micro_step", 0))
        if int(batches):
            left_out.append(note_of_batches(int(batches)))
    left, notes = copy_rows(made.kept, result.optimizer if inner else None)
    notes += left_out
    if inner is not None and result.optimizer.clipnorm:
        notes += _notes_of_clipping(made.kept)
    log_notes(notes)
    return KerasModel(result, left, tuple(notes))


def _notes_of_clipping(kept: Sequence[Kept]) -> list[str]:
    """Of tables whose gradients `clipnorm` took as those of one variable."""
    names = [one.table.name for one in kept]
    return [
        f"`clipnorm` clips the {names.count(name)} Embeddings of table "
        f"{name!r} one by one."
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]


class _Made:
    """The layers that take the place of columns, made once for equal signs.

    Columns of one namespace have them, and all with hashing="identity".
    """

    def __init__(
        self,
        vocabularies: Mapping[str, typing.Any],
        unknown: typing.Any,
        layers: Iterable[EmbeddingFeatures],
    ) -> None:
        self._vocabularies = vocabularies
        # The columns that read a table by equal signs, by their namespaces.
        self._columns: dict[typing.Any, dict[str, Column]] = {}
        for layer in layers:
            for table, columns in zip(layer.tables, layer.columns):
                for column in columns:
                    key = table, column.hashing_identity
                    alike = self._columns.setdefault(key, {})
                    alike.setdefault(column.namespace, column)
        self._unknown = unknown
        self._layers: dict[typing.Any, KerasLayers] = {}
        self._missing: dict[typing.Any, typing.Any] = {}
        self.kept: list[Kept] = []

    def layers(
        self, layer: EmbeddingFeatures, table: SparseTable, column: Column
    ) -> KerasLayers:
        """The lookup and the Embedding of a column."""
        key = table, column.hashing_identity
        missing = column.parts[0].missing
        if self._missing.setdefault(key, missing) != missing:
            _refuse(
                layer, column, "has the `missing` of others of its namespace"
            )
        if key not in self._layers:
            self._layers[key] = self._make(layer, table, column)
        return self._layers[key]

    def _make(
        self, layer: EmbeddingFeatures, table: SparseTable, column: Column
    ) -> KerasLayers:
        namespaces = self._columns[table, column.hashing_identity]
        [values, *others] = (
            self._values(one, layer) for one in namespaces.values()
        )
        for more in map(np.asarray, others):
            new = more[~np.isin(more, values)]
            values = np.concatenate([values, new])
        vocabulary = vocabulary_of(_OWNER, column, values, table)
        made = make_layers(
            table,
            column,
            vocabulary,
            self._unknown,
            name=f"{table.name}_{column.namespace}".replace("/", "_"),
            dtype=layer.dtype_policy,
            mask_zero=vocabulary.missing is not None
            and column.sequence is not None,
            trainable=table.trainable and layer.trainable,
        )
        self.kept.append(Kept(table, vocabulary, made.embedding))
        return made

    def _values(self, column: Column, layer: EmbeddingFeatures) -> typing.Any:
        """The values of a column's namespace."""
        if column.namespace not in self._vocabularies:
            raise ValueError(
                f"Argument `vocabularies` of {_OWNER} must have the values of "
                f"each namespace. Received: none of {column.namespace!r}, "
                f"that of column {column.name!r} of layer {layer.name!r}, but "
                f"of {', '.join(sorted(map(repr, self._vocabularies)))}"
            )
        return self._vocabularies[column.namespace]


def _refuse(layer: typing.Any, column: Column, allowed: str) -> typing.NoReturn:
    raise ValueError(
        f"Argument `model` of {_OWNER} must have columns that Keras's layers "
        f"can express: {column.name!r} of layer {layer.name!r} must be one "
        f"that {allowed}. Received: {column!r}"
    )


def _replace(copy: ModelCopy, call: Call, made: _Made) -> None:
    """Puts Keras's layers into the place of a call of EmbeddingFeatures."""
    layer = call.layer
    config = layer.get_config()
    if config["cvm"]:
        raise ValueError(
            f"Argument `model` of {_OWNER} must have layers with cvm=False. "
            f"Received: layer {layer.name!r} with cvm=True"
        )
    [given] = [one for one in (*call.args, *call.kwargs.values()) if one]
    outputs: dict[str, typing.Any] = {}
    for table, columns in zip(layer.tables, layer.columns):
        named = {}
        for column in columns:
            _check(layer, column)
            [part] = column.parts
            if part.key not in given:
                _refuse(layer, column, "reads an input of the model")
            [source] = copy.need([given[part.key]])
            layers = made.layers(layer, table, column)
            named[column.name] = _combined(layer, column, source, layers)
        outputs[table.name] = named
        if layer.concatenate:
            parts = list(named.values())
            whole = keras.layers.Concatenate()(parts) if parts[1:] else parts[0]
            outputs[table.name] = whole
    for before, after in zip(call.outputs, flat_outputs(outputs), strict=True):
        copy.replace(before, after)


def _check(layer: EmbeddingFeatures, column: Column) -> None:
    try:
        check_column(_OWNER, column)
    except ValueError:
        _refuse(
            layer,
            column,
            "is of category_column or sequence_category_column, without "
            "buckets and boundaries",
        )
    if column.is_weighted:
        _refuse(layer, column, "has no weights")
    if column.sequence is not None:
        if column.ragged or column.sequence.max_length is not None:
            _refuse(layer, column, "has ragged=False and max_length=None")
    elif column.combiner not in ("sum", "mean", "sqrtn"):
        _refuse(layer, column, "combines by sum, mean or sqrtn")


def _combined(
    layer: EmbeddingFeatures,
    column: Column,
    source: typing.Any,
    layers: KerasLayers,
) -> typing.Any:
    """The output of a column."""
    rank = len(source.shape)
    is_text = isinstance(layers.lookup, keras.layers.StringLookup)
    if rank not in (1, 2) or (rank == 1 and column.sequence is not None):
        _refuse(layer, column, f"reads [batch_size, n], not {source.shape}")
    if is_text != (tf.as_dtype(source.dtype) == tf.string):
        raise ValueError(
            f"Argument `vocabularies` of {_OWNER} must have strings for "
            "features of strings, and integers for others. Received: "
            f"{'strings' if is_text else 'integers'} for column "
            f"{column.name!r}, whose feature is of {source.dtype}"
        )
    ids = layers.lookup(source)
    rows = layers.embedding(ids)
    if column.sequence is not None:
        return rows
    has_missing = column.parts[0].missing is not None
    if has_missing:
        there = _ops.cast(_ops.not_equal(ids, 0), rows.dtype)
        there = _ops.expand_dims(there, -1)
        rows = rows * there
    if rank == 1:
        return rows
    if not has_missing:
        if source.shape[1] == 1:
            return keras.layers.Flatten()(rows)
        if column.combiner == "mean":
            return keras.layers.GlobalAveragePooling1D()(rows)
    total = _sum(rows)
    if column.combiner == "sum":
        return total
    if not has_missing:
        there = _ops.ones_like(rows)
    count = _ops.maximum(_sum(there), 1.0)
    return total / (count if column.combiner == "mean" else _ops.sqrt(count))


_ops: typing.Any = keras.ops if IS_KERAS_3 else tf


def _sum(rows: typing.Any) -> typing.Any:
    if IS_KERAS_3:
        return keras.ops.sum(rows, axis=1)
    return tf.reduce_sum(rows, axis=1)
