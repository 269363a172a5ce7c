# SPDX-License-Identifier: Apache-2.0
"""Impressions that are joined with their later clicks."""

import collections
import itertools
import random
import time
from unittest import mock

from absl.testing import absltest, parameterized
from cases.join_cases import (
    AGO,
    AwayQueue,
    draw_events,
    following,
    join,
    labels_of,
    queues_of,
)
from queue_source import Queue

import tf_ext
from tf_ext.data import join_source

Field, Schema = tf_ext.data.Field, tf_ext.data.Schema
_SCHEMA = Schema(
    [Field("id", "int64"), Field("joined", "float32")], label="joined"
)


class JoinTest(parameterized.TestCase):
    def _stream(self, source, **options):
        options = {"batch_size": 16, "follow": False, **options}
        return tf_ext.data.stream(
            source, _SCHEMA, envelope={"joined": "header:joined"}, **options
        )

    def _read(self, data, progress=None, batches=None):
        found = []
        for features, labels in data:
            ids = features["id"].numpy().tolist()
            found += zip(ids, labels.numpy().tolist(), strict=True)
            if progress is not None:
                progress.advance()
            if batches is not None:
                batches -= 1
                if not batches:
                    break
        return found

    def test_labels(self):
        rng = random.Random(1)
        impressions, clicks, labels = draw_events(rng, 600)
        source = join(*queues_of(impressions, clicks))
        found = self._read(self._stream(source))
        self.assertEqual(dict(found), labels)
        self.assertLen(found, 600)
        clicked = sum(labels.values())
        counts = source.counts
        self.assertEqual(
            (counts.joined, counts.alone), (clicked, 600 - clicked)
        )
        self.assertEqual(counts.late, len(clicks) - clicked)
        self.assertEqual((counts.early, counts.repeated), (0, 0))

    def test_restarts_anywhere(self):
        """Each impression once, with its label, whenever it restarts."""
        rng = random.Random(2)
        impressions, clicks, labels = draw_events(rng, 600)
        queues = queues_of(impressions, clicks)
        progress = tf_ext.data.StreamProgress()
        found = []
        while True:
            data = self._stream(join(*queues), progress=progress)
            batches = rng.randrange(1, 9)
            some = self._read(data, progress, batches)
            found += some
            if not some:
                break
            state = progress.state()
            progress = tf_ext.data.StreamProgress()
            progress.restore(state)
        counted = collections.Counter(id_ for id_, _ in found)
        self.assertEqual(counted, dict.fromkeys(range(600), 1))
        self.assertEqual(dict(found), labels)

    def test_what_waits_is_bounded(self):
        rng = random.Random(3)
        impressions, clicks, labels = draw_events(rng, 600)
        source = join(*queues_of(impressions, clicks), most=10)
        found = self._read(self._stream(source))
        self.assertCountEqual([id_ for id_, _ in found], range(600))
        counts = source.counts
        self.assertGreater(counts.early, 100)
        self.assertEqual(counts.joined + counts.alone, 600)
        self.assertLessEqual(counts.joined, sum(labels.values()))
        self.assertTrue(all(labels[id_] for id_, label in found if label))

    def test_how_many_records_wait(self):
        shown = Queue()
        shown.add("a", *(b"%d" % id_ for id_ in range(20)), time=1.0)
        source = join(shown, Queue(a=[]), most=4)
        consumer = source.open({"first:a": 0, "later:a": 0}, True)
        for id_ in range(10):
            [found] = consumer.poll(1, 0.0)
            self.assertEqual(found.value, b"%d" % id_)

    def test_how_many_later_ones_wait(self):
        """The oldest fall out, and no more than must."""
        shown, clicked = Queue(a=[]), Queue()
        for id_ in range(5):
            clicked.add("a", b"%d" % id_, time=time.time() + 1000)
        source = join(shown, clicked, most=2)
        consumer = source.open({"first:a": 0, "later:a": 0}, True)
        [left] = consumer.poll(8, 0.0)
        self.assertEqual((left.partition, left.position), ("later:a", 3))
        self.assertEqual(source.counts.late, 3)
        found = {}
        for id_ in range(2, 5):
            shown.add("a", b"%d" % id_, time=time.time() + 1000)
            for one in consumer.poll(8, 0.0):
                if one.value is not None:
                    found[one.value] = one.headers["joined"]
        self.assertEqual(found, {b"2": b"0", b"3": b"1"})

    def test_what_comes_after_its_record_was_returned(self):
        shown, clicked = Queue(), Queue(a=[])
        shown.add("a", b"1", time=1.0)
        source = join(shown, clicked, most=1)
        consumer = source.open({"first:a": 0, "later:a": 0}, True)
        [record] = consumer.poll(8, 0.0)
        self.assertEqual(record.headers["joined"], b"0")
        clicked.add("a", b"1", time=2.0)
        for _ in range(2):  # First it looks whether more records come.
            consumer.poll(8, 0.0)
        self.assertEqual((source.counts.early, source.counts.late), (1, 1))

    def test_a_record_waits_for_the_whole_window(self):
        now = time.time()
        shown, clicked = Queue(), Queue()
        shown.add("a", b"1", b"2", time=now)
        clicked.add("a", b"7", time=now)
        source = join(shown, clicked, window=1.0, delay=0.5)
        data = self._stream(source, follow=True, max_delay=0.1)
        batches = iter(data)
        clicked.add("a", b"2", time=now + 0.5)
        found = next(batches)
        self.assertEqual(found[1].numpy().tolist(), [0.0, 1.0])
        self.assertGreaterEqual(time.time(), now + 1.49)

    @parameterized.product(follow=[False, True], has_clicks=[False, True])
    def test_batches_of_a_backlog_are_full(self, follow, has_clicks):
        impressions = [(id_, AGO + id_) for id_ in range(203)]
        clicks = [(id_, when + 10) for id_, when in impressions[::3]]
        queues = queues_of(impressions, clicks * has_clicks, partitions=1)
        data = self._stream(join(*queues), follow=follow)
        sizes = [len(labels) for _, labels in itertools.islice(data, 12)]
        self.assertEqual(sizes, [16] * 12)

    @parameterized.product(is_known=[False, True], ahead=[0.0, 1000.0])
    def test_young_records_wait_for_the_next_run(self, is_known, ahead):
        now = time.time()
        shown, clicked = Queue(), Queue()
        shown.add("a", *[b"1"] * 2, time=now - 300)
        shown.add("a", b"2", b"3", b"4", time=now - 20)
        clicked.add("a", b"2", b"9", time=now - 10)
        # What is read to here is ahead of all that young records wait for.
        clicked.add("a", *[b"x"] * 40, time=now + ahead)
        queues = [AwayQueue(shown), AwayQueue(clicked)]
        for queue in queues:
            queue.is_known = is_known
        progress = tf_ext.data.StreamProgress()
        data = self._stream(join(*queues), progress=progress)
        with self.assertLogs(join_source.__name__, "INFO") as logs:
            found = self._read(data, progress)
        self.assertEqual(found, [(1, 0.0), (1, 0.0)])
        self.assertIn("3 records wait", logs.output[0])
        clicked.add("a", b"3", time=now + ahead)
        shown.add("a", b"9", time=now - 15)
        with mock.patch.object(time, "time", lambda: now + 200.0):
            expected = [(2, 1.0), (3, float(not ahead)), (4, 0.0), (9, 1.0)]
            with self.assertNoLogs(join_source.__name__):
                self.assertEqual(self._read(data, progress), expected)
                self.assertEqual(self._read(data, progress), [])

    def test_a_source_without_partitions(self):
        shown = Queue(a=[])
        shown.add("a", b"1", time=AGO)
        source = join(shown, Queue())
        consumer = source.open({"first:a": 0}, True)
        found = [len([*consumer.poll(1, 0.0)]) for _ in range(3)]
        self.assertEqual(sum(found), 1)

    @parameterized.parameters((96.0, 99.0), (100.0, 100.0))
    def test_the_last_moment_of_a_window(self, before, clicked_at):
        """What is read one by one is joined as what is read at once."""
        shown, clicked = Queue(), Queue()
        for queue, events in (
            (shown, [(1, 0.0), (9, before)]),
            (clicked, [(8, 95.0), (7, before), (1, clicked_at)]),
        ):
            for id_, when in events:
                queue.add("a", b"%d" % id_, time=when)
        source = join(shown, clicked)
        positions = {"first:a": 0, "later:a": 0}
        consumer = source.open(positions, False)
        found = {}
        while (some := consumer.poll(1, 0.0)) is not None:
            for one in some:
                if one.value is not None:
                    found[one.value] = one.headers["joined"]
        self.assertEqual(found, {b"1": b"1", b"9": b"0"})

    def test_records_without_a_time_do_not_wait(self):
        shown, clicked = Queue(), Queue()
        shown.add("a", b"1")
        clicked.add("a", b"2")
        source = join(shown, clicked)
        consumer = source.open({"first:a": 0, "later:a": 0}, True)
        values = [message.value for message in consumer.poll(8, 0.0)]
        self.assertEqual(values, [b"1", None])

    def test_repeated_and_keyless(self):
        shown, clicked = Queue(), Queue()
        shown.add("a", b"1", b"2", time=1.0)
        clicked.add("a", b"1", b"1", time=2.0)
        clicked.add("a", b"2", time=2.0)
        source = join(
            shown,
            clicked,
            id=lambda message: None if message.value == b"2" else b"k",
        )
        found = self._read(self._stream(source))
        self.assertEqual(found, [(1, 1.0), (2, 0.0)])
        self.assertEqual(source.counts.repeated, 1)

    def test_copies_of_a_record(self):
        """A click is of each of them that it is in time for, and alike ever."""
        shown, clicked = Queue(), Queue()
        for when in (0.0, 20.0, 80.0):
            shown.add("a", b"1", time=AGO + when)
        clicked.add("a", b"1", time=AGO + 50.0)
        clicked.add("a", b"1", time=AGO + 110.0)
        wanted = [b"1", b"1", b"1"]
        # The last one's click is that of 110, as it came before the first.
        source = join(shown, clicked, window=60.0, delay=5.0)
        consumer = source.open({"first:a": 0, "later:a": 0}, False)
        self.assertEqual(self._joined(consumer), wanted)
        self.assertEqual((source.counts.late, source.counts.repeated), (0, 0))
        # Begun again behind any of them.
        for n in range(3):
            consumer = source.open({"first:a": n, "later:a": 0}, False)
            self.assertEqual(self._joined(consumer), wanted[n:])

    @parameterized.parameters(
        (-5.0, b"1"), (-5.5, b"0"), (60.0, b"1"), (60.5, b"0")
    )
    def test_how_much_older_or_younger(self, by, joined):
        shown, clicked = Queue(), Queue()
        # Another one waits for longer, so that nothing is given up.
        shown.add("a", b"2", time=AGO - 50.0)
        shown.add("a", b"1", time=AGO)
        clicked.add("a", b"1", time=AGO + by)
        source = join(shown, clicked, window=60.0, delay=5.0)
        for first in (0, 1):
            consumer = source.open({"first:a": first, "later:a": 0}, False)
            self.assertEqual(self._joined(consumer)[-1], joined)

    def test_the_oldest_of_several(self):
        for times in itertools.permutations(range(3)):
            shown, clicked = Queue(), Queue()
            shown.add("a", b"1", time=AGO)
            for name, n in zip("abc", times):
                headers = {"n": b"%d" % n}
                clicked.add(name, b"1", headers=headers, time=AGO + n)
            source = join(shown, clicked)
            consumer = source.open(dict.fromkeys(source.partitions(), 0), False)
            [found] = [one for one in self._all(consumer) if one.value]
            self.assertEqual(found.headers["n"], b"0")

    def test_a_click_after_a_copy_was_returned(self):
        shown, clicked = AwayQueue(Queue(a=[])), AwayQueue(Queue(a=[]))
        for when in (0.0, 50.0):
            shown.add("a", b"1", time=AGO + when)
        consumer = following(join(shown, clicked))
        for until, click, label in ((140.0, 130.0, 0.0), (200.0, 190.0, 1.0)):
            shown.read_until = clicked.read_until = {"a": AGO + until}
            found = [one for one in consumer.poll(8, 0.0) if one.value]
            self.assertEqual(labels_of(found), {1: label})
            self.assertLen(found, 1)
            clicked.add("a", b"1", time=AGO + click)

    def _all(self, consumer):
        found = []
        while (some := consumer.poll(8, 0.0)) is not None:
            found += some
        return found

    def _joined(self, consumer):
        messages = self._all(consumer)
        return [one.headers["joined"] for one in messages if one.value]

    def test_headers_of_both(self):
        shown, clicked = Queue(), Queue()
        shown.add("a", b"1", key=b"k", headers={"x": b"1"}, time=1.0)
        clicked.add("a", b"2", key=b"k", headers={"y": b"2"}, time=1.0)
        source = join(shown, clicked, id=None)
        positions = {
            name: source.position(name, "earliest")
            for name in source.partitions()
        }
        consumer = source.open(positions, False)
        found = []
        while (some := consumer.poll(8, 0.0)) is not None:
            found += [one for one in some if one.value is not None]
        [message] = found
        self.assertEqual(
            message.headers, {"x": b"1", "y": b"2", "joined": b"1"}
        )
        self.assertEqual(message.partition, "first:a")

    @parameterized.parameters(
        ({"first": 3}, "first"),
        ({"later": None}, "later"),
        ({"window": 0}, "window"),
        ({"id": b"x"}, "id"),
        ({"most": 0}, "most"),
        ({"delay": -1}, "delay"),
    )
    def test_arguments(self, changed, named):
        given = {"first": Queue(), "later": Queue(), "window": 1.0}
        with self.assertRaisesRegex(ValueError, f"`{named}` of JoinSource"):
            tf_ext.data.JoinSource(**given | changed)

    def test_joins_are_not_joined(self):
        joined = join(Queue(), Queue())
        for sources in ((joined, Queue()), (Queue(), joined)):
            with self.assertRaisesRegex(
                ValueError, "Source, but not a JoinSource"
            ):
                join(*sources)

    def test_later_messages_are_left_behind(self):
        """Those that no record will want are not read again."""
        rng = random.Random(3)
        impressions, clicks, _ = draw_events(rng, 200)
        queues = queues_of(impressions, clicks, 1)
        progress = tf_ext.data.StreamProgress()
        data = self._stream(join(*queues), progress=progress)
        between = []
        for _ in data:
            progress.advance()
            between.append(progress.positions["later:p0"])
        self.assertEqual(between, sorted(between))
        self.assertBetween(between[len(between) // 2], 1, len(clicks) - 1)
        queues[0].add("p0", b"1000", time=AGO + 10_000)
        found = self._read(data, progress)
        self.assertEqual(found, [(1000, 0.0)])
        self.assertEqual(
            progress.positions, {"first:p0": 201, "later:p0": len(clicks)}
        )

    def test_shards(self):
        source = join(Queue(), Queue())
        with self.assertRaisesRegex(ValueError, "`shard` of stream"):
            self._stream(source, shard=(0, 2))


if __name__ == "__main__":
    absltest.main()
