# SPDX-License-Identifier: Apache-2.0
"""Metrics of `fit` and `evaluate` on a cluster, against one process."""

import re

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases import metric_cases
from clusters import parameter_server_util as util

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = [
    pytest.mark.process("shared_cluster"),
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow,
]

_SAMPLES = 400
_CLASSES = 4

setUpModule = util.shared


def _binary():
    m = keras.metrics
    return [
        m.AUC(),
        m.AUC(curve="PR", name="pr"),
        m.AUC(thresholds=[0.2, 0.4, 0.6], name="auc_thresholds"),
        m.AUC(summation_method="minoring", name="auc_minoring"),
        m.BinaryAccuracy(threshold=0.4),
        m.BinaryCrossentropy(name="crossentropy"),
        m.Precision(),
        m.Precision(thresholds=[0.3, 0.7], name="precisions"),
        m.Recall(0.4),
        m.PrecisionAtRecall(0.5),
        m.RecallAtPrecision(0.5),
        m.SensitivityAtSpecificity(0.5),
        m.SpecificityAtSensitivity(0.5),
        m.TruePositives(),
        m.TrueNegatives(0.4),
        m.FalsePositives(),
        m.FalseNegatives(),
        m.Hinge(),
        m.BinaryIoU([0, 1], threshold=0.5),
    ]


def _regression():
    m = keras.metrics
    return [
        m.MeanSquaredError(),
        m.RootMeanSquaredError(),
        m.MeanAbsoluteError(),
        m.MeanAbsolutePercentageError(),
        m.MeanSquaredLogarithmicError(),
        m.LogCoshError(),
        m.CosineSimilarity(),
        m.Poisson(),
        m.KLDivergence(),
        m.R2Score(name="r2"),
        m.MeanMetricWrapper(_absolute, name="wrapped"),
        _absolute,
    ]


def _absolute(labels, predictions):
    return tf.abs(tf.cast(labels, predictions.dtype) - predictions)


def _multi_label():
    m = keras.metrics
    return [
        m.AUC(multi_label=True, num_labels=_CLASSES),
        m.AUC(
            multi_label=True,
            num_labels=_CLASSES,
            label_weights=[1.0, 2.0, 0.5, 1.0],
            name="weighted",
        ),
        m.BinaryAccuracy(),
        m.Precision(top_k=2),
        m.Precision(class_id=1, name="precision_of_1"),
        m.Recall(top_k=2, class_id=3),
        m.F1Score(threshold=0.5),
        m.F1Score("micro", threshold=0.4, name="f1_micro"),
        m.FBetaScore("weighted", beta=2.0, threshold=0.5),
    ]


def _one_hot():
    m = keras.metrics
    return [
        m.CategoricalAccuracy(),
        m.CategoricalCrossentropy(),
        m.TopKCategoricalAccuracy(k=2),
        m.OneHotMeanIoU(_CLASSES),
        m.OneHotIoU(_CLASSES, [0, 2]),
        m.CategoricalHinge(),
        m.F1Score("macro"),
        "accuracy",
    ]


def _classes():
    m = keras.metrics
    return [
        m.SparseCategoricalAccuracy(),
        m.SparseCategoricalCrossentropy(),
        m.SparseTopKCategoricalAccuracy(k=2),
        m.MeanIoU(_CLASSES, sparse_y_pred=False),
        m.IoU(_CLASSES, [1], sparse_y_pred=False),
        "accuracy",
    ]


def _model(units, activation, loss, metrics):
    initializer = keras.initializers.RandomUniform(-0.5, 0.5, seed=1)
    inputs = keras.Input([util.FEATURES])
    outputs = keras.layers.Dense(units, activation, True, initializer)(inputs)
    model = tf_ext.Model(inputs, outputs)
    model.compile(
        tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.0)),
        loss,
        metrics=metrics,
        weighted_metrics=[keras.metrics.MeanSquaredError(name="weighted_mse")]
        if loss == "mse"
        else None,
    )
    return model


