# SPDX-License-Identifier: Apache-2.0
"""How far steps run ahead of one that is late."""

import contextlib
import gc
import threading
from unittest import mock

import tensorflow as tf
from absl.testing import absltest

from tf_ext.recovery.pause import Pause
from tf_ext.training.parameter_servers import inflight


class _LateFirst:
    """An InFlight whose first step ends when nothing else is under way."""

    def __init__(self, result):
        self._result = result
        self._under_way = []
        self.before_the_first = None
        self._finished = 0

    def schedule(self, step):
        self._under_way.append(step)

    def settle(self):
        late = self.before_the_first is None
        step = self._under_way.pop(late and len(self._under_way) > 1)
        if late and step.batch == 0:
            self.before_the_first = self._finished
        self._finished += 1
        step.run.finish(step, self._result)

    def end(self, run):
        del run


class RunTest(absltest.TestCase):
    def _before_the_first(self, result):
        late = _LateFirst(result)
        run = inflight._Run(late, None, 2, False, tuple, Pause(), bool)
        self.assertLen(list(run.results(iter(range(50)))), 50)
        return late.before_the_first

    def test_results_that_wait_are_at_most_64_mib_and_one(self):
        for dtype in (tf.float32, tf.float64):
            with self.subTest(dtype.name):
                result = tf.zeros([(16 << 20) // dtype.size], dtype)
                self.assertEqual(self._before_the_first([result]), 4)
                half = result[: len(result) // 2]
                self.assertEqual(self._before_the_first([half, half]), 4)

    def test_steps_without_results_run_ahead(self):
        self.assertEqual(self._before_the_first(None), 49)


class _OneByOne:
    """An InFlight whose steps end one at a time, in order."""

    def __init__(self):
        self._under_way = []

    def schedule(self, step):
        self._under_way.append(step)

    def settle(self):
        step = self._under_way.pop(0)
        step.run.finish(step, [])

    def end(self, run):
        del run


class PauseTest(absltest.TestCase):
    def test_further_steps_wait_for_those_under_way(self):
        pause = Pause()
        begun, seen = [], []
        batches = (begun.append(number) for number in range(12))
        run = inflight._Run(_OneByOne(), None, 3, False, tuple, pause, bool)
        for number, _ in enumerate(run.results(batches)):
            if number in (4, 11):
                pause.then = lambda: seen.append("then")
            seen.append((number, pause.under_way, len(begun)))
        # Steps 5 and 6 had begun when step 4 ended.
        self.assertEqual(seen[4:8], [(4, 2, 7), (5, 1, 7), (6, 0, 7), "then"])
        self.assertEqual(seen[8], (7, 2, 10))
        self.assertEqual(seen[-2:], [(11, 0, 12), "then"])

    def test_steps_go_on_while_one_is_lost(self):
        pause, lost, seen = Pause(), [True], []
        run = inflight._Run(
            *(_OneByOne(), None, 3, False, tuple, pause), lambda: bool(lost)
        )
        pause.then = lambda: seen.append("then")
        for number, _ in enumerate(run.results(iter(range(12)))):
            if number == 5:
                lost.clear()
            seen.append(number)
        # Steps 6 and 7 had begun when it was made.
        self.assertEqual(seen[5:10], [5, 6, 7, "then", 8])

    def test_a_step_that_is_lost_is_under_way(self):
        pause, lost, seen = Pause(), [], []
        run = inflight._Run(
            *(_OneByOne(), None, 3, False, tuple, pause), lambda: bool(lost)
        )
        for number, _ in enumerate(run.results(iter(range(5)))):
            if number == 2:
                lost.append(True)
            seen.append(pause.under_way)
        self.assertEqual(seen, [2, 2, 2, 2, 1])


class _Remote:
    """The RemoteValue of a step that ends at once."""

    def __init__(self, batch):
        self._batch = batch

    def get(self):
        if self._batch == "bad":
            raise ValueError("a bad batch")
        if self._batch == "lost":
            raise tf.errors.UnavailableError(None, None, "no result")
        return [tf.constant(self._batch)]


def _raise(errors):
    """Raises the next error; True if there is none."""
    for error in errors:
        raise error
    return True


class InFlightTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        # There is no cluster, and nothing to wait for.
        for name, value in (
            ("separate_workers", lambda coordinator: None),
            ("cluster_of", lambda strategy: {}),
            ("task_addresses", lambda cluster, jobs: {}),
            ("Watch", lambda workers, servers: mock.Mock(lost=dict)),
            ("_POLL_SECONDS", 0.1),
            ("_GIVE_UP_SECONDS", 20.0),
        ):
            self.enterContext(mock.patch.object(inflight, name, value))
        self.steps = inflight.InFlight(mock.MagicMock())

    def _run(self, batches):
        results = self.steps.run(_Remote, batches, limit=3)
        return [int(tensor) for (tensor,) in results]

    def test_results_come_in_order(self):
        self.assertEqual(self._run(range(50)), list(range(50)))
        self.assertEqual(self.steps.under_way, 0)
        self.assertEqual(self._run(range(5)), list(range(5)))

    def test_none_is_in_flight_after_an_error(self):
        # As a coordinator, which raises an error once.
        raised = iter([ValueError("a bad batch")])
        self.steps._coordinator.done.side_effect = lambda: _raise(raised)
        with self.assertRaisesRegex(ValueError, "a bad batch"):
            self._run([1, 2, "bad", 3])
        self.assertEqual(self._run(range(5)), list(range(5)))

    def test_a_result_that_is_lost_with_its_worker(self):
        for repeatable in (True, False):
            started = []

            def start(batch, started=started):
                started.append(batch)
                lost = started.count(1) == 1 == batch
                return _Remote("lost" if lost else batch)

            results = self.steps.run(
                start, range(3), limit=3, repeatable=repeatable
            )
            found = [one and int(one[0]) for one in results]
            self.assertEqual(found, [0, 1 if repeatable else None, 2])
            self.assertLen(started, 4 if repeatable else 3)
            self.assertEqual(self.steps.under_way, 0)

    def test_results_are_fetched_in_executors_of_the_threads(self):
        """In a shared one they wait for the ops of all other threads."""
        thread, found = threading.local(), []

        @contextlib.contextmanager
        def executor():
            thread.has_own = True
            yield
            thread.has_own = False

        def fetch(remote):
            found.append(getattr(thread, "has_own", False))
            return remote.get()

        with (
            mock.patch.object(inflight, "own_executor", executor),
            mock.patch.object(inflight, "fetch", fetch),
        ):
            self.assertEqual(self._run(range(5)), list(range(5)))
        self.assertEqual(found, [True] * 5)

    def test_threads_end_with_the_last_use(self):
        self._run(range(5))
        threads = list(self.steps._waiters)
        self.assertLen(threads, 3)
        del self.steps
        gc.collect()
        for thread in threads:
            thread.join(timeout=60)
            self.assertFalse(thread.is_alive())


if __name__ == "__main__":
    absltest.main()
