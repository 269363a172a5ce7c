# SPDX-License-Identifier: Apache-2.0
"""tf_ext.serving.follow: a model that serves while another one is trained."""

import functools
import os
import shutil
import tempfile
import threading
import time
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models as small
from saving_util import TestCase, contents
from snapshot_util import data_files

import tf_ext
from tf_ext._keras import keras
from tf_ext.ops.snapshot import snapshot_ops
from tf_ext.serving import follow
from tf_ext.snapshot import DamagedSnapshotError, SnapshotConflictError
from tf_ext.tables.saving import snapshot_load

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "FaultsTest::test_a_file_that_goes_after_it_was_checked",
        "FaultsTest::test_a_point_that_is_replaced_while_it_is_read",
        "FaultsTest::test_damage_changes_nothing_manifest",
        "FaultsTest::test_damage_changes_nothing_point",
        "FaultsTest::test_damage_changes_nothing_variables",
        "FollowTest::test_readers_while_it_follows",
    ),
]

_POINTS = 13  # The 12th begins a new chain.
_STEPS = 4  # of an epoch, at whose end there is a point


def _build(head=4, user=None, seed=1):
    """A model with two tables, and dense weights of both kinds."""
    columns = small.columns()
    user, items = user or columns[0], columns[1]
    tables = {
        tf_ext.SparseTable("user", 4, "adam", "normal", seed=seed): [user],
        tf_ext.SparseTable("items", 4, "sgd", "normal", seed=2): [items],
    }
    ids = small.inputs()
    embedded = tf_ext.layers.EmbeddingFeatures(tables)(ids)
    hidden = keras.layers.Concatenate()(list(embedded.values()))
    hidden = keras.layers.BatchNormalization()(hidden)
    hidden = keras.layers.Dense(head, "tanh")(hidden)
    return tf_ext.Model(ids, keras.layers.Dense(1, "sigmoid")(hidden))


def _served(**kwargs):
    with tf_ext.serving.weights_only():
        return _build(**kwargs)


