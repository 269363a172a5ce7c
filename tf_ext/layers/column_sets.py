"""Assigns columns to tables, with each column hashed once."""

import collections
from collections.abc import Sequence

import tensorflow as tf

from tf_ext.feature_column import Bags
from tf_ext.feature_column.column import Column
from tf_ext.ops._stock import singles

Part = collections.namedtuple("Part", ["key", "bags"])


class ColumnSets:
    """Arranges the columns of several tables for one call of the hash op.

    Columns are ordered by the tables they belong to, so that a table's part
    of the hashed batch is one slice, or a few.

    Args:
      columns: a list of columns for each table.
    """

    def __init__(self, columns: Sequence[Sequence[Column]]) -> None:
        members: collections.OrderedDict[Column, list[int]]
        members = collections.OrderedDict()
        for index, its_columns in enumerate(columns):
            for column in its_columns:
                members.setdefault(column, []).append(index)
        first = {column: i for i, column in enumerate(members)}
        self.columns = sorted(members, key=lambda c: (members[c], first[c]))
        place = {column: i for i, column in enumerate(self.columns)}
        self._places = [
            tuple(place[column] for column in its_columns)
            for its_columns in columns
        ]

    def split(self, bags: Bags) -> list[Part]:
        """The part of each table.

        Args:
          bags: Bags of `self.columns`.

        Returns:
          A list with a Part for each table: its bags in the order of its
          columns, and a key that is equal for equal parts.
        """
        parts: dict[tuple[int, ...], Bags] = {}
        for places in self._places:
            if places not in parts:
                parts[places] = self._part(bags, places)
        return [Part(places, parts[places]) for places in self._places]

    def _part(self, bags: Bags, places: tuple[int, ...]) -> Bags:
        if places == tuple(range(len(self.columns))):
            return bags
        count = len(self.columns)
        batch = (tf.size(bags.row_splits, tf.int64) - 1) // count
        weighted = any(self.columns[place].is_weighted for place in places)
        signs, splits, weights = [], [], [] if weighted else [bags.weights[:0]]
        end = tf.zeros([], tf.int64)
        for begin, stop in _runs(places):
            part = bags.row_splits[begin * batch : stop * batch + 1]
            values = slice(part[0], part[-1])
            signs.append(bags.signs[values])
            if weighted:
                weights.append(bags.weights[values])
            # Each run ends where the next begins.
            splits.append(part[:-1] - part[0] + end)
            end += part[-1] - part[0]
        splits.append(end[tf.newaxis])
        part = Bags(_join(signs), tf.concat(splits, 0), _join(weights))
        if singles.columns_of_singles(bags.row_splits) is not None:
            tensors = [part.signs, part.row_splits]
            singles.mark_singles(tensors, len(places))
        return part


def _join(pieces: list[tf.Tensor]) -> tf.Tensor:
    return pieces[0] if len(pieces) == 1 else tf.concat(pieces, 0)


def _runs(places: Sequence[int]) -> list[tuple[int, ...]]:
    """Ranges of consecutive numbers: (0, 1, 4) -> [(0, 2), (4, 5)]."""
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1][1] += 1
        else:
            runs.append([place, place + 1])
    return [tuple(run) for run in runs]
