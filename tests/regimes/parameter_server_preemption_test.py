# SPDX-License-Identifier: Apache-2.0
"""SIGTERM to the tasks of a cluster with parameter servers."""

import json
import os
import pathlib
import signal

import metrics_client
import processes
import pytest
from absl.testing import absltest
from programs import preemption_program as program
from saving_util import TestCase

from tf_ext.distribute.ports import free_ports
from tf_ext.recovery import files as point_files
from tf_ext.recovery import preemption

pytestmark = [
    pytest.mark.process,
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "PreemptionTest::*",
    ),
]

_EACH_ONCE_AN_EPOCH = {
    str(sample): program.EPOCHS for sample in range(program.SAMPLES)
}


class PreemptionTest(TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.directory()
        self.chief = f"127.0.0.1:{free_ports(1)[0]}"

    def _start_servers(self, workers=1, ps=1, options=()):
        """Dict of (job, index) -> a running server, of a new cluster."""
        ports = free_ports(2 * (workers + ps))
        self.cluster = {
            "chief": [self.chief],
            "worker": [f"127.0.0.1:{ports.pop()}" for _ in range(workers)],
            "ps": [f"127.0.0.1:{ports.pop()}" for _ in range(ps)],
        }
        tasks = [("worker", i) for i in range(workers)]
        tasks += [("ps", i) for i in range(ps)]
        self.metrics = {task: ports.pop() for task in tasks}
        return {task: self._start_server(*task, *options) for task in tasks}

    def _start_server(self, job, index, *options):
        return self._start(
            *(job, index, "-m", "tf_ext.distribute.server"),
            f"--metrics_port={self.metrics[job, index]}",
            *options,
        )

    def _start(self, job, index, *command):
        config = {
            "cluster": self.cluster,
            "task": {"type": job, "index": index},
        }
        return self.enterContext(
            processes.Program(*command, TF_CONFIG=json.dumps(config))
        )

    def _start_chief(self, number, strategy="servers"):
        return self._start(
            *("chief", 0, "preemption_program.py"),
            *(self.folder, strategy, number),
        )

    def _wait_until_ready(self, chief, times=1):
        processes.wait_until(
            lambda: (
                chief.output().count(program.READY + "\n") == times
                or chief.has_ended()
            )
        )
        self.assertFalse(chief.has_ended(), chief.log())

    def _go_on(self, number):
        pathlib.Path(program.signalled(self.folder, number)).touch()

    def _send_when_ready(self, chief, number, tasks):
        self._wait_until_ready(chief)
        for task in tasks:
            task.process.send_signal(signal.SIGTERM)
        self._go_on(number)

    def _check_metrics_of_servers(self):
        """Of a cluster that trains, in the middle of the first epoch."""
        for task, port in self.metrics.items():
            job, index = task
            self.assertEqual(metrics_client.get(port, "/ready")[0], 200)
            found = metrics_client.samples(port)
            self.assertIn(
                f"/job:{job}/task:{index}",
                [name[1] for name in found if name[0] == "tf_ext_task_info"],
            )
            if job == "ps":
                self.assertGreaterEqual(
                    found["tf_ext_table_rows", "counts"], 16
                )
                self.assertGreaterEqual(
                    found["tf_ext_table_op_ids_total", "push", "counts"], 16
                )
            else:
                self.assertGreaterEqual(found["tf_ext_hash_ids_total",], 16)

    def test_goes_on_at_the_next_step(self):
        servers = self._start_servers()
        # To all at once.
        chief = self._start_chief(0)
        self._wait_until_ready(chief)
        self._check_metrics_of_servers()
        self._send_when_ready(chief, 0, [*servers.values(), chief])
        chief.wait(preemption.STATUS)
        for (job, index), task in servers.items():
            task.wait()
            self.assertIn(
                f"/job:{job}/task:{index}: Stays on SIGTERM until the chief at",
                task.log(),
            )
        points = point_files.list_points(os.path.join(self.folder, "points"))
        self.assertLen(points, 1)
        self.assertIn(f"resume from {points[0]}", chief.log())
        self.assertIn("/job:chief/task:0: On SIGTERM, training", chief.log())
        # To the chief alone, of a cluster with other numbers of tasks.
        self._start_servers(workers=2, ps=2)
        chief = self._start_chief(1)
        self._send_when_ready(chief, 1, [chief])
        chief.wait(preemption.STATUS)
        before, after, metrics, counts = map(
            json.loads, self._start_chief(1).wait().splitlines()
        )
        self.assertEqual(counts, _EACH_ONCE_AN_EPOCH)
        self.assertEqual([before[0], after[0]], [503, 200])
        self.assertEqual(metrics["tf_ext_steps_in_flight"], 0)
        steps = metrics["tf_ext_steps_total"]
        self.assertBetween(steps, 1, 2 * program.SAMPLES // program.BATCH)
        self.assertEqual(metrics["tf_ext_staleness_steps_count"], steps)

    @pytest.mark.slow
    def test_one_task_alone_that_is_started_again(self):
        options = ["--grace_seconds=0.5"]  # The chief does not end.
        servers = self._start_servers(options=options)
        chief = self._start_chief(2, "recovery")
        for epoch, task in enumerate([("worker", 0), ("ps", 0)]):
            self._wait_until_ready(chief, epoch + 1)
            servers[task].process.send_signal(signal.SIGTERM)
            servers[task].wait()
            job, index = task
            self.assertIn(
                f"/job:{job}/task:{index}: Ends on SIGTERM",
                servers[task].log(),
            )
            servers[task] = self._start_server(*task)
            self._go_on(f"2-{epoch}")
        printed = chief.wait().splitlines()
        self.assertEqual(json.loads(printed[-1]), _EACH_ONCE_AN_EPOCH)
        # The worker's end cost nothing, the server's was noticed.
        self.assertEqual(chief.log().count("Lost parameter servers:"), 1)
        self.assertIn(
            "/job:chief/task:0: Lost parameter servers: /job:ps/task:0",
            chief.log(),
        )


if __name__ == "__main__":
    absltest.main()
