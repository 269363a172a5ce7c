# SPDX-License-Identifier: Apache-2.0
"""What `fit`, `evaluate` and `predict` read on a cluster."""

import contextlib
import os

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases import reading_cases
from clusters import parameter_server_util as util
from clusters.case_workers import export
from models.model_building import number
from oracles.readable_records import FORMATS

import tf_ext
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.process("shared_cluster"),
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "DataTest::test_files_that_cannot_be_read",
        "DataTest::test_functions_make_a_dataset_on_each_worker_function",
        "DataTest::test_generators_are_refused",
        "DataTest::test_predictions_that_are_ragged_strings",
    ),
]

setUpModule = util.shared


@keras.utils.register_keras_serializable(package="tf_ext_tests")
class BagOfIds(tf_ext.Model):
    """The mean of embeddings of each sample's ids, ragged or sparse."""

    def __init__(self):
        super().__init__()
        uniform = keras.initializers.RandomUniform(-0.5, 0.5, seed=1)
        self.embed = keras.layers.Embedding(50, 4, uniform)
        uniform = keras.initializers.RandomUniform(-0.5, 0.5, seed=2)
        self.dense = keras.layers.Dense(
            1, "sigmoid", kernel_initializer=uniform
        )

    def call(self, inputs):
        if isinstance(inputs, tf.SparseTensor):
            inputs = tf.RaggedTensor.from_sparse(inputs)
        rows = self.embed(inputs.values)
        segments = inputs.value_rowids()
        bags = tf.math.unsorted_segment_mean(rows, segments, inputs.nrows())
        return self.dense(bags)


@keras.utils.register_keras_serializable(package="tf_ext_tests")
class Splitting(tf_ext.Model):
    """Its outputs are the words of each sample, and their number."""

    def call(self, inputs):
        words = tf.strings.split(inputs)
        return {"words": words, "sizes": words.row_lengths()}


