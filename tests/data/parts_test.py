# SPDX-License-Identifier: Apache-2.0
"""Records that are cut out of others."""

import itertools
from unittest import mock

import numpy as np
import pyarrow as pa
from absl.testing import absltest

from tf_ext.data import Field, Schema
from tf_ext.data import layout as layout_module
from tf_ext.data import parts as parts_module
from tf_ext.data.layout import Layout
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

    def test_more_text_than_an_array_of_bytes_has(self):
        texts = [[b"ab", b"", b"c"], [b"d"], [b"ef"]]
        parts = [
            Part(len(some), {"x": pa.array(some, pa.binary())}, {})
            for some in texts
        ]
        with mock.patch.object(parts_module, "_MOST_BYTES", 20):
            whole = parts_module.concat(parts).slice(1, 5)
        self.assertEqual(whole.dense["x"].type, pa.large_binary())
        layout = Layout(Schema([Field("x")]))
        text, offsets = layout.tensors(whole)
        self.assertEqual(bytes(text), b"cdef")
        self.assertEqual(offsets.tolist(), [[0, 0, 1, 2, 4]])

    def test_columns_of_more_text_than_int32_counts(self):
        ends = np.array([0, 2_000_000_000], np.int32)
        text = np.empty(0, np.uint8)  # As is any slice of it.
        one = pa.array([b""])
        with mock.patch.object(
            layout_module, "text_of", return_value=(ends, text)
        ):
            _, offsets = Layout(Schema([Field("x"), Field("y")])).tensors(
                Part(1, {"x": one, "y": one}, {})
            )
        self.assertEqual(
            offsets.tolist(),
            [[0, 2_000_000_000], [2_000_000_000, 4_000_000_000]],
        )


if __name__ == "__main__":
    absltest.main()
