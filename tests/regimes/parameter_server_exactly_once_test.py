# SPDX-License-Identifier: Apache-2.0
"""Each sample counts once, whichever task of the cluster is killed when."""

import json
import os
import pathlib
import random
import statistics
import time

import processes
import pytest
from absl.testing import absltest, parameterized
from programs import exactly_once_program as program
from saving_util import TestCase

from tf_ext.distribute.ports import free_ports

pytestmark = [
    pytest.mark.process,
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests("*"),
]

# More by the environment variable.
_KILLS = int(os.environ.get("TF_EXT_TEST_KILLS", "4"))
_TASKS = [("worker", 0), ("worker", 1), ("ps", 0), ("ps", 1), ("chief", 0)]
_SECONDS = 300.0


class ExactlyOnceTest(TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.directory())
        ports = [f"127.0.0.1:{port}" for port in free_ports(5)]
        self.cluster = {
            "chief": ports[:1],
            "worker": ports[1:3],
            "ps": ports[3:],
        }
        self.tasks = {}
        self.addCleanup(self._stop)

    def _stop(self):
        for task in self.tasks.values():
            task.__exit__()

    def _start(self, job, index):
        command = ["-m", "tf_ext.distribute.server"]
        if job == "chief":
            command = ["exactly_once_program.py", self.folder, *self.arguments]
        config = {
            "cluster": self.cluster,
            "task": {"type": job, "index": index},
        }
        self.tasks[job, index] = processes.Program(
            *command, TF_CONFIG=json.dumps(config)
        )

    def _wait_until(self, condition):
        begin = time.monotonic()
        while not condition():
            time.sleep(0.01)
            if time.monotonic() - begin > _SECONDS:
                logs = [task.log()[-3000:] for task in self.tasks.values()]
                self.fail("\n\n".join(logs))

    def _steps(self):
        """The round, the steps of it that have ended, and the last's time."""
        file = self.folder / "steps"
        return json.loads(file.read_text()) if file.exists() else [-1, 0, 0.0]

    def _lines(self):
        file = self.folder / "rounds"
        return file.read_text().splitlines() if file.exists() else []

    def _kill(self, task):
        """Kills a task and starts it again; the seconds until steps end."""
        self.tasks[task].__exit__()
        killed = time.time()
        self._start(*task)
        # What was under way elsewhere has ended by then.
        lines = len(self._lines())
        self._wait_until(
            lambda: (
                self._steps()[2] > killed + 0.5 or len(self._lines()) > lines
            )
        )
        return time.time() - killed

    @parameterized.named_parameters(
        ("chief", "chief", 1),
        ("chief_overlapping", "chief", -4),
        ("workers", "workers", 1),
        ("workers_in_executions", "workers", 4),
        ("stream", "stream", 1),
        ("stream_in_executions", "stream", 3),
    )
    def test_kills_at_random(self, kind, execution):
        self.arguments = [kind, str(execution)]
        # Not the generator that pytest seeds.
        seed = random.SystemRandom().getrandbits(32)
        rng = random.Random(seed)
        print(f"{self.id()}: seed {seed}")
        for task in _TASKS:
            self._start(*task)
        callbacks = program.IDS // program.BATCH // abs(execution)
        seconds, extra = {}, []
        for kill in range(_KILLS):
            task = _TASKS[kill % 5] if _KILLS >= 5 else rng.choice(_TASKS)
            at = [kill, rng.randrange(callbacks // 10, callbacks * 8 // 10)]
            self._wait_until(lambda at=at: self._steps()[:2] >= at)
            time.sleep(rng.random() * 0.02)
            lost = self._kill(task)
            seconds.setdefault(task[0], []).append(lost)
            self._wait_until(lambda kill=kill: len(self._lines()) > kill)
            number, wrong, ids, iterations = json.loads(self._lines()[kill])
            print(kill, task, at, f"{lost:.1f} s", iterations)
            self.assertEqual(
                (number, wrong, ids), (kill, {}, program.IDS), (task, at)
            )
            extra.append(iterations - program.IDS // program.BATCH)
        for job, found in seconds.items():
            print(job, "median", statistics.median(found), "worst", max(found))
        print("steps of dense weights twice:", extra)


if __name__ == "__main__":
    absltest.main()