class DataTest(tf.test.TestCase, parameterized.TestCase):
    def bags(self, kind):
        rng = np.random.default_rng(0)
        bags = [rng.integers(0, 50, rng.integers(0, 5)) for _ in range(100)]
        ragged = tf.ragged.constant([list(bag) for bag in bags], tf.int64)
        labels = np.array([[len(bag) % 2] for bag in bags], np.float32)
        data = tf.data.Dataset.from_tensor_slices((ragged, labels)).batch(16)
        if kind == "sparse":
            data = data.map(lambda x, y: (x.to_sparse(), y))
        return data

    @parameterized.named_parameters(("ragged", "ragged"), ("sparse", "sparse"))
    def test_bags(self, kind):
        data = self.bags(kind)
        alone = util.compiled(BagOfIds(), metrics=["accuracy"])
        with util.shared().strategy.scope():
            spread = util.compiled(BagOfIds(), metrics=["accuracy"])
        one = alone.fit(data, epochs=2, verbose=0)
        other = spread.fit(data, epochs=2, verbose=0, max_inflight_steps=1)
        for name in one.history:
            self.assertAllClose(
                other.history[name], one.history[name], 1e-6, 1e-6
            )
        for method in ("evaluate", "predict"):
            self.assertAllClose(
                getattr(spread, method)(data, verbose=0),
                getattr(alone, method)(data, verbose=0),
                1e-6,
                1e-6,
            )

    def test_predictions_that_are_ragged_strings(self):
        lines = ["a b", "", "c", "d e f", "g"]
        with util.shared().strategy.scope():
            model = Splitting()
        data = tf.data.Dataset.from_tensor_slices(lines).batch(2)
        found = model.predict(data, verbose=0)
        self.assertEqual(
            found["words"].to_list(), [line.encode().split() for line in lines]
        )
        self.assertAllEqual(found["sizes"], [2, 0, 1, 3, 1])

    @parameterized.named_parameters(
        ("function", lambda function: function),
        (
            "creator",
            lambda function: type(
                "Creator", (), {"__call__": lambda self, c: function(c)}
            )(),
        ),
    )
    def test_functions_make_a_dataset_on_each_worker(self, wrap):
        def make(context):
            assert isinstance(context, tf.distribute.InputContext)
            return util.data(64, 16).repeat()

        with util.shared().strategy.scope():
            # Fast enough to learn in 24 steps, whichever worker takes which.
            model = util.model(keras.optimizers.Adam(0.05))
        history = model.fit(
            wrap(make),
            epochs=3,
            steps_per_epoch=8,
            class_weight={0: 1.0, 1: 2.0},
            validation_data=lambda context: util.data(40, 16),
            verbose=0,
        )
        self.assertEqual(number(model.optimizer.iterations), 24)
        self.assertLess(history.history["loss"][-1], history.history["loss"][0])
        self.assertLen(history.history["val_loss"], 3)
        self.assertAllClose(
            model.evaluate(lambda context: util.data(40, 16), verbose=0),
            model.evaluate(util.data(40, 16), verbose=0),
        )
        self.assertAllClose(
            model.predict(lambda context: util.data(40, 16), verbose=0),
            model.predict(util.data(40, 16), verbose=0),
        )

    def test_files_with_malformed_records(self):
        self.enterContext(contextlib.chdir(self.get_temp_dir()))
        with util.shared().strategy.scope():
            model = reading_cases.model()
        for format in FORMATS:
            written = reading_cases.write(format)
            for hashed_for in (None, model):
                read = reading_cases.read(format, hashed_for=hashed_for)
                found = reading_cases.fit(model, *read)
                reading_cases.check_counts(self, written, found)
            shown = export(model.tables[0])["show"]
            reading_cases.check(self, written, shown, 2 * reading_cases.EPOCHS)
            model.tables[0].clear()

    def test_files_that_cannot_be_read(self):
        with util.shared().strategy.scope():
            model = util.model()
        path = os.path.join(self.get_temp_dir(), "unreadable.csv")
        with open(path, "w") as file:
            file.write("x,1\n" * 9)
        field = tf_ext.data.Field
        schema = tf_ext.data.Schema([field("id", "int64"), field("user")])

        def completed(record):
            ids = record["id"][:, tf.newaxis]
            numbers = tf.zeros([tf.size(ids), util.FEATURES])
            return {"id": ids, "numbers": numbers}, tf.zeros_like(ids)

        data = tf_ext.data.read(path, schema, batch_size=4).map(completed)
        for method in (model.fit, model.evaluate, model.predict):
            with self.assertRaisesRegex(
                tf_ext.data.TooManyErrorsError, r"\A9 of the first 9 records"
            ):
                method(data, verbose=0)

    def test_functions_whose_data_ends(self):
        with util.shared().strategy.scope():
            model = util.model()
        with self.assertRaisesRegex(
            ValueError, "dataset of the function `x` must not end.*repeat"
        ):
            model.fit(
                lambda context: util.data(32, 16), steps_per_epoch=9, verbose=0
            )
        model.fit(util.data(), verbose=0)

    def test_a_dataset_that_ends_too_early(self):
        with util.shared().strategy.scope():
            model = util.model()
        with self.assertLogs("tensorflow", "WARNING") as logs:
            model.fit(util.data(96, 32), steps_per_epoch=5, verbose=0)
        self.assertRegex("".join(logs.output), "ended after 3 of 5 steps")
        self.assertEqual(number(model.optimizer.iterations), 3)

    def test_frames(self):
        pandas = pytest.importorskip("pandas")
        features, labels = util.arrays(96)
        frame = pandas.DataFrame({"id": features["id"][:, 0]})
        with util.shared().strategy.scope():
            model = util.model()
        expected = model.predict(features, verbose=0)
        features["id"] = frame["id"].astype("Int64")
        self.assertAllClose(model.predict(features, verbose=0), expected)
        labels = pandas.Series(labels[:, 0])
        model.fit(features, labels, verbose=0)
        self.assertEqual(number(model.optimizer.iterations), 3)
        model.evaluate(features, labels, verbose=0)

    def test_generators_are_refused(self):
        with util.shared().strategy.scope():
            model = util.model()
        with self.assertRaisesRegex(ValueError, "Dataset.from_generator"):
            model.fit(iter([(1, 2)]), steps_per_epoch=2, verbose=0)


if __name__ == "__main__":
    tf.test.main()
