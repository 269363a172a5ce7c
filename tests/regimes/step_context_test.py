# SPDX-License-Identifier: Apache-2.0
"""What a step carries to what Keras calls."""

from unittest import mock

import pytest
import tensorflow as tf
from models.model_building import id_column

import tf_ext
from tf_ext.regimes import (
    ReplicaWeight,
    Updates,
    current_step,
    library_step,
    step_with,
    weigh_computed_loss,
    weigh_own_loss,
)
from tf_ext.regimes.exchange import Exchange
from tf_ext.regimes.step_context import StepNumber, after

pytestmark = pytest.mark.both_kerases


class StepContextTest(tf.test.TestCase):
    def test_is_empty_outside_of_steps(self):
        with step_with(rows_after=[tf.constant(1)]):
            with step_with(updates=Updates()) as inner:
                self.assertLen(inner.rows_after, 1)
                self.assertIs(current_step(), inner)
            self.assertIsNone(current_step().updates)
        self.assertEmpty(current_step().rows_after)

    def test_parts_of_a_step_that_may_run_again(self):
        parts = []

        @tf.function
        def step(numbers):
            number = StepNumber(numbers)

            @tf.function
            def inner():
                # It could run several times.
                parts.append(number.part())

            parts.append(number.part())
            inner()
            parts.append(number.part())
            parts.append(StepNumber(numbers).part())

        step.get_concrete_function(tf.TensorSpec([2], tf.int64))
        self.assertEqual(parts, [0, None, 1, 0])

    def test_rows_that_are_pulled_wait(self):
        waited, pull = [], Exchange.pull

        def recorded(self, requests, error=None, after=()):
            waited.append(after)
            return pull(self, requests, error, after)

        table = tf_ext.SparseTable("waits", dim=1)
        layer = tf_ext.layers.EmbeddingFeatures([id_column("a")], table)
        before = [tf.constant(1)]
        with (
            mock.patch.object(Exchange, "pull", recorded),
            step_with(rows_after=before),
        ):
            layer({"a": tf.constant([[5]], tf.int64)})
            table.pull([5])
        self.assertEqual(waited, [before, before])

    def test_updates_are_delayed_with_what_they_carry(self):
        made = []
        current_step().update([], made.append)
        updates = Updates()
        with step_with(updates=updates) as step:
            step.update([tf.constant(1.0)], made.append)
        self.assertEqual(made, [()])
        self.assertLen(updates.gradients, 1)
        updates.make(["words"])
        self.assertEqual(made, [(), ["words"]])


class ReplicaWeightTest(tf.test.TestCase):
    def test_one_loss_of_a_step_is_weighted(self):
        weight = ReplicaWeight(tf.constant(2.0))

        def gradients():
            """Of the loss of a model's own step, and of `compute_loss`."""
            loss = tf.constant(3.0)
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(loss)
                losses = [
                    weigh(weight, loss)
                    for weigh in (weigh_own_loss, weigh_computed_loss)
                ]
            self.assertAllEqual(losses, [3.0, 3.0])
            return [float(tape.gradient(one, loss)) for one in losses]

        self.assertEqual(gradients(), [2.0, 1.0])
        with library_step(weight):
            self.assertEqual(gradients(), [1.0, 2.0])
        self.assertEqual(gradients(), [2.0, 1.0])


class AfterTest(tf.test.TestCase):
    def test_waits_for_the_batch_alone(self):
        @tf.function(autograph=False)
        def step(batch):
            gradient = tf.identity(batch, name="gradient")
            with after(batch):
                with after(gradient):
                    inner = tf.constant(1, name="inner")
            with after(gradient):
                last = tf.constant(2, name="last")
            return inner + last

        graph = step.get_concrete_function(tf.constant(1)).graph

        def waits_for(name):
            [group] = graph.get_operation_by_name(name).control_inputs
            return [operation.name for operation in group.control_inputs]

        self.assertEqual(waits_for("inner"), ["batch"])
        self.assertEqual(waits_for("last"), ["gradient"])


if __name__ == "__main__":
    tf.test.main()
