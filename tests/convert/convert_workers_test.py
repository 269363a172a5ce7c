# SPDX-License-Identifier: Apache-2.0
"""Keras models become models with tables on synchronous workers."""

import pytest
import tensorflow as tf
from cases import convert_cases
from clusters.case_workers import alone, shared_workers

pytestmark = [
    pytest.mark.process("workers"),
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow,
]


class WorkersTest(tf.test.TestCase):
    def test_rows_are_on_all_of_them(self):
        results = shared_workers(2)[convert_cases.converted]
        self.assertLen(results, 2)
        for expected, found, sizes in results:
            self.assertLen(found, 2)
            for one, other in zip(found, expected, strict=True):
                self.assertAllEqual(one, other)
            self.assertEqual(sizes, {4: 20, 2: 15})

    def test_rows_of_files_are_on_all_of_them(self):
        expected = convert_cases.taken_from_files(alone())
        for found in shared_workers(2)[convert_cases.taken_from_files]:
            convert_cases.assert_as_alone(self, found, expected)


if __name__ == "__main__":
    tf.test.main()
