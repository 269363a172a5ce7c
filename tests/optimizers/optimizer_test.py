# SPDX-License-Identifier: Apache-2.0
import contextlib
import copy

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models
from models.model_building import generator, id_column, step_of_ones
from ops_util import MODES, named_cases

import tf_ext
from tf_ext import optimizers
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.tables.find import tables_of

pytestmark = [
    pytest.mark.both_kerases,
    pytest.mark.slow_tests(
        "LearningRateTest::test_learning_rate_scheduler",
        "LearningRateTest::test_reduce_on_plateau",
        "PlainOptimizerTest::*_mode_eagerly",
        "PlainOptimizerTest::test_in_fit_optimizer_adagrad_run_eagerly_False",
        "PlainOptimizerTest::test_in_fit_optimizer_adam_run_eagerly_True",
        "PlainOptimizerTest::test_in_fit_optimizer_ftrl_run_eagerly_*",
        "PlainOptimizerTest::test_in_fit_optimizer_rmsprop_run_eagerly_*",
        "PlainOptimizerTest::test_in_fit_optimizer_sgd_run_eagerly_True",
        "PlainOptimizerTest::test_with_a_tape_optimizer_adadelta_mode_in_a_function",
        "PlainOptimizerTest::test_with_a_tape_optimizer_adagrad_mode_in_a_function",
        "PlainOptimizerTest::test_with_a_tape_optimizer_adamw_mode_in_a_function",
        "PlainOptimizerTest::test_with_a_tape_optimizer_ftrl_mode_in_a_function",
        "PlainOptimizerTest::test_with_a_tape_optimizer_rmsprop_mode_in_a_function",
        "PlainOptimizerTest::test_with_a_tape_optimizer_sgd_mode_in_a_function",
    ),
]

_SENTENCE = (
    r"The rows of table 'deep' are not in a variable: .* Compile the model "
    r"with \(or call apply_gradients of\) "
    r"tf_ext.optimizers.Optimizer\(your_optimizer\) instead of your_optimizer"
)
_PLAIN = ("sgd", "adam", "adagrad", "ftrl", "rmsprop")
_SIGNS = np.array([0, -5, 10**15])
_KERAS_3_ONLY = "tf_keras has no {}"
_LEGACY_ONLY = "Keras 3 has no {}"


def _decay(rate):
    """rate, rate/2, rate/4, ..., a step each."""
    return keras.optimizers.schedules.ExponentialDecay(rate, 1, 0.5)


def _table(rule=None, name="deep", **kwargs):
    rule = rule or optimizers.SparseSGD()
    return tf_ext.SparseTable(name, 1, rule, "zeros", **kwargs)


def _weight(table):
    return float(table.pull([1])[0, 0])


def _state(model):
    """Dense weights, and the rows of _SIGNS."""
    embeddings = tables_of(model)
    return [v.numpy() for v in model.weights] + [
        table.pull(_SIGNS).numpy() for table in embeddings
    ]


