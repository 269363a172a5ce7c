# SPDX-License-Identifier: Apache-2.0
"""SIGTERM to synchronous workers: all stop after the same step."""

import json
import pathlib
import signal

import processes
import pytest
import tensorflow as tf
from clusters import multi_worker_util
from programs import idle_stream_program
from programs import preemption_program as program
from saving_util import TestCase

from tf_ext._keras import IS_KERAS_3
from tf_ext.recovery import preemption

pytestmark = pytest.mark.both_kerases(slow=True)

_TIMEOUT_SECONDS = 200


class PreemptionTest(TestCase):
    def _workers(self, folder, number, count=2):
        return multi_worker_util.started(
            "preemption_program.py", folder, "workers", number, workers=count
        )

    @pytest.mark.slow
    def test_goes_on_at_the_next_step(self):
        folder = self.directory()
        # To all at once, then to one of them.
        for number, signalled in enumerate([(0, 1), (1,)]):
            with self._workers(folder, number) as workers:
                processes.wait_until(
                    lambda: (
                        all(
                            program.READY in workers.output(worker)
                            for worker in range(2)
                        )
                        or any(workers.statuses().values())
                    )
                )
                for worker in signalled:
                    workers.send(worker, signal.SIGTERM)
                pathlib.Path(program.signalled(folder, number)).touch()
                results = workers.wait(_TIMEOUT_SECONDS)
            for result in results:
                self.assertEqual(result.status, preemption.STATUS, result.log)
                self.assertRegex(
                    result.log,
                    "/job:worker/task:[01]: On SIGTERM, training ends after",
                )
        # Of another number of workers.
        with self._workers(folder, 1, 3) as workers:
            results = workers.wait(_TIMEOUT_SECONDS)
        counts = {}
        for worker, result in enumerate(results):
            self.assertEqual(result.status, 0, result.log)
            before, after, metrics, rows = map(
                json.loads, result.output.splitlines()[-4:]
            )
            self.assertEqual([before[0], after[0]], [503, 200])
            self._check_metrics(metrics, worker, rows)
            counts |= rows
        self.assertEqual(
            counts,
            {str(sample): program.EPOCHS for sample in range(program.SAMPLES)},
        )

    @pytest.mark.slow
    def test_ends_while_a_stream_has_no_records(self):
        folder = self.directory()
        idle_stream_program.write(folder)
        with multi_worker_util.started(
            "idle_stream_program.py", folder
        ) as workers:
            processes.wait_until(
                lambda: (
                    all(
                        idle_stream_program.READY in workers.output(worker)
                        for worker in range(2)
                    )
                    or multi_worker_util.has_ended(workers)
                )
            )
            workers.send(1, signal.SIGTERM)
            results = workers.wait(_TIMEOUT_SECONDS)
        for result in results:
            self.assertEqual(result.status, preemption.STATUS, result.log)
            self.assertIn("training ends after step 3, to", result.log)

    def _check_metrics(self, metrics, worker, rows):
        whole = program.EPOCHS * program.SAMPLES // program.BATCH
        self.assertEqual(metrics["tf_ext_table_step counts"], whole)
        self.assertEqual(metrics["tf_ext_table_rows counts"], len(rows))
        for op in ("pull", "push"):
            calls = metrics[f"tf_ext_table_op_seconds_count {op} counts"]
            self.assertBetween(calls, 1, whole)
            if IS_KERAS_3:
                self.assertEqual(metrics["tf_ext_steps_total"], calls)
        [task] = [
            name.split()[1]
            for name in metrics
            if name.startswith("tf_ext_task_info ")
        ]
        self.assertEqual(task, f"/job:worker/task:{worker}")


if __name__ == "__main__":
    tf.test.main()