class _Recording:
    """Points of one training, and what the model was at each.

    states: of each point `[{sign: weights} of each table]`; predictions: of
    each point `[64, 1]`; paths: of each point.
    """

    def __init__(self):
        # Until the process ends.
        self._directory = tempfile.TemporaryDirectory(prefix="tf_ext_points_")
        root = self._directory.name
        self.features, labels = small.batch(np.random.default_rng(5))
        self.states, self.predictions = [], []
        model = small.compiled(_build(), keras.optimizers.Adam(0.1))

        class ComeAndGo(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                user = model.tables[0]
                user.pull([1000 + epoch], training=True)
                user.erase([1000 + epoch - 1])

        snapshot = tf_ext.callbacks.TableSnapshot(
            root, keep=99, incremental=True
        )
        for epoch in range(_POINTS):
            model.fit(
                self.features,
                labels,
                batch_size=64 // _STEPS,
                epochs=epoch + 1,
                initial_epoch=epoch,
                shuffle=False,
                verbose=0,
                callbacks=[ComeAndGo(), snapshot],
            )
            self.states.append([contents(t)["weights"] for t in model.tables])
            self.predictions.append(
                model.predict(self.features, verbose=0, batch_size=64)
            )
        self.paths = sorted(
            os.path.join(root, name) for name in os.listdir(root)
        )


_recording = functools.cache(_Recording)


class PointsTestCase(TestCase):
    """Tests that publish the points of a recording one by one."""

    def setUp(self):
        super().setUp()
        recording = _recording()
        self.recorded, self.states = recording.paths, recording.states
        self.features = recording.features
        self.predictions = recording.predictions
        self.root = self.directory()

    def publish(self, *points):
        """Puts points, which count from 1, where they are followed."""
        paths = []
        for point in points:
            recorded = self.recorded[point - 1]
            path = os.path.join(self.root, os.path.basename(recorded))
            # As it is written: the point's own file last.
            shutil.copytree(
                recorded, path, ignore=shutil.ignore_patterns("point.json")
            )
            shutil.copy(os.path.join(recorded, "point.json"), path)
            paths.append(path)
        return paths[-1]

    def remove(self, *points):
        for point in points:
            name = os.path.basename(self.recorded[point - 1])
            shutil.rmtree(os.path.join(self.root, name))

    def follow(self, model=None, every=None):
        follower = follow(model or self.model, self.root, every=every)
        self.addCleanup(follower.close)
        return follower

    def assert_at(self, point, model=None):
        model = model or self.model
        for table, state in zip(
            model.tables, self.states[point - 1], strict=True
        ):
            self.assertEqual(contents(table)["weights"], state)
        self.assertAllClose(
            model.predict(self.features, verbose=0, batch_size=64),
            self.predictions[point - 1],
            rtol=0,
            atol=1e-6,
        )


class FollowTest(PointsTestCase):
    def setUp(self):
        super().setUp()
        self.model = _served()

    def test_goes_to_each_newer_point(self):
        self.publish(1, 2)
        serve = tf.function(self.model)
        features = {k: tf.constant(v) for k, v in self.features.items()}
        serve(features)  # Traced before there are rows.
        follower = self.follow()
        self.assertEqual(follower.step, 2 * _STEPS)
        self.assert_at(2)
        self.assertFalse(follower.update())
        with mock.patch.object(
            tf_ext.SparseTable, "clear", side_effect=AssertionError
        ):
            for point in (3, 4, 7, 8, 11, 12, 13):
                for path in range(point, 0, -1):
                    name = os.path.basename(self.recorded[path - 1])
                    if os.path.exists(os.path.join(self.root, name)):
                        break
                self.publish(*range(path + 1, point + 1))
                if point == 13:
                    self.remove(*range(1, 12))
                self.assertTrue(follower.update(), point)
                self.assertEqual(follower.step, point * _STEPS)
                self.assertEqual(
                    os.path.basename(follower.path),
                    os.path.basename(self.recorded[point - 1]),
                )
                self.assertBetween(follower.last_window_seconds, 1e-9, 10)
                self.assertIsNone(follower.error)
                self.assert_at(point)
                self.assertAllClose(
                    serve(features),
                    self.predictions[point - 1],
                    rtol=0,
                    atol=1e-6,
                )

    def test_only_changes_are_read(self):
        self.publish(*range(1, 5))
        follower = self.follow()
        self.publish(5, 6)
        read = []
        restore = snapshot_ops.sparse_table_restore

        def note(handle, paths, *args, **kwargs):
            read.extend(
                os.path.relpath(path.decode(), self.root).partition("/")[0]
                for path in paths.numpy()
            )
            return restore(handle, paths, *args, **kwargs)

        with mock.patch.object(snapshot_ops, "sparse_table_restore", note):
            self.assertTrue(follower.update())
        self.assertSameElements(
            read, [os.path.basename(self.recorded[n - 1]) for n in (5, 6)]
        )
        self.assert_at(6)

    def test_a_model_with_slots_and_an_optimizer(self):
        self.publish(1)
        model = small.compiled(_build(), keras.optimizers.Adam(0.1))
        follower = self.follow(model)
        self.publish(2, 3)
        follower.update()
        self.assert_at(3, model)
        self.assertLen(model.tables[0].rows.fields, 4)

    def test_readers_while_it_follows(self):
        self.publish(1)
        follower = self.follow(every=0.01)
        user = self.model.tables[0]
        ids = tf.constant(sorted(self.states[0][0]), tf.int64)
        ids = tf.boolean_mask(ids, ids < 1000)
        fresh = _served().tables[0].pull(ids).numpy()
        features = {k: tf.constant(v) for k, v in self.features.items()}
        serve, pull = tf.function(self.model), tf.function(user.pull)
        serve(features), pull(ids)
        done, wrong, reads = threading.Event(), [], []

        def read_rows():
            while not done.is_set():
                rows = pull(ids).numpy()
                wrong.extend(np.where(np.all(rows == fresh, axis=1))[0])
                reads.append(1)

        def predict():
            while not done.is_set():
                rows = serve(features).numpy()
                wrong.extend(np.where(~np.isfinite(rows))[0])

        threads = [
            threading.Thread(target=target)
            for target in (read_rows, read_rows, predict)
        ]
        for thread in threads:
            thread.start()
        try:
            for point in range(2, _POINTS + 1):
                self.publish(point)
                if point == 13:
                    self.remove(*range(1, 12))
                if point % 3 == 0:
                    self._wait_for(follower, point)
            self._wait_for(follower, _POINTS)
        finally:
            done.set()
            for thread in threads:
                thread.join()
        self.assertEmpty(wrong)
        self.assertGreater(len(reads), _POINTS)
        self.assert_at(_POINTS)

    def _wait_for(self, follower, point):
        deadline = time.monotonic() + 60
        while follower.step != point * _STEPS:
            self.assertLess(time.monotonic(), deadline, follower.error)
            time.sleep(0.005)

    def test_a_training_that_begins_anew(self):
        self.publish(1, 2, 3)
        follower = self.follow()
        self.remove(1, 2, 3)
        self.assertFalse(follower.update())
        self.publish(1)
        self.assertTrue(follower.update())
        self.assertEqual(follower.step, _STEPS)
        self.assert_at(1)

    def test_rows_that_something_else_changed(self):
        self.publish(1)
        follower = self.follow()
        user = self.model.tables[0]
        user.import_rows([7, 7777], {"weights": np.ones([2, 4], np.float32)})
        self.publish(2)
        self.assertTrue(follower.update())
        self.assert_at(2)


def _flip(path, where=0.5):
    with open(path, "r+b") as file:
        file.seek(int(where * os.path.getsize(path)))
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def _variables(point):
    [name] = [n for n in os.listdir(point) if n.startswith("variables-")]
    return os.path.join(point, name)


class FaultsTest(PointsTestCase):
    def setUp(self):
        super().setUp()
        self.model = _served()
        self.publish(1)
        self.follower = self.follow()

    @parameterized.named_parameters(
        ("rows", lambda p: data_files(os.path.join(p, "table-001"))[0]),
        ("manifest", lambda p: os.path.join(p, "table-000/manifest.json")),
        ("point", lambda p: os.path.join(p, "point.json")),
        ("variables", _variables),
    )
    def test_damage_changes_nothing(self, of):
        damaged = of(self.publish(2))
        _flip(damaged)
        with self.assertRaisesRegex(DamagedSnapshotError, damaged):
            self.follower.update()
        self.assertIsInstance(self.follower.error, DamagedSnapshotError)
        self.assertEqual(self.follower.step, _STEPS)
        self.assert_at(1)
        _flip(damaged)
        self.assertTrue(self.follower.update())
        self.assertIsNone(self.follower.error)
        self.assert_at(2)

    def test_the_newest_that_can_be_read(self):
        self.publish(2, 3)
        damaged = data_files(os.path.join(self.publish(4), "table-000"))[0]
        _flip(damaged)
        self.assertTrue(self.follower.update())
        self.assertRegex(str(self.follower.error), damaged)
        self.assert_at(3)
        # A chain whose delta is damaged comes to an end, by and by.
        self.publish(5)
        for _ in range(2):
            with self.assertRaisesRegex(DamagedSnapshotError, damaged):
                self.follower.update()
        self.assert_at(3)
        self.publish(12, 13)
        self.assertTrue(self.follower.update())
        self.assert_at(13)

    def test_two_points_that_cannot_be_read(self):
        self.publish(2)
        damaged = [_variables(self.publish(point)) for point in (3, 4)]
        for path in damaged:
            _flip(path)
        self.assertTrue(self.follower.update())
        self.assertRegex(str(self.follower.error), damaged[1])
        self.assertEqual(
            os.path.basename(self.follower.path),
            os.path.basename(self.recorded[1]),
        )
        # An older point is not one to go back to.
        with self.assertRaisesRegex(DamagedSnapshotError, damaged[1]):
            self.follower.update()
        self.assert_at(2)

    def test_a_point_that_is_replaced_while_it_is_read(self):
        newest = self.publish(2, 3)
        update_to = snapshot_load.update_to

        def replaced(rows, path):
            if path.startswith(newest):
                raise SnapshotConflictError("replaced meanwhile")
            return update_to(rows, path)

        with mock.patch.object(snapshot_load, "update_to", replaced):
            self.assertTrue(self.follower.update())
            self.assertRegex(str(self.follower.error), "replaced meanwhile")
            self.assert_at(2)
        self.assertTrue(self.follower.update())
        self.assertIsNone(self.follower.error)
        self.assert_at(3)

    def test_points_that_are_not_whole(self):
        point = self.publish(2)
        os.rename(
            os.path.join(point, "point.json"), os.path.join(point, "later")
        )
        self.assertFalse(self.follower.update())
        shutil.rmtree(os.path.join(point, "table-001"))
        os.rename(
            os.path.join(point, "later"), os.path.join(point, "point.json")
        )
        with self.assertRaisesRegex(DamagedSnapshotError, "is not whole"):
            self.follower.update()
        self.assert_at(1)

    def test_a_table_of_another_point(self):
        point = self.publish(2)
        other = os.path.join(self.recorded[2], "table-000")
        shutil.rmtree(os.path.join(point, "table-000"))
        shutil.copytree(other, os.path.join(point, "table-000"))
        with self.assertRaisesRegex(
            DamagedSnapshotError, "table-000 is not the snapshot that its point"
        ):
            self.follower.update()
        self.assert_at(1)

    def test_a_file_that_goes_after_it_was_checked(self):
        self.publish(2)
        restore, lost = snapshot_ops.sparse_table_restore, []

        def lose(handle, paths, *args, **kwargs):
            # Of the second table, when the first one is at the point already.
            if "update" in [a for a in args if isinstance(a, str)]:
                for path in paths.numpy():
                    if b"table-001" in path:
                        lost.append(path)
                        os.rename(path, path + b".lost")
            return restore(handle, paths, *args, **kwargs)

        with mock.patch.object(snapshot_ops, "sparse_table_restore", lose):
            with self.assertRaisesRegex(
                RuntimeError, "was damaged after it was"
            ):
                self.follower.update()
        [path] = lost
        # Back to the point before, when there is no other.
        hidden = os.path.join(self.directory(), "hidden")
        point = os.path.dirname(os.path.dirname(path.decode()))
        os.rename(point, hidden)
        self.assertTrue(self.follower.update())
        self.assert_at(1)
        os.rename(hidden, point)
        os.rename(path + b".lost", path)
        self.assertTrue(self.follower.update())
        self.assert_at(2)
        self.publish(3)
        self.assertTrue(self.follower.update())
        self.assert_at(3)

    def test_a_thread_goes_on_and_says_so_once(self):
        damaged = _variables(self.publish(2))
        _flip(damaged)
        with self.assertLogs("tf_ext", "WARNING") as logs:
            with follow(_served(), self.root, every=0.01) as follower:
                self.assertEqual(follower.step, _STEPS)
                time.sleep(0.3)
                self.assertRegex(str(follower.error), damaged)
                _flip(damaged)
                deadline = time.monotonic() + 60
                while follower.step == _STEPS:
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.005)
                self.assertIsNone(follower.error)
        self.assertLen(logs.output, 1)
        self.assertRegex(
            logs.output[0],
            f"{self.root} cannot be followed to its newest point; the model "
            f"serves that of step {_STEPS}. {damaged} is damaged",
        )
        self.assertNotIn(
            "tf_ext.serving.follow", [t.name for t in threading.enumerate()]
        )
        follower.close()
        self.assertFalse(follower.update())

    def test_looks_as_often_as_it_is_told(self):
        with follow(_served(), self.root, every=600) as follower:
            self.publish(2)
            time.sleep(0.1)
            self.assertEqual(follower.step, _STEPS)
            begin = time.monotonic()
        self.assertLess(time.monotonic() - begin, 60)

    def test_columns_that_make_other_signs(self):
        self.publish(12)
        column = tf_ext.feature_column.category_column
        model = _served(user=column("user", namespace="else"))
        with self.assertLogs("tf_ext", "WARNING") as logs:
            self.follow(model)
        self.assertRegex(logs.output[0], "'user' .* other signs")

    def test_other_models(self):
        with self.assertRaisesRegex(
            ValueError, r"variable model/4 has the shape \[8, 5\] in the model"
        ):
            follow(_served(head=5), self.root)
        with tf_ext.serving.weights_only():
            one = small.functional(small.table())
        with self.assertRaisesRegex(
            ValueError,
            r"the tables of the model from .*, \['user', 'items'\]. Received: "
            r"a model with \['deep'\].",
        ):
            follow(one, self.root)
        with self.assertRaisesRegex(ValueError, "must be a built model with"):
            follow(small.head(), self.root)
        with self.assertRaisesRegex(ValueError, "'user': its `seed` is '9'"):
            follow(_served(seed=9), self.root)


if __name__ == "__main__":
    tf.test.main()
