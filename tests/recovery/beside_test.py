# SPDX-License-Identifier: Apache-2.0
"""Work that is begun here and done in another thread."""

import contextlib
import inspect
import threading
import time
from unittest import mock

import interrupts
import tensorflow as tf
from absl.testing import parameterized

from tf_ext.recovery import beside
from tf_ext.regimes import local_regime
from tf_ext.regimes.processes import Processes

_WAIT_SECONDS = 60


class FirstOfTwo(Processes):
    """The first of two processes, of which the other never lags behind."""

    count = 2

    def __init__(self):
        self.agreements = []

    def together(self, what):
        self.agreements.append(what)
        return contextlib.nullcontext()


_PROCESSES = (("one", local_regime().processes), ("two", FirstOfTwo()))


class BesideTest(parameterized.TestCase, tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.done = []
        self.go_on = threading.Event()
        self.addCleanup(self.go_on.set)

    def parts(self):
        def first():
            self.go_on.wait(_WAIT_SECONDS)
            self.note("first")

        self.note("begin")
        try:
            yield first
            self.note("between")
            yield lambda: self.note("second")
            self.note("end")
        except BaseException as error:
            self.note(type(error).__name__)
            raise

    def note(self, what):
        here = threading.current_thread() is threading.main_thread()
        self.done.append((what, here))

    @parameterized.named_parameters(*_PROCESSES)
    def test_goes_on_beside(self, processes):
        work = beside.Beside(self.parts(), processes, "what")
        for _ in range(3):
            self.assertFalse(work.go_on())
        self.assertEqual(self.done, [("begin", True)])
        self.go_on.set()
        self.assertTrue(work.go_on(wait=True))
        between = processes.count > 1  # Where collectives may be called.
        self.assertEqual(
            self.done,
            [
                ("begin", True),
                ("first", False),
                ("between", between),
                ("second", False),
                ("end", between),
            ],
        )
        self.assertTrue(work.go_on())

    @parameterized.named_parameters(*_PROCESSES)
    def test_goes_on_without_being_waited_for(self, processes):
        self.go_on.set()
        work = beside.Beside(self.parts(), processes, "what")
        give_up = time.monotonic() + _WAIT_SECONDS
        while not work.go_on() and time.monotonic() < give_up:
            time.sleep(0.001)
        self.assertTrue(work.go_on())
        self.assertLen(self.done, 5)

    @parameterized.named_parameters(*_PROCESSES)
    def test_an_error_comes_once_and_ends_all(self, processes):
        def fail():
            raise OSError(28, "No space left on device")

        def parts():
            try:
                yield fail
            except GeneratorExit:
                self.done.append("undone")
                raise

        work = beside.Beside(parts(), processes, "what")
        with self.assertRaisesRegex(OSError, "No space"):
            work.go_on(wait=True)
        self.assertEqual(self.done, ["undone"])
        self.assertTrue(work.go_on())

    @parameterized.named_parameters(*_PROCESSES)
    def test_an_error_before_the_first_part(self, processes):
        def parts():
            raise ValueError("at once")
            yield

        with self.assertRaisesRegex(ValueError, "at once"):
            beside.Beside(parts(), processes, "what")

    def test_what_is_abandoned_is_undone(self):
        work = beside.Beside(self.parts(), FirstOfTwo(), "what")
        self.go_on.set()
        work.abandon()
        self.assertEqual(
            [what for what, _ in self.done], ["begin", "first", "GeneratorExit"]
        )
        self.assertTrue(work.go_on(wait=True))

    def test_one_process_ends_what_is_abandoned(self):
        work = beside.Beside(self.parts(), local_regime().processes, "what")
        self.go_on.set()
        work.abandon()
        self.assertEqual(self.done[-1], ("end", False))

    def test_what_hangs_is_left_alone(self):
        work = beside.Beside(self.parts(), local_regime().processes, "what")
        with mock.patch.object(beside, "_PATIENCE_SECONDS", 0.01):
            work.abandon()
        self.assertTrue(work.go_on())
        self.assertEqual(self.done, [("begin", True)])

    @parameterized.named_parameters(*_PROCESSES)
    def test_nothing_goes_on_after_an_interrupt(self, processes):
        """Wherever it comes as the work begins."""

        def parts():
            yield lambda: time.sleep(0.02)

        def begin():
            nonlocal begun
            begun = parts()
            beside.Beside(begun, processes, "what")

        begun, count = None, 0
        for was_interrupted, point in interrupts.at_each_point(begin):
            count += 1
            if was_interrupted and begun.gi_frame is not None:
                state = inspect.getgeneratorstate(begun)
                self.assertEqual(state, inspect.GEN_CREATED, str(point))
        self.assertGreater(count, 5)

    def test_all_parts_agree(self):
        processes = FirstOfTwo()
        self.go_on.set()
        work = beside.Beside(self.parts(), processes, "what")
        work.go_on(wait=True)
        self.assertEqual(processes.agreements, ["what"] * 2)

    def test_run(self):
        self.go_on.set()
        beside.run(self.parts(), FirstOfTwo(), "what")
        self.assertEqual([here for _, here in self.done], [True] * 5)

    def test_run_undoes_what_an_error_ends(self):
        parts = self.parts()
        self.go_on.set()
        with mock.patch.object(self, "go_on") as fails:
            fails.wait.side_effect = OSError(28, "No space left on device")
            with self.assertRaisesRegex(OSError, "No space"):
                beside.run(parts, FirstOfTwo(), "what")
        self.assertEqual(
            [what for what, _ in self.done], ["begin", "GeneratorExit"]
        )


if __name__ == "__main__":
    tf.test.main()
