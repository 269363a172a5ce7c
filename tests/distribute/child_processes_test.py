# SPDX-License-Identifier: Apache-2.0
"""How processes that this one starts are ended."""

import os
import select
import signal
import tempfile
from unittest import mock

from absl.testing import absltest

from tf_ext.distribute import child_processes


class ChildProcessesTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.log = self.enterContext(tempfile.TemporaryFile())
        self.processes = child_processes.ChildProcesses(2)
        self.addCleanup(self.processes.close)

    def start(self, key, script, **environment):
        """Starts a shell; returns the first line that it prints."""
        read, write = os.pipe()
        with open(read, "rb") as output, open(write, "wb") as end:
            self.processes.start(
                key, ["/bin/sh", "-c", script], end, self.log, **environment
            )
            end.close()
            return output.readline().decode().strip()

    @mock.patch.object(child_processes, "_STOP_SECONDS", 0.2)
    def test_those_that_do_not_end_are_killed(self):
        self.start("ends", "echo; exec sleep 300")
        self.start("stopped", "echo; exec sleep 300")
        self.start("ignores", "trap '' TERM; echo; exec sleep 300")
        self.start("has ended", "echo; exit 3")
        self.processes["has ended"].wait()
        self.processes.send("stopped", signal.SIGSTOP)
        status = self.processes.status
        self.assertIsNone(status("ends"))
        self.assertEqual(status("has ended"), 3)
        self.processes.end_all()
        self.assertEqual(
            {key: status(key) for key in self.processes.keys()},
            {
                "ends": -signal.SIGTERM,
                "stopped": -signal.SIGTERM,
                "ignores": -signal.SIGKILL,
                "has ended": 3,
            },
        )

    def test_what_a_process_has_started_is_killed_with_it(self):
        child = int(self.start(0, "sleep 300 & echo $!; wait"))
        end = os.pidfd_open(child)
        self.addCleanup(os.close, end)
        self.processes.kill(0)
        self.assertEqual(self.processes.status(0), -signal.SIGKILL)
        self.assertEqual(select.select([end], [], [], 60)[0], [end])
        self.start(0, "echo; exec sleep 300")
        self.assertIsNone(self.processes.status(0))

    def test_environment(self):
        processors = len(os.sched_getaffinity(0))
        with mock.patch.dict(os.environ, {"ELSEWHERE": "1"}):
            os.environ.pop("TF_NUM_INTRAOP_THREADS", None)
            script = "echo $TF_NUM_INTRAOP_THREADS $ELSEWHERE $HERE"
            found = self.start(0, script, HERE="2")
        self.assertEqual(found, f"{max(1, processors // 2)} 1 2")
        found = self.start(0, script, TF_NUM_INTRAOP_THREADS="7")
        self.assertEqual(found, "7")


if __name__ == "__main__":
    absltest.main()
