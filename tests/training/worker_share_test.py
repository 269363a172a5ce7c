# SPDX-License-Identifier: Apache-2.0
"""Groups of batches, and the position of a worker in them."""

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tf_ext.training.parameter_servers.step_numbers import (
    StepNumbers,
    step_numbers,
)
from tf_ext.training.parameter_servers.worker_share import Groups, Share

pytestmark = pytest.mark.both_kerases(slow=True)


def _numbers(batches):
    return tf.data.Dataset.range(batches)


class GroupsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (0, 2, [0]), (1, 2, [1, 0]), (5, 2, [2, 2, 1, 0]), (3, 1, [1, 1, 1, 0])
    )
    def test_sizes_are_known_a_group_ahead(self, batches, size, following):
        groups = Groups(tf.TensorSpec([], tf.int64), size)
        found = list(groups.of(_numbers(batches)))
        self.assertEqual([int(size) for _, size in found], following)
        self.assertEqual(
            [int(tf.size(group)) for group, _ in found], [0, *following[:-1]]
        )
        taken = [
            int(groups.take(group, index))
            for group, _ in found
            for index in range(int(tf.size(group)))
        ]
        self.assertEqual(taken, [*range(batches)])

    def test_batches_of_any_structure(self):
        data = tf.data.Dataset.from_tensor_slices(
            (
                {
                    "ragged": tf.ragged.constant([[1], [], [2, 3]]),
                    "sparse": tf.sparse.from_dense([[0, 1], [2, 0], [0, 0]]),
                },
                ["a", "b", "c"],
            )
        ).batch(2)
        groups = Groups(data.element_spec, 4)
        _, (group, _) = groups.of(data)
        take = tf.function(groups.take)
        for index, (features, labels) in enumerate(data):
            found, strings = take(group, tf.constant(index))
            self.assertAllEqual(found["ragged"], features["ragged"])
            self.assertAllEqual(
                tf.sparse.to_dense(found["sparse"]),
                tf.sparse.to_dense(features["sparse"]),
            )
            self.assertAllEqual(strings, labels)


class ShareTest(tf.test.TestCase):
    def _share(self, batches=4, size=1, **options):
        groups = Groups(tf.TensorSpec([], tf.int64), size)
        numbers = StepNumbers()
        self.begun = []

        def make(skipped):
            data = _numbers(batches).shuffle(batches, seed=1)
            return groups.of(data.skip(skipped))

        def number(steps):
            self.begun.append((steps, numbers.begin(steps)))
            return self.begun[-1][1]

        share = Share(make, groups.first_size(), number, **options)
        return groups, share

    def _epoch(self, groups, share, epoch, lost=()):
        """What was trained on; the steps that `lost` says fail."""
        read = []

        def step(iterator, numbers):
            group, following = next(iterator)
            size = int(tf.size(group))
            found = [int(groups.take(group, index)) for index in range(size)]
            self.numbers.append((int(numbers[0]), found))
            if len(self.numbers) in lost:
                raise tf.errors.UnavailableError(None, None, "lost")
            read.extend(found)
            return [tf.stack([7, following])]

        self.numbers = []
        share.begin(epoch)
        while share.left:
            share.begin(epoch)
            left = share.left
            try:
                results, steps = share.run(step)
            except tf.errors.UnavailableError:
                share.forget()
                self.assertIsNone(share.left)
                share.begin(epoch)
                continue
            self.assertAllEqual(results, [7])
            self.assertEqual(steps, left)
        return read

    def test_a_lost_worker_goes_on_where_it_was(self):
        for size, lost in ((1, (1, 4)), (3, (2,))):
            groups, share = self._share(7, size)
            orders = [self._epoch(groups, share, epoch) for epoch in range(4)]
            for order in orders:
                self.assertCountEqual(order, range(7))
            self.assertNotEqual(orders[0], orders[2])
            _, share = self._share(7, size)
            for epoch, order in enumerate(orders):
                its = lost if epoch in (1, 3) else ()
                self.assertEqual(self._epoch(groups, share, epoch, its), order)
                # A step that runs again has its number and its batches.
                for place in its:
                    first, again = self.numbers[place - 1 : place + 1]
                    self.assertEqual(first, again)
                self.assertLen(dict(self.numbers), len(self.numbers) - len(its))

    def test_data_that_differ_when_they_are_read_again(self):
        groups, share = self._share(7, goes_on=False)
        order = self._epoch(groups, share, 0)
        _, share = self._share(7, goes_on=False)
        self.assertEqual(
            self._epoch(groups, share, 0, lost=(4,)), [*order[:3], *order]
        )
        self.assertLen(dict(self.numbers), 4 + 7)

    def test_an_epoch_that_was_left_begins_anew(self):
        groups, share = self._share()
        share.begin(0)
        share.run(lambda iterator, _: [tf.stack([7, next(iterator)[1]])])
        self.assertLen(self._epoch(groups, share, 1), 4)

    def test_servers_need_not_remember_what_has_ended(self):
        _, share = self._share(2)
        share.begin(0)

        def fail(*_):
            raise tf.errors.UnavailableError(None, None, "lost")

        for _ in range(2):
            with self.assertRaises(tf.errors.UnavailableError):
                share.run(fail)
        [(_, begun)] = self.begun
        self.assertAllEqual(begun._numbers.begin(1).tensor(), [1, 0])
        share.close()
        self.assertAllEqual(begun._numbers.begin(1).tensor(), [2, 1])


class StepNumbersTest(tf.test.TestCase):
    def test_the_oldest_that_may_run_again(self):
        numbers = StepNumbers()
        begun = [numbers.begin(steps) for steps in (1, 4, 2)]
        found = [one.tensor().numpy().tolist() for one in begun]
        self.assertEqual(found, [[0, 0], [1, 0], [5, 0]])
        begun[1].end()
        self.assertAllEqual(numbers.begin(1).tensor(), [7, 0])
        begun[0].end()
        begun[0].end()
        self.assertAllEqual(numbers.begin(1).tensor(), [8, 5])

    def test_all_models_of_a_strategy_have_the_same(self):
        one, other = (
            tf.distribute.get_strategy(),
            tf.distribute.MirroredStrategy(["CPU:0"]),
        )
        self.assertIs(step_numbers(one), step_numbers(one))
        self.assertIsNot(step_numbers(one), step_numbers(other))


if __name__ == "__main__":
    tf.test.main()
