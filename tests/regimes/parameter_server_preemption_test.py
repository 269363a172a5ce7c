"""SIGTERM to the tasks of a cluster with parameter servers."""

import json
import os
import pathlib
import signal

import preemption_program as program
import processes
from absl.testing import absltest
from saving_util import TestCase

from tf_ext.callbacks import point_files, preemption
from tf_ext.distribute.ports import free_ports


class PreemptionTest(TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.directory()
        ports = free_ports(3)
        self.cluster = {
            job: [f"127.0.0.1:{ports.pop()}"]
            for job in ("chief", "worker", "ps")
        }

    def _start(self, job, *command):
        config = {"cluster": self.cluster, "task": {"type": job, "index": 0}}
        return self.enterContext(
            processes.Program(*command, TF_CONFIG=json.dumps(config))
        )

    def _start_servers(self):
        return [
            self._start(job, "-m", "tf_ext.distribute.server")
            for job in ("worker", "ps")
        ]

    def _start_chief(self, number):
        return self._start(
            "chief", "preemption_program.py", self.folder, "servers", number
        )

    def _send_when_ready(self, chief, number, tasks):
        processes.wait_until(
            lambda: program.READY in chief.output() or chief.has_ended()
        )
        self.assertFalse(chief.has_ended(), chief.log())
        for task in tasks:
            task.process.send_signal(signal.SIGTERM)
        pathlib.Path(program.signalled(self.folder, number)).touch()

    def test_goes_on_at_the_next_step(self):
        servers = self._start_servers()
        # To all at once.
        chief = self._start_chief(0)
        self._send_when_ready(chief, 0, [*servers, chief])
        chief.wait(preemption.STATUS)
        for task in servers:
            task.wait()
            self.assertIn("stays on SIGTERM until the chief at", task.log())
        points = point_files.list_points(os.path.join(self.folder, "points"))
        self.assertLen(points, 1)
        self.assertIn(f"goes on from {points[0]}", chief.log())
        # To the chief alone.
        self._start_servers()
        chief = self._start_chief(1)
        self._send_when_ready(chief, 1, [chief])
        chief.wait(preemption.STATUS)
        printed = self._start_chief(1).wait()
        self.assertEqual(
            json.loads(printed.splitlines()[-1]),
            {str(sample): program.EPOCHS for sample in range(program.SAMPLES)},
        )


if __name__ == "__main__":
    absltest.main()
