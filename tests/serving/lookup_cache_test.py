# SPDX-License-Identifier: Apache-2.0
"""The cache of a Lookup, against a dict."""

import numpy as np
from absl.testing import absltest

from tf_ext.serving import FoundRows, SinkError
from tf_ext.serving.lookups.cache import CachedRows, RowCache, TableCache
from tf_ext.serving.lookups.row_store import RowStore

_WIDTHS = {"deep": 4, "wide": 1}


class _Store(RowStore):
    """Rows in dicts, which counts what it is asked for."""

    def __init__(self, tables):
        self.tables, self.asked = tables, []

    def find(self, signs):
        found = {}
        for name, its in signs.items():
            self.asked += its.tolist()
            rows = [self.tables[name].get(s) for s in its.tolist()]
            there = np.array([row is not None for row in rows], bool)
            kept = b"".join(row for row in rows if row is not None)
            kept = np.frombuffer(kept, np.uint8).reshape(-1, _WIDTHS[name])
            found[name] = FoundRows(kept, there)
        return found


def _random_table(rng, width, count=300):
    signs = rng.integers(-(2**63), 2**63, count // 2)
    signs = np.concatenate([signs, np.arange(-count // 4, count // 4)])
    return {sign: rng.bytes(width) for sign in signs.tolist()}


class LookupCacheTest(absltest.TestCase):
    def check(self, rows, store, signs):
        found = rows.find({name: its for name, its in signs.items()})
        for name, its in signs.items():
            left = iter(found[name].rows)
            for sign, there in zip(its.tolist(), found[name].found):
                row = store.tables[name].get(sign)
                self.assertEqual(there, row is not None)
                if there:
                    self.assertEqual(bytes(next(left)), row)
            self.assertIsNone(next(left, None))

    def test_random_versions(self):
        for most, seed in ((1, 0), (3000, 1), (10**6, 2)):
            rng = np.random.default_rng(seed)
            cache = RowCache(most)
            tables = {n: _random_table(rng, w) for n, w in _WIDTHS.items()}
            every = {
                n: np.array([*its, *range(900, 950)])
                for n, its in tables.items()
            }
            store = rows = None
            for _ in range(60):
                if rows is None or rng.random() < 0.3:
                    before = store, rows
                    tables = {n: dict(its) for n, its in tables.items()}
                    changed = {}
                    for name, width in _WIDTHS.items():
                        some = rng.choice(every[name], 20, replace=False)
                        changed[name] = some
                        for sign in some.tolist():
                            tables[name][sign] = rng.bytes(width)
                            if rng.random() < 0.5:
                                del tables[name][sign]
                    store = _Store(tables)
                    rows = CachedRows(store, cache)
                    known = changed if rng.random() < 0.7 else None
                    cache.move(rows, _WIDTHS, known)
                signs = {
                    n: rng.choice(its, rng.integers(0, 60), replace=False)
                    for n, its in every.items()
                }
                self.check(rows, store, signs)
                if before[1] is not None:
                    # A request that is still answered from the last version.
                    self.check(before[1], before[0], signs)
            if most == 10**6:
                store.asked.clear()
                self.check(rows, store, signs)
                self.assertEmpty(store.asked)

    def test_what_is_not_there_is_known_too(self):
        store, cache = _Store({"deep": {}, "wide": {}}), RowCache(10**4)
        rows = CachedRows(store, cache)
        cache.move(rows, _WIDTHS, None)
        for _ in range(2):
            self.check(rows, store, {"deep": np.array([1, 2])})
        self.assertEqual(store.asked, [1, 2])

    def test_least_recently_used_rows_leave(self):
        cache = TableCache(16, 1)
        self.assertEqual(cache.size, 16)
        signs = np.arange(1000)
        for one in (0, 1):  # Each of two sets has eight places.
            its = signs[cache._sets_of(signs) == one][:29]
            for now, sign in enumerate(its[:8], 1):
                self.put(cache, sign, now)
            cache.find(its[:1], 9)
            self.put(cache, its[8], 10)
            known, _ = cache.find(its[:9], 11)
            self.assertEqual(known.tolist(), [True, False] + [True] * 7)
        # More at once than there are places.
        self.put(cache, its[9:], 12)
        known, found = cache.find(its[9:], 13)
        self.assertEqual(known.sum(), 8)
        self.assertEqual(
            found.rows[:, 0].tolist(), np.flatnonzero(known).tolist()
        )

    def test_nothing_is_found_where_nothing_is(self):
        for count in (1, 16, 800):
            cache = TableCache(count, 1)
            signs = np.arange(-2000, 2000)
            for forget in ("clear", "erase"):
                known, found = cache.find(signs, 1)
                self.assertFalse(known.any())
                self.assertEmpty(found.rows)
                self.put(cache, signs[::7], 2)
                self.assertTrue(cache.find(signs, 3)[0].any())
                getattr(cache, forget)(*([signs] if forget == "erase" else []))
            self.assertFalse(cache.find(signs, 4)[0].any())

    def put(self, cache, signs, now):
        signs = np.atleast_1d(signs)
        rows = np.arange(len(signs)).astype(np.uint8)[:, np.newaxis]
        cache.put(signs, FoundRows(rows, np.ones(len(signs), bool)), now)

    def test_memory_is_bounded(self):
        cache = RowCache(10**5)
        cache.move(None, _WIDTHS, None)
        rows = cache.size // 2
        taken = rows * sum(width + 17 for width in _WIDTHS.values())
        self.assertBetween(taken, 0.99 * 10**5, 10**5)

    def test_rows_of_another_width(self):
        store, cache = _Store({"deep": {1: b"1234"}, "wide": {}}), RowCache(999)
        rows = CachedRows(store, cache)
        cache.move(rows, _WIDTHS, None)
        self.check(rows, store, {"deep": np.array([1])})
        wrong = FoundRows(np.zeros([1, 9], np.uint8), np.array([True]))
        store.find = lambda signs: {"deep": wrong}
        with self.assertRaisesRegex(SinkError, "9 bytes, but .* have 4"):
            rows.find({"deep": np.array([1, 2])})


if __name__ == "__main__":
    absltest.main()
