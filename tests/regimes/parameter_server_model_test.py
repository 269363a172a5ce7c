# SPDX-License-Identifier: Apache-2.0
"""Models with tables, trained by `fit` on a cluster."""

import os

import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases import negative_cases, small_row_cases
from clusters import parameter_server_util as util
from clusters.case_workers import alone
from models import clicked_models, small_models
from models.model_building import generator, number, rows_of
from models.small_models import Subclassed, compiled, functional, table

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = [
    pytest.mark.process("shared_cluster"),
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "ModelTest::test_an_index_within_a_model_is_refused",
        "ModelTest::test_one_step_at_a_time_is_as_one_process_functional",
        "WithoutCallTest::test_parts_are_built_by_the_loss",
    ),
]

setUpModule = util.shared


class ModelTest(tf.test.TestCase, parameterized.TestCase):
    def data(self, size=256):
        features, labels = small_models.batch(generator(self), size)
        return tf.data.Dataset.from_tensor_slices((features, labels)).batch(16)

    @parameterized.named_parameters(
        ("functional", functional, "adagrad"),
        ("subclassed", Subclassed, "adam"),
    )
    def test_one_step_at_a_time_is_as_one_process(self, make, rule):
        data = self.data()
        alone = compiled(make(table(rule)), metrics=["AUC"])
        with util.shared().strategy.scope():
            spread = compiled(make(table(rule)), metrics=["AUC"])
        one = alone.fit(data, epochs=2, verbose=0)
        other = spread.fit(data, epochs=2, verbose=0, max_inflight_steps=1)
        for name in one.history:
            self.assertAllClose(
                other.history[name], one.history[name], 1e-6, 1e-6
            )
        rows, others = rows_of(alone.tables[0]), rows_of(spread.tables[0])
        self.assertCountEqual(rows, others)
        for sign, row in rows.items():
            self.assertAllClose(others[sign], row, 1e-6, 1e-6)
        for method in ("evaluate", "predict"):
            self.assertAllClose(
                getattr(spread, method)(data, verbose=0),
                getattr(alone, method)(data, verbose=0),
                1e-6,
                1e-6,
            )

    def test_predictions_need_no_clicks(self):
        features, clicked, labels = clicked_models.batch(generator(self))
        with util.shared().strategy.scope():
            model = compiled(clicked_models.functional())
        slices = tf.data.Dataset.from_tensor_slices
        model.fit(slices((clicked, labels)).batch(16), verbose=0)
        self.assertAllEqual(
            model.predict(slices(features).batch(16), verbose=0),
            model.predict(slices(clicked).batch(16), verbose=0),
        )
        with self.assertRaisesRegex(Exception, "`click` .* is missing"):
            model.fit(slices((features, labels)).batch(16), verbose=0)

    def test_an_index_within_a_model_is_refused(self):
        search = tf_ext.layers.Retrieval(dim=2, k=1)
        search.index([7, 8], [[1.0, 0.0], [0.0, 1.0]])
        with util.shared().strategy.scope():
            inputs = keras.Input((2,))
            with self.assertRaisesRegex(NotImplementedError, "outside of the"):
                tf_ext.layers.Retrieval(dim=2, k=1)(inputs)
        _, ids = search(tf.constant([[0.0, 1.0]]))
        self.assertAllEqual(ids, [[8]])

    def test_small_rows_have_the_bits_of_one_process(self):
        expected = small_row_cases.trained(alone())
        with util.shared().strategy.scope():
            model = small_row_cases.make_model()
        self.assertLen(model.tables[0].rows.shards, 2)
        found = small_row_cases.fit(model, max_inflight_steps=1)
        small_row_cases.assert_same_bits([found], expected)

    @pytest.mark.slow
    def test_negatives(self):
        strategy = util.shared().strategy
        found = negative_cases.trained(strategy)
        self.assertLess(found["losses"][-1], 0.9 * found["losses"][0])
        # Each step of each worker draws for itself.
        self.assertEqual(found["steps"], 4 * 7)
        self.assertLen(found["tables"]["item"]["weights"], negative_cases.ITEMS)

    def test_one_step_at_a_time_draws_as_one_process(self):
        alone = negative_cases.compiled(
            tf.distribute.get_strategy(), "softmax", True
        )
        spread = negative_cases.compiled(
            util.shared().strategy, "softmax", True
        )
        data = negative_cases.dataset()
        one = alone.fit(data, verbose=0, shuffle=False)
        other = spread.fit(data, verbose=0, max_inflight_steps=1)
        self.assertAllClose(one.history["loss"], other.history["loss"], 1e-5)

    def test_asynchronous_steps_learn(self):
        data = self.data(1024)
        with util.shared().strategy.scope():
            model = compiled(functional(table("adagrad")), metrics=["AUC"])
        history = model.fit(data, epochs=4, verbose=0).history
        self.assertEqual(number(model.optimizer.iterations), 4 * 64)
        self.assertLess(history["loss"][-1], history["loss"][0])
        self.assertAllInRange(history["staleness"], 0.0, 3.0)

    def test_evaluate_and_predict_make_no_rows(self):
        with util.shared().strategy.scope():
            model = compiled(functional(table()))
        model.evaluate(self.data(), verbose=0)
        model.predict(self.data(), verbose=0)
        self.assertEqual(model.tables[0].size(), 0)

    def test_weights_are_saved_and_loaded(self):
        data = self.data()
        with util.shared().strategy.scope():
            model = compiled(functional(table()))
        model.fit(data, verbose=0)
        path = os.path.join(self.get_temp_dir(), "model.weights.h5")
        model.save_weights(path)
        alone = compiled(functional(table()))
        alone.load_weights(path)
        self.assertAllClose(
            alone.evaluate(data, verbose=0),
            model.evaluate(data, verbose=0),
            1e-6,
            1e-6,
        )


