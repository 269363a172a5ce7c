# SPDX-License-Identifier: Apache-2.0
"""Records that are cut out of others."""

import itertools

import numpy as np
from absl.testing import absltest

from tf_ext.data.parts import Bag, Part


class PartTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.bags = [[7], [], [8, 9, 10], [11]]
        self.part = Part(
            4,
            {"x": np.arange(4)},
            {
                "bag": Bag(
                    np.concatenate(self.bags),
                    np.cumsum([0, *map(len, self.bags)]),
                )
            },
        )

    def _lists(self, part):
        values, splits = part.bags["bag"]
        self.assertEqual((splits[0], splits[-1]), (0, len(values)))
        bags = [
            values[begin:end].tolist()
            for begin, end in itertools.pairwise(splits)
        ]
        return bags, part.dense["x"].tolist()

    def test_slices(self):
        for begin in range(4):
            for end in range(begin + 1, 5):
                part = self.part.slice(begin, end)
                self.assertEqual(part.rows, end - begin)
                bags, numbers = self._lists(part)
                self.assertEqual(bags, self.bags[begin:end])
                self.assertEqual(numbers, [*range(begin, end)])

    def test_taken(self):
        for rows in ([0, 2], [3, 1, 2], []):
            part = self.part.take(np.array(rows, np.int64))
            self.assertEqual(part.rows, len(rows))
            bags = [self.bags[row] for row in rows]
            self.assertEqual(self._lists(part), (bags, rows))


if __name__ == "__main__":
    absltest.main()
