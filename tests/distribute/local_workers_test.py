# SPDX-License-Identifier: Apache-2.0
"""Running workers on this machine, with programs that need no TensorFlow."""

import contextlib
import io
import json
import pathlib
import signal
import sys

import processes
import pytest
import tensorflow as tf

from tf_ext import distribute

_PRINT_CONFIG = """
import os, sys
print(os.environ["TF_CONFIG"])
print("log", file=sys.stderr)
"""
# Worker 1 fails; the other says so once it has seen the mark.
_FAIL = """
import json, os, pathlib, sys, time
mark = pathlib.Path(sys.argv[1])
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
    print("so much", end="")
    mark.touch()
    sys.exit("worker 1 is out")
while not mark.exists():
    time.sleep(0.01)
time.sleep(float(sys.argv[2]))
sys.exit("lost worker 1")
"""
_FAIL_TWICE = """
import pathlib, sys
lives = pathlib.Path(sys.argv[1])
lives.write_text(lives.read_text() + "i" if lives.exists() else "i")
print(lives.read_text())
sys.exit(len(lives.read_text()) < 3)
"""


def _run(program, *arguments, **options):
    """The result, and what this process wrote to stdout and stderr."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with (
        contextlib.redirect_stdout(io.StringIO()) as output,
        contextlib.redirect_stderr(io.StringIO()) as log,
    ):
        results = distribute.run_local_workers(command, **options)
    return results, output.getvalue(), log.getvalue()


class RunLocalWorkersTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.path = pathlib.Path(self.get_temp_dir()) / self.id()

    def test_tells_each_who_it_is_and_shows_the_first(self):
        results, output, log = _run(_PRINT_CONFIG, workers=3)
        configs = [json.loads(result.output) for result in results]
        self.assertEqual(
            [config["task"] for config in configs],
            [{"type": "worker", "index": index} for index in range(3)],
        )
        addresses = configs[0]["cluster"]["worker"]
        self.assertLen(set(addresses), 3)
        for config in configs:
            self.assertEqual(config["cluster"], {"worker": addresses})
        self.assertEqual([result.status for result in results], [0] * 3)
        self.assertEqual([result.log for result in results], ["log\n"] * 3)
        self.assertEqual((output, log), (results[0].output, results[0].log))

    def test_shows_why_a_worker_failed(self):
        with self.assertRaisesRegex(
            distribute.LocalWorkersError,
            r"(?s)The workers \[0, 1\] failed.*-- worker 1 at 127.0.0.1:\d+ "
            "ended with status 1. It wrote:\nso much\nworker 1 is out",
        ) as raised:
            _run(_FAIL, self.path, 0.2)
        self.assertEqual(raised.exception.results[0].log, "lost worker 1\n")
        # What it wrote was shown already.
        self.assertNotIn("worker 0 at", str(raised.exception))

    def test_ends_those_that_do_not_notice_it(self):
        with self.assertRaisesRegex(
            distribute.LocalWorkersError, r"The workers \[1\] failed"
        ) as raised:
            _run(_FAIL, self.path, 3600, report_timeout_seconds=0.2)
        self.assertEqual(
            [result.status for result in raised.exception.results],
            [-signal.SIGTERM, 1],
        )

    def test_starts_all_again(self):
        with self.assertLogs("tf_ext.distribute.local_workers") as logs:
            results, output, _ = _run(
                _FAIL_TWICE, self.path, workers=1, restarts=2
            )
        self.assertLen(logs.records, 2)
        self.assertIn("restarted (at most 1 more times)", logs.output[1])
        self.assertEqual(results[0].output, "iii\n")
        self.assertEqual(output, "i\nii\niii\n")

    def test_gives_up_after_the_last_restart(self):
        with (
            self.assertLogs("tf_ext.distribute.local_workers"),
            self.assertRaises(distribute.LocalWorkersError),
        ):
            _run(_FAIL_TWICE, self.path, workers=1, restarts=1)

    def test_ends_workers_that_take_too_long(self):
        with self.assertRaisesRegex(
            TimeoutError, "(?s)not ended after 0.3 s.*ended by SIGTERM"
        ):
            _run("import time; time.sleep(3600)", timeout_seconds=0.3)

    def test_refuses_counts(self):
        for name, least in (("workers", 1), ("restarts", 0)):
            with self.assertRaisesRegex(
                ValueError,
                f"`{name}` of .* must be an integer of at "
                f"least {least}. Received: {name}=-1",
            ):
                _run(_PRINT_CONFIG, **{name: -1})


class LocalWorkersTest(tf.test.TestCase):
    def test_workers_end_with_the_block(self):
        command = [sys.executable, "-c", "import time; time.sleep(3600)"]
        with distribute.LocalWorkers(command, 2, start=[0]) as workers:
            self.assertEqual(workers.statuses(), {0: None})
            workers.start(1)
            workers.kill(0)
            self.assertEqual(workers.statuses(), {0: -signal.SIGKILL, 1: None})
            with self.assertRaisesRegex(
                TimeoutError, r"(?s)workers \[1\] have not ended.*worker 1 at"
            ):
                workers.wait(0.1)
            pids = workers.pids()
        processes.wait_until_ended(pids)

    def test_environment(self):
        command = [sys.executable, "-c", "import os; print(os.environ['MINE'])"]
        with distribute.LocalWorkers(
            command, 1, environment={"MINE": "here"}
        ) as workers:
            self.assertEqual(workers.wait(60)[0].output, "here\n")

    @pytest.mark.slow
    def test_workers_end_when_their_parent_is_killed(self):
        pids = processes.kill_parent("local_workers_program.py")
        self.assertLen(pids, 2)


if __name__ == "__main__":
    tf.test.main()
