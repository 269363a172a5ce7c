# SPDX-License-Identifier: Apache-2.0
"""`fit`, `evaluate` and `predict` on a cluster, against one process."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases import sequence_cases
from clusters import parameter_server_util as util
from models import sequence_models
from models.model_building import number, rows_of

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = [
    pytest.mark.process("shared_cluster"),
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "AsynchronousTest::test_evaluate_is_that_of_one_process",
        "AsynchronousTest::test_every_sample_is_trained_once",
        "ErrorsTest::test_an_error_of_a_step_ends_fit_once",
        "ErrorsTest::test_arguments_batch_size",
        "ErrorsTest::test_arguments_class_weight",
        "ErrorsTest::test_arguments_in_flight",
        "ErrorsTest::test_no_data",
        "ErrorsTest::test_options_of_compile",
    ),
]

setUpModule = util.shared


def _validation_data():
    return util.data(100, seed=1)


class _Recorder(keras.callbacks.Callback):
    """Writes down which hooks are called, in order."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.losses = []

    def on_train_batch_begin(self, batch, logs=None):
        self.calls.append(("begin", batch))

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(("end", batch))
        self.losses.append(logs["loss"])

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(("epoch begin", epoch))

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(("epoch end", epoch))

    def on_test_end(self, logs=None):
        self.calls.append(("test end", None))


class _Test(tf.test.TestCase, parameterized.TestCase):
    def make(self, make=util.model, **options):
        """The same model in one process and on the cluster."""
        alone = make(**options)
        with util.shared().strategy.scope():
            spread = make(**options)
        return alone, spread

    def assert_same_training(self, one, other):
        expected = dict(one.history)
        found = dict(other.history)
        self.assertEqual(found.pop("staleness"), [0.0] * len(one.epoch))
        self.assertCountEqual(found, expected)
        for name in expected:
            self.assertAllClose(
                found[name], expected[name], 1e-6, 1e-6, msg=name
            )


