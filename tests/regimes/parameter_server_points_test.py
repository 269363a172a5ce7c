# SPDX-License-Identifier: Apache-2.0
"""Recovery points of a model on parameter servers, epoch by epoch."""

import json
import pathlib
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import parameterized
from clusters import parameter_server_util as util
from killed_training import Kill, KilledError
from models import small_models
from models.model_building import generator, number
from models.small_models import compiled, functional, table
from saving_util import TestCase

import tf_ext
from tf_ext._keras import keras
from tf_ext.recovery import files as point_files

pytestmark = [
    pytest.mark.process("shared_cluster"),
    pytest.mark.both_kerases(slow=True),
]

setUpModule = util.shared


class PointsTest(TestCase):
    def data(self):
        samples = small_models.batch(generator(self), 256)
        return tf.data.Dataset.from_tensor_slices(samples).batch(16)

    def make(self):
        with util.shared().strategy.scope():
            dense = keras.optimizers.SGD(0.5, momentum=0.9)
            return compiled(functional(table("adagrad")), dense)

    def test_a_point_that_is_due_while_the_last_steps_run(self):
        directory = self.directory()

        def fit(steps, *callbacks):
            points = tf_ext.callbacks.TableSnapshot(directory, steps=3, keep=9)
            return self.make().fit(
                self.data().repeat(),
                epochs=3,
                steps_per_epoch=steps,
                verbose=0,
                callbacks=[points, *callbacks],
            )

        with self.assertRaises(KilledError):
            fit(4, Kill(5))
        # No point is that of an epoch without a step left.
        found = []
        for path in point_files.list_points(directory):
            point = json.loads(pathlib.Path(path, "point.json").read_text())
            found.append((point["epoch"], point["step_in_epoch"]))
        self.assertIn(found, ([(1, 0)], [(0, 3), (1, 0)]))
        self.assertEqual(fit(4).epoch, [1, 2])

    def test_fewer_steps_in_an_epoch_than_before(self):
        directory = self.directory()

        def fit(steps, *callbacks):
            points = tf_ext.callbacks.TableSnapshot(directory, steps=1)
            model = self.make()
            epochs = model.fit(
                self.data().repeat(),
                epochs=3,
                steps_per_epoch=steps,
                verbose=0,
                max_inflight_steps=1,
                callbacks=[points, *callbacks],
            ).epoch
            return epochs, number(model.optimizer.iterations)

        with self.assertRaises(KilledError):
            fit(5, Kill(5))
        self.assertEqual(fit(2), ([1, 2], 4 + 2 * 2))

    @parameterized.parameters(False, True)
    def test_a_rate_that_each_epoch_halves(self, at_end):
        directory = self.directory()
        fail = Kill(20)
        if at_end:
            ends = mock.Mock(side_effect=[None, KilledError])
            fail = keras.callbacks.LambdaCallback(on_epoch_end=ends)

        def fit(*callbacks):
            points = tf_ext.callbacks.TableSnapshot(directory, steps=1)
            half = keras.callbacks.LearningRateScheduler(lambda _, r: r / 2)
            model = self.make()
            model.fit(
                self.data().filter(lambda *_: True),
                epochs=2,
                verbose=0,
                max_inflight_steps=1,
                callbacks=[half, *callbacks, points],
            )
            return number(model.optimizer.learning_rate)

        with self.assertRaises(KilledError):
            fit(fail)
        self.assertEqual(fit(), 0.125)

    def test_the_end_of_an_epoch_of_unknown_length(self):
        """Its last step has a point, and what ends it comes again."""
        directories = self.directory(), self.directory()

        class Killed(keras.callbacks.Callback):
            def on_test_begin(self, logs=None):
                raise KilledError

        def fit(directory, *callbacks):
            points = tf_ext.callbacks.TableSnapshot(directory, steps=1)
            model = self.make()
            history = model.fit(
                self.data().filter(lambda *_: True),
                epochs=2,
                validation_data=self.data(),
                verbose=0,
                max_inflight_steps=1,
                callbacks=[points, *callbacks],
            )
            return history, number(model.optimizer.iterations)

        with self.assertRaises(KilledError):
            fit(directories[0], Killed())
        history, steps = fit(directories[0])
        self.assertEqual(steps, 2 * len(list(self.data())))
        self.assertEqual(history.epoch, [0, 1])
        whole, _ = fit(directories[1])
        self.assertAllClose(history.history, whole.history, 1e-6, 1e-6)

    def test_points_of_a_later_fit(self):
        """The first data end before the step that the point has in others."""
        directory, ends = self.directory(), []
        hear = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: ends.append(epoch)
        )

        def fit(*callbacks):
            points = tf_ext.callbacks.TableSnapshot(directory, steps=1)
            model = self.make()
            for day, batches in enumerate((1, 3)):
                model.fit(
                    self.data().take(batches),
                    initial_epoch=day,
                    epochs=day + 1,
                    verbose=0,
                    max_inflight_steps=1,
                    callbacks=[hear, points, *callbacks],
                )
            return number(model.optimizer.iterations)

        with self.assertRaises(KilledError):
            fit(Kill(3))
        self.assertEqual(ends, [0])
        self.assertEqual(fit(), 1 + 3)
        self.assertEqual(ends, [0, 1])


if __name__ == "__main__":
    tf.test.main()
