# SPDX-License-Identifier: Apache-2.0
"""A Keras model as one with tables."""

import typing

from tf_ext._compat.models import is_compiled
from tf_ext._keras import keras
from tf_ext.convert.compiling import compile_options, dense_copy
from tf_ext.convert.copies import ModelCopy, functional
from tf_ext.convert.indices import Indices, indices_of
from tf_ext.convert.patterns import OWNER, Found, as_ids, find, without_mask
from tf_ext.convert.rows_in import (
    ConvertedRows,
    log_notes,
    take_rows,
    what_unknown_read,
)
from tf_ext.convert.slots import copy_slots, rule_and_l2, unwrapped
from tf_ext.feature_column import category_column, sequence_category_column
from tf_ext.feature_column.column import Column
from tf_ext.initializers import from_keras as initializer_of
from tf_ext.layers import EmbeddingFeatures
from tf_ext.models.model import Model
from tf_ext.optimizers import Optimizer, SparseOptimizer
from tf_ext.tables.sparse_table import SparseTable
from tf_ext.training.building import build_optimizer


class ConvertedModel(typing.NamedTuple):
    """A Keras model that was converted.

    Attributes:
      model: `tf_ext.Model`.
      rows: dict of `ConvertedRows`, by the names of the Embeddings.
      columns: dict of the columns that took the place of each Embedding, a
        list by its name.
      notes: tuple of strings, a sentence for each thing that is not as in
        Keras.
    """

    model: typing.Any
    rows: dict[str, ConvertedRows]
    columns: dict[str, list[Column]]
    notes: tuple[str, ...]


class _Place(typing.NamedTuple):
    """A call of an Embedding, and what takes its place."""

    found: Found
    column: Column
    table: SparseTable


def model_from_keras(
    model: keras.Model,
    optimizer: str | SparseOptimizer | None = None,
    unknown: str = "initial",
) -> ConvertedModel:
    """Makes a model with tables of a trained Keras model.

    It predicts the same for all values that the vocabularies have, and
    continues the training with the state of the optimizer. The Keras model
    stays as it is. Call it in the scope of a strategy to train under that.

    Each `keras.layers.Embedding` becomes a column, also where it is called
    several times. It reads what the `StringLookup` or `IntegerLookup` before
    it reads; or without one, the ids, of an input or of any other layer, such
    as `Hashing`. Ids are `[batch_size]` or `[batch_size, n]`, and become:

    - one vector, where `Flatten` or `Reshape` follows and n is 1;
    - the mean, where `GlobalAveragePooling1D` follows, with `mask_zero` of the
      ids that are not masked; without any, zeros instead of NaN;
    - a sequence elsewhere. With `mask_zero`, only recurrent layers and
      `GlobalAveragePooling1D` may follow, as masked positions are zeros.

    All other layers are copied, with their weights. Embeddings of one dim,
    initializer and `trainable` share a table, unless the optimizer has
    `clipnorm`. Values that have no row get one when they are trained.

    Args:
      model: functional `keras.Model`, or a `Sequential` whose inputs are known.
      optimizer: the rule of the tables, as of `SparseTable`. None: that with
        the formula of the model's optimizer, whose slots then become those of
        rows: for Adam and AdamW, `SparseAdam(absent="decay")`, by which the
        losses are those that Keras would have. Of a model that is not compiled,
        "row_wise_adagrad".
      unknown: what is read for values without a row: "initial" or "zeros", as
        of `SparseTable`; or "shared", the rows of `[UNK]`, from which values
        then start that are trained. Each Embedding with such rows has a table
        of its own for that.

    Returns:
      `ConvertedModel`, whose model is compiled if `model` is.

    Raises:
      ValueError: a layer is none of these; the sentence names it.

    Example:
    >>> import numpy as np
    >>> import tf_ext
    >>> from tf_ext._keras import keras
    >>> user = keras.Input((1,), dtype="string", name="user")
    >>> lookup = keras.layers.StringLookup(vocabulary=["ann", "bob"])
    >>> rows = keras.layers.Embedding(3, 4, name="users")(lookup(user))
    >>> outputs = keras.layers.Dense(1)(keras.layers.Flatten()(rows))
    >>> before = keras.Model(user, outputs)
    >>> before.compile("adagrad", "mse")
    >>> done = tf_ext.convert.model_from_keras(before)
    >>> done.rows["users"].taken, done.rows["users"].unknown.shape
    (2, (1, 4))
    >>> names = np.array([["bob"], ["ann"]], dtype=object)
    >>> inputs = tf.constant(names)
    >>> bool(np.allclose(done.model(inputs), before(inputs), atol=1e-6))
    True
    >>> type(done.model.tables[0].optimizer).__name__
    'SparseAdagrad'
    """
    graph = functional(OWNER, model)
    trained = unwrapped(model.optimizer) if is_compiled(model) else None
    options = compile_options(OWNER, model) if trained is not None else {}
    copy = ModelCopy(OWNER, graph)
    found = find(copy)
    values = {
        id(one.embedding): indices_of(OWNER, one.embedding, one.lookup)
        for one in found
    }
    tables = _tables(found, optimizer, trained, unknown, values)
    places = _places(copy, found, tables, values)
    _put_features(copy, places)
    made = Model(copy.inputs, copy.outputs(), name=model.name)
    pairs = copy.copy_variables()
    rows = {
        one.found.embedding.name: take_rows(
            one.found.embedding,
            values[id(one.found.embedding)],
            one.table,
            one.column,
            trained,
        )
        # The last column of a layer decides which values are missing.
        for one in _one_each(places)
    }
    notes = _notes_of_rows(rows, unknown)
    if trained is not None:
        made.compile(Optimizer(dense_copy(trained)), **options)
        build_optimizer(made)
        notes += copy_slots(trained, made.optimizer.inner_optimizer, pairs)
    notes += _notes(found)
    log_notes(notes)
    columns: dict[str, list[Column]] = {name: [] for name in rows}
    for place in places:
        columns[place.found.embedding.name].append(place.column)
    return ConvertedModel(made, rows, columns, tuple(notes))


