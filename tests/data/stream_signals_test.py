# SPDX-License-Identifier: Apache-2.0
"""Trainings that wait for records answer signals."""

import contextlib
import os
import pathlib
import signal
import tempfile
import threading
import time
from unittest import mock

import pytest
import queue_source
from absl.testing import absltest, parameterized
from interrupts import at_each_point, take_interrupts
from models import id_counting_models as models
from queue_source import Queue

import tf_ext

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests("*_4"),
]

# Far longer than an answer takes: then records come, for tests to fail.
_TOO_LATE = 30.0


class StreamSignalsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        take_interrupts(self)
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.points = pathlib.Path(folder) / "points"
        self.queue = Queue(a=[])
        self.progress = tf_ext.data.StreamProgress()

    def _add(self, *numbers):
        self.queue.add("a", *(f"{n},1".encode() for n in numbers))

    def _fit(self, steps=1, epochs=100, **options):
        model, self.table = models.counting_model()
        model.compile(
            tf_ext.optimizers.Optimizer("sgd"),
            "mse",
            steps_per_execution=steps,
        )
        data = tf_ext.data.stream(
            self.queue,
            models.SCHEMA,
            batch_size=4,
            max_delay=0.05,
            progress=self.progress,
            **options,
        )
        model.fit(
            data.map(lambda *batch: batch),
            steps_per_epoch=10,
            epochs=epochs,
            verbose=0,
            callbacks=[
                tf_ext.callbacks.TableSnapshot(
                    self.points, steps=1000, on_sigterm=True
                )
            ],
        )

    @contextlib.contextmanager
    def _signalled(self, number, trained):
        """Sends a signal when so many records were trained on."""
        ended = threading.Event()
        self.queue.opened.clear()
        start = time.monotonic()

        def send():
            while self.progress.records < trained or not self.queue.opened:
                if ended.wait(0.02):
                    return
            if not ended.wait(0.3):
                os.kill(os.getpid(), number)
            while not ended.wait(0.5):
                if time.monotonic() - start > _TOO_LATE:
                    self._add(*range(1000, 1100))

        sender = threading.Thread(target=send)
        sender.start()
        try:
            yield
        finally:
            ended.set()
            sender.join()
        self.assertNotIn(1000, models.counts(self.table))

    @parameterized.named_parameters(
        ("at_once_1", 0, 1),
        ("later_1", 8, 1),
        ("at_once_4", 0, 4),
        ("later_4", 16, 4),
    )
    def test_interrupts(self, records, steps):
        self._add(*range(records))
        with self.assertRaises(KeyboardInterrupt):
            with self._signalled(signal.SIGINT, records):
                self._fit(steps)
        self.assertEqual(
            models.counts(self.table), dict.fromkeys(range(records), 1.0)
        )

    @parameterized.named_parameters(
        ("at_once_1", 0, 1), ("later_1", 8, 1), ("later_4", 16, 4)
    )
    def test_sigterm(self, records, steps):
        self._add(*range(records))
        for life in range(2):
            with self.assertRaises(SystemExit) as raised:
                with self._signalled(signal.SIGTERM, records):
                    self._fit(steps)
            self.assertEqual(raised.exception.code, 143)
            self.assertEqual(
                models.counts(self.table),
                dict.fromkeys(range(records * (life + 1)), 1.0),
            )
            self.progress = tf_ext.data.StreamProgress()
            self._add(*range(records * (life + 1), records * (life + 2)))

    def test_part_of_an_execution_is_not_trained(self):
        """An execution begins when all of its batches are there."""
        self._add(*range(10))
        with self.assertRaises(KeyboardInterrupt):
            with self._signalled(signal.SIGINT, 0):
                self._fit(4)
        self.assertEmpty(models.counts(self.table))

    def test_nothing_stays_locked_after_an_interrupt(self):
        self.enterContext(mock.patch.object(queue_source, "time"))
        _ = tf_ext.data.stream(
            self.queue, models.SCHEMA, batch_size=4, progress=self.progress
        )

        def wait():
            asked = iter([False, True])
            self.progress.prepare()
            self.assertFalse(self.progress.wait(1, lambda: next(asked)))

        count = 0
        for _, point in at_each_point(wait):
            count += 1
            other = threading.Thread(target=self.progress.prepare, daemon=True)
            other.start()
            other.join(_TOO_LATE)
            self.assertFalse(other.is_alive(), point)
        self.assertGreater(count, 50)

    def test_handlers_run(self):
        """Those of users, too, while a training waits."""
        handled = threading.Event()
        before = signal.signal(signal.SIGUSR1, lambda *_: handled.set())
        self.addCleanup(signal.signal, signal.SIGUSR1, before)

        def send():
            os.kill(os.getpid(), signal.SIGUSR1)
            handled.wait(_TOO_LATE)
            self._add(*range(40))

        sender = threading.Timer(0.5, send)
        sender.start()
        self._fit(epochs=1)
        sender.join()
        self.assertTrue(handled.is_set())

    def test_iterations_elsewhere(self):
        """Each fit begins behind what was trained on, whoever else reads."""
        model, table = models.counting_model()
        self._add(*range(12))
        data = tf_ext.data.stream(
            self.queue, models.SCHEMA, batch_size=4, follow=False
        )
        model.fit(data.take(2), verbose=0)
        self.assertLen(models.counts(table), 8)
        model.fit(data, verbose=0, steps_per_epoch=1)
        self.assertLen(models.counts(table), 12)
        self._add(*range(12, 20))
        for number, _ in zip(range(2), data, strict=False):
            del number
        model.fit(data, verbose=0, steps_per_epoch=1, epochs=2)
        self.assertEqual(models.counts(table), dict.fromkeys(range(20), 1.0))


if __name__ == "__main__":
    absltest.main()
