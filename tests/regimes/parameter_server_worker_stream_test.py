# SPDX-License-Identifier: Apache-2.0
"""Streams whose partitions the workers of parameter servers read."""

import contextlib
import pathlib
import signal
import tempfile
import threading
import time
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import absltest
from cases import stream_cases
from clusters import parameter_server_util as util
from interrupts import take_interrupts
from killed_training import Kill, KilledError
from models import id_counting_models as models

import tf_ext
from tf_ext._keras import keras
from tf_ext.data import worker_streams
from tf_ext.training.parameter_servers import stream_feed, stream_share

pytestmark = [
    pytest.mark.process("shared_cluster"),
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "WorkerStreamTest::test_each_record_once",
        "WorkerStreamTest::test_epochs_without_new_records",
        "WorkerStreamTest::test_a_step_that_is_lost",
        "WorkerStreamTest::test_no_epoch_ends_without_a_lost_step",
        "WorkerStreamTest::test_ends_while_nothing_comes",
        "WorkerStreamTest::test_errors_of_workers",
        "WorkerStreamTest::test_malformed_*",
        "WorkerStreamTest::test_refused",
        "WorkerStreamTest::test_transformed_and_with_logs",
    ),
]

setUpModule = util.shared

_ONCE = dict.fromkeys(range(stream_cases.RECORDS), 1.0)


class _Ends(keras.callbacks.Callback):
    """Ends training when so many records were trained on."""

    def __init__(self, progress, records, at=None):
        super().__init__()
        self._progress, self._records = progress, records
        self._at = at or {}

    def on_train_batch_end(self, batch, logs=None):
        records = self._progress.records
        for least in [n for n in self._at if n <= records]:
            self._at.pop(least)()
        if records >= self._records:
            self.model.stop_training = True


class _EndsAfterAPoint(keras.callbacks.Callback):
    """Raises when there is a recovery point."""

    def __init__(self, points):
        super().__init__()
        self._points = points

    def on_train_batch_end(self, batch, logs=None):
        if tf_ext.callbacks.latest_point(self._points) is not None:
            raise KilledError


class WorkerStreamTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.folder = pathlib.Path(folder) / "data"
        self.folder.mkdir()
        self.points = pathlib.Path(folder) / "points"
        self.progress = tf_ext.data.StreamProgress()

    def _life(self):
        """Another process would have a progress of its own."""
        self.progress = tf_ext.data.StreamProgress()

    def _stream(self, context, **options):
        return tf_ext.data.stream(
            tf_ext.data.DirectorySource(self.folder),
            models.SCHEMA,
            batch_size=16,
            shard=context,
            progress=self.progress,
            **{"follow": False, "max_delay": 0.1, **options},
        )

    def _model(self, **options):
        with util.shared().strategy.scope():
            return models.counting_model(**options)

    def _train(self, *callbacks, function=None, fit=None, **options):
        model, table = self._model()
        points = tf_ext.callbacks.TableSnapshot(self.points, steps=2)
        self.history = model.fit(
            function or (lambda context: self._stream(context, **options)),
            verbose=0,
            callbacks=[points, *callbacks],
            **(fit or {}),
        ).history
        return models.counts(table)

    def test_each_record_once(self):
        stream_cases.write(self.folder)
        with self.assertRaises(KilledError):
            self._train(Kill(5))
        self._life()
        self.assertEqual(self._train(), _ONCE)
        self.assertLen(self.progress.positions, stream_cases.PARTITIONS)

    def test_epochs_without_new_records(self):
        stream_cases.write(self.folder)
        with self.assertLogs("tf_ext", "WARNING") as logs:
            counts = self._train(fit={"epochs": 2})
        self.assertEqual(counts, _ONCE)
        self.assertLen(self.history["loss"], 1)
        self.assertIn("the streams have nothing new", logs.output[-1])
        # A training that begins with nothing has the wrong folder, maybe.
        self._life()
        empty = pathlib.Path(tempfile.mkdtemp(dir=self.folder.parent))
        self.folder, self.points = empty, empty / "points"
        with self.assertRaisesRegex(ValueError, "at least one batch"):
            self._train()

    @contextlib.contextmanager
    def _losing(self):
        """Two steps are lost; yields the notes of those and of all trained."""
        run, fails = stream_share.StreamShare.run, iter([False, True, True])
        lost, trained = [], []

        def run_and_fail(share, function):
            note = share._told.note
            if not next(fails, False):
                trained.append(note)
                return run(share, function)
            # Servers have its updates, and nobody knows of them.
            number = share._begun = share._begun or share.number(1)
            name = tf.constant(share._name)
            function(share._iterator, name, number.tensor())
            share._lose()
            lost.append(note)
            raise tf.errors.UnavailableError(
                None, None, "Socket closed, /job:worker/task:0"
            )

        with mock.patch.object(stream_share.StreamShare, "run", run_and_fail):
            yield lost, trained
        self.assertLen(lost, 2)

    def test_a_step_that_is_lost(self):
        stream_cases.write(self.folder)
        open_reading = worker_streams.open_reading
        again = []

        def open_and_note(*arguments):
            if arguments[-1] is not None:
                again.append(arguments[-1])
            open_reading(*arguments)

        with (
            self._losing() as (lost, trained),
            mock.patch.object(worker_streams, "open_reading", open_and_note),
        ):
            self.assertEqual(self._train(), _ONCE)
        self.assertCountEqual(again, lost)
        for note in lost:
            self.assertIn(note, trained)

    def test_no_epoch_ends_without_a_lost_step(self):
        stream_cases.write(self.folder)
        is_ready, late = stream_share.StreamShare.is_ready, iter([False] * 4)
        epoch, feed = stream_feed.StreamFeed.epoch, []
        batches, at_end = [], []

        def is_ready_later(share, *arguments):
            if share.is_step_lost:
                return next(late, True) and is_ready(share, *arguments)
            return is_ready(share, *arguments)

        def begin(self, first_step):
            feed[:] = [self]
            return epoch(self, first_step)

        ends = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: batches.append(batch),
            on_epoch_end=lambda *_: at_end.append(feed[0].has_lost_steps()),
        )
        with (
            self._losing(),
            mock.patch.object(
                stream_share.StreamShare, "is_ready", is_ready_later
            ),
            mock.patch.object(stream_feed.StreamFeed, "epoch", begin),
        ):
            self._train(ends, fit={"steps_per_epoch": 1, "epochs": 9})
        self.assertEqual(at_end, [False] * 9)
        self.assertEqual(batches, [0] * 9)

    def test_a_stream_without_an_end(self):
        stream_cases.write(self.folder)

        def add():
            folder = self.folder / "writer-9"
            folder.mkdir()
            (folder / "part").write_text("".join(f"{n},1\n" for n in range(70)))

        ends = _Ends(self.progress, 370, {250: add})
        with mock.patch.object(stream_feed, "REFRESH_SECONDS", 0.1):
            found = self._train(
                ends,
                tf_ext.callbacks.StreamLogs(self.progress),
                follow=True,
                fit={"steps_per_epoch": 5, "epochs": 1000},
            )
        self.assertEqual(
            found, {n: 1.0 + (n < 70) for n in range(stream_cases.RECORDS)}
        )
        self.assertGreater(len(self.history["loss"]), 4)

    def test_ends_while_nothing_comes(self):
        stream_cases.write(self.folder)
        ends = _Ends(self.progress, stream_cases.RECORDS)
        fit = {"steps_per_epoch": 10_000}
        found = self._train(ends, follow=True, fit=fit)
        self.assertEqual(found, _ONCE)

    def test_transformed_and_with_logs(self):
        stream_cases.write(self.folder)
        logs = tf_ext.callbacks.StreamLogs(self.progress)

        def function(context):
            data = self._stream(context)
            return data.map(lambda x, y: ({"user": x["user"] + 1000}, y))

        found = self._train(logs, function=function)
        self.assertEqual(found, {n + 1000: 1.0 for n in _ONCE})
        self.assertEqual(self.history["stream_records"], [300])
        self.assertGreater(self.history["stream_lag"][0], 0.0)

    def test_malformed_records_and_fewer_partitions_than_workers(self):
        folder = self.folder / "only"
        folder.mkdir()
        lines = [f"{n},1\n" if n % 10 else "x\n" for n in range(200)]
        (folder / "part").write_text("".join(lines))
        errors = tf_ext.data.ReadErrors()
        found = self._train(errors=errors, max_errors=0.5)
        self.assertEqual(found, {n: 1.0 for n in range(200) if n % 10})
        self.assertEqual((errors.records, errors.errors), (200, 20))

    def test_several_epochs_read_what_was_added(self):
        stream_cases.write(self.folder)

        class Adds(keras.callbacks.Callback):
            def on_epoch_end(_, epoch, logs=None):
                path = self.folder / "writer-0" / f"part-{epoch}"
                path.write_text("".join(f"{n},1\n" for n in range(40)))

        found = self._train(Adds(), fit={"epochs": 3})
        self.assertEqual(found, {n: 1.0 + 2.0 * (n < 40) for n in range(300)})

    def test_errors_of_workers(self):
        folder = self.folder / "writer"
        folder.mkdir()
        (folder / "part").write_text("x\n" * 1200)
        with self.assertRaisesRegex(
            tf_ext.data.TooManyErrorsError,
            "/job:worker/task:[01] cannot read the stream: .*max_errors=0.01",
        ):
            self._train()

    def test_a_position_that_is_gone(self):
        folder = self.folder / "only"
        folder.mkdir()
        path = folder / "part"
        path.write_text("".join(f"{n},1\n" for n in range(20_000)))
        with self.assertRaises(KilledError):
            self._train(_EndsAfterAPoint(self.points))
        path.write_text("0,1\n")
        for follow, where in (
            (True, "^/job:worker/task:[01] cannot read the stream: The file"),
            (False, "^The file"),  # The chief looks whether it has ended.
        ):
            self._life()
            with self.assertRaisesRegex(
                tf_ext.data.LostRecordsError, f"{where} 'part' of .* has fewer"
            ):
                self._train(follow=follow, fit={"steps_per_epoch": 9_999})

    def test_interrupts_while_nothing_comes(self):
        take_interrupts(self)
        stream_cases.write(self.folder)
        main = threading.main_thread().ident

        class Interrupts(keras.callbacks.Callback):
            def on_train_begin(self, logs=None):
                threading.Thread(target=self._wait, daemon=True).start()

            def _wait(_):
                while self.progress.records < stream_cases.RECORDS:
                    time.sleep(0.05)
                time.sleep(1.0)
                signal.pthread_kill(main, signal.SIGINT)

        callback = Interrupts()
        with self.assertRaises(KeyboardInterrupt):
            self._train(callback, follow=True, fit={"steps_per_epoch": 10_000})
        # The workers take other steps.
        self.assertEqual(self._train_others(), {n: 1.0 for n in range(50)})

    def _train_others(self):
        model, table = self._model()
        ids = tf.data.Dataset.range(50).batch(10)
        model.fit(ids.map(lambda n: ({"user": n}, tf.ones_like(n))), verbose=0)
        return models.counts(table)

    def test_refused(self):
        stream_cases.write(self.folder)
        model, _ = self._model()

        def both(context):
            return tf.data.Dataset.zip(
                (self._stream(context), self._stream(context))
            ).map(lambda a, b: a)

        for function, text in (
            (lambda c: self._stream(None), "passes its argument as `shard`"),
            (lambda c: self._stream(c).take(2), "without `take`"),
            (lambda c: self._stream(c).shuffle(8), "derive it by `map`"),
            (both, "a dataset of 2 streams"),
        ):
            with self.assertRaisesRegex((ValueError, RuntimeError), text):
                model.fit(function, verbose=0)
        model, _ = self._model(steps_per_execution=2)
        with self.assertRaisesRegex(
            ValueError, "`steps_per_execution` of compile must be 1 where"
        ):
            model.fit(lambda c: self._stream(c), verbose=0)


if __name__ == "__main__":
    absltest.main()