def _one_each(places: list[_Place]) -> list[_Place]:
    """A place for each Embedding: if possible one that leaves nothing out."""
    chosen: dict[int, _Place] = {}
    for one in places:
        key = id(one.found.embedding)
        if key not in chosen or chosen[key].found.masks:
            chosen[key] = one
    return list(chosen.values())


def _tables(
    found: list[Found],
    optimizer: typing.Any,
    trained: typing.Any,
    unknown: str,
    values: dict[int, Indices],
) -> dict[int, SparseTable]:
    """The table of each Embedding, by its id."""
    groups: dict[typing.Any, list[Found]] = {}
    for one in found:
        layer = one.embedding
        initializer = initializer_of(layer.embeddings_initializer)
        rows = values[id(layer)].unknown if unknown == "shared" else ()
        # `clipnorm` takes a table for one variable.
        is_alone = rows or getattr(trained, "clipnorm", None)
        own = (id(layer), len(rows)) if is_alone else (None, 0)
        key = layer.output_dim, layer.trainable, initializer, *own
        groups.setdefault(key, []).append(one)
    dims = [dim for dim, *_ in groups]
    tables: dict[int, SparseTable] = {}
    names: set[str] = set()
    for (dim, trainable, initializer, _, rows), members in groups.items():
        name = "embeddings" if len(groups) == 1 else f"embeddings_{dim}"
        if dims.count(dim) > 1:
            name += f"_{sum(one.startswith(name) for one in names)}"
        names.add(name)
        rule, l2 = optimizer, 0.0
        if rule is None:
            rule = "row_wise_adagrad"
            if trained is not None:
                rule, l2 = _rule(trained, dim)
        table = SparseTable(
            name,
            dim,
            rule,
            initializer=initializer or "uniform",
            trainable=trainable,
            unknown=unknown if rows or unknown != "shared" else "initial",
            unknown_buckets=max(1, rows),
            l2=l2,
        )
        for one in members:
            tables[id(one.embedding)] = table
    return tables


