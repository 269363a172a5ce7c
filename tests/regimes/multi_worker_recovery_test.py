# SPDX-License-Identifier: Apache-2.0
"""A synchronous worker dies; all start again and go on from the last backup."""

import json
import tempfile

import pytest
import tensorflow as tf
from clusters import multi_worker_util
from paths import PROGRAMS

from tf_ext import distribute

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "RecoveryTest::test_goes_on_from_a_point_inside_an_epoch",
    ),
]

_PROGRAM = PROGRAMS / "multi_worker_recovery_program.py"
_TIMEOUT_SECONDS = 200


class RecoveryTest(tf.test.TestCase):
    def train(self, *options, restarts=0):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        with multi_worker_util.forks():
            results = distribute.run_local_workers(
                [_PROGRAM, folder, *options],
                workers=2,
                timeout_seconds=_TIMEOUT_SECONDS,
                restarts=restarts,
                report_timeout_seconds=30.0,
            )
        found = [json.loads(r.output.splitlines()[-1]) for r in results]
        self.assertEqual(found[0]["auc"], found[1]["auc"])
        return found

    def check(self, *options):
        undisturbed = self.train()
        recovered = self.train("--lose=1", *options, restarts=1)
        for one, other in zip(undisturbed, recovered):
            self.assertEqual(one["epochs"], [0, 1, 2, 3])
            self.assertEqual(other["epochs"], [2, 3])
            self.assertEqual(other["steps"], one["steps"])
            self.assertEqual(other["rows"], one["rows"])
            self.assertNotEmpty(one["counters"])
            self.assertEqual(other["counters"], one["counters"])
            self.assertAllClose(other["sum"], one["sum"], 1e-5)
            self.assertNear(other["auc"], one["auc"], 0.005)
            self.assertGreater(one["auc"], 0.55)

    def test_goes_on_from_a_point_inside_an_epoch(self):
        self.check("--snapshots")

    @pytest.mark.slow
    def test_goes_on_from_a_backup_of_an_epoch(self):
        self.check()


if __name__ == "__main__":
    tf.test.main()
