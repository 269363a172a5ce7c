# SPDX-License-Identifier: Apache-2.0
"""CTR, PCTR, COPC, calibration error and entropy against NumPy."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases import metric_cases as cases
from models.model_building import mirrored_strategy

import tf_ext
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "RatesTest::test_entropy_of_equal_labels_is_nan1",
        "RatesTest::test_do_not_depend_on_*",
        "RatesTest::test_under_mirrored_*",
        "RatesTest::test_what_is_no_probability_gives_nan2",
    ),
]


class RatesTest(tf.test.TestCase, parameterized.TestCase):
    def assert_expected(self, found, expected):
        for name, value in expected.items():
            self.assertAllClose(found[name], value, 0.0, 1e-6, name)

    def result_of(self, metrics):
        return {metric.name: float(metric.result()) for metric in metrics}

    @parameterized.parameters(1, 400, 3_000)
    def test_do_not_depend_on_batches(self, largest):
        # Batches of one sample are calls that take a while: of fewer rows.
        size = 500 if largest == 1 else cases.ROWS
        data = cases.rows(size)
        rng = np.random.default_rng(largest)
        metrics = cases.metrics()
        add = tf.function(
            lambda *batch: [m.update_state(*batch) for m in metrics] and None,
            input_signature=[tf.TensorSpec([None])] * 3,
        )
        end = 0
        while end < size:
            begin, end = end, end + int(rng.integers(1, largest + 1))
            add(*(values[begin:end] for values in data))
        self.assert_expected(self.result_of(metrics), cases.expected(*data))

    def test_count_beyond_what_float32_can(self):
        metrics = cases.metrics()
        ones = np.ones(4, np.float32)
        for weight in (2.0**25, 1.0):
            for metric in metrics:
                metric.update_state(
                    ones * (weight > 1), ones / 2, ones * weight
                )
        clicks, shows = 2.0**27, 2.0**27 + 4
        found = self.result_of(metrics)
        self.assertAllClose(found["copc"], 2 * clicks / shows, 1e-7, 0.0)
        wide = tf_ext.metrics.CTR(dtype="float64")
        wide.update_state(ones, ones, ones * 2.0**25)
        wide.update_state(ones * 0, ones)
        self.assertEqual(float(wide.result()), clicks / shows)

    @parameterized.parameters(
        ([6], [6], [6]),
        ([6], [6, 1], [6]),
        ([6, 1], [6], [6, 1]),
        ([6, 1], [6, 1], [6]),
        ([6], [6, 1], [6, 1]),
    )
    def test_shapes_of_one_output(self, labels, predictions, weights):
        shapes = (labels, predictions, weights)
        data = cases.rows(6)
        metrics = cases.metrics()
        for metric in metrics:
            metric.update_state(*(v.reshape(s) for v, s in zip(data, shapes)))
        self.assert_expected(self.result_of(metrics), cases.expected(*data))

    @parameterized.parameters(
        ([6], [6, 1], [6]), ([6, 1], [6], [6, 1]), ([6, 1], [6, 1], [6])
    )
    def test_ranks_that_are_known_in_steps_only(self, *shapes):
        data = cases.rows(6)
        metrics = cases.metrics()
        add = self.of_any_rank(metrics)
        add(*(v.reshape(s) for v, s in zip(data, shapes)))
        self.assert_expected(self.result_of(metrics), cases.expected(*data))

    @parameterized.parameters(
        ([None], None, [None, 1]), (None, [None, 1], None)
    )
    def test_ranks_that_are_known_in_part(self, *shapes):
        data = cases.rows(6)
        metrics = cases.metrics()
        add = self.of_any_rank(metrics, shapes)
        add(
            *(
                v.reshape([6] if shape in (None, [None]) else [6, 1])
                for v, shape in zip(data, shapes)
            )
        )
        self.assert_expected(self.result_of(metrics), cases.expected(*data))

    def of_any_rank(self, metrics, shapes=(None, None, None)):
        return tf.function(
            lambda *batch: [m.update_state(*batch) for m in metrics] and None,
            input_signature=[tf.TensorSpec(shape) for shape in shapes],
        )

    @parameterized.parameters(([6, 2], [6, 1]), ([6], [6, 2]), ([1], [6]))
    def test_other_shapes_are_refused_in_steps(self, labels, predictions):
        add = self.of_any_rank(cases.metrics()[:1])
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "`y_true` of CTR must have"
        ):
            add(np.ones(labels), np.ones(predictions), np.ones(predictions))

    def test_several_outputs_share_a_samples_weight(self):
        labels, predictions, _ = (v.reshape(6, 2) for v in cases.rows(12))
        weights = np.arange(6.0)
        expected = cases.expected(
            labels.ravel(), predictions.ravel(), np.repeat(weights, 2)
        )
        for one in (weights, weights[:, np.newaxis]):
            metrics = cases.metrics()
            for metric in metrics:
                metric.update_state(labels, predictions, one)
            self.assert_expected(self.result_of(metrics), expected)

    @parameterized.parameters(
        ("y_true", [6, 2], [6, 1], None),
        ("y_true", [6], [6, 2], None),
        ("y_true", [5], [6], None),
        ("sample_weight", [6], [6], [6, 2]),
    )
    def test_other_shapes_are_refused(self, name, labels, predictions, weights):
        weights = None if weights is None else np.ones(weights)
        for metric in cases.metrics():
            with self.assertRaisesRegex(
                ValueError,
                rf"`{name}` of {type(metric).__name__} must have the shape of "
                "y_pred",
            ):
                metric.update_state(
                    np.ones(labels), np.ones(predictions), weights
                )

    def test_logits(self):
        labels, predictions, weights = cases.rows(1_000)
        inside = (predictions > 0) & (predictions < 1)
        labels, predictions, weights = (
            v[inside].astype(np.float64) for v in (labels, predictions, weights)
        )
        metrics = cases.metrics(from_logits=True)
        logits = np.log(predictions) - np.log1p(-predictions)
        for metric in metrics:
            metric.update_state(labels, logits, weights)
        found = self.result_of(metrics)
        expected = cases.expected(labels, predictions, weights)
        del expected["calibration_error"]  # Edges of bins are rounded.
        self.assert_expected(found, expected)
        self.assertLess(found["calibration_error"], 1.0)

    @parameterized.parameters(-0.01, 1.01, np.nan)
    def test_what_is_no_probability_gives_nan(self, prediction):
        error = tf_ext.metrics.CalibrationError()
        error.update_state([1.0, 0.0], [0.5, 0.5])
        self.assertEqual(float(error.result()), 0.0)
        error.update_state([1.0], [prediction])
        error.update_state([1.0], [0.5])
        self.assertTrue(np.isnan(float(error.result())))

    def test_nan_before_any_sample_and_after_a_reset(self):
        for metric in cases.metrics():
            self.assertTrue(np.isnan(float(metric.result())))
            metric.update_state([1.0, 0.0], [0.5, 0.5])
            self.assertFalse(np.isnan(float(metric.result())))
            metric.reset_state()
            self.assertTrue(np.isnan(float(metric.result())))

    def test_entropy_of_certain_predictions_is_finite(self):
        entropy = tf_ext.metrics.NormalizedEntropy()
        entropy.update_state([1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0])
        # Two losses of nothing, and two of predictions that are clipped.
        expected = -np.log(1e-7) / 2 / np.log(2)
        self.assertAllClose(entropy.result(), expected, 1e-5)

    @parameterized.parameters(0.0, 1.0)
    def test_entropy_of_equal_labels_is_nan(self, label):
        entropy = tf_ext.metrics.NormalizedEntropy()
        entropy.update_state([label, label], [0.25, 0.75])
        self.assertTrue(np.isnan(float(entropy.result())))
        entropy.update_state([1.0 - label] * 2, [0.25, 0.75])
        expected = -np.log(0.25 * 0.75) / (2 * np.log(2))
        self.assertAllClose(float(entropy.result()), expected, 0.0, 1e-6)

    @parameterized.parameters(0, -1, 2.0, True, None)
    def test_wrong_number_of_bins(self, bins):
        with self.assertRaisesRegex(
            ValueError, "`num_bins` of CalibrationError must be an integer of "
        ):
            tf_ext.metrics.CalibrationError(bins)

    @parameterized.parameters(1, 2, 1_000)
    def test_bins(self, bins):
        error = tf_ext.metrics.CalibrationError(bins)
        # Two neighbours in one bin, which includes its upper end, but for two.
        error.update_state([1.0, 0.0], [0.5, 0.500001])
        expected = {1: 1e-6 / 2, 2: 0.5, 1_000: 0.5}[bins]
        self.assertAllClose(float(error.result()), expected, 0.0, 1e-6)

    def test_sums_have_names(self):
        for metric, names in (
            (tf_ext.metrics.CTR(), ["clicks", "shows"]),
            (tf_ext.metrics.NormalizedEntropy(), ["loss", "clicks", "shows"]),
            (tf_ext.metrics.CalibrationError(), ["differences", "shows"]),
        ):
            found = [one.name.partition(":")[0] for one in metric.variables]
            self.assertCountEqual(found, names)

    def test_configurations(self):
        for metric in (
            *cases.metrics(),
            tf_ext.metrics.PCTR("p", "float64", from_logits=True),
            tf_ext.metrics.COPC("c", from_logits=True),
            tf_ext.metrics.CalibrationError(3, "e", from_logits=True),
        ):
            config = keras.utils.serialize_keras_object(metric)
            copy = keras.utils.deserialize_keras_object(config)
            self.assertIs(type(copy), type(metric))
            self.assertEqual(copy.get_config(), metric.get_config())
            self.assertEqual(copy.name, metric.name)

    def test_in_a_saved_model(self):
        labels, predictions, weights = cases.rows(500)
        model = cases.as_it_is()
        model.compile(
            tf_ext.optimizers.Optimizer("sgd"),
            "mse",
            weighted_metrics=cases.metrics(),
        )
        data = tf.data.Dataset.from_tensors(
            ({"score": predictions[:, np.newaxis]}, labels, weights)
        )
        found = model.evaluate(data, verbose=0, return_dict=True)
        folder = self.enterContext(tempfile.TemporaryDirectory())
        path = f"{folder}/model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        again = loaded.evaluate(data, verbose=0, return_dict=True)
        self.assert_expected(
            found, cases.expected(labels, predictions, weights)
        )
        self.assert_expected(
            again, cases.expected(labels, predictions, weights)
        )

    @parameterized.parameters(4_097, 49_999)
    def test_under_mirrored_strategy(self, batch_size):
        found = cases.evaluated(mirrored_strategy(), batch_size)
        self.assert_expected(found, cases.expected(*cases.rows()))

    def test_of_one_process(self):
        found = cases.evaluated(tf.distribute.get_strategy(), 4_097)
        self.assert_expected(found, cases.expected(*cases.rows()))


if __name__ == "__main__":
    tf.test.main()
