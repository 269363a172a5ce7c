# SPDX-License-Identifier: Apache-2.0
"""The rows of an Embedding in a table, and back."""

import logging
import typing

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext._checks import refuse
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.convert.indices import Indices, indices_of
from tf_ext.convert.slots import (
    RowSlots,
    gather,
    notes_of_iterations,
    notes_of_weights,
    steps_of,
    unwrapped,
)
from tf_ext.feature_column.column import Column
from tf_ext.tables.sparse_table import SparseTable

_LOG = logging.getLogger("tf_ext")
_FROM = "from_keras"
CHUNK_BYTES = 16 << 20


class ConvertedRows(typing.NamedTuple):
    """What became of rows from elsewhere, such as those of an Embedding.

    Attributes:
      taken: int, the number of rows that are now in the table.
      left: int, the number of those that are not. Of an Embedding: rows of
        unknown values, of the mask, and those that no value has.
      unknown: float32 `[n, dim]`, the rows of unknown values (`[UNK]`), which
        are in the table if it has `unknown="shared"`.
      slots: tuple of strings, the fields of rows that were taken besides
        "weights".
      notes: tuple of strings, a sentence for each thing that is not as it was.
    """

    taken: int
    left: int
    unknown: npt.NDArray[np.float32]
    slots: tuple[str, ...]
    notes: tuple[str, ...]


def from_keras(
    embedding: keras.layers.Embedding,
    table: SparseTable,
    column: Column,
    lookup: typing.Any = None,
    optimizer: typing.Any = None,
) -> ConvertedRows:
    """Puts the rows of a Keras Embedding into a table.

    The row of each value goes to the value's sign in the column, in chunks of
    bounded size. Rows that the table has for other signs stay. Under a
    strategy of several workers all of them call it.

    - Behind `StringLookup` and `IntegerLookup`, values are tokens. The mask
      token is one of them, unless it is the column's `missing`.
    - Behind `Hashing`, and without a lookup, values are the indices. Keep the
      Hashing layer in the model, before the column.
    - The rows of unknown tokens (`[UNK]`) have no sign. They become the shared
      rows of a table with `unknown="shared"`, with as many `unknown_buckets`
      as the lookup has `num_oov_indices`. Several tokens then read the row that
      they read in Keras if these are integers and the column has
      `hashing="identity"`. Other tables do not take them.

    Args:
      embedding: a `keras.layers.Embedding` that has been built.
      table: `tf_ext.SparseTable` of the same dim.
      column: the column that will read the rows, of `category_column` or
        `sequence_category_column`.
      lookup: the layer before the Embedding: a `StringLookup`, `IntegerLookup`
        or `Hashing`; or None for integers that are used as indices.
      optimizer: the `keras.optimizers.Optimizer` that has trained the layer.
        If the table's rule has its formula, its slots are taken, too. None: the
        slots of new rows. Those of Adam with `bias_correction="global"` need
        its `iterations` in the optimizer of the model that trains on: assign
        them, as `notes` says. With `absent="decay"` and the correction "row",
        the table takes them.

    Returns:
      `ConvertedRows`.

    Raises:
      ValueError: an argument is not as above; the sentence names it.

    Example:
    >>> import tf_ext
    >>> from tf_ext._keras import keras
    >>> lookup = keras.layers.StringLookup(vocabulary=["ann", "bob"])
    >>> embedding = keras.layers.Embedding(3, 4)
    >>> embedding.build((None,))
    >>> user = tf_ext.feature_column.category_column("user")
    >>> table = tf_ext.SparseTable("user", dim=4)
    >>> done = tf_ext.convert.from_keras(embedding, table, user, lookup)
    >>> done.taken, done.left, done.unknown.shape
    (2, 1, (1, 4))
    >>> rows = embedding(lookup(tf.constant(["bob"])))
    >>> bool(np.all(rows == table.pull(user.signs(["bob"]))))
    True
    """
    _check_embedding(embedding)
    check_table(_FROM, table, embedding.output_dim)
    check_column(_FROM, column)
    values = indices_of(_FROM, embedding, lookup)
    if table.shared_rows not in (0, len(values.unknown)) and values.unknown:
        raise ValueError(
            f"Argument `table` of {_FROM} must have unknown_buckets="
            f"{len(values.unknown)}, the num_oov_indices of layer "
            f"{lookup.name!r}, or not have unknown='shared'. Received: table "
            f"{table.name!r} with unknown_buckets={table.unknown_buckets}"
        )
    done = take_rows(embedding, values, table, column, optimizer)
    if "m" in done.slots:
        notes = notes_of_iterations(table, steps_of(unwrapped(optimizer)))
        done = done._replace(notes=(*done.notes, *notes))
    log_notes(done.notes)
    return done


def log_notes(notes: typing.Iterable[str]) -> None:
    """Logs what a conversion has changed, a warning for each sentence."""
    for note in notes:
        _LOG.warning("%s", note)


