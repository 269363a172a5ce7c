# SPDX-License-Identifier: Apache-2.0
"""What Keras's own methods are given where workers share the data."""

import contextlib
import inspect
import os
import tempfile

import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import mirrored_strategy
from queue_source import Queue

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.data import Field
from tf_ext.distribute import multi_worker_strategy
from tf_ext.regimes import regime_of_model
from tf_ext.training.dispatch import SynchronousKerasTraining
from tf_ext.training.parameter_servers.loop import ParameterServerLoop

pytestmark = pytest.mark.both_kerases(slow=True)

_Policy = tf.data.experimental.AutoShardPolicy


def _method(x=None, verbose=1, validation_data=None):
    """A method of Keras that returns its arguments."""
    return x, verbose, validation_data


def _policy(dataset):
    return dataset.options().experimental_distribute.auto_shard_policy


class FunctionsTest(tf.test.TestCase, parameterized.TestCase):
    """Programs of several workers that run in one process."""

    @parameterized.product(
        strategy=[None, mirrored_strategy, multi_worker_strategy],
        is_stream=[False, True],
    )
    def test_data_of_one_process(self, strategy, is_stream):
        contexts = []
        folder = self.folder_of_records()
        fields = [Field("user", "int64"), Field("y", "float32")]

        def data(context):
            contexts.append(
                (context.num_input_pipelines, context.input_pipeline_id)
            )
            if is_stream:
                return tf_ext.data.stream(
                    tf_ext.data.DirectorySource(folder),
                    tf_ext.data.Schema(fields, label="y"),
                    "csv",
                    batch_size=context.get_per_replica_batch_size(8),
                    follow=False,
                    shard=context,
                )
            users = tf.range(24, dtype=tf.int64)
            labels = tf.zeros([24])
            dataset = tf.data.Dataset.from_tensor_slices(
                ({"user": users}, labels)
            )
            return dataset.batch(context.get_per_replica_batch_size(8))

        made = contextlib.nullcontext() if strategy is None else strategy()
        with made if strategy is None else made.scope():
            table = tf_ext.SparseTable("user", 2, statistics=["show"])
            user = tf_ext.feature_column.category_column(
                "user", hashing="identity"
            )
            inputs = {"user": keras.Input([], dtype="int64", name="user")}
            hidden = tf_ext.layers.EmbeddingFeatures([user], table)(inputs)
            model = tf_ext.Model(inputs, keras.layers.Dense(1)(hidden))
            model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        history = model.fit(data, verbose=0, validation_data=data)
        self.assertIn("val_loss", history.history)
        signs, values = table.export_rows()
        self.assertCountEqual(signs, range(24))
        self.assertAllEqual(values["show"][:, 0], [1] * 24)
        self.assertGreater(model.evaluate(data, verbose=0), 0)
        self.assertEqual(model.predict(data, verbose=0).shape, (24, 1))
        self.assertEqual(contexts, [(1, 0)] * 4)

    def folder_of_records(self):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        with open(os.path.join(folder, "part-0"), "w") as file:
            file.writelines(f"{n},0\n" for n in range(24))
        return folder


class SynchronousKerasTest(tf.test.TestCase):
    def _run(self, *args, **kwargs):
        model = tf_ext.Model(inputs := keras.Input([1]), inputs)
        training = SynchronousKerasTraining(model, regime_of_model(model))
        given = inspect.signature(_method).bind(*args, **kwargs)
        return training.run(_method, given)

    def test_batches_may_become_smaller_and_are_sharded_by_samples(self):
        batches = tf.data.Dataset.range(6).batch(3, drop_remainder=True)
        x, verbose, validation = self._run(
            batches, 0, validation_data=batches.take(1)
        )
        for found, wanted in (
            (x, [[0, 1, 2], [3, 4, 5]]),
            (
                validation,
                [[0, 1, 2]],
            ),
        ):
            self.assertEqual(found.element_spec.shape.as_list(), [None])
            self.assertEqual(_policy(found), _Policy.DATA)
            self.assertAllEqual(list(found), wanted)
        self.assertEqual(verbose, 0)

    def test_other_data_and_policies_stay(self):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = _Policy.FILE
        by_file = tf.data.Dataset.range(2).batch(1).with_options(options)
        arrays = [1.0], [2.0]
        x, _, validation = self._run(arrays, validation_data=by_file)
        self.assertIs(x, arrays)
        self.assertEqual(_policy(validation), _Policy.FILE)

    def test_streams_are_refused(self):
        schema = tf_ext.data.Schema([tf_ext.data.Field("x", "int64")])
        stream = tf_ext.data.stream(
            Queue(), schema, "csv", batch_size=1, follow=False
        )
        for given in {"x": stream}, {"validation_data": stream}:
            with self.assertRaisesRegex(ValueError, "`x` of fit must be a fun"):
                self._run(**given)


class VerboseTest(tf.test.TestCase):
    def test_as_keras_has_it_on_parameter_servers(self):
        found = [
            ParameterServerLoop._verbose(None, given)
            for given in ("auto", 0, 1, 2)
        ]
        # tf_keras prints a line an epoch there.
        self.assertEqual(found, ["auto" if IS_KERAS_3 else 2, 0, 1, 2])


if __name__ == "__main__":
    tf.test.main()
