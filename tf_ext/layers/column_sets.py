"""Which columns go to which tables, with each column hashed once."""

import collections

import tensorflow as tf

from tf_ext.feature_column import Bags

Part = collections.namedtuple("Part", ["key", "bags"])


class ColumnSets:
    """Arranges the columns of several tables for one hash.

    Columns are ordered by the tables they belong to, so that a table's share
    of the hashed batch is one slice, or a few.

    Args:
      columns: a list of columns for each table.
    """

    def __init__(self, columns):
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

    def split(self, bags):
        """The share of each table.

        Args:
          bags: Bags of `self.columns`.

        Returns:
          A list with a Part for each table: its bags in the order of its
          columns, and a key that is equal for equal shares.
        """
        shares = {}
        for places in self._places:
            if places not in shares:
                shares[places] = self._share(bags, places)
        return [Part(places, shares[places]) for places in self._places]

    def _share(self, bags, places):
        if places == tuple(range(len(self.columns))):
            return bags
        count = len(self.columns)
        batch = (tf.size(bags.row_splits, tf.int64) - 1) // count
        signs, splits, weights = [], [], []
        end = tf.zeros([], tf.int64)
        for begin, stop in _runs(places):
            part = bags.row_splits[begin * batch : stop * batch + 1]
            values = slice(part[0], part[-1])
            signs.append(bags.signs[values])
            weights.append(bags.weights[values])
            # The end of a run is the beginning of the next.
            splits.append(part[:-1] - part[0] + end)
            end += part[-1] - part[0]
        splits.append(end[tf.newaxis])
        return Bags(_join(signs), tf.concat(splits, 0), _join(weights))


def _join(pieces):
    return pieces[0] if len(pieces) == 1 else tf.concat(pieces, 0)


def _runs(places):
    """Ranges of consecutive numbers: (0, 1, 4) -> [(0, 2), (4, 5)]."""
    runs = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1][1] += 1
        else:
            runs.append([place, place + 1])
    return [tuple(run) for run in runs]
