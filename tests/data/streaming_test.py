# SPDX-License-Identifier: Apache-2.0
"""Streams: batches, messages, partitions, arguments, a source of one's own."""

import subprocess
import sys
import tempfile
import threading
import time
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from models import id_counting_models as models
from processes import program_environment
from queue_source import Queue

import tf_ext
from tf_ext._keras import keras
from tf_ext.data import progress as progress_module
from tf_ext.data import stream_reader

Field, Schema = tf_ext.data.Field, tf_ext.data.Schema
_X = Schema([Field("x", "int64")])


def _numbers(data):
    return [batch["x"].numpy().tolist() for batch in data]


class BatchTest(parameterized.TestCase):
    def _stream(self, queue, schema=_X, format="csv", **options):
        options = {"batch_size": 4, "follow": False, **options}
        return tf_ext.data.stream(queue, schema, format, **options)

    def test_batches_are_full_or_old(self):
        queue = Queue()
        queue.add("a", *(b"%d" % n for n in range(10)))
        data = self._stream(queue, follow=True, max_delay=0.2)
        batches = iter(data)
        for wanted in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9]):
            self.assertEqual(next(batches)["x"].numpy().tolist(), wanted)
        queue.add("a", b"10")
        self.assertEqual(next(batches)["x"].numpy().tolist(), [10])

    def test_malformed_records(self):
        queue = Queue()
        queue.add("a", b"1", b"x", b"", b"4", b"5", b"y", b"z", b"9", b"t")
        queue.add("a", b"11", None, b"12", b"x")
        errors = tf_ext.data.ReadErrors()
        progress = tf_ext.data.StreamProgress()
        data = self._stream(
            queue, errors=errors, max_errors=0.7, progress=progress
        )
        found = []
        for batch in data:
            found.append(batch["x"].numpy().tolist())
            progress.advance()
            if len(found) == 1:
                # What is malformed belongs to the batch before.
                self.assertEqual(progress.positions, {"a": 9})
                self.assertEqual(progress.records, 4)
        self.assertEqual(found, [[1, 4, 5, 9], [11, 12]])
        self.assertEqual(progress.positions, {"a": 13})
        self.assertEqual(progress.records, 6)
        self.assertEqual(
            errors.by_file(), {"a": {"bad number": 5, "empty message": 1}}
        )
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "TooManyErrorsError: 6 of the last"
        ):
            list(self._stream(queue))

    def test_positions_of_malformed_records_need_no_order(self):
        queue = Queue()
        queue.add("a", b"1", b"x", b"y", b"4")
        queue.lists["a"] = [
            one._replace(position={"at": one.position})
            for one in queue.lists["a"]
        ]
        with self.assertLogs("tf_ext") as logs:
            data = self._stream(queue, max_errors=0.5)
            self.assertEqual(_numbers(data), [[1, 4]])
        self.assertIn("{'at': 2}: bad number", logs.output[0])

    def test_a_share_of_the_last_records(self):
        """Records that were right long ago do not excuse wrong ones."""
        queue = Queue()
        queue.add("a", *[b"1"] * 50_000, *[b"x"] * 1100)
        errors = tf_ext.data.ReadErrors()
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "of the last .* are malformed"
        ):
            list(self._stream(queue, batch_size=1000, errors=errors))
        self.assertLess(errors.errors / errors.records, 0.1)

    def test_batches_without_records_move_on(self):
        queue = Queue()
        queue.add("a", *[b"x"] * 8, b"1", None)
        progress = tf_ext.data.StreamProgress()
        data = self._stream(queue, max_errors=1.0, progress=progress)
        self.assertEqual(_numbers(data), [[1]])
        progress.advance()
        self.assertEqual(progress.positions, {"a": 10})

    def test_partitions(self):
        queue = Queue()
        for name in "dbac":
            queue.add(name, name.encode() * 2)
        names = Schema([Field("x")])
        for shard, wanted in (
            (None, "abcd"),
            ((0, 2), "ac"),
            ((1, 2), "bd"),
            (tf.distribute.InputContext(3, 2, 3), "c"),
            ((7, 8), ""),
        ):
            data = self._stream(queue, names, shard=shard, batch_size=1)
            found = [batch["x"].numpy()[0].decode()[0] for batch in data]
            self.assertEqual("".join(found), wanted)

    def test_partitions_that_appear(self):
        queue = Queue()
        queue.add("a", b"1", b"2")
        progress = tf_ext.data.StreamProgress()
        with mock.patch.object(stream_reader, "REFRESH_SECONDS", 0.1):
            data = self._stream(
                queue,
                *(_X, "csv"),
                follow=True,
                start="latest",
                max_delay=0.1,
                progress=progress,
            )
            batches = iter(data)

            def add():
                while not queue.opened:
                    time.sleep(0.01)
                queue.add("b", b"3")
                while len(queue.opened) < 2:
                    time.sleep(0.01)
                queue.add("a", b"4")

            thread = threading.Thread(target=add)
            thread.start()
            found = [next(batches)["x"].numpy().tolist() for _ in range(2)]
            thread.join()
        self.assertCountEqual(found, [[3], [4]])
        self.assertEqual(queue.opened, [{"a": 2}, {"a": 2, "b": 0}])
        progress.advance(2)
        self.assertEqual(progress.positions, {"a": 3, "b": 1})

    def test_a_source_without_new_partitions_stays_open(self):
        queue = Queue()
        queue.add("a", b"1")
        with mock.patch.object(stream_reader, "REFRESH_SECONDS", -1.0):
            batches = iter(self._stream(queue, follow=True, max_delay=1e-6))
            for n in range(1, 4):
                self.assertEqual(next(batches)["x"].numpy().tolist(), [n])
                queue.add("a", b"%d" % (n + 1))
            del batches
        self.assertEqual(queue.opened, [{"a": 0}])

    def test_partitions_that_appeared_meanwhile(self):
        """They begin at their first record, also where `start` is the end."""
        queue = Queue()
        queue.add("a", b"1", b"2", b"3")
        queue.add("b", b"4", b"5")
        progress = tf_ext.data.StreamProgress()
        progress.restore({"positions": {"a": 2}})
        data = self._stream(queue, start="latest", progress=progress)
        self.assertEqual(_numbers(data), [[3, 4, 5]])

    def test_positions_of_partitions_without_records(self):
        queue = Queue()
        queue.add("a", *[b"x"] * 4)
        queue.add("b", b"1")
        progress = tf_ext.data.StreamProgress()
        data = self._stream(queue, max_errors=1.0, progress=progress)
        self.assertEqual(_numbers(data), [[1]])
        progress.advance()
        self.assertEqual(progress.positions, {"a": 4, "b": 1})

    def test_event_times(self):
        schema = Schema([Field("at", "int64", time="ms")])
        queue = Queue()
        queue.add("a", b"5000", b"9000", time=100.0)
        for event_time, newest in ((None, 100.0), ("at", 9.0)):
            progress = tf_ext.data.StreamProgress()
            data = self._stream(
                queue, schema, event_time=event_time, progress=progress
            )
            self.assertEqual(progress.lag().batches, 0)
            self.assertLen(list(data), 1)
            progress.advance()
            self.assertEqual(progress.event_time, newest)
            lag = progress.lag()
            oldest = 5.0 if event_time else 100.0
            self.assertAlmostEqual(lag.most, time.time() - oldest, delta=60)
            self.assertEqual(lag, (2, 1, lag.most, lag.most))
            self.assertEqual(progress.lag(), (0, 0, 0.0, 0.0))

    def test_event_times_ahead_of_the_clock(self):
        """Clocks differ; they do not lower the mean of the other batches."""
        queue = Queue()
        now = time.time()
        progress = tf_ext.data.StreamProgress()
        data = self._stream(queue, batch_size=1, progress=progress)
        queue.add("a", b"1", time=now + 9000.0)
        queue.add("a", b"2", time=now - 100.0)
        self.assertLen(list(data), 2)
        progress.advance(2)
        lag = progress.lag()
        self.assertAlmostEqual(lag.most, 100.0, delta=60)
        self.assertEqual((lag.batches, lag.total), (2, lag.most))
        self.assertEqual(progress.event_time, now + 9000.0)

    def test_datasets_whose_batches_are_those_of_the_stream(self):
        data, second = self._stream(Queue()), self._stream(Queue())
        both = tf.data.Dataset.zip
        for other in (
            data.shuffle(4),
            data.repeat(2),
            data.unbatch().batch(4),
            both((data, second.shuffle(4))),
        ):
            with self.assertRaisesRegex(ValueError, "a batch for each batch"):
                progress_module.check_one_to_one(other)
        for one in (
            data.map(lambda batch: batch).prefetch(1).take(2),
            both((data, second)),
            tf.data.Dataset.range(8).shuffle(8),
        ):
            progress_module.check_one_to_one(one)

    def test_a_later_iteration_ends_an_earlier_one(self):
        queue = Queue()
        queue.add("a", *(b"%d" % n for n in range(100)))
        progress = tf_ext.data.StreamProgress()
        data = self._stream(queue, progress=progress)
        first = iter(data)
        next(first)
        progress.advance()
        self.assertLen(list(data), 24)
        self.assertLess(len(list(first)), 12)
        progress.advance(30)
        self.assertEqual(progress.positions, {"a": 100})
        self.assertEqual(progress.records, 100)

    def test_a_list_of_callbacks(self):
        queue = Queue()
        queue.add("a", *[b"3,1"] * 6)
        model, table = models.counting_model()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        points = tf_ext.callbacks.TableSnapshot(folder)
        callbacks = keras.callbacks.CallbackList(
            [points], add_history=True, model=model
        )
        data = self._stream(queue, models.SCHEMA)
        model.fit(data, callbacks=callbacks, verbose=0)
        self.assertEqual(models.counts(table), {3: 6.0})

    def test_checkpoints(self):
        queue = Queue()
        queue.add("a", *(b"%d" % n for n in range(8)))
        progress = tf_ext.data.StreamProgress()
        data = self._stream(queue, progress=progress)
        next(iter(data))
        progress.advance()
        with tempfile.TemporaryDirectory() as folder:
            path = tf.train.Checkpoint(progress=progress).save(f"{folder}/x")
            restored = tf_ext.data.StreamProgress()
            tf.train.Checkpoint(progress=restored).restore(path)
        self.assertEqual(restored.state(), {"positions": {"a": 4}})
        data = self._stream(queue, progress=restored)
        self.assertEqual(_numbers(data), [[4, 5, 6, 7]])

    def test_goes_back_within_a_program(self):
        """Also after the end, and where a loop waits for batches first."""
        queue = Queue()
        queue.add("a", *(b"%d" % n for n in range(8)))
        progress = tf_ext.data.StreamProgress()
        data = self._stream(queue, progress=progress)
        for position, wanted in ((0, [0, 1, 2, 3]), (4, [4, 5, 6, 7])):
            progress.restore({"positions": {"a": position}})
            self.assertFalse(progress.has_ended)
            self.assertTrue(progress.wait(1, lambda: False))
            self.assertEqual(_numbers(data)[0], wanted)
            self.assertTrue(progress.has_ended)

    def test_states_that_are_none(self):
        progress = tf_ext.data.StreamProgress()
        for state in (None, {}, {"positions": 3}, {"positions": {3: 1}}):
            with self.assertRaisesRegex(ValueError, "Argument `state`"):
                progress.restore(state)

    def test_states_of_workers(self):
        states = [
            {"positions": {"a": 5, "b": 0, "c": 7}, "own": ["a"]},
            {"positions": {"b": 6, "a": 1}, "own": ["b"]},
        ]
        merged = progress_module.merged(states)
        self.assertEqual(merged, {"positions": {"a": 5, "b": 6, "c": 7}})

    @pytest.mark.slow
    def test_a_program_ends_while_a_stream_waits(self):
        text = (
            "import tempfile, tf_ext\n"
            "folder = tempfile.mkdtemp()\n"
            "open(folder + '/a', 'w').write('1\\n')\n"
            "data = tf_ext.data.stream(tf_ext.data.DirectorySource(folder),"
            " tf_ext.data.Schema([tf_ext.data.Field('x', 'int64')]),"
            " batch_size=4, max_delay=0.1)\n"
            "batches = iter(data)\n"
            "next(batches)\n"
        )
        subprocess.run(
            [sys.executable, "-c", text],
            env=program_environment(),
            timeout=120,
            check=True,
            stderr=subprocess.DEVNULL,
        )

    @parameterized.parameters(
        ({"source": "x"}, "source"),
        ({"schema": [Field("x")]}, "schema"),
        ({"batch_size": 0}, "batch_size"),
        ({"max_delay": 0}, "max_delay"),
        ({"max_delay": float("inf")}, "max_delay"),
        ({"start": "first"}, "start"),
        ({"follow": 1}, "follow"),
        ({"shard": (2, 2)}, "shard"),
        ({"max_errors": 2}, "max_errors"),
        ({"errors": 3}, "errors"),
        ({"progress": {}}, "progress"),
        ({"event_time": "x"}, "event_time"),
        ({"format": "parquet"}, "format"),
        ({"format": "xml"}, "format"),
        ({"envelope": {"x": "key"}}, "envelope"),
        ({"envelope": {"y": "key"}}, "envelope"),
        ({"envelope": {"z": "value"}}, "envelope"),
        ({"envelope": {"z": "header:"}}, "envelope"),
        ({"envelope": 3}, "envelope"),
    )
    def test_arguments(self, changed, named):
        schema = Schema([Field("x", "int64"), Field("z")])
        if changed.get("envelope") == {"x": "key"}:
            schema = _X
        given = {"source": Queue(), "schema": schema, "batch_size": 2}
        with self.assertRaisesRegex(ValueError, f"`{named}` of"):
            tf_ext.data.stream(**given | changed)


if __name__ == "__main__":
    absltest.main()
