# SPDX-License-Identifier: Apache-2.0
"""The rows of a table as a Keras Embedding behind a lookup."""

import typing

import numpy as np
import numpy.typing as npt

from tf_ext._checks import refuse
from tf_ext._keras import keras
from tf_ext.convert.rows_in import check_column, check_table
from tf_ext.feature_column.column import Column
from tf_ext.tables.sparse_table import SparseTable

_TO = "to_keras"
_CHUNK = 65_536


class KerasLayers(typing.NamedTuple):
    """Layers of Keras that read what a column of a table reads.

    Attributes:
      lookup: `keras.layers.StringLookup` or `IntegerLookup`.
      embedding: `keras.layers.Embedding`, for what `lookup` returns.
    """

    lookup: typing.Any
    embedding: typing.Any


class Vocabulary(typing.NamedTuple):
    """The values of a lookup.

    Attributes:
      values: `[n]`, an array of objects for strings, or int64.
      signs: int64 `[n]`, their signs.
      missing: the mask token, whose index is 0; None without any.
      shared: int64 `[k]`, the signs of the rows of unknown values; empty for
        one row that is in no table.
    """

    values: npt.NDArray[typing.Any]
    signs: npt.NDArray[np.int64]
    missing: str | int | None
    shared: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    @property
    def unknown(self) -> range:
        """The indices of unknown values."""
        begin = 0 if self.missing is None else 1
        return range(begin, begin + max(1, len(self.shared)))

    @property
    def first(self) -> int:
        """The index of the first value, after the mask and unknown values."""
        return self.unknown.stop


def to_matrix(
    table: SparseTable, column: Column, vocabulary: typing.Any
) -> npt.NDArray[np.float32]:
    """The rows of values, in their order.

    Args:
      table: `tf_ext.SparseTable`.
      column: the column that reads them, of `category_column` or
        `sequence_category_column`.
      vocabulary: list, array or tensor `[n]` of strings or integers.

    Returns:
      float32 `[n, dim]`. Of a value without a row, what the table reads.

    Raises:
      ValueError: an argument is not as above; the sentence names it.

    Example:
    >>> import tf_ext
    >>> user = tf_ext.feature_column.category_column("user")
    >>> table = tf_ext.SparseTable("user", dim=2)
    >>> table.import_rows(user.signs(["bob"]), {"weights": [[1.0, 2.0]]})
    1
    >>> tf_ext.convert.to_matrix(table, user, ["ann", "bob"])[1]
    array([1., 2.], dtype=float32)
    """
    owner = "to_matrix"
    check_table(owner, table, None)
    check_column(owner, column)
    return matrix(table, vocabulary_of(owner, column, vocabulary).signs)


def to_keras(
    table: SparseTable,
    column: Column,
    vocabulary: typing.Any,
    unknown: npt.ArrayLike | None = None,
) -> KerasLayers:
    """Makes layers of Keras of the rows of a table, for some values.

    A table has signs and no values: the vocabulary has to come from a log. The
    column's `missing` becomes the mask token, and its row is zeros.

    Args:
      table: `tf_ext.SparseTable`.
      column: as of `to_matrix`.
      vocabulary: as of `to_matrix`, without repeats and without the column's
        `missing`. Integers make an `IntegerLookup`.
      unknown: float `[dim]`, the row of all other values. None: the shared rows
        of a table with `unknown="shared"`, the vector of one with a vector,
        zeros of others. Of several shared rows, strings and hashed integers do
        not read the same ones as in the table.

    Returns:
      `KerasLayers`.

    Raises:
      ValueError: an argument is not as above; the sentence names it.

    Example:
    >>> import tf_ext
    >>> user = tf_ext.feature_column.category_column("user")
    >>> table = tf_ext.SparseTable("user", dim=2)
    >>> table.import_rows(user.signs(["bob"]), {"weights": [[1.0, 2.0]]})
    1
    >>> layers = tf_ext.convert.to_keras(table, user, ["ann", "bob"])
    >>> layers.embedding(layers.lookup(tf.constant(["bob", "eve"]))).numpy()
    array([[1., 2.],
           [0., 0.]], dtype=float32)
    """
    check_table(_TO, table, None)
    check_column(_TO, column)
    return make_layers(
        table, column, vocabulary_of(_TO, column, vocabulary, table), unknown
    )


