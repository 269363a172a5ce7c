# SPDX-License-Identifier: Apache-2.0
"""Which share of a stream a worker trains on, and where an epoch ends."""

import collections
import threading
import time
import types
from unittest import mock

import tensorflow as tf
from absl.testing import absltest
from queue_source import Queue

import tf_ext
from tf_ext.data import source_waiting
from tf_ext.data.errors import Malformed
from tf_ext.data.progress import BatchNote
from tf_ext.data.stream_reader import REFRESH_SECONDS
from tf_ext.data.worker_streams import Told, WorkerStream
from tf_ext.training.parameter_servers import stream_feed
from tf_ext.training.parameter_servers.step_numbers import SPEC
from tf_ext.training.parameter_servers.stream_share import NAME, Trained

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

    def test_waits_where_no_share_has_a_batch(self):
        waits = []

        class Waits(_Share):
            def is_ready(self, worker, seconds):
                waits.append((self.index, worker, seconds))
                return self.ready

        own, lost = Waits(1, 2.0, ready=False), Waits(0, 1.0, is_lost=True)
        lost.ready = False
        with mock.patch.object(time, "sleep") as sleep:
            self.assertEqual(self._run(1, own, lost), [])
            asked = [(0, 1), (1, 1)]
            self.assertEqual(
                waits,
                [(*one, seconds) for seconds in (0.0, 0.2) for one in asked],
            )
            sleep.assert_not_called()
            # Of shares that others read, or of another worker.
            lost.lock.acquire()
            self.assertEqual(self._run(2, own, lost), [])
            sleep.assert_called_once_with(0.2)
        self.assertFalse(own.lock.locked())

    def test_a_step_of_another_epoch(self):
        self.assertEqual(_feed([_Share(0, 1.0)])._run(None, 1, 0), [])

    def test_a_lock_is_free_after_an_error(self):
        share = _Share(0, 1.0)
        share.run = mock.Mock(side_effect=KeyError)
        with self.assertRaises(KeyError):
            self._run(0, share)
        self.assertFalse(share.lock.locked())


class EpochTest(absltest.TestCase):
    def test_steps(self):
        for steps, first, follow, wanted in (
            (3, 0, True, 3),
            (3, 1, True, 2),
            (3, 3, True, 0),
            (3, 0, False, 2),
            (None, 0, False, 2),
            (None, 7, False, 2),
        ):
            share = _share()
            feed = _feed([share], follow=follow)
            feed.num_batches = steps
            made = []
            for epoch in feed.epoch(first):
                self.assertEqual(feed.sent_again(), [1])
                made.append(epoch)
                share.has_ended = not follow and len(made) == 2
            self.assertEqual(made, [1] * wanted)
            if share.has_ended:
                self.assertEqual(feed.sent_again(), [])

    def test_partitions_are_divided_once(self):
        shares = [_share(), _share()]
        for share in shares:
            share.add, share.go_on = mock.Mock(), mock.Mock()
        feed = _feed(shares, Queue(a=[], b=[], c=[]), positions={"b": 4})
        feed.num_batches = 1
        with mock.patch.object(time, "monotonic", return_value=100.0):
            for _ in range(2):
                self.assertLen([*feed.epoch()], 1)
        added = [
            [call.args for call in share.add.mock_calls] for share in shares
        ]
        self.assertCountEqual(
            added[0] + added[1], [("a", 0), ("b", 4), ("c", 0)]
        )
        self.assertEqual([len(one) for one in added], [2, 1])
        self.assertEqual(feed._refresh, 100.0 + REFRESH_SECONDS)
        self.assertEqual([s.go_on.call_count for s in shares], [2, 2])

    def test_close(self):
        share = _share()
        share.close = mock.Mock()
        feed = _feed([share])
        feed._begun = collections.deque()
        feed.close()
        share.close.assert_called_once_with()
        self.assertEqual(feed._run(None, 0, 0), [])


class PartitionsTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.added = []
        self.shares = [_share() for _ in range(2)]
        for share, partitions in zip(self.shares, (2, 1), strict=True):
            share.partitions = partitions
            share.add = self._adds(share)
        self.queue = Queue(a=[], b=[], c=[])
        for name in ("e", "d", "f"):
            self.queue.add(name, b"1")
        self.enterContext(
            mock.patch.object(time, "monotonic", return_value=100.0)
        )

    def _adds(self, share):
        def add(name, position):
            share.partitions += 1
            self.added.append((self.shares.index(share), name, position))

        return add

    def _feed(self, follow=True, refresh=100.0):
        feed = _feed(self.shares, self.queue, follow, dict(a=0, b=0, c=0))
        feed._refreshing = threading.Lock()
        feed._refresh = refresh
        return feed

    def test_new_ones_are_of_the_smallest_share(self):
        feed = self._feed()
        feed._look_for_partitions()
        self.assertEqual(self.added, [(1, "d", 0), (0, "e", 0), (1, "f", 0)])
        self.assertCountEqual(feed.streams[0].positions, "abcdef")
        self.assertEqual(feed._refresh, 100.0 + REFRESH_SECONDS)
        self.assertFalse(feed._refreshing.locked())
        feed._refresh = 0.0
        feed._look_for_partitions()
        self.assertLen(self.added, 3)

    def test_are_not_looked_for(self):
        for feed in (self._feed(follow=False), self._feed(refresh=100.5)):
            feed._look_for_partitions()
        feed = self._feed()
        with feed._refreshing:
            feed._look_for_partitions()
        self.assertEmpty(self.added)

    def test_a_worker_looks_before_its_step(self):
        feed = self._feed()
        feed._run(None, 0, 0)
        self.assertLen(self.added, 3)

    def test_a_source_that_is_away(self):
        feed = self._feed()
        with (
            mock.patch.object(
                self.queue, "partitions", side_effect=OSError("away")
            ),
            self.assertLogs(tf.get_logger(), "WARNING") as logs,
        ):
            feed._look_for_partitions()
        self.assertIn("could not be listed: away", logs.output[0])
        self.assertEqual(feed._refresh, 100.0 + REFRESH_SECONDS)
        self.assertFalse(feed._refreshing.locked())


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

    def test_a_step_that_found_no_batch(self):
        for nothing in (None, []):
            self.assertEqual(self.feed.made(1, nothing), (0, None))

    def test_malformed_records_are_counted(self):
        self.feed._errors = tf_ext.data.ReadErrors()
        malformed = [Malformed(7, "bad number")]
        told = Told(
            BatchNote({"a": 8}, 4, None, None, {}), [("a", 5, malformed)]
        )
        self.feed.made(1, ["loss", tf.constant(Trained(1, told).text())])
        self.assertEqual(
            self.feed._errors.state(),
            {"a": {"records": 5, "reasons": {"bad number": 1}}},
        )


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

    def _traced(self, change, worker=0):
        def dataset(context):
            stream = tf_ext.data.stream(
                Queue(a=[]), _SCHEMA, "csv", batch_size=4, shard=context
            )
            return change(stream, context)

        feed = _feed()
        feed._dataset_fn, feed._class_weight = dataset, None
        streams = []
        return feed, streams, feed._traced(worker, 3, streams)

    def test_the_stream_of_a_worker(self):
        feed, [made], (text, traced) = self._traced(lambda data, _: data)
        self.assertEqual(text, made.text)
        self.assertIsInstance(made.stream.source, Queue)
        self.assertEqual(
            feed.element_spec, traced.structured_outputs.element_spec
        )

    def test_data_that_are_not_one_stream(self):
        def two(data, context):
            other = tf_ext.data.stream(
                Queue(a=[]), _SCHEMA, "csv", batch_size=4, shard=context
            )
            return tf.data.Dataset.zip(data, other)

        for change, said in (
            (lambda data, _: data.batch(2), "a batch for each batch of"),
            (lambda data, _: data.take(2), "of 1 streams, and take$"),
            (two, "of 2 streams$"),
        ):
            with self.assertRaisesRegex(ValueError, said):
                self._traced(change)

    def test_the_function_of_a_step(self):
        feed = _feed()

        def run(iterator, number):
            return [feed.unpack(iterator) + number, "loss"]

        with mock.patch.object(
            stream_feed.worker_streams,
            "tell",
            lambda name, done, seconds: (name, done, seconds),
        ):
            found = feed.traced(run)(iter([tf.constant(5)]), "name", 2)
        self.assertEqual(found, [7, ("name", 1, 0.0), "loss"])
        self.assertEqual(feed.steps_in(0), 1)


class StarterTest(absltest.TestCase):
    def test_schedules_a_step(self):
        clusters = mock.Mock()
        clusters.schedule_in_thread = lambda coordinator, run, lost: (
            coordinator,
            run,
            lost,
        )
        clusters.cancelled_with_steps = lambda _, function: function
        share = _Share(0, 1.0)
        share.run = lambda function: [function]
        feed = _feed([share])
        feed.element_spec = tf.TensorSpec([2])
        feed.lost = "lost"
        for number, specs in ((None, []), (len, [SPEC])):
            feed.number = number
            with mock.patch.object(stream_feed, "clusters", clusters):
                start = feed.starter("coordinator", lambda steps: steps)
                coordinator, run, lost = start(0)
            self.assertEqual((coordinator, lost), ("coordinator", "lost"))
            self.assertIs(share.number, number)
            traced = clusters.traced_for_workers
            self.assertEqual(run(0), [traced.return_value])
            of, function, iterator, *others = traced.call_args.args
            self.assertEqual(of, "coordinator")
            self.assertEqual(function, 1)
            self.assertEqual(iterator, tf.data.IteratorSpec(feed.element_spec))
            self.assertEqual(others, [NAME, *specs])


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