def _two_tasks():
    initializer = keras.initializers.RandomUniform(-0.5, 0.5, seed=1)
    inputs = keras.Input([util.FEATURES])
    outputs = {
        name: keras.layers.Dense(
            1, "sigmoid", True, initializer, name=f"{name}_head"
        )(inputs)
        for name in ("click", "buy")
    }
    model = tf_ext.Model(inputs, outputs)
    model.compile(
        tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.0)),
        {"click": "binary_crossentropy", "buy": "mse"},
        metrics={
            "click": [keras.metrics.AUC(name="auc"), "accuracy"],
            "buy": [keras.metrics.AUC(name="auc")],
        },
        weighted_metrics={"click": [keras.metrics.AUC(name="weighted_auc")]},
        loss_weights={"click": 1.0, "buy": 3.0},
    )
    return model


@keras.utils.register_keras_serializable(package="tf_ext_tests")
class OwnSteps(tf_ext.Model):
    """Counts in its own train_step and test_step."""

    def __init__(self):
        super().__init__()
        initializer = keras.initializers.RandomUniform(-0.5, 0.5, seed=1)
        self.dense = keras.layers.Dense(1, "sigmoid", True, initializer)
        self.mean = keras.metrics.Mean(name="mean")
        self.samples = keras.metrics.Sum(name="samples")

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        x, y, weights = data
        with tf.GradientTape() as tape:
            loss = self._loss(x, y, weights)
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables))
        return {"mean": self.mean.result(), "samples": self.samples.result()}

    def test_step(self, data):
        self._loss(*data)
        return {"mean": self.mean.result(), "samples": self.samples.result()}

    def _loss(self, x, y, weights):
        error = tf.square(self(x) - tf.cast(y, tf.float32))
        self.mean.update_state(error, weights)
        self.samples.update_state(tf.ones_like(weights))
        return tf.reduce_mean(error)

    @property
    def metrics(self):
        return [self.mean, self.samples]