def vocabulary_of(
    owner: str,
    column: Column,
    values: typing.Any,
    table: SparseTable | None = None,
) -> Vocabulary:
    """A vocabulary, checked.

    Args:
      owner: string, the function that was given it, for errors.
      column: Column.
      values: `[n]`.
      table: SparseTable, whose shared rows are those of unknown values.

    Raises:
      ValueError: it is not a vocabulary.
    """
    array = np.asarray(values)
    is_vocabulary = (
        array.ndim == 1 and array.size > 0 and array.dtype.kind in "OSUiu"
    )
    if array.dtype.kind in "US":
        array = array.astype(object)
    if is_vocabulary and array.dtype == object:
        array = np.vectorize(_text, otypes=[object])(array)
    if not is_vocabulary:
        refuse(
            owner,
            "vocabulary",
            "a list of at least one string or integer",
            values,
        )
    signs = np.concatenate(
        [
            column.signs(array[begin : begin + _CHUNK]).numpy()
            for begin in range(0, len(array), _CHUNK)
        ]
    )
    repeats = len(array) - len(np.unique(signs))
    if repeats:
        raise ValueError(
            f"Argument `vocabulary` of {owner} must not have a value twice. "
            f"Received: {repeats} repeats among {len(array)} values of column "
            f"{column.name!r}"
        )
    missing = column.parts[0].missing
    if array.dtype.kind in "iu":
        array = array.astype(np.int64)
        missing = None if missing is None else int(missing)
    elif missing is not None:
        missing = str(missing)
    shared = np.zeros(0, np.int64) if table is None else table.unknown_ids
    return Vocabulary(array, signs, missing, shared)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def matrix(
    table: SparseTable, signs: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """What a table reads for signs, `[n, dim]`, read in chunks."""
    rows = np.empty((len(signs), table.dim), np.float32)
    for begin in range(0, len(signs), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        rows[part] = table.pull(signs[part]).numpy()
    return rows


def make_layers(
    table: SparseTable,
    column: Column,
    vocabulary: Vocabulary,
    unknown: npt.ArrayLike | None,
    **options: typing.Any,
) -> KerasLayers:
    """As `to_keras`, of checked arguments.

    Args:
      table: SparseTable.
      column: Column.
      vocabulary: Vocabulary.
      unknown: as of `to_keras`.
      **options: those of Embedding, such as its name.
    """
    if unknown is not None:
        row = np.asarray(unknown, np.float32)
        if row.shape != (table.dim,):
            refuse(_TO, "unknown", f"a vector of {table.dim} or None", unknown)
    elif len(vocabulary.shared):
        row = matrix(table, vocabulary.shared)
    else:
        row = np.zeros(table.dim, np.float32)
        if not isinstance(table.unknown, str):
            row += table.unknown
    is_text = vocabulary.values.dtype == object
    kind = keras.layers.StringLookup if is_text else keras.layers.IntegerLookup
    rows = vocabulary.unknown
    lookup = kind(mask_token=vocabulary.missing, num_oov_indices=len(rows))
    # Values that begin like Keras's special tokens would be taken for them.
    special = [vocabulary.missing] * rows.start
    special += [lookup.oov_token] * len(rows)
    lookup.set_vocabulary([*special, *vocabulary.values.tolist()])
    size = vocabulary.first + len(vocabulary.values)
    embedding = keras.layers.Embedding(size, table.dim, **options)
    embedding.build((None,))
    head = np.zeros((vocabulary.first, table.dim), np.float32)
    head[rows.start :] = row
    embedding.set_weights(
        [np.concatenate([head, matrix(table, vocabulary.signs)])]
    )
    return KerasLayers(lookup, embedding)
