# SPDX-License-Identifier: Apache-2.0
"""Groups of batches, and the position of a worker in them."""

import pytest
import tensorflow as tf
from absl.testing import parameterized

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
    def _share(self, batches=4):
        groups = Groups(tf.TensorSpec([], tf.int64), 1)
        return groups, Share(
            lambda: groups.of(_numbers(batches).shuffle(batches, seed=1)),
            groups.first_size(),
        )

    def _epoch(self, groups, share, epoch):
        read = []

        def step(iterator):
            group, following = next(iterator)
            read.append(int(groups.take(group, 0)))
            return [tf.stack([7, following])]

        share.begin(epoch)
        while share.left:
            share.begin(epoch)
            results, steps = share.run(step)
            self.assertAllEqual(results, [7])
            self.assertEqual(steps, 1)
        return read

    def test_a_lost_worker_goes_on_with_the_order_of_the_epoch(self):
        groups, share = self._share()
        orders = [self._epoch(groups, share, epoch) for epoch in range(3)]
        for order in orders:
            self.assertCountEqual(order, range(4))
        self.assertNotEqual(orders[0], orders[2])
        share.forget()
        self.assertIsNone(share.left)
        self.assertEqual(self._epoch(groups, share, 2), orders[2])

    def test_an_epoch_that_was_left_begins_anew(self):
        groups, share = self._share()
        share.begin(0)
        share.run(lambda iterator: [tf.stack([7, next(iterator)[1]])])
        self.assertLen(self._epoch(groups, share, 1), 4)


if __name__ == "__main__":
    tf.test.main()
