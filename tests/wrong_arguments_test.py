# SPDX-License-Identifier: Apache-2.0
"""What a user is told of arguments that are meant for something else."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models as small

import tf_ext
from tf_ext._keras import keras

pytestmark = pytest.mark.both_kerases


class WrongArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    """Arguments that were swapped, left empty or meant for another call."""

    @parameterized.parameters(
        (lambda: tf_ext.callbacks.TableSnapshot(None), "directory"),
        (lambda: tf_ext.SparseTable("deep", 2).save(None), "path"),
        (lambda: tf_ext.SparseTable("deep", 2).load(b"/none"), "path"),
        (lambda: tf_ext.snapshot.open_snapshot(["/none"]), "path"),
        (
            lambda: tf_ext.serving.follow(
                small.functional(small.table()), None
            ),
            "directory",
        ),
    )
    def test_paths(self, call, name):
        with self.assertRaisesRegex(
            TypeError,
            rf"^Argument `{name}` of .* must be a string or a path-like "
            "object, such as pathlib.Path. Received: ",
        ):
            call()

    @parameterized.parameters("initializer", "optimizer", "eviction")
    def test_what_keras_saved_of_another_class(self, name):
        config = keras.utils.serialize_keras_object(tf_ext.admission.Count(2))
        with self.assertRaisesRegex(
            ValueError, f"`{name}` of SparseTable must be a"
        ):
            tf_ext.SparseTable("deep", 2, **{name: config})

    @parameterized.parameters("export", "export_split", "follow")
    def test_a_path_where_the_model_goes(self, function):
        with self.assertRaisesRegex(
            TypeError,
            rf"^Argument `model` of tf_ext.serving.{function} must be a Keras "
            "model, and comes first. Received: model='/none'. Load a model",
        ):
            getattr(tf_ext.serving, function)(
                "/none", small.functional(small.table())
            )

    def test_snapshots_for_no_model(self):
        with self.assertRaisesRegex(TypeError, "^Argument `model` of .*snapsh"):
            tf_ext.serving.export_snapshots("/none", {}, "/none")

    def test_a_folder_without_an_export(self):
        with self.assertRaisesRegex(
            FileNotFoundError,
            "^There is no version of an export in '/none': it has no assets.ex"
            ".*. Give the path that tf_ext.serving.export returned.$",
        ):
            tf_ext.serving.read_manifest("/none")

    def test_a_folder_without_a_snapshot(self):
        with self.assertRaisesRegex(
            FileNotFoundError, "Give the path that SparseTable.save wrote to.$"
        ):
            tf_ext.SparseTable("deep", 2).load("/none")

    def test_a_file_where_a_folder_goes(self):
        with tempfile.NamedTemporaryFile() as file:
            with self.assertRaisesRegex(
                FileExistsError,
                f"^A directory is needed, but '{file.name}' is a file. Give ",
            ):
                tf_ext.SparseTable("deep", 2).save(file.name)

    @parameterized.parameters(
        ("/none.csv", "There is no file /none.csv"),
        ("/none-*.csv", r"No file matches /none-\*.csv"),
    )
    def test_files_that_are_absent(self, files, message):
        schema = tf_ext.data.Schema([tf_ext.data.Field("user")])
        with self.assertRaisesRegex(
            FileNotFoundError, rf"^{message}. Argument `files` of read must be "
        ):
            tf_ext.data.read(files, schema, batch_size=2)

    def test_fewer_gradients_than_signs(self):
        with self.assertRaises(tf.errors.InvalidArgumentError) as raised:
            tf_ext.SparseTable("deep", 2).push([1, 2, 3], np.ones([2, 2]))
        self.assertEqual(
            raised.exception.message,
            "gradients must have one row for each of the 3 signs of "
            "SparseTable.push, but their shape is (2, 2). Pass them in the "
            "order of the signs.",
        )

    def test_statistics_of_a_table_without(self):
        with self.assertRaisesRegex(
            ValueError,
            r"Received: shape \(1, 1\). Make it with SparseTable\(..., stat",
        ):
            tf_ext.SparseTable("deep", 2).push(
                [1], np.ones([1, 2]), statistics=[[1]]
            )

    @parameterized.parameters(
        (None, {}, "`eviction`.*'deep'.*SparseTable.* eviction=tf_ext.evict"),
        (
            tf_ext.eviction.Unseen(steps=1),
            {"decay": 0.5},
            "`statistics`.*'deep'.*SparseTable.* statistics=",
        ),
    )
    def test_tables_that_cannot_evict(self, eviction, options, message):
        evict = tf_ext.callbacks.Evict(1, **options)
        model = small.compiled(
            small.functional(small.table(name="deep", eviction=eviction))
        )
        evict.set_model(model)
        with self.assertRaisesRegex(ValueError, message):
            evict.on_train_begin()

    def test_a_plain_optimizer_before_there_are_tables(self):
        inputs = keras.Input((2,))
        model = tf_ext.Model(inputs, keras.layers.Dense(1)(inputs))
        with self.assertRaisesRegex(
            ValueError, "^The rows of tf_ext.Model's tables are not in a var"
        ):
            model.compile("sgd", "mse")
        with self.assertRaisesRegex(
            ValueError, "tables are not in a var.* Received: .*='rmsprop'$"
        ):
            model.compile()


if __name__ == "__main__":
    tf.test.main()