class PlainOptimizerTest(tf.test.TestCase, parameterized.TestCase):
    @contextlib.contextmanager
    def assert_refused(self, model):
        before = _state(model)
        with self.assertRaisesRegex(RuntimeError, _SENTENCE):
            yield
        after = _state(model)
        for old, new in zip(before, after, strict=True):
            self.assertAllEqual(old, new)

    @parameterized.named_parameters(
        *named_cases(optimizer=_PLAIN, run_eagerly=(False, True))
    )
    def test_in_fit(self, optimizer, run_eagerly):
        model = small_models.functional(small_models.table(), keras.Model)
        model.compile(optimizer, "binary_crossentropy", run_eagerly=run_eagerly)
        features = {"user": _SIGNS, "items": _SIGNS[:, np.newaxis]}
        with self.assert_refused(model):
            model.fit(features, np.ones([3, 1]), verbose=0)

    @parameterized.named_parameters(
        *named_cases(
            optimizer=_PLAIN + ("adamw", "adamax", "adadelta", "nadam"),
            mode=MODES,
        )
    )
    def test_with_a_tape(self, optimizer, mode):
        model = small_models.functional(small_models.table(), keras.Model)
        self._check_tape(model, keras.optimizers.get(optimizer), mode)

    @parameterized.named_parameters(
        *named_cases(optimizer=("SGD", "Adam", "Adagrad", "Ftrl"), mode=MODES)
    )
    def test_legacy_ones(self, optimizer, mode):
        if IS_KERAS_3:
            self.skipTest(_LEGACY_ONLY.format("optimizers.legacy"))
        model = small_models.functional(small_models.table(), keras.Model)
        optimizer = getattr(keras.optimizers.legacy, optimizer)()
        self._check_tape(model, optimizer, mode)

    def _check_tape(self, model, optimizer, mode):
        @mode
        def step():
            ids = tf.constant(_SIGNS)
            with tf.GradientTape() as tape:
                features = {"user": ids, "items": ids[:, tf.newaxis]}
                loss = tf.reduce_sum(model(features, training=True))
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables))

        with self.assert_refused(model):
            step()

    @parameterized.parameters("sgd", "rmsprop", None)
    def test_in_compile(self, optimizer):
        for model in (
            small_models.functional(small_models.table()),
            small_models.Subclassed(small_models.table()),
        ):
            arguments = [optimizer] if optimizer else []
            with self.assertRaisesRegex(
                ValueError, f"{_SENTENCE}.*Received: optimizer='"
            ):
                model.compile(*arguments, loss="mse")
            with self.assertRaisesRegex(ValueError, "optimizer=<.*Adam"):
                model.compile(keras.optimizers.Adam(), "mse")


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("unknown", "sparse_adagrad"),
        ("table_rule", optimizers.SparseSGD(0.1)),
        ("number", 0.1),
        ("none", None),
        ("class", keras.optimizers.SGD),
    )
    def test_something_else_is_refused(self, dense):
        with self.assertRaisesRegex(
            ValueError,
            r"`dense` of tf_ext.optimizers.Optimizer must be a "
            r"keras.optimizers.Optimizer \(not a legacy one\) or the name of "
            "one. Received: dense=",
        ):
            optimizers.Optimizer(dense)

    def test_legacy_ones_are_refused(self):
        if IS_KERAS_3:
            self.skipTest(_LEGACY_ONLY.format("optimizers.legacy"))
        with self.assertRaisesRegex(ValueError, "not a legacy one"):
            optimizers.Optimizer(keras.optimizers.legacy.SGD())

    def test_wrapping_twice_is_refused(self):
        with self.assertRaisesRegex(
            ValueError, "must be a Keras optimizer that is not wrapped yet"
        ):
            optimizers.Optimizer(optimizers.Optimizer("sgd"))

    def test_moving_averages_are_refused(self):
        with self.assertRaisesRegex(
            ValueError, "use_ema=False: averages of a table's rows are not"
        ):
            optimizers.Optimizer(keras.optimizers.SGD(use_ema=True))

    def test_loss_scaling_goes_inside_in_keras_3(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras has it outside")
        scaling = keras.mixed_precision.LossScaleOptimizer
        with self.assertRaisesRegex(
            ValueError, "must be outermost: a LossScaleOptimizer around it"
        ):
            scaling(optimizers.Optimizer("sgd"))
        optimizer = optimizers.Optimizer(scaling(keras.optimizers.SGD(1.0)))
        table, variable = _table(), keras.Variable([0.0])
        optimizer.build([table.shadow, variable])
        self.assertEqual(float(optimizer.scale_loss(1.0)), 2.0**15)
        _scaled_step(optimizer, table, variable, 2.0**15)
        self.assertEqual((_weight(table), variable.numpy()), (-1, -1))

    def test_loss_scaling_goes_outside_in_tf_keras(self):
        if IS_KERAS_3:
            self.skipTest("Keras 3 has it inside")
        scaling = keras.mixed_precision.LossScaleOptimizer
        with self.assertRaisesRegex(ValueError, "under tf_keras, where it"):
            optimizers.Optimizer(scaling(keras.optimizers.SGD(1.0)))
        dense = keras.optimizers.SGD(1.0)
        optimizer = scaling(optimizers.Optimizer(dense))
        table, variable = _table(), tf.Variable([0.0])
        slices, gradient = optimizer.get_unscaled_gradients(
            [_slices(optimizer.loss_scale), optimizer.loss_scale[tf.newaxis]]
        )
        optimizer.apply_gradients(
            [(slices, table.shadow), (gradient, variable)]
        )
        self.assertEqual((_weight(table), variable.numpy()), (-1, -1))

    def test_updates_outside_of_replicas_are_refused(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras has no apply()")
        optimizer = tf_ext.optimizers.Optimizer("sgd")
        variable = keras.Variable([1.0])
        optimizer.build([variable])
        message = "must be called in a replica context"
        with self.assertRaisesRegex(ValueError, message):
            with tf.distribute.OneDeviceStrategy("CPU:0").scope():
                optimizer.apply([tf.constant([1.0])], [variable])

    def test_gradients_that_became_dense_are_told(self):
        table = _table()
        with self.assertRaisesRegex(
            ValueError,
            r"gradient of table 'deep' arrived as a dense tensor of shape "
            r"\(1, 1\).*Put tf_ext.optimizers.Optimizer outermost",
        ):
            optimizers.Optimizer("sgd").apply_gradients(
                [(tf.ones([1, 1]), table.shadow)]
            )

    def test_a_loss_that_reaches_nothing_is_told(self):
        table = _table()
        with self.assertRaisesRegex(ValueError, "No gradients provided for"):
            optimizers.Optimizer("sgd").apply_gradients([(None, table.shadow)])

    def test_what_the_loss_does_not_reach_is_left_alone(self):
        reached, other = _table(), _table(name="other")
        variable = tf.Variable([1.0], name="lonely")
        optimizer = optimizers.Optimizer(keras.optimizers.SGD(1.0))
        with self.assertLogs(tf.get_logger(), "WARNING") as logs:
            optimizer.apply_gradients(
                [
                    (_slices(1.0), reached.shadow),
                    (None, other.shadow),
                    (None, variable),
                ]
            )
        self.assertEqual((reached.size(), other.size()), (1, 0))
        self.assertAllEqual(variable, [1.0])
        # Tables without a row in a batch are nothing to warn of.
        [message] = logs.output
        self.assertRegex(message, r"for variables \['lonely(:0)?'\] when")

    @parameterized.named_parameters(
        ("clipnorm", {"clipnorm": 2.0}, [-2.0, -2.0, -0.5]),
        ("global_clipnorm", {"global_clipnorm": 2.5}, [-1.5, -2.0, -0.25]),
        ("clipvalue", {"clipvalue": 1.0}, [-1.0, -1.0, -0.5]),
    )
    def test_tables_of_different_norms_are_clipped(self, options, weights):
        tables = [_table(name=name) for name in ("long", "longer", "short")]
        optimizer = optimizers.Optimizer(keras.optimizers.SGD(1.0, **options))
        optimizer.apply_gradients(
            [
                (_slices(gradient), table.shadow)
                for gradient, table in zip((3.0, 4.0, 0.5), tables)
            ]
        )
        self.assertAllClose(
            [_weight(table) for table in tables], weights, rtol=1e-2
        )

    @parameterized.named_parameters(
        ("clipnorm", {"clipnorm": 1.0}),
        ("global_clipnorm", {"global_clipnorm": 1.0}),
        ("clipvalue", {"clipvalue": 1.0}),
    )
    def test_what_is_clipped_is_the_sum_of_a_sign(self, options):
        table = _table()
        optimizer = optimizers.Optimizer(keras.optimizers.SGD(1.0, **options))
        # Each by itself is beyond the limit.
        parts = tf.IndexedSlices(
            tf.constant([[3.0], [-2.5]]), tf.constant([1, 1], tf.int64)
        )
        optimizer.apply_gradients([(parts, table.shadow)])
        self.assertEqual(_weight(table), -0.5)


def _slices(gradient):
    """The gradient of the row of sign 1."""
    return tf.IndexedSlices(
        tf.reshape(gradient, [1, 1]), tf.constant([1], tf.int64)
    )


def _scaled_step(optimizer, table, variable, scale):
    """Gradients of 1 that a loss scale multiplied."""
    optimizer.apply_gradients(
        [(_slices(scale), table.shadow), (tf.constant([scale]), variable)]
    )


class LearningRateTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(*MODES)
    def test_follows_the_model_or_has_its_own(self, mode):
        following = _table(name="following")
        fixed = _table(optimizers.SparseSGD(0.25), "fixed")
        scheduled = _table(optimizers.SparseSGD(_decay(8.0)), "scheduled")
        tables = [following, fixed, scheduled]
        variable = keras.Variable([0.0]) if IS_KERAS_3 else tf.Variable([0.0])
        optimizer = optimizers.Optimizer(keras.optimizers.SGD(1.0))
        step = mode(
            lambda: step_of_ones(optimizer, *tables, variables=[variable])
        )
        step()
        self.assertAllEqual([_weight(t) for t in tables], [-1, -0.25, -8])
        optimizer.learning_rate = 2.0
        fixed.optimizer.learning_rate = 4.0
        step()
        # The model's rate has doubled, and so has what is assigned.
        self.assertAllEqual([_weight(t) for t in tables], [-3, -8.25, -12])
        self.assertAllEqual(variable, [-3.0])
        step()
        self.assertEqual(_weight(scheduled), -14.0)
        self.assertEqual(int(optimizer.iterations), 3)

    @parameterized.named_parameters(*MODES)
    def test_follows_the_schedule_of_the_model(self, mode):
        table = _table()
        optimizer = optimizers.Optimizer(keras.optimizers.SGD(_decay(8.0)))
        step = mode(lambda: step_of_ones(optimizer, table))
        for expected in (-8.0, -12.0, -14.0):
            step()
            self.assertEqual(_weight(table), expected)

    def test_reduce_on_plateau(self):
        model = small_models.compiled(
            small_models.functional(small_models.table()),
            keras.optimizers.SGD(1.0),
        )
        features, labels = small_models.batch(generator(self))
        reduce = keras.callbacks.ReduceLROnPlateau(
            monitor="loss", factor=0.0, patience=1, min_delta=100.0
        )
        rows = []
        copy = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda *_: rows.append(
                model.tables[0].pull(features["user"]).numpy()
            )
        )
        # An epoch to compare with, and one of patience; then the rate is 0.
        model.fit(
            features, labels, epochs=4, verbose=0, callbacks=[reduce, copy]
        )
        self.assertEqual(float(model.optimizer.learning_rate), 0.0)
        self.assertNotAllEqual(rows[0], rows[1])
        self.assertAllEqual(rows[1], rows[3])

    def test_learning_rate_scheduler(self):
        model = small_models.compiled(
            small_models.functional(small_models.table())
        )
        features, labels = small_models.batch(generator(self))
        scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: 0.0)
        model.fit(features, labels, verbose=0, callbacks=[scheduler])
        untouched = small_models.table()
        self.assertAllEqual(
            model.tables[0].pull(features["user"]),
            untouched.pull(features["user"]),
        )


class IterationsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(*MODES)
    def test_advance_without_a_dense_variable(self, mode):
        table = _table(optimizers.SparseAdam(1.0, bias_correction="global"))
        optimizer = optimizers.Optimizer("adam")
        step = mode(lambda: step_of_ones(optimizer, table))
        for n in range(1, 4):
            step()
            self.assertEqual(int(optimizer.iterations), n)
        # With gradients of 1, each corrected step is of the rate's size.
        self.assertAllClose(_weight(table), -3.0, rtol=1e-5)

    def test_advance_in_fit_without_a_dense_variable(self):
        ids = {"user": keras.Input((), dtype="int64", name="user")}
        layer = tf_ext.layers.EmbeddingFeatures([id_column("user")], _table())
        model = tf_ext.Model(ids, layer(ids))
        model.compile(optimizers.Optimizer("sgd"), "mse")
        model.fit(
            {"user": np.arange(10)}, np.ones([10, 1]), batch_size=2, verbose=0
        )
        self.assertEqual(int(model.optimizer.iterations), 5)
        self.assertEqual(model.tables[0].size(), 10)


class MembersTest(tf.test.TestCase):
    def test_what_the_wrapped_optimizer_has(self):
        dense = keras.optimizers.Adam(0.5)
        optimizer = optimizers.Optimizer(dense)
        table = _table()
        variable = keras.Variable([0.0]) if IS_KERAS_3 else tf.Variable([0.0])
        optimizer.build([table.shadow, variable])
        self.assertIs(optimizer.iterations, dense.iterations)
        # Those of two slots, and the steps; Keras 3 has the rate there, too.
        found = {id(one) for one in optimizer.variables}
        self.assertContainsSubset({id(one) for one in dense.variables}, found)
        self.assertGreaterEqual(len(dense.variables), 3)
        optimizer.learning_rate = 0.25
        self.assertEqual(float(dense.learning_rate), 0.25)
        self.assertEqual(float(optimizer.learning_rate), 0.25)


class ConfigurationTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("plain", {}),
        ("clipnorm", {"clipnorm": 0.5}),
        ("global_clipnorm", {"global_clipnorm": 0.25}),
        ("clipvalue", {"clipvalue": 0.125}),
        ("accumulation", {"gradient_accumulation_steps": 4}),
        ("loss_scale", {"loss_scale_factor": 8.0}),
    )
    def test_survives(self, options):
        keras_3_only = {"gradient_accumulation_steps", "loss_scale_factor"}
        if not IS_KERAS_3 and keras_3_only & set(options):
            self.skipTest(_KERAS_3_ONLY.format(", ".join(options)))
        dense = keras.optimizers.Adam(_decay(0.5), beta_1=0.75, **options)
        expected = keras.optimizers.serialize(dense)
        optimizer = optimizers.Optimizer(dense, name="mine")
        for again in (
            optimizers.Optimizer.from_config(optimizer.get_config()),
            keras.optimizers.deserialize(keras.optimizers.serialize(optimizer)),
        ):
            self.assertIsInstance(again, optimizers.Optimizer)
            self.assertEqual(again.name, "mine")
            self.assertEqual(again.get_config(), optimizer.get_config())
        # What the wrapper took over is in the configuration.
        self.assertEqual(optimizer.get_config()["dense"], expected)

    def test_all_of_keras_survive(self):
        for name in (
            "Adadelta Adafactor Adagrad Adam AdamW Adamax Ftrl Lion Nadam "
            "RMSprop SGD"
        ).split():
            made = getattr(keras.optimizers, name)(0.25, clipnorm=2.0)
            config = optimizers.Optimizer(made).get_config()
            given = copy.deepcopy(config)
            again = optimizers.Optimizer.from_config(given)
            self.assertEqual(given, config)
            self.assertIs(type(again.inner_optimizer), type(made), name)
            self.assertEqual(again.get_config(), config, name)

    def test_dynamic_loss_scaling_survives(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras has it outside")
        dense = keras.mixed_precision.LossScaleOptimizer(
            keras.optimizers.SGD(0.5), initial_scale=8.0, dynamic_growth_steps=3
        )
        optimizer = optimizers.Optimizer(dense)
        again = optimizers.Optimizer.from_config(optimizer.get_config())
        table, variable = _table(), keras.Variable([0.0])
        again.build([table.shadow, variable])
        for scale in (8.0, 8.0, 8.0, 16.0):
            self.assertEqual(float(again.scale_loss(1.0)), scale)
            _scaled_step(again, table, variable, scale)
        self.assertEqual((_weight(table), variable.numpy()), (-2, -2))

    def test_a_scale_of_a_checkpoint_counts_before_it_is_built(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras makes it with the optimizer")

        def make():
            dense = keras.mixed_precision.LossScaleOptimizer(
                keras.optimizers.SGD(0.5), initial_scale=8.0
            )
            optimizer = optimizers.Optimizer(dense)
            return optimizer, tf.train.Checkpoint(optimizer=optimizer)

        path, variable = self.get_temp_dir() + "/scale", keras.Variable([0.0])
        optimizer, checkpoint = make()
        optimizer.build([variable])
        optimizer.dynamic_scale.assign(2.0)
        checkpoint.write(path)
        loaded, checkpoint = make()
        checkpoint.read(path)
        # In a step that is being traced.
        self.assertEqual(float(tf.function(loaded.scale_loss)(1.0)), 2.0)
        loaded.build([variable])
        self.assertEqual(float(loaded.dynamic_scale), 2.0)


if __name__ == "__main__":
    tf.test.main()
