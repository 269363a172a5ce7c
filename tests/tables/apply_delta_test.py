# SPDX-License-Identifier: Apache-2.0
"""SparseTable.apply_delta: a served table that follows a trained one."""

import contextlib
import os
import shutil
import tempfile
import threading
import unittest.mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from saving_util import contents
from snapshot_util import data_files, push, table

import tf_ext
from tf_ext.ops.snapshot import snapshot_ops

pytestmark = pytest.mark.slow_tests(
    "ApplyDeltaTest::test_refuses_a_table_that_imported",
    "ApplyDeltaTest::test_refuses_a_table_that_without_*",
    "ReadersTest::test_no_row_is_absent_or_*",
)

_IDS = np.arange(3000)


def directory_of(test):
    """A temporary directory that ends with a test."""
    directory = tempfile.TemporaryDirectory(prefix="tf_ext_deltas_")
    test.addCleanup(directory.cleanup)
    return directory.name


def _action_of(arguments):
    """What a call of `sparse_table_restore` does."""
    return next(value for value in arguments if isinstance(value, str))


class _Chain:
    """A table that is trained, and a chain of its snapshots: 0, 1, 2."""

    def __init__(self, directory, shards=1):
        self.paths = [os.path.join(directory, str(i)) for i in range(3)]
        self.trained = table(shards)
        push(self.trained, _IDS)
        self.trained.save(self.paths[0], incremental=True)
        self.states = [contents(self.trained)]
        # Erased for good, erased and trained again, and new ones.
        self.trained.erase(_IDS[:200])
        push(self.trained, np.arange(100, 1500), seed=1)
        push(self.trained, np.arange(9000, 9500), seed=2)
        self._save(1)
        # Gone that came with the delta before, and back that it erased.
        self.trained.erase(np.arange(9000, 9100))
        push(self.trained, np.arange(50, 70), seed=3)
        self._save(2)

    def _save(self, number):
        self.trained.save(self.paths[number], base=self.paths[number - 1])
        self.states.append(contents(self.trained))


class ApplyDeltaTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.directory = directory_of(self)
        self.chain = _Chain(self.directory)

    def _served(self, number=0, **kwargs):
        served = table(**kwargs)
        served.load(self.chain.paths[number])
        return served

    def assert_holds(self, served, number):
        self.assertEqual(contents(served), self.chain.states[number])

    @parameterized.parameters(1, 3)
    def test_leaves_what_was_saved(self, shards):
        served = self._served(shards=shards)
        for number in (1, 2):
            manifest = served.apply_delta(self.chain.paths[number])
            self.assertEqual(manifest.sequence, number)
            self.assert_holds(served, number)
        # Again: nothing to do.
        served.apply_delta(self.chain.paths[2])
        self.assert_holds(served, 2)

    def test_goes_over_links_that_were_skipped(self):
        served = self._served()
        shutil.rmtree(self.chain.paths[0])  # Held already.
        served.apply_delta(self.chain.paths[2])
        self.assert_holds(served, 2)

    def test_names_a_link_that_is_missing(self):
        served = self._served()
        shutil.rmtree(self.chain.paths[1])
        with self.assertRaisesRegex(
            ValueError,
            f"the delta '{self.chain.paths[2]}'.*a delta in between is "
            f"missing. .*There is no snapshot in '{self.chain.paths[1]}'",
        ):
            served.apply_delta(self.chain.paths[2])
        self.assert_holds(served, 0)

    def test_continues_what_a_whole_load_in_place_left(self):
        served = self._served(1)
        push(served, [5, 77777])
        served.load(self.chain.paths[0], in_place=True)
        self.assert_holds(served, 0)
        served.apply_delta(self.chain.paths[1])
        served.load(self.chain.paths[2], in_place=True)
        self.assert_holds(served, 2)

    @parameterized.named_parameters(
        ("trained", lambda served, _: push(served, [5])),
        ("inserted", lambda served, _: served.pull([77777], training=True)),
        (
            "imported",
            lambda served, _: served.import_rows(
                [5], {"weights": np.ones([1, 4], np.float32)}
            ),
        ),
        ("erased", lambda served, _: served.erase([5])),
        ("cleared", lambda served, _: served.clear()),
        (
            "without_slots",
            lambda served, paths: served.load(paths[0], weights_only=True),
        ),
        (
            "without_slots_in_place",
            lambda served, paths: served.load(
                paths[0], weights_only=True, in_place=True
            ),
        ),
    )
    def test_refuses_a_table_that(self, change):
        served = self._served()
        served.pull([77777])  # Reads alone do not matter.
        change(served, self.chain.paths)
        before = contents(served)
        with self.assertRaisesRegex(
            ValueError, "'user' cannot take the delta .*does not hold the rows"
        ):
            served.apply_delta(self.chain.paths[1])
        self.assertEqual(contents(served), before)

    def test_refuses_what_is_not_of_its_chain(self):
        served = self._served()
        with self.assertRaisesRegex(
            FileNotFoundError, "There is no snapshot in"
        ):
            served.apply_delta(self.directory)
        other = _Chain(os.path.join(self.directory, "other"))
        with self.assertRaisesRegex(ValueError, "is of a chain that it is not"):
            served.apply_delta(other.paths[1])
        with self.assertRaisesRegex(ValueError, "/0' is not a delta. Use load"):
            served.apply_delta(other.paths[0])
        later = self._served(2)
        with self.assertRaisesRegex(ValueError, "is of a chain that it is not"):
            later.apply_delta(self.chain.paths[1])
        adam = table(optimizer="adam")
        adam.load(self.chain.paths[0], weights_only=True)
        with self.assertRaisesRegex(ValueError, "cannot take the delta"):
            adam.apply_delta(self.chain.paths[1])
        self.assert_holds(served, 0)

    @parameterized.parameters(0.1, 0.5, 0.99)
    def test_a_damaged_byte_changes_nothing(self, where):
        served = self._served(shards=2)
        # Of the last link: those before are not applied either.
        [file] = data_files(self.chain.paths[2])
        with open(file, "r+b") as opened:
            opened.seek(int(where * os.path.getsize(file)))
            byte = opened.read(1)
            opened.seek(-1, os.SEEK_CUR)
            opened.write(bytes([byte[0] ^ 1]))
        with self.assertRaisesRegex(
            tf_ext.snapshot.DamagedSnapshotError, f"{file} is .*damaged"
        ):
            served.apply_delta(self.chain.paths[2])
        self.assert_holds(served, 0)
        served.apply_delta(self.chain.paths[1])
        self.assert_holds(served, 1)

    @contextlib.contextmanager
    def _losing_files(self, when):
        """A `with` block that fails as files go after they were checked."""
        restore = snapshot_ops.sparse_table_restore

        def lose(handle, paths, *args, **kwargs):
            if _action_of(args) == when:
                for path in paths.numpy():
                    os.remove(path)
            return restore(handle, paths, *args, **kwargs)

        with unittest.mock.patch.object(
            snapshot_ops, "sparse_table_restore", lose
        ):
            with self.assertRaisesRegex(
                RuntimeError, "a file was damaged after it was checked"
            ):
                yield

    @parameterized.parameters(True, False)
    def test_a_load_in_place_that_fails_erases_nothing(self, weights_only):
        served = self._served()
        with self._losing_files("update"):
            served.load(*(self.chain.paths[2], weights_only), in_place=True)
        self.assertEqual(contents(served), self.chain.states[0])

    @parameterized.parameters("update", "gather")
    def test_a_file_that_goes_after_it_was_checked(self, when):
        served = self._served()
        with self._losing_files(when):
            served.apply_delta(self.chain.paths[1])
        with self.assertRaisesRegex(ValueError, "does not hold the rows"):
            served.apply_delta(self.chain.paths[2])
        served.load(self.chain.paths[0], in_place=True)
        self.assert_holds(served, 0)

    @parameterized.parameters(
        ("verify", 0, "Nothing"), ("update", 1, "All of it")
    )
    def test_training_meanwhile_is_noticed(self, when, number, message):
        served = self._served()
        restore = snapshot_ops.sparse_table_restore

        def meanwhile(handle, *args, **kwargs):
            if _action_of(args) == when:
                push(served, [77777])
            return restore(handle, *args, **kwargs)

        with unittest.mock.patch.object(
            snapshot_ops, "sparse_table_restore", meanwhile
        ):
            with self.assertRaisesRegex(
                RuntimeError,
                "Applying the delta .*/1' to table 'user': rows were changed "
                f"by something else at the same time. {message}",
            ):
                served.apply_delta(self.chain.paths[1])
        self.assertEqual(served.erase([77777]), 1)
        self.assert_holds(served, number)
        with self.assertRaisesRegex(ValueError, "does not hold the rows"):
            served.apply_delta(self.chain.paths[2])


class ReadersTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(1, 2)
    def test_no_row_is_absent_or_torn(self, shards):
        """Rows of one number each, which is that of the delta."""
        directory = directory_of(self)
        trained, served = table(), table(shards)
        deltas, stay = 12, np.arange(20_000)

        def set_rows(signs, number):
            values = np.full([len(signs), 4], number, np.float32)
            trained.import_rows(
                signs, {"weights": values, "accumulator": values}
            )

        set_rows(stay, 1)
        paths = [os.path.join(directory, str(n)) for n in range(deltas)]
        trained.save(paths[0], incremental=True)
        served.load(paths[0])
        done, wrong, reads = threading.Event(), [], []

        pull = tf.function(served.pull)
        pull(tf.constant(stay))  # Traced.

        def read(signs):
            ids = tf.constant(signs)
            seen = np.ones([len(signs)])
            while not done.is_set():
                rows = pull(ids).numpy()
                number = rows[:, 0]
                bad = np.any(rows != number[:, np.newaxis], axis=1)  # torn
                bad |= number != np.round(number)  # absent
                bad |= number < seen  # older than it was
                wrong.extend(signs[bad])
                seen = number
                reads.append(1)

        threads = [
            threading.Thread(target=read, args=[signs])
            for signs in (stay, stay[::-1], stay[:50])
        ]
        for thread in threads:
            thread.start()
        try:
            for number in range(2, deltas + 1):
                if number == 8:
                    # A new chain begins.
                    trained.end_incremental()
                trained.erase(stay[: 200 * number])
                set_rows(stay, number)
                set_rows(np.arange(50_000, 60_000), number)
                trained.erase(np.arange(50_000, 60_000))
                path = paths[number - 1]
                if number == 8:
                    trained.save(path, incremental=True)
                    served.load(path, in_place=True)
                else:
                    trained.save(path, base=paths[number - 2])
                    served.apply_delta(path)
                self.assertEqual(served.size(), len(stay))
        finally:
            done.set()
            for thread in threads:
                thread.join()
        self.assertEmpty(wrong)
        self.assertGreater(len(reads), 3 * deltas)
        self.assertEqual(contents(served), contents(trained))


class WeightsInPlaceTest(tf.test.TestCase, parameterized.TestCase):
    def assert_same_rows(self, one, other):
        found = []
        for each in (one, other):
            ids, fields = each.export_rows()
            order = np.argsort(ids)
            rows = {key: values[order] for key, values in fields.items()}
            # And their weights of now.
            found.append((ids[order], rows, each.pull(ids[order])))
        self.assertAllEqual(found[0][0], found[1][0])
        self.assertAllEqual(found[0][2], found[1][2])
        for key, values in found[0][1].items():
            self.assertAllEqual(values, found[1][1][key], key)

    @parameterized.named_parameters(
        ("slots", {"optimizer": "adagrad"}),
        ("shrinkage", {"optimizer": "sgd", "l2": 0.01}),
        ("statistics", {"optimizer": "sgd", "statistics": ["show"]}),
        ("age", {"optimizer": "sgd", "eviction": tf_ext.eviction.Unseen(9)}),
        ("small", {"optimizer": "adam", "dtype": "float16", "shards": 2}),
    )
    def test_leaves_the_rows_of_a_new_table(self, options):
        paths = [os.path.join(directory_of(self), str(i)) for i in range(2)]
        trained = table(seed=1, **options)
        push(trained, _IDS)
        trained.save(paths[0], incremental=True)
        trained.erase(_IDS[:200])
        push(trained, np.arange(2900, 3500), seed=1)
        trained.save(paths[1], base=paths[0])
        loaded = table(seed=1, **options)
        loaded.load(paths[1], weights_only=True)
        served = table(seed=1, **options)
        # Erased in the chain, kept, new in it, and never in it.
        push(served, [5, 1000, 3200, 77777], seed=2)
        served.load(paths[1], weights_only=True, in_place=True)
        self.assert_same_rows(served, loaded)
        for each in (served, loaded):
            push(each, [1000, 3200, 5], seed=3)
        self.assert_same_rows(served, loaded)


if __name__ == "__main__":
    tf.test.main()
