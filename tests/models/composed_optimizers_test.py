# SPDX-License-Identifier: Apache-2.0
"""TensorFlow Recommenders' CompositeOptimizer in models with tables."""

import pytest
import tensorflow as tf
from models.model_building import rows_of

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = pytest.mark.both_kerases(slow=True)

if not IS_KERAS_3:
    import tensorflow_recommenders as tfrs
    from models import recommenders_models as models

    _compose = tfrs.experimental.optimizers.CompositeOptimizer

_make = tf_ext.optimizers.Optimizer


class ComposedOptimizersTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        if IS_KERAS_3:
            self.skipTest("TensorFlow Recommenders refuses Keras 3")

    def test_is_as_two_optimizers(self):
        composed, other = models.make_model(), models.TwoTowers()
        data = models.data()
        history = composed.fit(data, epochs=4, verbose=0).history
        parts = [
            (_make(keras.optimizers.Adagrad(0.1)), models.model_towers(other)),
            (_make(keras.optimizers.Adam(0.01)), models.model_head(other)),
        ]

        @tf.function
        def step(batch):
            with tf.GradientTape(persistent=True) as tape:
                loss = other.compute_loss(batch, training=True)
            for optimizer, variables in parts:
                grads = tape.gradient(loss, variables())
                optimizer.apply_gradients(zip(grads, variables()))
            return loss

        losses = [float(step(batch)) for batch in data.repeat(4)]
        # Its logs are those of the last batch of an epoch.
        steps = len(losses) // 4
        self.assertAllClose(history["loss"], losses[steps - 1 :: steps], 1e-6)
        for one, two in zip(composed.tables, other.tables, strict=True):
            self.assertAllClose(rows_of(one), rows_of(two), 1e-6, 1e-6)
        for one, two in zip(
            composed.get_weights(), other.get_weights(), strict=True
        ):
            self.assertAllClose(one, two, 1e-6, 1e-6)

    def test_training_goes_on_from_a_recovery_point(self):
        folder = self.get_temp_dir()
        expected = models.make_model()
        expected.fit(models.data(), epochs=3, verbose=0)
        for epochs in (2, 3):
            model = models.make_model()
            points = tf_ext.callbacks.TableSnapshot(folder, steps=5)
            model.fit(
                models.data(), epochs=epochs, verbose=0, callbacks=[points]
            )
        # The last epoch only, which needs the slots of both optimizers.
        self.assertLen(model.history.history["loss"], 1)
        self.assertAllEqual(model.get_weights()[0], expected.get_weights()[0])
        for one, two in zip(model.tables, expected.tables, strict=True):
            self.assertAllClose(rows_of(one), rows_of(two), 0.0, 0.0)
        for one, two in zip(
            model.optimizer.optimizers, expected.optimizer.optimizers
        ):
            for slot, other in zip(one.variables, two.variables, strict=True):
                self.assertAllEqual(slot, other)

    def test_needs_one_of_ours_for_tables(self):
        model = models.TwoTowers()
        towers, head = models.model_towers(model), models.model_head(model)
        sgd = keras.optimizers.SGD
        with self.assertRaisesRegex(ValueError, "Received: optimizer="):
            model.compile(_compose([(sgd(), towers), (sgd(), head)]))
        with self.assertRaisesRegex(
            ValueError,
            "must be a single optimizer.* composed of several. Wrap each of "
            "them, .*: CompositeOptimizer",
        ):
            _make(_compose([(_make("sgd"), towers)]))
        self._assert_fit_fails(
            model,
            [(sgd(), towers), (_make("sgd"), head)],
            "The rows of table 'user' are not in a variable",
        )

    def test_each_variable_belongs_to_one(self):
        model = models.TwoTowers()
        towers, head = models.model_towers(model), models.model_head(model)
        self._assert_fit_fails(
            model,
            [(_make("sgd"), head)],
            "Table 'user' is trained by none of the optimizers of "
            "CompositeOptimizer",
        )
        self._assert_fit_fails(
            model,
            [
                (_make("sgd"), towers),
                (_make("sgd"), lambda: model.trainable_variables),
            ],
            "Table 'user' is trained by 2 of the optimizers of "
            "CompositeOptimizer",
        )
        # Other variables are TensorFlow Recommenders' to check.
        self._assert_fit_fails(
            model, [(_make("sgd"), towers)], "kernel.* is not handled by any"
        )
        self.assertEqual([table.size() for table in model.tables], [0, 0])

    def _assert_fit_fails(self, model, parts, text):
        model.compile(_compose(parts))
        with self.assertRaisesRegex((RuntimeError, ValueError), text):
            model.fit(models.data(), verbose=0)

    def test_a_legacy_part_has_no_recovery_points(self):
        model = models.TwoTowers()
        legacy = keras.optimizers.legacy.SGD(1e-4)
        model.compile(
            _compose(
                [
                    (
                        _make(keras.optimizers.SGD(1e-4)),
                        models.model_towers(model),
                    ),
                    (legacy, models.model_head(model)),
                ]
            )
        )
        points = tf_ext.callbacks.TableSnapshot(self.get_temp_dir(), steps=1)
        with self.assertRaisesRegex(
            ValueError, "TableSnapshot cannot save the state of SGD, a legacy"
        ):
            model.fit(models.data().take(1), verbose=0, callbacks=[points])


if __name__ == "__main__":
    tf.test.main()
