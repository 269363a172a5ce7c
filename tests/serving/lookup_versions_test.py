# SPDX-License-Identifier: Apache-2.0
"""Lookups while versions come, are rolled back and removed."""

import tempfile
import threading
import time
import uuid
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest
from clusters import redis_server

from tf_ext.serving import (
    DirectorySink,
    FoundRows,
    Lookup,
    RedisSink,
    RowChanges,
    SinkError,
    TableChanges,
)
from tf_ext.serving.sinks import row_bytes

pytestmark = pytest.mark.slow_tests("LookupVersionsTest::*_redis_*")

_SIGNS = 200
_NONE = np.zeros(0, np.int64)
_CONFIG = "\n".join(
    [
        *("name={0}", "dim=2", "dtype=float32", "optimizer=none"),
        *("initializer=constant", "initializer.value=-1", "seed=1"),
        "hash_version=1",
    ]
)


def _manifest():
    """Two tables, in whose rows an id says in which version it was written."""
    column = {
        "key": "id",
        "bucket_size": None,
        "hashing": "identity",
        "boundaries": None,
        "missing": None,
        "namespace": "id",
        "optional": False,
        "combiner": "sum",
        "weights": None,
    }
    return {
        **{"format": 1, "kind": "published", "model": "m", "dense": "dense"},
        **{"tf_ext_version": "", "tensorflow_version": "", "files": []},
        **{"dtype": "float32", "step": 1, "inputs": [], "outputs": []},
        "embeddings": [
            {
                "input": name,
                "file": f"{name}.parquet",
                "column": "id",
                "kind": "CategoryColumn",
                "config": column,
                "features": {"id": "id"},
                "shape": [2],
            }
            for name in ("a", "b")
        ],
        "tables": [
            {
                **{"file": f"{name}.parquet", "name": name, "dim": 2},
                "config": _CONFIG.format(name),
            }
            for name in ("a", "b")
        ],
    }


class _Store:
    """Versions of known rows.

    Attributes:
      states: of each version that was written, `{table: {sign: number}}`.
    """

    def __init__(self, sink, seed=0):
        self.sink, self.rng = sink, np.random.default_rng(seed)
        self.states = {}

    def write(self, *, whole=False):
        base = self.sink.versions().current
        before = self.states.get(base, {"a": {}, "b": {}})
        after, changes = {}, []
        for name, rows in before.items():
            new = self.rng.choice(_SIGNS, 40, replace=False)
            gone = self.rng.choice(_SIGNS, 10, replace=False)
            gone = np.setdiff1d(gone, new)
            number = float(self.rng.integers(1, 2**20))
            rows = rows | dict.fromkeys(new.tolist(), number)
            after[name] = {s: n for s, n in rows.items() if s not in gone}
            if whole or not base:
                new, gone = np.array([*after[name]], np.int64), _NONE
            numbers = [[after[name][s]] * 2 for s in new.tolist()]
            encoded = row_bytes.encode(np.array(numbers), "float32", name)
            part = RowChanges(new, encoded, gone)
            changes.append(
                TableChanges(
                    *(name, 8, whole or not base, lambda p=part: iter([p]))
                )
            )
        # Known before readers can see it.
        self.states[(self.states and max(self.states) + 1) or 1] = after
        version = self.sink.write(_manifest(), {}, changes, base)
        assert version == max(self.states), (version, [*self.states])
        return version

    def wanted(self, version, ids):
        """What a Lookup gives for ids, in a version."""
        return {
            name: np.array([[rows.get(i, -1.0)] * 2 for i in ids.tolist()])
            for name, rows in self.states[version].items()
        }

    def versions_of(self, found, ids):
        """The versions that give what was found."""
        return [
            version
            for version in list(self.states)
            if all(
                np.array_equal(found[name], one)
                for name, one in self.wanted(version, ids).items()
            )
        ]


