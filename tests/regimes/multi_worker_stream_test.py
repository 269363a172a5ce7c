# SPDX-License-Identifier: Apache-2.0
"""Streams whose partitions synchronous workers divide."""

import pytest
from absl.testing import absltest
from cases import stream_cases
from clusters.case_workers import shared_workers

from tf_ext._keras import IS_KERAS_3

pytestmark = [
    pytest.mark.process("workers"),
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except("StreamTest::test_ends_while_nothing_comes"),
]

_CASES = {size: shared_workers(size) for size in (2, 3)}


class StreamTest(absltest.TestCase):
    def test_each_record_once(self):
        for size, cases in _CASES.items():
            found = {}
            for of_worker in cases[stream_cases.each_record_once]:
                self.assertFalse(found.keys() & of_worker.keys())
                found |= of_worker
            wanted = dict.fromkeys(range(stream_cases.RECORDS), 1.0)
            self.assertEqual(found, wanted, size)

    def test_epochs_of_functions(self):
        for refused, epochs in _CASES[2][stream_cases.epochs_without_steps]:
            if not IS_KERAS_3:
                self.assertIn("`steps_per_epoch` of fit must be a", refused)
            self.assertEqual(epochs, 2)

    def test_ends_while_nothing_comes(self):
        found = _CASES[2][stream_cases.stopped_after_all_records]
        self.assertEqual(found, [32, 32])

    def test_a_stream_without_shards(self):
        for error in _CASES[2][stream_cases.a_stream_without_shards]:
            self.assertIn("a function from the tf.distribute.Input", error)


if __name__ == "__main__":
    absltest.main()
