"""SIGTERM to synchronous workers: all stop after the same step."""

import json
import pathlib
import signal
import sys

import multi_worker_util
import preemption_program as program
import processes
import tensorflow as tf
from paths import SUPPORT
from saving_util import TestCase

from tf_ext import distribute
from tf_ext.callbacks import preemption

_TIMEOUT_SECONDS = 200


class PreemptionTest(TestCase):
    def _workers(self, folder, number):
        command = [sys.executable, SUPPORT / "preemption_program.py"]
        return distribute.LocalWorkers(
            [*command, folder, "workers", number],
            2,
            environment=multi_worker_util.ENVIRONMENT,
        )

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
                self.assertIn("On SIGTERM, training ends after", result.log)
        with self._workers(folder, 1) as workers:
            results = workers.wait(_TIMEOUT_SECONDS)
        counts = {}
        for result in results:
            self.assertEqual(result.status, 0, result.log)
            counts |= json.loads(result.output.splitlines()[-1])
        self.assertEqual(
            counts,
            {str(sample): program.EPOCHS for sample in range(program.SAMPLES)},
        )


if __name__ == "__main__":
    tf.test.main()
