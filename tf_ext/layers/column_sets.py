# SPDX-License-Identifier: Apache-2.0
"""Assigns columns to tables, with each column hashed once."""

import collections
from collections.abc import Sequence

from tf_ext.feature_column import Bags, bag_blocks
from tf_ext.feature_column.column import Column

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
        # Sequences are hashed apart from the others, and follow them.
        self.columns = sorted(
            members,
            key=lambda c: (
                c.sequence is not None,
                members[c],
                first[c],
            ),
        )
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
        sets = list(dict.fromkeys(self._places))
        weighted = [column.is_weighted for column in self.columns]
        parts = dict(zip(sets, bag_blocks.select_each(bags, weighted, sets)))
        return [Part(places, parts[places]) for places in self._places]
