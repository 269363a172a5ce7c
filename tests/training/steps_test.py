# SPDX-License-Identifier: Apache-2.0
"""Steps that a coordinator schedules, in functions of one step or several."""

import types
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tf_ext.regimes import current_step
from tf_ext.training.parameter_servers import steps

pytestmark = pytest.mark.both_kerases(slow=True)


def _feed(most):
    return types.SimpleNamespace(
        unpack=lambda sent, index=0: sent[index],
        steps_in=lambda sent: tf.size(sent, tf.int64),
        steps_per_execution=most,
        signature=None,
        traced=lambda run: run,
    )


class StepTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("one", 1, 1, False),
        ("several", 3, 3, False),
        ("several_that_overlap", 3, 3, True),
        ("fewer_than_there_can_be", 3, 2, False),
    )
    def test_have_the_numbers_that_were_begun(self, most, count, overlaps):
        for optimizer in (
            None,
            types.SimpleNamespace(iterations=tf.Variable(0, dtype=tf.int64)),
        ):
            found = {}

            def note(batch, number, found=found):
                found[int(batch)] = number.tolist()
                return batch

            def train_step(batch, note=note):
                number = current_step().number.tensor
                noted = tf.numpy_function(note, [batch, number], tf.float32)
                return {"loss": tf.reshape(noted, [])}

            model = types.SimpleNamespace(
                train_step=train_step, metrics=[], optimizer=optimizer
            )
            strategy = tf.distribute.get_strategy()
            with mock.patch.object(
                steps,
                "regime_of_model",
                lambda _, strategy=strategy: types.SimpleNamespace(
                    strategy=strategy
                ),
            ):
                step = steps.Step(model, "train", _feed(most), overlaps)
            # The first of the steps, and the oldest that may run again.
            numbers = tf.constant([40, 7], tf.int64)
            batches = tf.range(count, dtype=tf.float32)
            step.function_for(count)(batches, numbers)
            self.assertEqual(
                found, {index: [40 + index, 7] for index in range(count)}
            )


if __name__ == "__main__":
    tf.test.main()