class MetricsTest(tf.test.TestCase, parameterized.TestCase):
    def data(self, labels):
        rng = np.random.default_rng(5)
        features = rng.normal(size=[_SAMPLES, util.FEATURES])
        score = features[:, :_CLASSES] + rng.normal(size=[_SAMPLES, _CLASSES])
        labels = {
            "binary": (score[:, :1] > 0).astype(np.float32),
            "number": np.abs(score[:, :1]),
            "multi_label": (score > 0.3).astype(np.float32),
            "one_hot": np.eye(_CLASSES, dtype=np.float32)[score.argmax(1)],
            "class": score.argmax(1),
        }[labels]
        weights = rng.uniform(size=_SAMPLES)
        return tf.data.Dataset.from_tensor_slices(
            (features.astype(np.float32), labels, weights.astype(np.float32))
        ).batch(7)

    @parameterized.named_parameters(
        ("binary", "binary", _binary, 1, "sigmoid", "binary_crossentropy"),
        (
            "classes",
            "class",
            _classes,
            _CLASSES,
            "softmax",
            "sparse_categorical_crossentropy",
        ),
    )
    def test_of_keras_are_those_of_one_process(self, *case):
        self._assert_as_one_process(*case)

    @parameterized.named_parameters(
        ("regression", "number", _regression, 1, "softplus", "mse"),
        (
            "multi_label",
            "multi_label",
            _multi_label,
            _CLASSES,
            "sigmoid",
            "binary_crossentropy",
        ),
        (
            "one_hot",
            "one_hot",
            _one_hot,
            _CLASSES,
            "softmax",
            "categorical_crossentropy",
        ),
    )
    @pytest.mark.slow
    def test_more_of_keras_are_those_of_one_process(self, *case):
        self._assert_as_one_process(*case)

    def _assert_as_one_process(self, labels, metrics, units, activation, loss):
        data = self.data(labels)
        alone = _model(units, activation, loss, metrics())
        with util.shared().strategy.scope():
            spread = _model(units, activation, loss, metrics())
        self.assert_same_results(alone, spread, data)

    def test_of_rates_are_those_of_all_rows(self):
        found = metric_cases.evaluated(util.shared().strategy, 4_099)
        expected = metric_cases.expected(*metric_cases.rows())
        for name, value in expected.items():
            self.assertAllClose(found[name], value, 0.0, 1e-6, name)

    def test_of_users_are_those_of_one_process(self):
        found = metric_cases.user_metrics(util.shared().strategy, text=True)
        alone = metric_cases.user_metrics(
            tf.distribute.get_strategy(), text=True
        )
        self.assertCountEqual(found, alone)
        for name, value in alone.items():
            self.assertAllClose(found[name], value, 0.0, 1e-9, name)

    def test_of_several_outputs(self):
        data = self.data("multi_label").map(
            lambda x, y, weights: (
                x,
                {"click": y[:, :1], "buy": y[:, 1:2]},
                {"click": weights, "buy": 1.0 - weights},
            )
        )
        alone = _two_tasks()
        with util.shared().strategy.scope():
            spread = _two_tasks()
        self.assert_same_results(alone, spread, data)

    def test_of_a_train_step_of_ones_own(self):
        data = self.data("binary")
        alone = OwnSteps()
        with util.shared().strategy.scope():
            spread = OwnSteps()
        for model in (alone, spread):
            with model.distribute_strategy.scope():
                model.compile(
                    tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.0)),
                    "binary_crossentropy",
                )
        self.assert_same_results(alone, spread, data)
        logs = spread.evaluate(data, verbose=0, return_dict=True)
        self.assertAllClose(logs["samples"], _SAMPLES)

    def assert_same_results(self, alone, spread, data):
        # With a learning rate of 0, asynchronous steps have no other results.
        one = alone.fit(data, verbose=0).history
        other = spread.fit(data, verbose=0, max_inflight_steps=6).history
        other.pop("staleness")
        self.assert_same(other, one)
        self.assert_same(
            spread.evaluate(data, verbose=0, return_dict=True),
            alone.evaluate(data, verbose=0, return_dict=True),
        )

    def assert_same(self, found, expected):
        found, expected = (
            {re.sub(r"_\d+$", "", name): value for name, value in logs.items()}
            for logs in (found, expected)
        )
        self.assertCountEqual(found, expected)
        for name, value in expected.items():
            self.assertAllClose(found[name], value, 1e-5, 1e-6, name)

    @parameterized.named_parameters(
        ("maximum", lambda kept, new: tf.maximum(kept, new)),
        ("product", lambda kept, new: kept * new),
        ("difference", lambda kept, new: new - kept),
        ("moving_average", lambda kept, new: 0.9 * kept + 0.1 * new),
        ("doubled", lambda kept, new: kept + kept + new),
        ("last", lambda kept, new: new),
        (
            "if_larger",
            lambda kept, new: tf.cond(new > kept, lambda: new, lambda: kept),
        ),
    )
    def test_that_does_not_add_is_refused(self, update):
        if not IS_KERAS_3:
            self.skipTest("Its metrics are TensorFlow variables.")
        with util.shared().strategy.scope():
            metrics = [_Keeping(update)]
            model = _model(1, "sigmoid", "binary_crossentropy", metrics)
        data = self.data("binary")
        for method in (model.fit, model.evaluate):
            with self.assertRaisesRegex(
                ValueError,
                r"Metric 'kept' \(_Keeping\) does not add to its variable "
                "'value'",
            ):
                method(data, verbose=0)
        # The model is as usable as before.
        with util.shared().strategy.scope():
            model.compile(
                tf_ext.optimizers.Optimizer("sgd"),
                "mse",
                metrics=[_Keeping(lambda kept, new: kept + new), _Twice()],
            )
        found = model.evaluate(data, verbose=0, return_dict=True)
        expected = sum(float(tf.reduce_mean(y)) for _, y, _ in data)
        self.assertAllClose(found["kept"], expected, 1e-5)
        self.assertAllClose(found["once"], expected, 1e-5)
        self.assertAllClose(found["twice"], 2 * expected, 1e-5)
        self.assertLen(found, 4)


class _Keeping(keras.metrics.Metric):
    """Assigns a function of its variable and the labels' mean."""

    def __init__(self, update):
        super().__init__(name="kept")
        self.update = update
        self.value = self.add_weight(
            shape=(), initializer="zeros", name="value"
        )

    def update_state(self, y_true, y_pred, sample_weight=None):
        new = tf.reduce_mean(y_true)
        self.value.assign(self.update(tf.convert_to_tensor(self.value), new))

    def result(self):
        return self.value + 0.0


class _Twice(_Keeping):
    """A metric of several results."""

    def __init__(self):
        super().__init__(lambda kept, new: kept + new)

    def result(self):
        return {"once": self.value + 0.0, "twice": 2.0 * self.value}


if __name__ == "__main__":
    tf.test.main()
