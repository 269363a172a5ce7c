# SPDX-License-Identifier: Apache-2.0
"""Recovery points in a directory: how they are found, and told apart."""

import os
import pathlib
import re
import shutil

import pytest
import snapshot_util as util
from absl.testing import absltest
from models import small_models as small
from models.model_building import generator
from saving_util import PointTestCase, TestCase

import tf_ext
from tf_ext._keras import keras
from tf_ext.recovery import files as point_files
from tf_ext.snapshot import point_names

pytestmark = pytest.mark.both_kerases(slow=True)


class EpochTest(TestCase):
    def test_a_first_epoch_that_is_given(self):
        """A point is of the epoch that `fit` was in, from wherever it began."""
        features, labels = small.batch(generator(self))
        root = self.path("points")

        def fit(callbacks, **options):
            model = small.compiled(small.functional(small.table()))
            points = tf_ext.callbacks.TableSnapshot(root, steps=1)
            return model.fit(
                features,
                labels,
                batch_size=16,
                verbose=0,
                callbacks=[points, *callbacks],
                **options,
            )

        def stop(batch, logs=None):
            if batch == 2:
                raise KeyboardInterrupt

        stopping = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
        with self.assertRaises(KeyboardInterrupt):
            fit([stopping], initial_epoch=5, epochs=7)
        self.assertEqual(fit([], epochs=7).epoch, [5, 6])


class LatestPointTest(PointTestCase):
    def test_a_point_is_no_snapshot_and_says_where_they_are(self):
        table = re.escape(repr(point_files.table_path(self.point, 0)))
        where = f"Give the path of the snapshot of a table: {table}."
        newest = re.escape(repr(self.point))
        os.mkdir(os.path.join(self.root, "point-9999999999"))  # Unfinished.
        for path, message in (
            (self.point, f"It is a recovery point. {where}"),
            (
                self.root,
                "It holds recovery points, the newest complete one in "
                f"{newest}. {where}",
            ),
        ):
            message = (
                f"There is no snapshot in {re.escape(repr(path))}: it has no "
                f"manifest.json. {message}$"
            )
            with self.assertRaisesRegex(FileNotFoundError, message):
                tf_ext.snapshot.open_snapshot(path)
            with self.assertRaisesRegex(FileNotFoundError, message):
                self.model.tables[0].load(path)
            status, out, err = util.run_command("inspect", path)
            self.assertEqual((status, out), (2, ""))
            self.assertRegex(err.rstrip(), message)

    def test_names_in_the_order_of_training(self):
        names = [
            *("point-0000000009", "point-0000000009-end", "point-0000000010"),
            *("point-9999999999-end", "point-10000000000"),
        ]
        others = ["point-0000000009-en", "point-9", "x-end", "point-end"]
        found = point_names.point_directories([*reversed(names), *others])
        self.assertEqual(found, names)
        self.assertEqual(point_names.end_directory(names[0]), names[1])

    def test_latest_point(self):
        latest = tf_ext.callbacks.latest_point
        self.assertEqual(latest(self.root), self.point)
        self.assertEqual(latest(pathlib.Path(self.root)), self.point)
        self.assertEqual(latest(f"file://{self.root}/"), self.point)
        self.assertIsNone(latest(os.path.join(self.root, "none")))
        self.assertIsNone(latest(self.point))
        # Neither unfinished nor damaged ones.
        newer = point_files.path_of(self.root, 10_000_000_000)
        os.mkdir(newer)
        self.assertEqual(latest(self.root), self.point)
        shutil.copy(self.file, newer)
        self.assertEqual(latest(self.root), newer)
        with open(os.path.join(newer, "point.json"), "r+b") as file:
            file.truncate(100)
        self.assertEqual(latest(self.root), self.point)


if __name__ == "__main__":
    absltest.main()