def _rule(trained: typing.Any, dim: int) -> tuple[SparseOptimizer, float]:
    try:
        return rule_and_l2(trained, dim)
    except ValueError as error:
        raise ValueError(
            f"Argument `optimizer` of {OWNER} must be a rule of tables, such "
            "as 'row_wise_adagrad', for a model whose optimizer no rule has "
            f"the formula of. Received: optimizer=None, and a model with "
            f"{type(trained).__name__}: {error}"
        ) from error


def _places(
    copy: ModelCopy,
    found: list[Found],
    tables: dict[int, SparseTable],
    values: dict[int, Indices],
) -> list[_Place]:
    """Columns for the calls of Embeddings."""
    places: list[_Place] = []
    namespaces: dict[int, str] = {}
    for one in found:
        table = tables[id(one.embedding)]
        beside = [p.column for p in places if p.table is table]
        name = one.embedding.name
        key = copy.key_of(one.source) or name
        key = _free(key, name, {column.name for column in beside})
        namespace = namespaces.setdefault(
            id(one.embedding),
            _free(key, name, {column.namespace for column in beside}),
        )
        missing = values[id(one.embedding)].mask if one.lookup else 0
        # Unknown integers then read the same rows as in Keras.
        is_integer = isinstance(one.lookup, keras.layers.IntegerLookup)
        identity = is_integer and table.shared_rows > 1
        column: Column
        column = category_column(
            key,
            namespace=None if identity else namespace,
            hashing="identity" if identity else "fingerprint",
            combiner="mean" if one.kind == "mean" else "sum",
            missing=missing if one.masks else None,
        )
        if one.kind == "sequence":
            column = sequence_category_column(column)
        places.append(_Place(one, column, table))
    return places


def _free(wanted: str, layer: str, taken: set[str]) -> str:
    """A name that is not taken."""
    name, count = wanted, 1
    while name in taken:
        name = f"{wanted}_{layer}" if count == 1 else f"{wanted}_{count}"
        count += 1
    return name


def _put_features(copy: ModelCopy, places: list[_Place]) -> None:
    """Calls a layer of features, whose outputs replace those of Embeddings."""
    by_type: dict[str, list[_Place]] = {}
    for one in places:
        kind = one.found.embedding.compute_dtype
        by_type.setdefault(kind, []).append(one)
    sources = copy.need(one.found.source for one in places)
    source_of = dict(zip(map(id, places), sources, strict=True))
    for several in by_type.values():
        columns: dict[SparseTable, typing.Any] = {}
        inputs: dict[str, typing.Any] = {}
        for one in several:
            columns.setdefault(one.table, []).append(one.column)
            source = source_of[id(one)]
            [part] = one.column.parts
            inputs[part.key] = as_ids(source)
        policy = several[0].found.embedding.dtype_policy
        outputs = EmbeddingFeatures(columns, concatenate=False, dtype=policy)(
            inputs
        )
        for one in several:
            made = outputs[one.table.name][one.column.name]
            if one.found.kind == "sequence" and not one.found.masks:
                made = without_mask(made)
            copy.replace(one.found.output, made)


def _notes_of_rows(rows: dict[str, ConvertedRows], unknown: str) -> list[str]:
    """Those of all Embeddings, once each."""
    if unknown == "shared":
        return list(
            dict.fromkeys(n for one in rows.values() for n in one.notes)
        )
    lost = [repr(name) for name, one in rows.items() if len(one.unknown)]
    # The last is that of unknown values, which is one sentence for all.
    notes = dict.fromkeys(
        note
        for one in rows.values()
        for note in (one.notes[:-1] if len(one.unknown) else one.notes)
    )
    if lost:
        notes[
            f"Unknown values read {what_unknown_read(unknown)}, instead of "
            f"rows of {', '.join(lost)}, which are in `rows[...].unknown`; "
            'with unknown="shared" they read these.'
        ] = None
    return list(notes)


def _notes(found: list[Found]) -> list[str]:
    """Which initializers are not as in Keras."""
    return [
        f"New rows of layer {layer.name!r} are uniform, as no initializer of "
        f"tables is like {type(layer.embeddings_initializer).__name__}."
        for layer in {id(o.embedding): o.embedding for o in found}.values()
        if initializer_of(layer.embeddings_initializer) is None
    ]
