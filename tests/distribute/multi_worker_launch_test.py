# SPDX-License-Identifier: Apache-2.0
"""Synchronous workers as processes: starting, checking, losing."""

import signal
import time

import pytest
import tensorflow as tf
from clusters import multi_worker_util as util

pytestmark = pytest.mark.slow

_PROGRAM = "multi_worker_program.py"
_TIMEOUT_SECONDS = 120
_FOR_EVER = "--steps=1000000"
_TIMES_OUT = not tf.__version__.startswith("2.18.")
_SHORT_HEARTBEAT = "--heartbeat_timeout_seconds=4"


def _sums(workers, heartbeat_ms=30000):
    return [
        {
            "rank": rank,
            "total": workers * (workers + 1) / 2,
            "replicas": workers,
            # TensorFlow would keep the signal to itself.
            "catches_sigterm": False,
            "heartbeat_ms": heartbeat_ms,
        }
        for rank in range(workers)
    ]


class StartTest(tf.test.TestCase):
    def test_two_workers_add_up(self):
        self.assertEqual(
            util.run_json(_PROGRAM, _SHORT_HEARTBEAT), _sums(2, 4000)
        )

    @pytest.mark.slow
    def test_three_workers_add_up(self):
        self.assertEqual(util.run_json(_PROGRAM, workers=3), _sums(3))

    @pytest.mark.slow
    def test_a_chief_and_two_workers_by_arguments(self):
        self.assertEqual(
            util.run_json(_PROGRAM, "--chief", workers=3), _sums(3)
        )

    @pytest.mark.slow
    def test_a_cluster_of_one(self):
        self.assertEqual(util.run_json(_PROGRAM, workers=1), _sums(1, 0))

    def _assert_misses(self, worker, workers):
        if not _TIMES_OUT:
            self.skipTest("TensorFlow 2.18 waits an hour")
        started = [other for other in range(workers) if other != worker]
        with util.started(
            _PROGRAM, "--timeout_seconds=3", workers=workers, start=started
        ) as running:
            for result in running.wait(_TIMEOUT_SECONDS):
                self.assertEqual(result.status, 1)
                self.assertIn(
                    f"TimeoutError: 1 of the {workers} workers did not start "
                    f"within 3 s: /job:worker/task:{worker} at "
                    f"{running.addresses[worker]}. Start this program there",
                    result.log,
                )

    @pytest.mark.slow
    def test_names_the_worker_that_never_starts(self):
        self._assert_misses(1, workers=2)

    def test_says_where_workers_wait_longer(self):
        with util.started(_PROGRAM) as running:
            for result in running.wait(_TIMEOUT_SECONDS):
                self.assertEqual(
                    "waits up to an hour for workers that do" in result.log,
                    not _TIMES_OUT,
                )

    @pytest.mark.slow
    def test_names_the_leader_that_never_starts(self):
        self._assert_misses(0, workers=3)

    @pytest.mark.slow
    def test_refuses_another_version(self):
        with util.started(_PROGRAM, "--version_of_rank_1=9.8.7") as running:
            for worker, result in enumerate(running.wait(_TIMEOUT_SECONDS)):
                self.assertEqual(result.status, 1)
                self.assertRegex(
                    result.log,
                    f"RuntimeError: /job:worker/task:{1 - worker} at "
                    f"{running.addresses[1 - worker]} runs tf_ext .* with "
                    f"TensorFlow {tf.__version__}, but this worker runs tf_ext",
                )
                self.assertIn("tf_ext 9.8.7 with", result.log)


class LossTest(tf.test.TestCase):
    def _assert_reported(self, victim, number, workers=2):
        with util.started(
            _PROGRAM, _FOR_EVER, _SHORT_HEARTBEAT, workers=workers
        ) as running:
            while not all(
                "step 3" in running.output(worker) for worker in range(workers)
            ):
                self.assertEqual(set(running.statuses().values()), {None})
                time.sleep(0.1)
            running.send(victim, number)
            others = [worker for worker in range(workers) if worker != victim]
            for result in running.wait(_TIMEOUT_SECONDS, others):
                # An error of Python, not the end of the process by TensorFlow.
                self.assertEqual(result.status, 1)
                self.assertIn(
                    f"WorkerLostError: Lost workers: /job:worker/task:{victim} "
                    f"at {running.addresses[victim]}",
                    result.log,
                )
            return running.statuses()[victim]

    def test_of_a_worker_that_was_killed(self):
        self._assert_reported(1, signal.SIGKILL, workers=3)

    def test_of_the_leader_that_was_killed(self):
        self._assert_reported(0, signal.SIGKILL)

    @pytest.mark.slow
    def test_of_a_leader_that_is_back_before_it_is_missed(self):
        with util.started(
            _PROGRAM, _FOR_EVER, "--pause_of_rank_1=40"
        ) as running:
            while "step 0" not in running.output(1):
                self.assertEqual(set(running.statuses().values()), {None})
                time.sleep(0.1)
            running.kill(0)
            running.start(0)
            [result] = running.wait(_TIMEOUT_SECONDS, [1])
            self.assertEqual(result.status, 1)
            self.assertIn("registered before sending heartbeat", result.log)
            self.assertIn(
                "WorkerLostError: Lost workers: /job:worker/task:0 at "
                f"{running.addresses[0]}. ",
                result.log,
            )

    @pytest.mark.slow
    def test_of_a_worker_that_hangs(self):
        self._assert_reported(1, signal.SIGSTOP, workers=3)

    @pytest.mark.slow
    def test_of_the_leader_that_hangs(self):
        self._assert_reported(0, signal.SIGSTOP)

    @pytest.mark.slow
    def test_of_a_worker_that_was_told_to_end(self):
        # TensorFlow would keep the signal to itself.
        self.assertEqual(
            self._assert_reported(1, signal.SIGTERM), -signal.SIGTERM
        )


if __name__ == "__main__":
    tf.test.main()
