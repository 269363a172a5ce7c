# SPDX-License-Identifier: Apache-2.0
"""Where epochs of a number of steps are in their data."""

import itertools

import tensorflow as tf
from absl.testing import absltest, parameterized

from tf_ext.training import positions


def _walk(steps, batches, epochs):
    """`(epoch, step, read)` before each step, which are made one by one."""
    read = 0
    for epoch in range(epochs):
        if read == batches:
            read = 0
        for step in range(steps):
            if read == batches:
                break
            yield epoch, step, read
            read += 1


class BatchesOfTest(tf.test.TestCase):
    def test_known_ones_are_not_read(self):
        def fail(_):
            raise AssertionError

        data = tf.data.Dataset.range(5).map(
            lambda n: tf.py_function(fail, [n], tf.int64)
        )
        for dataset, count in (
            (data, 5),
            (data.take(0), 0),
            (data.repeat(), tf.data.INFINITE_CARDINALITY),
        ):
            self.assertEqual(positions.batches_of(dataset, 3), count)

    def test_others_are_read_as_far_as_it_matters(self):
        unknown = tf.data.UNKNOWN_CARDINALITY
        data = tf.data.Dataset.range(9).filter(lambda n: n < 5)
        for most, count in ((0, unknown), (4, unknown), (5, 5), (6, 5)):
            self.assertEqual(positions.batches_of(data, most), count)
        pairs = tf.data.Dataset.zip(data, data)
        self.assertEqual(positions.batches_of(pairs, 9), 5)
        nothing = data.filter(lambda n: n < 0)
        self.assertEqual(positions.batches_of(nothing, 0), 0)


class PlaceTest(parameterized.TestCase):
    @parameterized.product(steps=[1, 3, 4], batches=[1, 2, 3, 4, 8, 9])
    def test_is_that_of_steps_made_one_by_one(self, steps, batches):
        walk = [*_walk(steps, batches, epochs=7)]
        for (epoch, step, read), after in itertools.pairwise(walk):
            if step == 0:
                self.assertEqual(
                    positions.batches_before(epoch, steps, batches), read
                )
            found = positions.place_of(epoch, step, steps, batches)
            self.assertEqual(found, (epoch, step, read))
            # Behind the step, unless the epoch has all of its steps.
            found = positions.place_of(epoch, step + 1, steps, batches)
            if step + 1 < steps:
                self.assertEqual(found, after)
            # Of data that a later epoch began.
            at, *place = positions.place_of(
                epoch + 2, step + 1, steps, batches, 2
            )
            self.assertEqual((at - 2, *place), found)

    def test_of_data_that_do_not_end(self):
        for batches in (None, 0, -1, -2):
            self.assertEqual(positions.batches_before(4, 3, batches), 12)
            self.assertEqual(
                positions.place_of(5, 2, 3, batches, 1), (5, 2, 14)
            )

    def test_epochs_go_through_data(self):
        for steps, batches, epochs in (
            (3, 1, 1),
            (3, 3, 1),
            (3, 4, 2),
            (1, 4, 4),
        ):
            self.assertEqual(positions.epochs_of(steps, batches), epochs)


if __name__ == "__main__":
    absltest.main()
