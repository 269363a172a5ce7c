# SPDX-License-Identifier: Apache-2.0
"""What a step of workers costs in collectives, and that many cost no memory."""

import os
import re

import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases import multi_worker_long_cases as cases
from clusters.case_workers import Workers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.both_kerases(slow=True),
]

_MOST_BYTES = 5_000_000
_MOST_THREADS = 10

# A branch has a number if it is not the first of its scope.
_BRANCH = re.compile(r"/cond(_\d+)?/")

_CASES = Workers(2, timeout_seconds=900)


def tearDownModule():
    _CASES.stop()


class StepTest(tf.test.TestCase):
    def test_collectives_of_wide_and_deep(self):
        for found in _CASES[cases.collectives_in_graph]:
            print(found)
            all_to_all = [
                kind for kind in found if kind.startswith("CollectiveAllToAll")
            ]
            self.assertEqual(all_to_all, ["CollectiveAllToAllV2"])
            # Signs, rows and gradients, whatever the number of tables; and
            # signs again in a step that has many more than the one before.
            places = found["CollectiveAllToAllV2"]
            self.assertLen(places, 4)
            self.assertLen([p for p in places if _BRANCH.search(p)], 1)
            # All learn the sizes of that of signs from the signs' own. Another
            # agreement is on the number of samples; and what a worker finds
            # wrong is asked for only if one has found something. Dense
            # gradients are few enough to be sent with those of tables.
            self.assertNotIn("CollectiveReduceV2", found)
            self.assertLen(found["TfExt>SparseTablesPush"], 1)
            self.assertNotIn("TfExt>SparseTablePush", found)
            places = found["CollectiveGatherV2"]
            self.assertLen(places, 2)
            self.assertLen([p for p in places if _BRANCH.search(p)], 1)


class LongRunTest(parameterized.TestCase, tf.test.TestCase):
    def _assert_steady(self, case, results):
        for measured in results[case]:
            print(measured)
            self.assertLen(measured, 10)
            memory, threads = zip(*measured[4:])
            self.assertLess(memory[-1] - memory[0], _MOST_BYTES)
            # Pools of TensorFlow and gRPC start threads when they first need
            # them, which may be late; a thread a hundred steps would be many.
            self.assertLess(threads[-1] - threads[0], _MOST_THREADS)

    @parameterized.parameters("long_custom_loop", "long_fit")
    @pytest.mark.timeout(450)
    def test_needs_no_more_memory_with_time(self, case):
        if case not in cases.LONG:
            self.skipTest("tf_keras's fit makes new keys for collectives")
        self._assert_steady(getattr(cases, case), _CASES)

    @pytest.mark.slow
    @pytest.mark.timeout(4000)
    def test_needs_no_more_memory_in_100_000_steps(self):
        os.environ["TF_EXT_TEST_STEPS"] = "100000"
        try:
            results = Workers(2, timeout_seconds=3900)
            self.addCleanup(results.stop)
            for case in cases.LONG:
                self._assert_steady(getattr(cases, case), results)
        finally:
            del os.environ["TF_EXT_TEST_STEPS"]


if __name__ == "__main__":
    tf.test.main()
