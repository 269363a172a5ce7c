# SPDX-License-Identifier: Apache-2.0
"""Which share of a stream a worker trains on, and where an epoch ends."""

import threading
import types
from unittest import mock

import tensorflow as tf
from absl.testing import absltest
from queue_source import Queue

import tf_ext
from tf_ext.data import source_waiting
from tf_ext.data.progress import BatchNote
from tf_ext.data.worker_streams import Told, WorkerStream
from tf_ext.training.parameter_servers import stream_feed
from tf_ext.training.parameter_servers.stream_share import Trained

_SCHEMA = tf_ext.data.Schema([tf_ext.data.Field("x", "int64")])


class _Share:
    """A share whose batches are always there, unless `ready` says others."""

    def __init__(self, index, trained_at, ready=True, **attributes):
        self.index, self.trained_at, self.ready = index, trained_at, ready
        self.partitions = 1
        self.lock = threading.Lock()
        self.is_lost = self.is_step_lost = self.has_ended = False
        vars(self).update(attributes)

    def is_ready(self, worker, seconds):
        del worker, seconds
        return self.ready

    def run(self, function):
        del function
        return [self.index]


def _feed(shares=(), queue=None, follow=True, positions=None):
    feed = object.__new__(stream_feed.StreamFeed)
    progress = tf_ext.data.StreamProgress()
    progress.restore({"positions": positions or {}})
    source = Queue(a=[]) if queue is None else queue
    vars(feed).update(
        _stream=WorkerStream(
            *(source, _SCHEMA, "csv", {}, 4, 1.0, None, follow, 0.0)
        ),
        _made=types.SimpleNamespace(start="earliest"),
        streams=[progress],
        _shares=shares,
        _iteration=None,
        _epoch=0,
        _refresh=float("inf"),
    )
    return feed


class SharesTest(absltest.TestCase):
    def _run(self, worker, *shares):
        return _feed(shares)._run(None, 0, worker)

    def test_each_worker_has_its_own(self):
        shares = _Share(0, 1.0), _Share(1, 2.0)
        self.assertEqual(self._run(0, *shares), [0])
        self.assertEqual(self._run(1, *shares), [1])
        self.assertEqual(self._run(2, *shares), [])

    def test_all_read_that_of_a_lost_worker(self):
        lost = _Share(0, 1.0, is_lost=True)
        self.assertEqual(self._run(1, lost, _Share(1, 2.0)), [0])
        # In turns with their own.
        self.assertEqual(self._run(1, lost, _Share(1, 0.5)), [1])
        self.assertEqual(self._run(1, lost, _Share(1, 0.5, ready=False)), [0])
        lost.lock.acquire()
        self.assertEqual(self._run(1, lost, _Share(1, 2.0)), [1])

    def test_a_lost_step_comes_first(self):
        lost = _Share(0, 2.0, is_lost=True, is_step_lost=True)
        own = _Share(1, 1.0)
        self.assertEqual(self._run(1, lost, own), [0])
        self.assertTrue(_feed([lost, own]).has_lost_steps())
        self.assertFalse(_feed([own]).has_lost_steps())

    def test_nothing_left(self):
        for share in (
            _Share(0, 1.0, has_ended=True),
            _Share(0, 1.0, partitions=0),
        ):
            self.assertEqual(self._run(0, share), [])
            self.assertEqual([*_feed([share], follow=False).ended()], [0])
            self.assertEqual([*_feed([share]).ended()], [])


class MadeTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.feed = _feed()
        self.feed._newest = {}
        [self.progress] = self.feed.streams
        self.feed._iteration = self.progress.begin({"a": 0, "b": 0}, "ab")

    def _made(self, number, **positions):
        note = BatchNote(positions, 4, None, None, {})
        text = Trained(number, Told(note, [])).text()
        steps, [loss] = self.feed.made(1, ["loss", tf.constant(text)])
        self.assertEqual((steps, loss), (1, "loss"))
        self.progress.advance()
        return self.progress.positions

    def test_positions_never_go_back(self):
        """A share that two workers read: results come in any order."""
        self.assertEqual(self._made(1, a=4), {"a": 4, "b": 0})
        self.assertEqual(self._made(3, a=12), {"a": 12, "b": 0})
        self.assertEqual(self._made(2, a=8), {"a": 12, "b": 0})
        # Of another share.
        self.assertEqual(self._made(1, b=4), {"a": 12, "b": 4})
        self.assertEqual(self._made(4, a=16), {"a": 16, "b": 4})
        self.assertEqual(self.progress.records, 20)

    def test_partitions_of_a_share_go_on_by_themselves(self):
        self.assertEqual(self._made(2, b=4), {"a": 0, "b": 4})
        self.assertEqual(self._made(1, a=4), {"a": 4, "b": 4})
        self.assertEqual(self._made(4, a=8, b=8), {"a": 8, "b": 8})
        self.assertEqual(self._made(3, b=6), {"a": 8, "b": 8})
        self.assertEqual(self.progress.records, 16)


class TracedTest(absltest.TestCase):
    def test_workers_have_batches_of_one_kind(self):
        def dataset(context):
            stream = tf_ext.data.stream(
                Queue(a=[]), _SCHEMA, "csv", batch_size=4, shard=context
            )
            name = f"x{context.input_pipeline_id // 2}"
            return stream.map(lambda batch: {name: batch["x"]})

        feed = _feed()
        feed._dataset_fn, feed._class_weight = dataset, None
        streams = []
        for worker in range(2):
            feed._traced(worker, 3, streams)
        with self.assertRaisesRegex(ValueError, "x0.* on worker 0, .*x1.* 2"):
            feed._traced(2, 3, streams)


class BeginTest(absltest.TestCase):
    def test_where_it_begins(self):
        for start, wanted in (("earliest", 0), ("latest", 2)):
            queue = Queue()
            queue.add("a", b"1", b"2")
            feed = _feed((_share(),), queue)
            feed._made.start = start
            feed._begin()
            self.assertEqual(feed.streams[0].positions, {"a": wanted})


class GoOnTest(absltest.TestCase):
    def test_a_source_that_is_away(self):
        queue = Queue()
        queue.add("a", b"1")
        error = tf_ext.data.SourceUnavailableError("It is away.")
        feed = _feed((_share(),), queue, False, {"a": 1})
        with (
            mock.patch.object(source_waiting, "_PAUSE_SECONDS", 0.01),
            mock.patch.object(
                queue, "open", side_effect=[error, queue.open({"a": 1}, False)]
            ),
        ):
            self.assertEqual(feed.go_on(4, 7), (5, 0))

    def test_the_next_epoch_where_nothing_is_left(self):
        queue = Queue()
        queue.add("a", b"1", b"2", b"3", None)
        for position, follow, first_step, wanted in (
            (3, False, 7, (5, 0)),
            (2, False, 7, (4, 7)),
            (3, True, 7, (4, 7)),
            (3, False, 0, (4, 0)),
        ):
            feed = _feed((_share(),), queue, follow, {"a": position})
            self.assertEqual(feed.go_on(4, first_step), wanted)


def _share():
    return _Share(0, 1.0, add=lambda *_: None, go_on=lambda: None)


if __name__ == "__main__":
    absltest.main()