class _Finding(DirectorySink):
    """A sink that finds rows, and has no more than is retained."""

    def find_rows(self, manifest, signs):
        found = {}
        for name, its in signs.items():
            rows = {}
            for some, data in self.read_rows(manifest["version"], name):
                rows |= zip(some.tolist(), data, strict=True)
            there = np.array([sign in rows for sign in its.tolist()])
            kept = [rows[sign] for sign in its[there].tolist()]
            found[name] = FoundRows(np.array(kept, np.uint8), there)
        return found


class LookupVersionsTest(absltest.TestCase):
    def folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name

    def redis(self, keep):
        if redis_server.missing():
            self.skipTest(redis_server.missing())
        folder = self.folder()
        self.server = redis_server.RedisServer(folder)
        self.addCleanup(self.server.close)
        url = f"{self.server.url}?socket_timeout=5"
        self.name = uuid.uuid4().hex
        return [RedisSink(url, self.name, keep) for _ in range(2)]

    def check(self, lookup, store, version):
        ids = store.rng.integers(0, _SIGNS + 20, 50)
        found = lookup.embed({"id": ids})
        for name, one in store.wanted(version, ids).items():
            np.testing.assert_array_equal(found[name], one)

    def follow(self, store, reader):
        first = store.write()
        with Lookup(reader, every=None) as lookup:
            self.assertFalse(lookup.update())
            self.check(lookup, store, first)
            for step in range(12):
                version = store.write(whole=step % 5 == 4)
                if step % 3:
                    self.assertTrue(lookup.update())
                    self.assertEqual(lookup.version, version)
                for _ in range(3):
                    self.check(lookup, store, lookup.version)
                if step % 4 == 3:
                    back = store.sink.versions().retained[0]
                    store.sink.select(back, pinned=False)
                    lookup.update()
                    self.assertEqual(lookup.version, back)
                    self.check(lookup, store, back)

    def test_follows_a_directory(self):
        folder = self.folder()
        store = _Store(DirectorySink(folder))
        self.follow(store, DirectorySink(folder))

    def test_follows_a_redis_and_its_rollbacks(self):
        for keep in (2, 4):
            writer, reader = self.redis(keep)
            self.follow(_Store(writer), reader)

    def test_a_removed_version_is_replaced_by_the_current_one(self):
        folder = self.folder()
        writer = DirectorySink(folder, keep=1)
        store = _Store(writer)
        store.write()

        for cache_bytes in (0, 10**6):
            with Lookup(
                _Finding(folder, keep=1), every=None, cache_bytes=cache_bytes
            ) as lookup:
                self.check(lookup, store, lookup.version)
                version = store.write()
                self.assertLess(lookup.version, version)
                ids = np.arange(_SIGNS)
                self.assertEqual(
                    store.versions_of(lookup.embed({"id": ids}), ids), [version]
                )
                self.assertEqual(lookup.version, version)

    def test_rows_of_a_version_are_read_once(self):
        folder = self.folder()
        store = _Store(DirectorySink(folder))
        store.write()
        reader = _Finding(folder)
        ids = np.arange(_SIGNS)
        with Lookup(reader, every=None, cache_bytes=10**6) as lookup:
            for _ in range(2):
                version = store.write()
                lookup.update()
                with mock.patch.object(
                    reader, "find_rows", wraps=reader.find_rows
                ) as find:
                    for _ in range(2):
                        found = lookup.embed({"id": ids})
                        self.assertEqual(
                            store.versions_of(found, ids), [version]
                        )
                find.assert_called_once()

    def test_a_redis_that_retains_one_version(self):
        writer, reader = self.redis(1)
        store = _Store(writer)
        store.write()
        ids = np.arange(_SIGNS)
        with Lookup(reader, every=None, cache_bytes=0) as lookup:
            for _ in range(3):
                lookup.embed({"id": ids})
                version = store.write()
                found = lookup.embed({"id": ids})
                self.assertEqual(store.versions_of(found, ids), [version])
                self.assertEqual(lookup.version, version)

    def test_a_redis_tells_what_has_changed(self):
        writer, reader = self.redis(9)
        store = _Store(writer)
        manifests = [reader.manifest(store.write()) for _ in range(3)]
        first, _, last = manifests
        found = reader.changed_signs(first, last, 10**6)
        for name, signs in found.items():
            before, after = store.states[1][name], store.states[3][name]
            every = before.keys() | after.keys()
            differ = {s for s in every if before.get(s) != after.get(s)}
            self.assertLessEqual(differ, {*signs.tolist()})
            self.assertLess(len({*signs.tolist()}), _SIGNS)
        back = reader.changed_signs(last, first, 10**6)
        self.assertEqual(set(back), set(found))
        self.assertIsNone(reader.changed_signs(first, last, 10))
        other = {**last, "id": "another"}
        self.assertIsNone(reader.changed_signs(first, other, 10**6))
        # A table of which nothing is left.
        part = RowChanges(np.array([5]), np.zeros([1, 8], np.uint8), _NONE)
        changes = TableChanges("a", 8, False, lambda: iter([part]))
        version = writer.write(_manifest(), {}, [changes], 3)
        now = reader.manifest(version)
        self.assertIsNone(reader.changed_signs(last, now, 10**6))

    def test_a_redis_whose_versions_come_and_go_while_four_threads_ask(self):
        writer, reader = self.redis(2)
        store = _Store(writer)
        store.write()
        wrong, seen, done = [], set(), threading.Event()
        counts = [0] * 4

        def ask(thread):
            rng = np.random.default_rng(thread)
            while not done.is_set() and not wrong:
                ids = rng.integers(0, _SIGNS + 20, 60)
                try:
                    found = lookup.embed({"id": ids})
                except Exception as error:
                    wrong.append(error)
                    return
                versions = store.versions_of(found, ids)
                if not versions:
                    wrong.append(found)
                seen.update(versions)
                counts[thread] += 1

        def wait():
            """Until all have had two answers from the current version."""
            current = store.sink.versions().current
            while lookup.version != current and not wrong:
                time.sleep(0.001)
            before = list(counts)
            while not wrong and any(
                now < one + 2 for now, one in zip(counts, before, strict=True)
            ):
                time.sleep(0.001)

        with Lookup(reader, every=0.01, cache_bytes=4000) as lookup:
            threads = [threading.Thread(target=ask, args=[i]) for i in range(4)]
            for one in threads:
                one.start()
            for step in range(40):
                store.write(whole=step % 20 == 19)
                if step % 10 == 9:
                    # Several that nobody has waited for, and back.
                    store.write()
                    store.write()
                    retained = store.sink.versions().retained
                    store.sink.select(retained[0], pinned=False)
                wait()
            done.set()
            for one in threads:
                one.join()
        self.assertEqual(wrong, [])
        self.assertGreaterEqual(len(seen), 40)

    def test_a_redis_that_was_killed_and_comes_back(self):
        writer, reader = self.redis(3)
        if not self.server.can_be_killed:
            self.skipTest("This Redis is not ours.")
        store = _Store(writer)
        version = store.write()
        with Lookup(reader, every=None, cache_bytes=10**6) as lookup:
            ids = np.arange(50)
            wanted = lookup.embed({"id": ids})
            self.server.kill()
            # What it has in its cache needs no store.
            found = lookup.embed({"id": ids})
            for name, one in wanted.items():
                np.testing.assert_array_equal(found[name], one)
            with self.assertRaisesRegex(SinkError, "in Redis: Error"):
                lookup.embed({"id": np.arange(100)})
            with self.assertRaises(SinkError):
                lookup.update()
            self.assertIsInstance(lookup.error, SinkError)
            self.server.start()
            self.check(lookup, store, version)
            self.assertFalse(lookup.update())
            self.assertIsNone(lookup.error)
            # Everything is lost, and written again by another number of steps.
            self.server.client.flushall()
            with self.assertRaisesRegex(SinkError, "There is no version yet"):
                lookup.embed({"id": np.arange(100, 150)})
            store = _Store(RedisSink(self.server.url, self.name))
            version = store.write()
            self.check(lookup, store, version)


if __name__ == "__main__":
    absltest.main()