def _check_embedding(embedding: object) -> None:
    which = "Keras 3" if IS_KERAS_3 else "tf_keras"
    if not isinstance(embedding, keras.layers.Embedding):
        refuse(
            _FROM,
            "embedding",
            f"a keras.layers.Embedding of {which}, the Keras in use",
            embedding,
        )
    why = unusable(embedding)
    if why:
        raise ValueError(
            f"Argument `embedding` of {_FROM} must be a layer that {why}. "
            f"Received: layer {embedding.name!r}"
        )


def unusable(embedding: keras.layers.Embedding) -> str:
    """What an Embedding must be, if a table cannot hold its rows; else ""."""
    if not embedding.built:
        return "has been built"
    if getattr(embedding, "lora_rank", None) or getattr(
        embedding, "quantization_mode", None
    ):
        return "is neither quantized nor has LoRA weights"
    if getattr(embedding, "sparse", False):
        return "has sparse=False"
    if tf.as_dtype(embedding.embeddings.dtype) != tf.float32:
        return "has variables of float32"
    return ""


def check_table(owner: str, table: object, dim: int | None) -> None:
    """Raises ValueError unless it is a table, of a dim that is not None."""
    if not isinstance(table, SparseTable):
        refuse(owner, "table", "a tf_ext.SparseTable", table)
    if dim is not None and table.dim != dim:
        raise ValueError(
            f"Argument `table` of {owner} must have the dim of the Embedding, "
            f"{dim}. Received: table {table.name!r} of dim {table.dim}"
        )


def check_column(owner: str, column: object) -> None:
    """Raises ValueError unless the signs of a column tell values apart."""
    if not isinstance(column, Column) or len(column.parts) != 1:
        refuse(
            owner,
            "column",
            "a column of category_column or sequence_category_column",
            column,
        )
    for argument, value in (
        ("bucket_size", column.bucket_size),
        ("boundaries", column.parts[0].boundaries),
        ("conversion", column.parts[0].conversion or None),
    ):
        if value is not None:
            raise ValueError(
                f"Argument `column` of {owner} must have {argument}=None, as "
                f"values would share rows. Received: column {column.name!r} "
                f"with {argument}={value!r}"
            )


def take_rows(
    embedding: keras.layers.Embedding,
    values: Indices,
    table: SparseTable,
    column: Column,
    optimizer: typing.Any,
) -> ConvertedRows:
    """As `from_keras`, of arguments that have been checked."""
    weights = embedding.embeddings
    slots = RowSlots(unwrapped(optimizer), weights, table)
    taken = 0
    for part, rows in values.chunks(
        max(1, CHUNK_BYTES // table.rows.bytes_per_row)
    ):
        part, rows = without_missing(column, part, rows)
        signs = column.signs(part)
        fields = {"weights": gather(weights, rows), **slots.gather(rows)}
        if rows.shape[0]:
            table.rows.import_rows(signs, fields)
        taken += int(rows.shape[0])
    shared = tf.range(values.unknown.start, values.unknown.stop)
    unknown = gather(weights, shared)
    notes = [slots.note] if slots.note else []
    notes += notes_of_weights(table, slots.names)
    if values.unknown and table.shared_rows:
        table.rows.import_rows(
            table.unknown_ids, {"weights": unknown, **slots.gather(shared)}
        )
        taken += len(values.unknown)
        if len(values.unknown) > 1 and not _shares_like_keras(values, column):
            notes.append(
                f"Unknown values of column {column.name!r} read the "
                f"{len(values.unknown)} rows of unknown values of layer "
                f"{embedding.name!r}, but not the same ones as in Keras."
            )
    elif values.unknown:
        notes.append(
            f"Column {column.name!r} reads {what_unknown_read(table.unknown)} "
            f"from table {table.name!r} for unknown values, instead of "
            f"{len(values.unknown)} row(s) of layer {embedding.name!r}, which "
            'are in `unknown`. A table with unknown="shared" takes them.'
        )
    return ConvertedRows(
        taken,
        values.size - taken,
        unknown.numpy(),
        slots.names,
        tuple(notes),
    )


def what_unknown_read(unknown: typing.Any) -> str:
    """What ids without a row read, by the argument of the table."""
    if isinstance(unknown, str):
        return "zeros" if unknown == "zeros" else "their initial weights"
    return "a vector"


def _shares_like_keras(values: Indices, column: Column) -> bool:
    """Whether each unknown value reads the row that it reads in Keras."""
    return (
        values.tokens is not None
        and values.tokens.dtype != tf.string
        and column.parts[0].hashing == "identity"
    )


def without_missing(
    column: Column, values: tf.Tensor, rows: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Leaves out what the column leaves out."""
    missing = column.parts[0].missing
    if missing is None:
        return values, rows
    texts = values
    if values.dtype != tf.string:
        texts = tf.strings.as_string(values)
    kept = texts != str(missing)
    return tf.boolean_mask(values, kept), tf.boolean_mask(rows, kept)