class OneStepAtATimeTest(_Test):
    """With one step under way, all is as in one process."""

    @parameterized.named_parameters(
        ("plain", {}),
        ("validation_data", {"validation_data": _validation_data}),
        (
            "validation_steps",
            {
                "validation_data": _validation_data,
                "validation_steps": 2,
                "validation_freq": 2,
            },
        ),
        ("class_weight", {"class_weight": {1: 3.0, 0: 0.5}}),
        ("initial_epoch", {"initial_epoch": 1}),
    )
    def test_datasets(self, options):
        alone, spread = self.make()
        options = {"epochs": 3, "verbose": 0, **options}
        if "validation_data" in options:
            options["validation_data"] = options["validation_data"]()
        one = alone.fit(util.data(), **options)
        other = spread.fit(util.data(), max_inflight_steps=1, **options)
        self.assert_same_training(one, other)
        for mine, theirs in zip(alone.get_weights(), spread.get_weights()):
            self.assertAllClose(mine, theirs, 1e-6, 1e-6)

    def test_steps_per_epoch_go_on_where_the_last_epoch_ended(self):
        alone, spread = self.make()
        options = {"epochs": 3, "steps_per_epoch": 5, "verbose": 0}
        data = util.data().repeat()
        one = alone.fit(data, **options)
        other = spread.fit(data, max_inflight_steps=1, **options)
        self.assert_same_training(one, other)

    def test_data_of_unknown_length(self):
        data = util.data().filter(lambda *_: True)
        alone, spread = self.make()
        one = alone.fit(data, epochs=3, verbose=0)
        other = spread.fit(data, epochs=3, verbose=0, max_inflight_steps=1)
        self.assert_same_training(one, other)
        steps = 3 * -(-200 // 32)
        for model in (alone, spread):
            self.assertEqual(number(model.optimizer.iterations), steps)
        for mine, theirs in zip(alone.get_weights(), spread.get_weights()):
            self.assertAllClose(mine, theirs, 1e-6, 1e-6)

    def test_sequences(self):
        self._check_sequences(lambda data: data)

    @pytest.mark.slow
    def test_hashed_sequences(self):
        self._check_sequences(sequence_cases.hashed)

    def _check_sequences(self, change):
        alone, spread = self.make(sequence_cases.model)
        data = sequence_cases.dataset()
        one = alone.fit(data, epochs=2, verbose=0)
        other = spread.fit(
            change(data), epochs=2, verbose=0, max_inflight_steps=1
        )
        self.assert_same_training(one, other)
        for mine, theirs in zip(alone.get_weights(), spread.get_weights()):
            self.assertAllClose(mine, theirs, 1e-6, 1e-6)
        expected, found = (rows_of(made.tables[0]) for made in (alone, spread))
        self.assertCountEqual(found, expected)
        self.assertNotIn(sequence_models.PADDING, found)
        for sign, row in expected.items():
            self.assertAllClose(found[sign], row, 1e-6, 1e-6)

    def test_arrays(self):
        features, labels = util.arrays()
        weights = np.linspace(0.0, 2.0, len(labels), dtype=np.float32)
        alone, spread = self.make()
        options = {
            "x": features,
            "y": labels,
            "sample_weight": weights,
            "batch_size": 16,
            "epochs": 2,
            "shuffle": False,
            "validation_split": 0.3,
            "verbose": 0,
        }
        one = alone.fit(**options)
        other = spread.fit(max_inflight_steps=1, **options)
        self.assert_same_training(one, other)

    def test_learning_rate_schedules(self):
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)

        def make():
            return util.model(keras.optimizers.SGD(schedule))

        alone, spread = self.make(make)
        one = alone.fit(util.data(), epochs=2, verbose=0)
        other = spread.fit(
            util.data(), epochs=2, verbose=0, max_inflight_steps=1
        )
        self.assert_same_training(one, other)

    def test_callbacks(self):
        logs = []
        for model, options in zip(
            self.make(), ({}, {"max_inflight_steps": 1}), strict=True
        ):
            recorder = _Recorder()
            rates = keras.callbacks.LearningRateScheduler(lambda n: 0.1 / 2**n)
            model.fit(
                util.data(),
                epochs=2,
                validation_data=util.data(50, seed=1),
                callbacks=[recorder, rates],
                verbose=0,
                **options,
            )
            logs.append(recorder)
            self.assertAllClose(number(model.optimizer.learning_rate), 0.05)
        self.assertEqual(logs[1].calls, logs[0].calls)
        self.assertAllClose(logs[1].losses, logs[0].losses, 1e-6, 1e-6)

    def test_several_fits_and_compiles(self):
        alone, spread = self.make()
        for options in ({}, {"max_inflight_steps": 1}):
            model = spread if options else alone
            model.fit(util.data(), verbose=0, **options)
            model.fit(util.data(), verbose=0, **options)
            model.evaluate(util.data(), verbose=0)
        one = util.compiled(alone, "sgd", ["accuracy"])
        with util.shared().strategy.scope():
            other = util.compiled(spread, "sgd", ["accuracy"])
        self.assert_same_training(
            one.fit(util.data(), verbose=0),
            other.fit(util.data(), verbose=0, max_inflight_steps=1),
        )


