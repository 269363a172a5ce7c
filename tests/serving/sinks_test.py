# SPDX-License-Identifier: Apache-2.0
"""Sinks of published versions: what readers see of random programs."""

import os
import pathlib
import tempfile
import uuid
from unittest import mock

import numpy as np
import pytest
import redis
from absl.testing import absltest, parameterized
from clusters import redis_server

from tf_ext.serving import (
    DirectorySink,
    RedisSink,
    RowChanges,
    SinkConflictError,
    SinkError,
    TableChanges,
    Versions,
)
from tf_ext.serving.sinks import redis_sink, row_bytes

pytestmark = pytest.mark.slow_tests(
    "SinkTest::test_random_programs1",
    "SinkTest::test_random_programs2",
    "SinkTest::test_a_version_that_is_removed*",
)

_WIDTHS = {"deep": 8, "wide": 3}
_SIGNS = 40


class _Broken(Exception):
    pass


def _changes(name, rows, erased=(), whole=False, broken=False):
    """Changes of `{sign: bytes}`, in parts of three."""

    def parts():
        signs = np.fromiter(rows, np.int64, len(rows))
        data = np.frombuffer(b"".join(rows.values()), np.uint8)
        data = data.reshape(len(rows), _WIDTHS[name])
        gone = np.array([*erased], np.int64)
        for begin in range(0, max(len(rows), len(gone), 1), 3):
            some = slice(begin, begin + 3)
            yield RowChanges(signs[some], data[some], gone[some])
            if broken:
                raise _Broken

    return TableChanges(name, _WIDTHS[name], whole, parts)


def _manifest(tables=("deep", "wide"), **more):
    about = [
        {"file": f"{name}.parquet", "name": name, "dim": 1, "bytes": 0}
        for name in tables
    ]
    return {
        "model": "m",
        "kind": "published",
        "dense": "dense",
        "tf_ext_version": "",
        "tensorflow_version": "",
        "dtype": "float32",
        "tables": about,
        **more,
    }


def _rows_of(sink, version, table):
    found = {}
    for signs, rows in sink.read_rows(version, table):
        part = dict(zip(signs.tolist(), map(bytes, rows), strict=True))
        assert not found.keys() & part.keys()
        found |= part
    return found


class _Program:
    """Random uses of a sink, and what it must hold.

    states: of each retained version `({table: {sign: bytes}}, file)`.
    """

    def __init__(self, make, keep, seed):
        self._make, self._keep = make, keep
        self._rng = np.random.default_rng(seed)
        self.sink = make(keep)
        self.states = {}
        self.current = 0

    def step(self):
        kind = self._rng.choice(
            ["write", "break", "select", "again"], p=[0.65, 0.15, 0.1, 0.1]
        )
        if kind == "again":
            self.sink = self._make(self._keep)
        elif kind == "select" and self.states:
            self.current = int(self._rng.choice([*self.states]))
            self.sink.select(self.current, pinned=False)
        elif kind in ("write", "break"):
            self._write(kind == "break")

    def _write(self, broken):
        before, _ = self.states.get(self.current, ({}, b""))
        after, changes = {}, []
        for name, width in _WIDTHS.items():
            rows = dict(before.get(name, {}))
            picked = self._rng.integers(-_SIGNS, _SIGNS, 12).tolist()
            new = {sign: self._rng.bytes(width) for sign in set(picked[:6])}
            gone = set(picked[6:]) - new.keys()
            if self._rng.random() < 0.1:
                new, gone = {}, set()  # Nothing has changed.
            rows = {s: r for s, r in (rows | new).items() if s not in gone}
            whole = (
                name not in before
                or self._rng.random() < 0.2
                or self.sink.needs_whole(name)
            )
            changes.append(
                _changes(name, rows, (), True, broken)
                if whole
                else _changes(name, new, gone, False, broken)
            )
            after[name] = rows
        content = self._rng.bytes(9)
        files, base = {"dense/a": content, "dense/b/c": b""}, self.current
        if broken:
            with pytest.raises(_Broken):
                self.sink.write(_manifest(), files, changes, base)
            return
        version = self.sink.write(_manifest(), files, changes, base)
        assert version > max([0, *self.states])
        kept = [v for v in self.states if v <= base][-(self._keep - 1) or 99 :]
        self.states = {
            v: self.states[v] for v in (kept if self._keep > 1 else [])
        } | {version: (after, content)}
        self.current = version

    def check(self, case):
        wanted = Versions(self.current, tuple(self.states), False)
        case.assertEqual(self.sink.versions(), wanted)
        for version, (tables, content) in self.states.items():
            for name, rows in tables.items():
                found = _rows_of(self.sink, version, name)
                case.assertEqual(found, rows, f"{version} {name}")
            case.assertEqual(self.sink.read_file(version, "dense/a"), content)
            about = self.sink.manifest(version)
            case.assertEqual(about["version"], version)


class SinkTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder, cls.server = pathlib.Path(folder.name), None
        if redis_server.missing() is None:
            cls.server = redis_server.RedisServer(folder.name)
            cls.addClassCleanup(cls.server.close)

    def maker(self, kind):
        """A function of `keep` to sinks of one place, which is new."""
        place = uuid.uuid4().hex
        if kind == "directory":
            return lambda keep=3: DirectorySink(self.folder / place, keep)
        if self.server is None:
            self.skipTest(redis_server.missing())
        return lambda keep=3: RedisSink(self.server.url, place, keep)

    @parameterized.product(kind=["directory", "redis"], keep=[1, 3])
    # Parts of changes have three rows.
    @mock.patch.object(redis_sink, "_ROWS", 2)
    def test_random_programs(self, kind, keep):
        program = _Program(self.maker(kind), keep, seed=keep)
        for _ in range(30):
            program.step()
            program.check(self)

    @parameterized.parameters(1, 3)
    def test_random_programs_with_lost_answers(self, keep):
        """What was done is not done again as Redis does not answer."""
        rng = np.random.default_rng(keep)
        execute = redis.client.Pipeline._execute_transaction

        def lossy(pipe, *args):
            if rng.random() < 0.15:
                raise redis.TimeoutError("It was not sent.")
            answers = execute(pipe, *args)
            if rng.random() < 0.3:
                pipe.watching = True  # As before an answer is read.
                raise redis.TimeoutError("The answer is lost.")
            return answers

        program = _Program(self.maker("redis"), keep, seed=keep)
        for _ in range(25):
            with mock.patch.object(
                redis.client.Pipeline, "_execute_transaction", lossy
            ):
                program.step()
            program.check(self)

    def test_rows_that_redis_is_sent_after_the_version_was_given_up(self):
        make, rows = self.maker("redis"), {1: b"12345678"}
        sink, other = make(), make()
        sink.write(_manifest(["deep"]), {}, [_changes("deep", rows, (), 1)], 0)
        execute = redis.client.Pipeline._execute_transaction
        abandon, given_up = sink._abandon, []

        def late(pipe, connection, commands, *args):
            names = [command[0][0] for command in commands]
            if names == ["HSET"] and not given_up:
                given_up.append(True)
                abandon(2, ["deep"])
            return execute(pipe, connection, commands, *args)

        with (
            mock.patch.object(
                redis.client.Pipeline, "_execute_transaction", late
            ),
            mock.patch.object(sink, "_abandon"),
            self.assertRaisesRegex(SinkError, "has lost version 2"),
        ):
            changes = [_changes("deep", {2: b"abcdefgh"})]
            sink.write(_manifest(["deep"]), {}, changes, 1)
        self.assertTrue(given_up)
        self.assertEqual(_rows_of(other, 1, "deep"), rows)
        keys = self.server.client.keys(f"*{sink._rows._prefix[1:]}*")
        self.assertLen(keys, 1 + 1 + 1, keys)

    def test_folders_are_those_that_versions_need(self):
        sink = self.maker("directory")(2)
        for base, is_whole in enumerate([True] * 3 + [False] * 3):
            tables = [_changes("deep", {base: b"12345678"}, (), is_whole)]
            sink.write(_manifest(["deep"]), {}, tables, base)
            found = sorted(map(int, filter(str.isdigit, os.listdir(sink.path))))
            # All changes continue version 3.
            wanted = [*range(3 if base > 2 else max(1, base), base + 2)]
            self.assertEqual(found, wanted)

    @parameterized.parameters("directory", "redis")
    def test_the_writer_that_began_last_wins(self, kind):
        make = self.maker(kind)
        first = make()
        rows = {1: b"12345678"}
        first.write(_manifest(["deep"]), {}, [_changes("deep", rows, (), 1)], 0)
        second = make()
        seen = []

        def parts():
            [part] = _changes("deep", {2: b"abcdefgh"}).parts()
            if not seen:
                seen.append(second.versions())
                more = [_changes("deep", {3: b"xxxxxxxx"})]
                second.write(_manifest(["deep"]), {"dense/a": b"2"}, more, 1)
            yield part
            seen.append("It goes on.")

        changes = [TableChanges("deep", 8, False, parts)]
        with self.assertRaises(SinkError):
            first.write(_manifest(["deep"]), {"dense/a": b"1"}, changes, 1)
        # Each write to Redis looks who writes, a directory at the end.
        self.assertEqual(seen[0], Versions(1, (1,), False))
        self.assertLen(seen, 1 if kind == "redis" else 2)
        now = second.versions()
        self.assertLen(now.retained, 2)
        wanted = rows | {3: b"xxxxxxxx"}
        self.assertEqual(_rows_of(second, now.current, "deep"), wanted)
        self.assertEqual(second.read_file(now.current, "dense/a"), b"2")
        with self.assertRaises(SinkConflictError):
            first.write(_manifest(["deep"]), {}, changes, now.current)
        self.assertEqual(second.versions(), now)
        if kind == "redis":
            keys = self.server.client.keys(f"*{second._rows._prefix[1:]}*")
            self.assertLen(keys, 1 + 2 + 1 + 2)

    def test_what_a_killed_writer_leaves_in_redis(self):
        make = self.maker("redis")
        killed, tables = make(), [_changes("deep", {1: b"12345678"}, (), True)]
        killed.write(_manifest(["deep"]), {"dense/a": b"1"}, tables, 0)
        for sink in (killed, make()):
            with mock.patch.object(killed, "_abandon"):
                with self.assertRaises(_Broken):
                    broken = [_changes("deep", {2: b"8" * 8}, (), False, True)]
                    killed.write(_manifest(["deep"]), {}, broken, 1)
            self.assertEqual(sink.versions(), Versions(1, (1,), False))
            self.assertEqual(_rows_of(sink, 1, "deep"), {1: b"12345678"})
        make().write(_manifest(["deep"]), {}, [_changes("deep", {})], 1)
        keys = self.server.client.keys(f"*{killed._rows._prefix[1:]}*")
        self.assertLen(keys, 1 + 1 + 2 + 1, keys)

    @parameterized.parameters("directory", "redis")
    def test_a_rollback_while_a_version_is_written(self, kind):
        sink, other = self.maker(kind)(), None
        for number in range(2):
            changes = [_changes("deep", {number: b"12345678"}, (), not number)]
            sink.write(_manifest(["deep"]), {}, changes, number)
        other = sink

        def pinning(version):
            def parts():
                other.select(version, pinned=True)
                yield from _changes("deep", {9: b"abcdefgh"}).parts()

            return [TableChanges("deep", 8, False, parts)]

        with self.assertRaisesRegex(SinkError, "has become 1"):
            sink.write(_manifest(["deep"]), {}, pinning(1), 2)
        self.assertEqual(sink.versions(), Versions(1, (1, 2), True))
        with self.assertRaisesRegex(SinkError, "pinned"):
            sink.write(_manifest(["deep"]), {}, [_changes("deep", {})], 1)
        sink.select(2, pinned=False)
        self.assertEqual(_rows_of(sink, 2, "deep").keys(), {0, 1})

        with self.assertRaisesRegex(SinkError, "is pinned to version 2"):
            sink.write(_manifest(["deep"]), {}, pinning(2), 2)
        self.assertEqual(sink.versions(), Versions(2, (1, 2), True))
        with self.assertRaisesRegex(ValueError, r"retained \(1, 2\)"):
            sink.select(3, pinned=False)

    @parameterized.parameters("directory", "redis")
    def test_a_version_that_is_removed_while_it_is_read(self, kind):
        sink = self.maker(kind)(1)
        rows = {n: b"12345678" for n in range(20_000)}
        sink.write(_manifest(["deep"]), {}, [_changes("deep", {}, (), 1)], 0)
        whole = [_all("deep", rows)]
        sink.write(_manifest(["deep"]), {}, whole, 1)
        reading = sink.read_rows(2, "deep")
        next(reading)
        sink.write(
            _manifest(["deep"]), {}, [_changes("deep", {5: b"8" * 8})], 2
        )
        sink.write(
            _manifest(["deep"]), {}, [_changes("deep", {6: b"9" * 8})], 3
        )
        if kind == "redis":
            with self.assertRaisesRegex(SinkError, "removed while"):
                list(reading)
        else:  # The file is still open.
            list(reading)
        with self.assertRaises(SinkError):
            list(sink.read_rows(2, "deep"))
        with self.assertRaises(SinkError):
            sink.manifest(2)

    @parameterized.parameters("directory", "redis")
    def test_a_table_that_is_left_out_and_comes_again(self, kind):
        sink, rows = self.maker(kind)(2), {1: b"12345678"}
        deep = [_changes("deep", rows, (), True)]
        wide = [_changes("wide", {2: b"abc"}, (), True)]
        sink.write(_manifest(), {}, [*deep, *wide], 0)
        for base in range(1, 4):
            sink.write(_manifest(["wide"]), {}, wide, base)
        again = [_changes("deep", {3: b"87654321"}, (), True)]
        sink.write(_manifest(), {}, [*again, *wide], 4)
        self.assertEqual(_rows_of(sink, 5, "deep"), {3: b"87654321"})
        self.assertEqual(_rows_of(sink, 5, "wide"), {2: b"abc"})

    def test_what_differs_in_two_versions_of_a_redis(self):
        sink = self.maker("redis")(9)
        rows = {n: b"12345678" for n in range(1, 5)}
        of_wide = _changes("wide", {7: b"abc", 8: b"abc"}, (), True)
        none = _changes("wide", {})
        manifests = [None]
        for changes in (
            [of_wide],
            [_changes("deep", rows, (), True), none],
            [_changes("deep", {1: b"87654321"}, [2]), none],
            [_changes("deep", {}), _changes("wide", {8: b"cba"})],
            [_changes("deep", {3: b"87654321"})],
        ):
            tables = [table.name for table in changes]
            base = len(manifests) - 1
            sink.write(_manifest(tables), {}, changes, base)
            manifests.append(sink.manifest(base + 1))

        def differ(before, after, most=3):
            found = sink.changed_signs(
                manifests[before], manifests[after], most
            )
            return found and {k: sorted(v.tolist()) for k, v in found.items()}

        for versions in ((2, 4), (4, 2)):
            self.assertEqual(differ(*versions), {"deep": [1, 2], "wide": [8]})
            self.assertIsNone(differ(*versions, most=2))
        self.assertEqual(differ(3, 3), {})
        # A table is new, or has no rows any more.
        for versions in ((1, 2), (2, 1), (4, 5), (5, 2)):
            self.assertIsNone(differ(*versions, most=99), versions)
        manifests[3] = {**manifests[3], "id": "another"}
        self.assertIsNone(differ(2, 3))

    def test_whole_tables_follow_as_many_changes(self):
        sink = DirectorySink(self.folder, 9)
        self.assertEqual(sink.versions(), Versions(0, (), False))
        self.assertTrue(sink.needs_whole("deep"))
        row, whole, base, needed = b"abcdefgh", True, 0, []
        for rows in ({1: row, 2: row, 3: row}, *[{1: row}] * 4):
            changes = _changes("deep", rows, whole=whole)
            base = sink.write(_manifest(["deep"]), {}, [changes], base)
            needed.append(sink.needs_whole("deep"))
            whole = False
        self.assertEqual(needed, [False] * 4 + [True])

    def test_arguments(self):
        for keep in (0, True, 1.5):
            with self.assertRaisesRegex(ValueError, "`keep`"):
                DirectorySink(self.folder, keep)
        with self.assertRaisesRegex(ValueError, "`path`"):
            DirectorySink("gs://bucket/x")
        for name in ("", "a{b", 3):
            with self.assertRaisesRegex(ValueError, "`name`"):
                RedisSink("redis://localhost:1/0", name)
        with self.assertRaisesRegex(ValueError, "`url`"):
            RedisSink("localhost", "x")
        with self.assertRaisesRegex(SinkError, "'x' in Redis: Error"):
            RedisSink("redis://127.0.0.1:1/0", "x").versions()