class WithoutCallTest(tf.test.TestCase):
    """Models as of TensorFlow Recommenders: their loss calls the parts."""

    def test_parts_are_built_by_the_loss(self):
        if IS_KERAS_3:
            self.skipTest("TensorFlow Recommenders refuses Keras 3.")

        class Parts(tf_ext.Model):
            def __init__(self):
                super().__init__()
                zeros = keras.initializers.Zeros()
                self.top = keras.layers.Dense(1, kernel_initializer=zeros)
                self.mean = keras.metrics.Mean("mean")

            def compute_loss(self, inputs, training=False):
                outputs = self.top(inputs["numbers"])
                self.mean.update_state(outputs + 1.0)
                return tf.reduce_sum((outputs - 1.0) ** 2) / 32.0

            def train_step(self, inputs):
                with tf.GradientTape() as tape:
                    loss = self.compute_loss(inputs, training=True)
                variables = self.trainable_variables
                grads = tape.gradient(loss, variables)
                self.optimizer.apply_gradients(zip(grads, variables))
                return {"loss": loss, "mean": self.mean.result()}

            def test_step(self, inputs):
                loss = self.compute_loss(inputs)
                return {"loss": loss, "mean": self.mean.result()}

        def make():
            model = Parts()
            model.compile(tf_ext.optimizers.Optimizer("sgd"))
            return model

        data = util.data().map(lambda features, _: features)
        alone = make()
        with util.shared().strategy.scope():
            spread = make()
        untrained = spread.evaluate(data, verbose=0, return_dict=True)
        self.assertAllClose(untrained["mean"], 1.0)
        one = alone.fit(data, epochs=2, verbose=0)
        other = spread.fit(data, epochs=2, max_inflight_steps=1, verbose=0)
        for name in ("loss", "mean"):
            self.assertAllClose(
                other.history[name], one.history[name], 1e-6, 1e-6
            )


if __name__ == "__main__":
    tf.test.main()
