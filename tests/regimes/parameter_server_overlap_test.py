# SPDX-License-Identifier: Apache-2.0
"""Steps that overlap, against updates that are made one step late."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases import execution_cases
from clusters import parameter_server_util as util
from models import small_models
from models.model_building import generator, number
from saving_util import contents

from tf_ext._keras import keras

pytestmark = [
    pytest.mark.process,
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow,
]

_CLUSTER = util.Cluster()
_BATCHES = 14


def setUpModule():
    _CLUSTER.start()


def tearDownModule():
    _CLUSTER.stop()


def _decaying():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.5)
    return keras.optimizers.SGD(schedule, momentum=0.9)


class OverlapTest(execution_cases.ExecutionsCase, parameterized.TestCase):
    cluster = _CLUSTER
    batches = _BATCHES

    def train_late(self, model, dataset, steps, epochs=1):
        """Makes each update after the next step's reads, if both overlap.

        Returns:
          List of the losses.
        """
        losses = []
        variables = model.trainable_variables
        loss_of = keras.losses.BinaryCrossentropy()
        for _ in range(epochs):
            batches = [*dataset]
            whole = len(batches) // steps * steps
            waiting = None
            for index, (x, y) in enumerate(batches):
                overlaps = index < whole and index % steps != 0
                if waiting is not None and not overlaps:
                    model.optimizer.apply_gradients(zip(waiting, variables))
                    waiting = None
                with tf.GradientTape() as tape:
                    loss = loss_of(y, model(x, training=True))
                grads = tape.gradient(loss, variables)
                losses.append(float(loss))
                if waiting is not None:
                    model.optimizer.apply_gradients(zip(waiting, variables))
                waiting = grads
            model.optimizer.apply_gradients(zip(waiting, variables))
        return losses

    @parameterized.named_parameters(
        ("adam", "adam", execution_cases.adam, 4),
        ("decaying_sgd", "sgd", _decaying, 2),
    )
    def test_updates_are_one_step_late(self, rule, dense, steps):
        alone = self.alone(rule=rule, dense=dense)
        losses = self.train_late(alone, self.data(), steps, 2)
        spread = self.spread(steps, rule=rule, dense=dense)
        history = spread.fit(
            self.data(),
            epochs=2,
            max_inflight_steps=1,
            overlap_steps=True,
            verbose=0,
        ).history
        self.assert_same_model(alone, spread)
        # The last batch has 11 samples.
        weights = np.array([16.0] * (_BATCHES - 1) + [11.0])
        self.assertAllClose(
            history["loss"],
            np.average(np.reshape(losses, [2, -1]), 1, weights),
            1e-5,
        )
        # Only the steps of whole executions overlap.
        executions = -(-_BATCHES // steps)
        missed = (_BATCHES // steps) * (1 - 1 / steps)
        self.assertAllClose(history["staleness"], [missed / executions] * 2)

    def test_without_overlap_updates_are_not_late(self):
        alone, spread = self.alone(), self.spread()
        for overlap in (True, False):
            spread.fit(
                self.data(4),
                max_inflight_steps=1,
                overlap_steps=overlap,
                verbose=0,
            )
        self.train_late(alone, self.data(4), 4)
        self.train_late(alone, self.data(4), 1)
        self.assert_same_model(alone, spread)

    @pytest.mark.slow
    def test_data_that_workers_read(self):
        data = small_models.batch(generator(self), 64)

        def make(context):
            tensors = tf.nest.map_structure(tf.constant, data)
            return tf.data.Dataset.from_tensors(tensors).repeat()

        spread = self.spread()
        spread.fit(make, steps_per_epoch=10, overlap_steps=True, verbose=0)
        self.assertEqual(number(spread.optimizer.iterations), 10)
        spread.fit(
            lambda context: make(context).take(6 + context.input_pipeline_id),
            overlap_steps=True,
            verbose=0,
        )
        self.assertEqual(number(spread.optimizer.iterations), 23)

    @pytest.mark.slow
    def test_data_that_end_within_an_execution(self):
        data = small_models.batch(generator(self), 16)

        def make(context):
            tensors = tf.nest.map_structure(tf.constant, data)
            return tf.data.Dataset.from_tensors(tensors).repeat(3)

        spread = self.spread()
        with self.assertRaisesRegex(ValueError, "must not end"):
            spread.fit(
                make,
                steps_per_epoch=40,
                max_inflight_steps=1,
                overlap_steps=True,
                verbose=0,
            )
        # A step without data is not counted.
        self.assertLessEqual(number(spread.optimizer.iterations), 3)

    @pytest.mark.slow
    def test_workers_go_on_while_results_are_fetched(self):
        spread = self.spread()
        with util.recording_fetches() as threads:
            spread.fit(self.data(), overlap_steps=True, verbose=0)
        self.assertEqual(threads, ["tf_ext_step"] * 4)

    def test_errors_are_raised_and_the_model_is_usable_after(self):
        spread = self.spread(rule="sgd")
        features, labels = small_models.batch(generator(self), 64)
        labels[40] = np.nan
        broken = tf.data.Dataset.from_tensor_slices((features, labels))
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            "No variable and no table was changed.*"
            "Columns of table 'deep': 'items', 'user'",
        ):
            spread.fit(broken.batch(16), overlap_steps=True, verbose=0)
        rows = contents(spread.tables[0])["weights"]
        self.assertAllEqual(
            np.isfinite([*rows.values()]), np.full((len(rows), 4), True)
        )

    @parameterized.parameters(1, 17)
    def test_executions_that_have_no_steps_to_overlap(self, steps):
        with self.assertRaisesRegex(
            ValueError,
            "`overlap_steps` of fit must be False unless .* between 2 and 16.*"
            f"steps_per_execution={steps}",
        ):
            self.spread(steps).fit(self.data(), overlap_steps=True, verbose=0)

    def test_refused(self):
        with self.assertRaisesRegex(
            ValueError, "`overlap_steps` of fit must be True or False.*'yes'"
        ):
            self.spread().fit(self.data(), overlap_steps="yes", verbose=0)
        alone = self.alone(steps_per_execution=4)
        with self.assertRaisesRegex(
            ValueError, "must be False except under ParameterServerStrategy"
        ):
            alone.fit(self.data(), overlap_steps=True, verbose=0)


@pytest.mark.slow
class LostWorkerTest(tf.test.TestCase):
    def test_a_worker_that_is_killed_within_executions(self):
        execution_cases.check_a_worker_that_is_killed(self, overlap_steps=True)


if __name__ == "__main__":
    tf.test.main()
