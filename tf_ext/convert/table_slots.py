# SPDX-License-Identifier: Apache-2.0
"""The slots of a table's rows in those of a Keras optimizer."""

import contextlib
import typing
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext._compat.optimizers import index_of, slots_of
from tf_ext._sorted import find_sorted
from tf_ext.convert.rows_out import Vocabulary
from tf_ext.convert.slots import SLOTS, rule_like, unwrapped
from tf_ext.tables.sparse_table import SparseTable


class Kept(typing.NamedTuple):
    """A part of a table's rows that an Embedding has taken.

    Attributes:
      table: SparseTable.
      vocabulary: Vocabulary.
      embedding: keras.layers.Embedding.
    """

    table: SparseTable
    vocabulary: Vocabulary
    embedding: typing.Any


class _Target:
    """The slots of an Embedding, to be filled."""

    def __init__(self, kept: Kept, slots: dict[str, typing.Any]) -> None:
        vocabulary = kept.vocabulary
        # Shared rows are right before those of values.
        signs = np.concatenate([vocabulary.shared, vocabulary.signs])
        self._order = np.argsort(signs)
        self._sorted = signs[self._order]
        self._first = vocabulary.first - len(vocabulary.shared)
        self._slots = slots
        self._arrays = {
            name: np.array(tf.convert_to_tensor(one))
            for name, one in slots.items()
        }

    def take(
        self,
        signs: npt.NDArray[np.int64],
        fields: dict[str, npt.NDArray[typing.Any]],
    ) -> npt.NDArray[np.bool_]:
        """Takes what it has of some rows; which of the rows these are."""
        places, mine = find_sorted(self._sorted, signs)
        rows = self._order[places[mine]] + self._first
        for name, array in self._arrays.items():
            array[rows] = fields[name][mine]
        return mine

    def store(self) -> None:
        """Assigns the variables."""
        for name, one in self._slots.items():
            one.assign(self._arrays[name])


def copy_rows(
    kept: Sequence[Kept], optimizer: typing.Any
) -> tuple[dict[str, int], list[str]]:
    """Copies slots, and counts the rows that no Embedding has.

    Args:
      kept: list of Kept.
      optimizer: keras.optimizers.Optimizer that has been built for the
        Embeddings; None for none.

    Returns:
      `(left, notes)`, as of `KerasModel`.
    """
    left: dict[str, int] = {}
    notes: list[str] = []
    for table in {one.table.name: one.table for one in kept}.values():
        mine = [one for one in kept if one.table is table]
        names, note = _slots_taken(table, optimizer)
        if note:
            notes.append(note)
        targets = [
            _Target(one, _slots(one, names, unwrapped(optimizer)))
            for one in mine
        ]
        left[table.name] = 0
        with contextlib.closing(table.rows.chunks()) as chunks:
            for signs, fields in chunks:
                found = np.zeros(len(signs), bool)
                for target in targets:
                    found |= target.take(signs, fields)
                left[table.name] += int(np.sum(~found))
        for target in targets:
            target.store()
        if left[table.name]:
            notes.append(
                f"{left[table.name]} rows of table {table.name!r} are of "
                "values in no vocabulary, and are not in the Keras model."
            )
    return left, notes


def _slots_taken(
    table: SparseTable, optimizer: typing.Any
) -> tuple[dict[str, str], str]:
    """Fields of rows and Keras's slots for them, and why there are none."""
    optimizer = unwrapped(optimizer)
    wanted = [
        name for name, _, _ in table.optimizer.slots(table.dim) if name in SLOTS
    ]
    if optimizer is None:
        return {}, ""
    rule = rule_like(table, optimizer)
    if rule is None:
        return {}, (
            f"The slots of table {table.name!r} start from their initial "
            f"values in Keras: its rule is {type(table.optimizer).__name__}, "
            f"the model's {type(optimizer).__name__}."
        )
    note = ""
    if rule.get_config() != table.optimizer.get_config():
        note = (
            f"Keras trains the rows of table {table.name!r} with "
            f"{rule.get_config()}, no longer with "
            f"{table.optimizer.get_config()}."
        )
    return {name: SLOTS[name] for name in wanted}, note


def _slots(
    kept: Kept, names: dict[str, str], optimizer: typing.Any
) -> dict[str, typing.Any]:
    """Keras's slots of an Embedding, by the fields of rows."""
    if not names:
        return {}
    place = index_of(optimizer, kept.embedding.embeddings)
    found = slots_of(optimizer)
    if place is None:  # It is not trainable.
        return {}
    return {field: found[name][place] for field, name in names.items()}
