# SPDX-License-Identifier: Apache-2.0
"""Which layers of rows the versions in a Redis have, against plain dicts."""

import dataclasses

import hypothesis
from absl.testing import absltest
from hypothesis import strategies as st

from tf_ext.serving.sinks import redis_state
from tf_ext.serving.sinks.redis_state import Layer, State
from tf_ext.serving.sinks.sink import SinkError, Versions

_SIGNS = st.integers(0, 3)
# A row, or None: it is erased.
_CHANGES = st.dictionaries(_SIGNS, st.none() | st.integers(0, 99))
_COMMIT = st.tuples(
    st.just("commit"),
    st.integers(1, 3),
    st.dictionaries(st.sampled_from("ab"), st.tuples(st.booleans(), _CHANGES)),
)
_STEPS = st.one_of(
    *[_COMMIT] * 3,
    st.tuples(st.just("go back"), st.integers(0, 2)),
    st.tuples(st.just("fold")),
)


class _Redis:
    """The hashes of rows, their state, and the rows that versions have."""

    def __init__(self):
        self.state = State()
        self.last = 0
        self.hashes = {}
        self.rows = {}

    def commit(self, keep, changes):
        self.last = version = self.last + 1
        before = self.rows.get(self.state.current, {})
        self.rows[version] = after = {
            table: {**before[table]} for table in before
        }
        new = {}
        for table, (whole, changed) in changes.items():
            whole = whole or table not in before
            rows = {} if whole else after[table]
            after[table] = {
                k: v for k, v in (rows | changed).items() if v is not None
            }
            new[table] = Layer(version, version, whole)
            self.hashes[table, version] = {
                k: v for k, v in changed.items() if v is not None or not whole
            }
        self.state = self.state.committed(version, f"id {version}", new, keep)

    def go_back(self, count):
        ids = [v for v in self.state.ids if v <= self.state.current]
        if ids:
            version = ids[max(0, len(ids) - 1 - count)]
            self.state = dataclasses.replace(self.state, current=version)

    def fold(self):
        if (found := self.state.foldable()) is None:
            return
        table, lower, upper = found
        rows = self.hashes[table, lower.key] | self.hashes.pop(
            (table, upper.key)
        )
        if lower.whole:
            rows = {k: v for k, v in rows.items() if v is not None}
        self.hashes[table, lower.key] = rows
        self.state = self.state.folded(table)

    def read(self, version, table):
        found = {}
        for layer in self.state.layers_of(version, table):
            found = self.hashes[table, layer.key] | found
        return {k: v for k, v in found.items() if v is not None}


class RandomVersionsTest(absltest.TestCase):
    @hypothesis.settings(max_examples=150, deadline=None, database=None)
    @hypothesis.given(st.lists(_STEPS, max_size=12))
    def test_each_has_its_rows_as_long_as_it_is_retained(self, steps):
        redis = _Redis()
        for name, *arguments in steps:
            if name == "commit":
                redis.commit(*arguments)
                keep = arguments[0]
                self.assertLessEqual(len(redis.state.ids), keep)
                self.assertEqual(redis.state.current, redis.last)
            elif name == "go back":
                redis.go_back(*arguments)
            else:
                redis.fold()
            state = redis.state
            self.assertEqual(list(state.ids), sorted(state.ids))
            used = set()
            for version in state.ids:
                for table, rows in redis.rows[version].items():
                    self.assertEqual(redis.read(version, table), rows)
                for table in state.tables:
                    used |= {
                        (table, one) for one in state.layers_of(version, table)
                    }
            # Others are removed.
            kept = {(t, one) for t, its in state.tables.items() for one in its}
            self.assertEqual(kept, used)
            data = redis_state.encode(state)
            self.assertEqual(redis_state.decode(data, "it"), state)


class StateTest(absltest.TestCase):
    def test_only_the_current_one_and_those_before_are_continued(self):
        state = State()
        for version in (1, 2, 3):
            new = {"a": Layer(version, version, version == 1)}
            state = state.committed(version, str(version), new, 5)
        state = dataclasses.replace(state, current=2)
        state = state.committed(4, "4", {}, 5)
        self.assertEqual(state.versions, Versions(4, (1, 2, 4), False))
        self.assertEqual([one.key for one in state.tables["a"]], [1, 2])

    def test_what_no_version_needs_alone_is_folded(self):
        state = State().committed(1, "1", {"a": Layer(1, 1, True)}, 2)
        self.assertIsNone(state.foldable())
        lower, upper = Layer(1, 1, True), Layer(2, 2, False)
        state = state.committed(2, "2", {"a": upper}, 2)
        self.assertIsNone(state.foldable())  # The first version reads it.
        state = state.committed(3, "3", {}, 2)
        self.assertEqual(state.foldable(), ("a", lower, upper))
        self.assertEqual(state.folded("a").tables, {"a": [Layer(2, 1, True)]})
        # All rows of the second lie above those of the first.
        whole = State().committed(1, "1", {"a": lower}, 1)
        whole = whole.committed(2, "2", {"a": Layer(2, 2, True)}, 1)
        self.assertEqual(whole.tables, {"a": [Layer(2, 2, True)]})

    def test_damaged(self):
        good = redis_state.encode(State().committed(1, "1", {}, 1))
        self.assertEqual(redis_state.decode(None, "it"), State())
        for old, new, words in (
            (b'"format": 1', b'"format": 9', "it is of format 9"),
            (b'"format": 1', b'"form": 1', "it is damaged: KeyError"),
            (b'"current": 1', b'"current": 2', "its current version is 2"),
            (b'"last": 0', b'"last": "0"', "its current version is 1"),
            (b'"pinned"', b'"painted"', "it is damaged: TypeError"),
            (b"{", b"[", "it is damaged: JSONDecodeError"),
        ):
            self.assertIn(old, good)
            with self.assertRaisesRegex(SinkError, words):
                redis_state.decode(good.replace(old, new), "it")
        with self.assertRaisesRegex(SinkError, "its current version is 0"):
            redis_state.decode(
                good.replace(b'"current": 1', b'"current": 0'), ""
            )


if __name__ == "__main__":
    absltest.main()
