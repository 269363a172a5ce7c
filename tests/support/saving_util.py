# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of saving."""

import os
import tempfile

import tensorflow as tf
from absl.testing import parameterized
from models import small_models as small
from models.model_building import generator, rows_of

from tf_ext.recovery import files as point_files


def trained(test, rule="adagrad", **kwargs):
    """A model with rows, and the batch it was trained on."""
    features, labels = small.batch(generator(test))
    model = small.compiled(small.functional(small.table(rule, **kwargs)))
    model.train_on_batch(features, labels)
    return model, features, labels


def contents(table):
    """All fields of all rows: `{field: {sign: values}}`, as lists."""
    return {
        field.name: {
            sign: values.tolist()
            for sign, values in rows_of(table, field.name).items()
        }
        for field in table.rows.fields
    }


class Formats:
    """The ways to copy rows between models: `(write, read)` by name."""

    @staticmethod
    def weights(directory):
        path = os.path.join(directory, "x.weights.h5")
        return lambda m: m.save_weights(path), lambda m: m.load_weights(path)

    @staticmethod
    def checkpoint(directory):
        path = os.path.join(directory, "checkpoint")
        return (
            lambda m: tf.train.Checkpoint(model=m).write(path),
            lambda m: tf.train.Checkpoint(model=m).read(path).expect_partial(),
        )

    @staticmethod
    def keras(directory):
        # Into a model that is there: its weights alone.
        path = os.path.join(directory, "x.keras")
        return lambda m: m.save(path), lambda m: m.load_weights(path)


# For parameterized.named_parameters.
FORMATS = tuple((name, name) for name in ("weights", "checkpoint", "keras"))


class TestCase(parameterized.TestCase, tf.test.TestCase):
    """A test that writes files."""

    def directory(self):
        """A new, empty directory."""
        directory = tempfile.TemporaryDirectory(prefix="tf_ext_saving_")
        self.addCleanup(directory.cleanup)
        return directory.name

    def path(self, name):
        """A path in a new directory."""
        return os.path.join(self.directory(), name)

    def format(self, name):
        """One of FORMATS: functions that write and read a model."""
        return getattr(Formats, name)(self.directory())


class PointTestCase(TestCase):
    """A test that reads a recovery point.

    Attributes:
      root: string, the directory of the points.
      model: tf_ext.Model, which has written one.
      point: string, its path.
      file: string, the path of its `point.json`.
    """

    def setUp(self):
        super().setUp()
        self.root = self.directory()
        self.model = small.model_with_point(generator(self), self.root)
        [self.point] = point_files.list_points(self.root)
        self.file = os.path.join(self.point, "point.json")