class AsynchronousTest(_Test):
    def test_counters_are_exact(self):
        # 1,600 samples of batch 5: 320 steps.
        data = util.data(1600, 5)
        with util.shared().strategy.scope():
            auc = keras.metrics.AUC(num_thresholds=20, name="auc")
            count = keras.metrics.MeanSquaredError(name="mse")
            model = util.model(keras.optimizers.SGD(0.0), [auc, count])
        model.fit(data, epochs=1, max_inflight_steps=8, verbose=0)
        self.assertEqual(number(model.optimizer.iterations), 320)
        self.assertEqual(number(count.count), 1600)
        cells = (
            auc.true_positives,
            auc.true_negatives,
            auc.false_positives,
            auc.false_negatives,
        )
        total = sum(np.asarray(tf.convert_to_tensor(cell)) for cell in cells)
        self.assertAllEqual(total, [1600] * 20)

    def test_evaluate_is_that_of_one_process(self):
        alone, spread = self.make()
        for samples, batch in ((200, 32), (5, 32), (64, 32)):
            data = util.data(samples, batch, seed=2)
            expected = alone.evaluate(data, verbose=0, return_dict=True)
            found = spread.evaluate(data, verbose=0, return_dict=True)
            self.assertCountEqual(found, expected)
            for name in expected:
                self.assertAllClose(found[name], expected[name], 1e-6, 1e-6)
        self.assertAllClose(
            spread.evaluate(data, verbose=0), alone.evaluate(data, verbose=0)
        )

    def test_evaluate_with_sample_weights_and_arrays(self):
        features, labels = util.arrays()
        weights = np.linspace(0.0, 2.0, len(labels), dtype=np.float32)
        alone, spread = self.make()
        expected, found = [
            model.evaluate(
                features, labels, sample_weight=weights, steps=3, verbose=0
            )
            for model in (alone, spread)
        ]
        self.assertAllClose(found, expected, 1e-6, 1e-6)

    def test_predictions_are_in_order(self):
        alone, spread = self.make()
        data = util.data(1000, 7)
        expected = alone.predict(data, verbose=0)
        found = spread.predict(data, verbose=0)
        self.assertIsInstance(found, np.ndarray)
        self.assertAllClose(found, expected, 1e-6, 1e-6)
        features, _ = util.arrays()
        self.assertAllClose(
            spread.predict(features, batch_size=9, verbose=0),
            alone.predict(features, batch_size=9, verbose=0),
            1e-6,
            1e-6,
        )

    @pytest.mark.both_kerases(slow=True)
    def test_every_sample_is_trained_once(self):
        with util.shared().strategy.scope():
            model = Counting()
            model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        numbers = np.arange(500)
        np.random.default_rng(0).shuffle(numbers)

        def generate():
            yield from numbers

        data = tf.data.Dataset.from_generator(
            generate, output_signature=tf.TensorSpec([], tf.int64)
        )
        data = data.map(lambda n: ([n], [0.0])).batch(7)
        model.fit(data, epochs=2, max_inflight_steps=6, verbose=0)
        self.assertAllEqual(model.counts.numpy(), np.full(500, 2.0))

    def test_callbacks_come_in_the_order_of_steps(self):
        with util.shared().strategy.scope():
            model = util.model()
        recorder = _Recorder()
        model.fit(
            util.data(300, 10),
            callbacks=[recorder],
            max_inflight_steps=5,
            verbose=0,
        )
        for hook in ("begin", "end"):
            steps = [step for name, step in recorder.calls if name == hook]
            self.assertEqual(steps, list(range(30)))
        under_way = 0
        for name, _ in recorder.calls:
            under_way += {"begin": 1, "end": -1}.get(name, 0)
            # More than 5 where a later step has ended before an earlier one.
            self.assertBetween(under_way, 0, 30)

    def test_stopping_inside_an_epoch(self):
        class Stop(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if batch == 3:
                    self.model.stop_training = True

        with util.shared().strategy.scope():
            model = util.model()
        recorder = _Recorder()
        history = model.fit(
            util.data(3000, 10),
            epochs=2,
            callbacks=[recorder, Stop()],
            max_inflight_steps=2,
            verbose=0,
        )
        self.assertLen(history.epoch, 1)
        # The step after the fourth was under way, on a busy machine dozens.
        steps = number(model.optimizer.iterations)
        self.assertBetween(steps, 5, 299)
        self.assertEqual(
            recorder.calls[-2:], [("end", steps - 1), ("epoch end", 0)]
        )

    def test_early_stopping(self):
        with util.shared().strategy.scope():
            model = util.model(keras.optimizers.SGD(0.0))
        stop = tf_ext.callbacks.EarlyStopping(monitor="loss", patience=2)
        history = model.fit(util.data(), epochs=9, callbacks=[stop], verbose=0)
        self.assertLen(history.epoch, 3)


@keras.utils.register_keras_serializable(package="tf_ext_tests")
class Counting(tf_ext.Model):
    """Counts how often it meets each number in training."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.counts = tf.Variable(tf.zeros([500]), trainable=False)

    def call(self, inputs):
        return self.dense(tf.cast(inputs, tf.float32))

    def train_step(self, data):
        numbers = data[0][:, 0]
        tf.raw_ops.ResourceScatterAdd(
            resource=self.counts.handle,
            indices=numbers,
            updates=tf.ones(tf.shape(numbers)),
        )
        return {"loss": tf.reduce_sum(tf.cast(numbers, tf.float32))}


def _has_seven(features, labels):
    del labels
    return tf.reduce_any(tf.equal(features["id"], 7))


class ErrorsTest(_Test):
    def test_an_error_of_a_step_ends_fit_once(self):
        with util.shared().strategy.scope():
            model = util.model()

        def fail(features, labels):
            numbers = tf.cond(
                tf.reduce_any(tf.equal(features["id"], 7)),
                lambda: features["numbers"][:0],
                lambda: features["numbers"],
            )
            return {**features, "numbers": numbers}, labels

        bad = util.data(300, 10).map(fail)
        bad = bad.map(
            lambda x, y: (
                {**x, "numbers": tf.ensure_shape(x["numbers"], [None, 8])},
                y,
            )
        )
        with self.assertRaises(tf.errors.InvalidArgumentError):
            model.fit(bad, epochs=2, max_inflight_steps=4, verbose=0)
        # Nor is one of the last step lost, after which none is scheduled.
        for method in (model.fit, model.evaluate, model.predict):
            with self.assertRaises(tf.errors.InvalidArgumentError):
                method(bad.filter(_has_seven).take(1), verbose=0)
        history = model.fit(util.data(), verbose=0)
        self.assertLen(history.epoch, 1)

    def test_an_error_of_the_data_ends_fit(self):
        with util.shared().strategy.scope():
            model = util.model()

        def generate():
            yield np.zeros(8), 0, 0.0
            raise RuntimeError("the disk is full")

        signature = (
            tf.TensorSpec([8]),
            tf.TensorSpec([], tf.int64),
            tf.TensorSpec([]),
        )
        bad = tf.data.Dataset.from_generator(
            generate, output_signature=signature
        )
        bad = bad.map(lambda n, i, y: ({"numbers": n, "id": [i]}, [y])).batch(1)
        with self.assertRaisesRegex(Exception, "the disk is full"):
            model.fit(bad, max_inflight_steps=4, verbose=0)
        model.fit(util.data(), verbose=0)

    def test_an_error_of_a_callback_ends_fit(self):
        class Fail(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                raise OSError("no space left")

        with util.shared().strategy.scope():
            model = util.model()
        with self.assertRaisesRegex(OSError, "no space left"):
            model.fit(util.data(), callbacks=[Fail()], verbose=0)
        model.fit(util.data(), verbose=0)

    @parameterized.named_parameters(
        (
            "in_flight",
            {"max_inflight_steps": 0},
            "`max_inflight_steps` of fit must be a positive int or None. "
            "Received: "
            "max_inflight_steps=0",
        ),
        (
            "labels",
            {"y": np.zeros(3)},
            "`y` must be None where `x` is a dataset",
        ),
        (
            "weights",
            {"sample_weight": np.ones(3)},
            "`sample_weight` must be None where `x` is a dataset",
        ),
        (
            "batch_size",
            {"batch_size": 3},
            "`batch_size` must be None where `x` is a dataset",
        ),
        (
            "split",
            {"validation_split": 0.5},
            "`validation_split` of fit must be 0 unless `x` is arrays. "
            "Received: "
            "validation_split=0.5",
        ),
        (
            "class_weight",
            {"class_weight": [1.0, 2.0]},
            "`class_weight` of fit must be a dict from class to weight",
        ),
    )
    def test_arguments(self, options, message):
        with util.shared().strategy.scope():
            model = util.model()
        with self.assertRaisesRegex(ValueError, message):
            model.fit(util.data(), verbose=0, **options)

    def test_no_data(self):
        with util.shared().strategy.scope():
            model = util.model()
        for method in ("fit", "evaluate", "predict"):
            with self.assertRaisesRegex(ValueError, f"{method} must have at"):
                getattr(model, method)(util.data().take(0), verbose=0)

    def test_options_of_compile(self):
        with util.shared().strategy.scope():
            if IS_KERAS_3:
                with self.assertRaisesRegex(
                    ValueError,
                    "must be None under .*: gradient_accumulation_steps=2",
                ):
                    util.model(
                        keras.optimizers.SGD(gradient_accumulation_steps=2)
                    )
            eager = util.model(run_eagerly=True)
        with self.assertRaisesRegex(ValueError, "`run_eagerly` .* be False"):
            eager.fit(util.data(), verbose=0)

    def test_one_process_takes_max_inflight_steps(self):
        model = util.model()
        model.fit(util.data(), max_inflight_steps=3, verbose=0)
        with self.assertRaisesRegex(ValueError, "max_inflight_steps=True"):
            model.fit(util.data(), max_inflight_steps=True, verbose=0)


if __name__ == "__main__":
    tf.test.main()
