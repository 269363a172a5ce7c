# SPDX-License-Identifier: Apache-2.0
"""Rows of a store that were read lately."""

import threading
from collections.abc import Mapping

import numpy as np

from tf_ext.serving.lookups.features import Array, Signs
from tf_ext.serving.lookups.row_store import RowStore
from tf_ext.serving.sinks.sink import FoundRows, SinkError

# Places of a sign, as in the caches of processors; the least recently used one
# of them is taken.
_WAYS = 8
# Of a row beside its own: the sign, when it was used, whether there is one.
_MORE_BYTES = 17
# 2^64 divided by the golden ratio: signs may be small numbers.
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


class TableCache:
    """Rows of one table.

    Args:
      count: int, how many rows it holds at most.
      width: int, the bytes of a row.
    """

    def __init__(self, count: int, width: int) -> None:
        self._sets = max(2, count // _WAYS)
        self.size = self._sets * _WAYS
        self._signs = np.empty([self._sets, _WAYS], np.int64)
        # When it was used last; 0 if it is free.
        self._used = np.zeros(self.size, np.int64)
        self._there = np.zeros(self.size, bool)
        # Memory is taken by the pages that are written.
        self._rows = np.zeros([self.size, width], np.uint8)
        # Of each set, a sign of another one, which free places have: so a
        # search reads nothing but signs.
        self._none = np.zeros(self._sets, np.int64)
        of_zero, *others = self._sets_of(np.arange(64)).tolist()
        other = next(n for n, its in enumerate(others, 1) if its != of_zero)
        self._none[of_zero] = other
        self.clear()

    def _sets_of(self, signs: Signs) -> Signs:
        mixed = (signs.view(np.uint64) * _FACTOR) >> _HALF
        # From 32 bits to numbers below that of sets.
        return ((mixed * np.uint64(self._sets)) >> _HALF).view(np.int64)

    def _matches(self, signs: Signs) -> tuple[Signs, Array]:
        sets = self._sets_of(signs)
        return sets, self._signs.take(sets, 0) == signs[:, np.newaxis]

    def find(self, signs: Signs, now: int) -> tuple[Array, FoundRows]:
        """Finds rows.

        Args:
          signs: int64 `[n]`.
          now: int, a number that grows.

        Returns:
          `(known, found)`: bool `[n]`, which of the signs are known; and what
          is known of these.
        """
        sets, matches = self._matches(signs)
        places = sets * _WAYS + matches.argmax(1)
        known = self._signs.take(places) == signs
        places = places[known]
        self._used[places] = now
        there = self._there.take(places)
        return known, FoundRows(self._rows.take(places[there], 0), there)

    def put(self, signs: Signs, found: FoundRows, now: int) -> None:
        """Adds what is known of signs that are not there."""
        if len(found.rows) and found.rows.shape[1] != self._rows.shape[1]:
            return  # It is damaged.
        sets = self._sets_of(signs)
        order = np.argsort(sets, kind="stable")
        grouped = sets[order]
        # How many before it in `order` have the same places.
        ranks = np.arange(len(signs)) - np.searchsorted(grouped, grouped)
        order, ranks = order[ranks < _WAYS], ranks[ranks < _WAYS]
        sets = sets[order]
        used = self._used.reshape(-1, _WAYS)[sets]
        ways = used.argsort(1, kind="stable")[np.arange(len(order)), ranks]
        places = sets * _WAYS + ways
        self._signs.reshape(-1)[places] = signs[order]
        self._used[places] = now
        there = found.found[order]
        self._there[places] = there
        row_of = np.cumsum(found.found) - 1
        rows = found.rows[row_of[order[there]]]
        if len(rows):
            self._rows[places[there]] = rows

    def erase(self, signs: Signs) -> None:
        """Forgets what is known of signs."""
        sets, matches = self._matches(signs)
        places, ways = np.nonzero(matches)
        sets = sets[places]
        self._signs[sets, ways] = self._none[sets]
        self._used[sets * _WAYS + ways] = 0

    def clear(self) -> None:
        """Forgets everything."""
        self._signs[:] = self._none[:, np.newaxis]
        self._used[:] = 0


class RowCache:
    """Rows of one version of a store at a time.

    Args:
      most_bytes: int, what all tables take at most.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._owner: RowStore | None = None
        self._now = 0
        self._widths: dict[str, int] = {}
        self._tables: dict[str, TableCache] = {}

    @property
    def size(self) -> int:
        """How many rows it can hold."""
        return sum(table.size for table in self._tables.values())

    def move(
        self,
        owner: RowStore,
        widths: Mapping[str, int],
        changed: Mapping[str, Signs] | None,
    ) -> None:
        """Has the rows of a version take the place of those of another.

        Args:
          owner: RowStore of the version.
          widths: dict from tables to the bytes of a row.
          changed: dict from tables to the signs whose rows differ; None if all
            may.
        """
        with self._lock:
            self._owner = owner
            if dict(widths) != self._widths:
                self._widths = dict(widths)
                bytes_of_all = sum(widths.values()) + _MORE_BYTES * len(widths)
                count = self._most // max(bytes_of_all, 1)
                self._tables = {
                    name: TableCache(count, width)
                    for name, width in widths.items()
                }
                return
            for name, table in self._tables.items():
                if changed is None:
                    table.clear()
                elif name in changed:
                    table.erase(changed[name])

    def find(
        self, owner: RowStore, signs: Mapping[str, Signs]
    ) -> dict[str, tuple[Array, FoundRows]] | None:
        """Finds rows: as `TableCache.find`; None if it has another version."""
        with self._lock:
            if self._owner is not owner:
                return None
            self._now += 1
            return {
                name: self._tables[name].find(its, self._now)
                for name, its in signs.items()
            }

    def put(
        self,
        owner: RowStore,
        signs: Mapping[str, Signs],
        found: Mapping[str, FoundRows],
    ) -> None:
        """Adds what was read of a version, if it has that."""
        with self._lock:
            if self._owner is owner:
                for name, its in signs.items():
                    self._tables[name].put(its, found[name], self._now)


class CachedRows(RowStore):
    """Rows of a version, of which a cache has some.

    Args:
      store: RowStore.
      cache: RowCache.
    """

    def __init__(self, store: RowStore, cache: RowCache) -> None:
        self._store, self._cache = store, cache

    def find(self, signs: Mapping[str, Signs]) -> dict[str, FoundRows]:
        cached = self._cache.find(self, signs)
        if cached is None:
            return self._store.find(signs)
        missing = {
            name: its[~cached[name][0]]
            for name, its in signs.items()
            if not cached[name][0].all()
        }
        read = self._store.find(missing) if missing else {}
        self._cache.put(self, missing, read)
        return {
            name: _merged(*one, read[name]) if name in read else one[1]
            for name, one in cached.items()
        }


def _merged(known: Array, first: FoundRows, second: FoundRows) -> FoundRows:
    """What is known of signs, and what was read of the others."""
    found = np.empty(len(known), bool)
    found[known], found[~known] = first.found, second.found
    if not len(first.rows):
        return FoundRows(second.rows, found)
    if not len(second.rows):
        return FoundRows(first.rows, found)
    width = first.rows.shape[1]
    if second.rows.shape[1] != width:
        raise SinkError(
            f"Rows have {second.rows.shape[1]} bytes, but others of the table "
            f"have {width}."
        )
    rows = np.empty([int(found.sum()), width], np.uint8)
    is_known = known[found]
    rows[is_known], rows[~is_known] = first.rows, second.rows
    return FoundRows(rows, found)
