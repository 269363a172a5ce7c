# SPDX-License-Identifier: Apache-2.0
"""Tests that what fails in processes of tests fails the tests."""

import contextlib
import tempfile
import threading
from unittest import mock

from absl.testing import absltest
from clusters import tasks

_TIMEOUT_SECONDS = 20


class _EndError(BaseException):
    """Ends a thread, as a signal ends a process."""


def _run_all(folder, rank, released):
    """What a process of rank `rank` does; `released` ends its waits."""

    def run(task):
        if task == "end":
            raise _EndError
        if task == "1 fails" and rank == 1:
            raise ValueError("of rank 1")
        if task == "1 fails, 0 waits":
            if rank == 1:
                raise ValueError("of rank 1")
            released.wait(60)
        if task == "wait":
            released.wait(60)
        return task, rank

    with contextlib.suppress(_EndError):
        tasks.run_all(folder, rank, run)


class TasksTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enter_context(tempfile.TemporaryDirectory())
        self.ended = False
        self.tasks = tasks.Tasks(
            folder, 2, lambda: self.ended, lambda: "the log"
        )
        released = threading.Event()
        threads = [
            threading.Thread(target=_run_all, args=(folder, rank, released))
            for rank in range(2)
        ]
        for thread in threads:
            thread.start()
            self.addCleanup(thread.join)
        self.addCleanup(self.tasks.send, "end")
        self.addCleanup(released.set)

    def results(self, task, timeout_seconds=_TIMEOUT_SECONDS):
        return self.tasks.results(self.tasks.send(task), timeout_seconds)

    def test_results_of_all_in_order(self):
        first = self.tasks.send("first")
        self.assertEqual(self.results("second"), [("second", 0), ("second", 1)])
        self.assertEqual(
            self.tasks.results(first, _TIMEOUT_SECONDS),
            [("first", 0), ("first", 1)],
        )

    def test_an_error_of_one(self):
        with self.assertRaisesRegex(AssertionError, "ValueError: of rank 1"):
            self.results("1 fails")
        self.assertEqual(self.results("next"), [("next", 0), ("next", 1)])

    @mock.patch.object(tasks, "_AFTER_A_FAILURE_SECONDS", 0.1)
    def test_an_error_while_another_waits(self):
        with self.assertRaisesRegex(AssertionError, "ValueError: of rank 1"):
            self.results("1 fails, 0 waits")

    def test_one_that_takes_too_long(self):
        with self.assertRaisesRegex(TimeoutError, "0.1 s:\nthe log"):
            self.results("wait", 0.1)

    def test_one_that_ended(self):
        self.ended = True
        with self.assertRaisesRegex(AssertionError, "ended:\nthe log"):
            self.results("wait")


if __name__ == "__main__":
    absltest.main()