class RowBytesTest(parameterized.TestCase):
    @parameterized.parameters(*row_bytes.DTYPES)
    def test_rows(self, dtype):
        rng = np.random.default_rng(0)
        weights = rng.normal(size=(20, 5)).astype(np.float32)
        weights[3] = 0
        stored = row_bytes.encode(weights, dtype, "t")
        self.assertEqual(stored.shape, (20, row_bytes.width(dtype, 5)))
        found = row_bytes.decode(stored, dtype)
        limit = {"float32": 0, "float16": 1e-3, "int8": 0.5 / 127}[dtype]
        error = np.abs(found - weights).max(1)
        np.testing.assert_array_less(
            error, limit * np.abs(weights).max(1) + 1e-9
        )
        again = row_bytes.encode(found, dtype, "t")
        if dtype != "int8":
            np.testing.assert_array_equal(again, stored)
        self.assertLen(row_bytes.encode(weights[:0], dtype, "t"), 0)


def _all(name, rows):
    """All rows, in one part."""
    signs = np.fromiter(rows, np.int64, len(rows))
    data = np.frombuffer(b"".join(rows.values()), np.uint8)
    part = RowChanges(signs, data.reshape(len(rows), -1), signs[:0])
    return TableChanges(name, _WIDTHS[name], True, lambda: iter([part]))


if __name__ == "__main__":
    absltest.main()
