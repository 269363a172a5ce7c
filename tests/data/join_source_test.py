# SPDX-License-Identifier: Apache-2.0
"""Impressions that are joined with their later clicks."""

import collections
import itertools
import math
import random
import time
from unittest import mock

from absl.testing import absltest, parameterized
from queue_source import Queue

import tf_ext
from tf_ext.data import join_source

Field, Schema = tf_ext.data.Field, tf_ext.data.Schema
_SCHEMA = Schema(
    [Field("id", "int64"), Field("joined", "float32")], label="joined"
)
_WINDOW = 100.0
_AGO = 1e6  # Long ago, so that nothing is young.


def _id(message):
    return message.value


def _queues(impressions, clicks, partitions=3):
    """Queues of `(id, time)`, each partition in the order of times."""
    queues = []
    for events in (impressions, clicks):
        queue = Queue(**{f"p{n}": [] for n in range(partitions)})
        for id_, when in sorted(events, key=lambda event: event[1]):
            name = f"p{id_ % partitions}"
            queue.add(name, b"%d" % id_, time=when)
        queues.append(queue)
    return queues


class _Away(Queue):
    """A queue that may be away, and tells up to when it was read."""

    def __init__(self, queue):
        super().__init__(**queue.lists)
        self.is_away = False
        self.is_known = True
        self.read_until = None

    def open(self, positions, follow):
        consumer = super().open(positions, follow)
        poll, known = consumer.poll, {}

        def poll_unless_away(most, seconds):
            if self.is_away:
                return []
            found = poll(most, seconds)
            if not found:
                until = time.time() if follow else math.inf
                known.update(dict.fromkeys(positions, until))
            return found

        consumer.poll = poll_unless_away
        if self.is_known:
            consumer.read_until = lambda: (
                known if self.read_until is None else self.read_until
            )
        return consumer


def _following(source):
    """A consumer of all partitions, from their first messages on."""
    return source.open(dict.fromkeys(source.partitions(), 0), True)


def _labels(messages):
    """The label of each impression that was returned, by its id."""
    return {
        int(one.value): float(one.headers["joined"])
        for one in messages
        if one.value is not None
    }


def _events(rng, count):
    """Impressions and clicks, and the label of each impression."""
    impressions, clicks, labels = [], [], {}
    for id_ in range(count):
        when = _AGO + rng.uniform(0, 1000)
        impressions.append((id_, when))
        labels[id_] = 0.0
        if rng.random() < 0.4:
            after = rng.uniform(0, 1.5 * _WINDOW)
            clicks.append((id_, when + after))
            labels[id_] = float(after <= _WINDOW)
    return impressions, clicks, labels


class JoinTest(parameterized.TestCase):
    def _join(self, impressions, clicks, **options):
        options = {"window": _WINDOW, "id": _id, **options}
        return tf_ext.data.JoinSource(impressions, clicks, **options)

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
        impressions, clicks, labels = _events(rng, 600)
        source = self._join(*_queues(impressions, clicks))
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
        impressions, clicks, labels = _events(rng, 600)
        queues = _queues(impressions, clicks)
        progress = tf_ext.data.StreamProgress()
        found = []
        while True:
            data = self._stream(self._join(*queues), progress=progress)
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
        impressions, clicks, labels = _events(rng, 600)
        source = self._join(*_queues(impressions, clicks), most=10)
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
        source = self._join(shown, Queue(a=[]), most=4)
        consumer = source.open({"first:a": 0, "later:a": 0}, True)
        for id_ in range(10):
            [found] = consumer.poll(1, 0.0)
            self.assertEqual(found.value, b"%d" % id_)

    def test_how_many_later_ones_wait(self):
        """The oldest fall out, and no more than must."""
        shown, clicked = Queue(a=[]), Queue()
        for id_ in range(5):
            clicked.add("a", b"%d" % id_, time=time.time() + 1000)
        source = self._join(shown, clicked, most=2)
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
        source = self._join(shown, clicked, most=1)
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
        source = self._join(shown, clicked, window=1.0, delay=0.5)
        data = self._stream(source, follow=True, max_delay=0.1)
        batches = iter(data)
        clicked.add("a", b"2", time=now + 0.5)
        found = next(batches)
        self.assertEqual(found[1].numpy().tolist(), [0.0, 1.0])
        self.assertGreaterEqual(time.time(), now + 1.49)

    def test_partitions_that_were_not_read_during_a_pause(self):
        """As training stands still while it evaluates, say."""
        rng = random.Random(4)
        impressions, clicks, labels = _events(rng, 2000)
        source = self._join(*_queues(impressions, clicks, 2))
        consumer = _following(source)
        found = {}
        clock = mock.Mock(time=time.time, monotonic=time.monotonic)
        with mock.patch.object(join_source, "time", clock):
            for poll in range(200):
                if poll == 5:
                    clock.monotonic = lambda: time.monotonic() + 60
                found |= _labels(consumer.poll(50, 0.0))
                if len(found) == len(labels):
                    break
        self.assertEqual(found, labels)

    @parameterized.parameters(0, 1)
    def test_a_source_that_is_away_is_waited_for(self, side):
        rng = random.Random(5)
        impressions, clicks, labels = _events(rng, 300)
        queues = _queues(impressions, clicks)
        away = queues[side] = _Away(queues[side])
        source = self._join(*queues)
        consumer = _following(source)

        def read(polls):
            found = {}
            for _ in range(polls):
                found |= _labels(consumer.poll(50, 0.0))
            return found

        found = read(2)
        away.is_away = True
        found |= read(50)
        self.assertLess(len(found), 300)
        away.is_away = False
        self.assertEqual(found | read(50), labels)

    def test_no_more_is_read_while_the_first_is_away(self):
        """What comes meanwhile would fall out before its records are read."""
        times = [_AGO + 20 * number for number in range(40)]
        shown, clicked = _queues(
            [*enumerate(times)],
            [(n, when + 1) for n, when in enumerate(times)],
            partitions=1,
        )
        shown = _Away(shown)
        source = self._join(shown, clicked, most=15)
        consumer = _following(source)
        found = {}
        for poll in range(200):
            shown.is_away = 3 < poll < 100
            found |= {
                int(one.value): one.headers["joined"]
                for one in consumer.poll(4, 0.0)
                if one.value is not None
            }
        self.assertEqual(found, dict.fromkeys(range(40), b"1"))
        self.assertEqual((source.counts.late, source.counts.early), (0, 0))

    def test_a_partition_without_messages(self):
        """It holds up the others until it is known that it has none."""
        shown, clicked = Queue(a=[]), Queue(a=[], b=[])
        shown.add("a", b"1", time=_AGO)
        clicked = _Away(clicked)
        source = self._join(shown, clicked)
        consumer = _following(source)
        clicked.read_until = {"a": time.time()}
        self.assertEmpty(consumer.poll(8, 0.0))
        clicked.read_until = {"a": time.time(), "b": _AGO + _WINDOW + 4.9}
        self.assertEmpty(consumer.poll(8, 0.0))
        clicked.read_until["b"] = _AGO + _WINDOW + 5.1  # And `delay`.
        self.assertLen(consumer.poll(8, 0.0), 1)

    @parameterized.parameters((None,), ({},))
    def test_a_partition_that_is_idle(self, known):
        """After ten seconds of polls, if nobody knows about it."""
        shown, clicked = Queue(a=[]), Queue(a=[], idle=[])
        shown.add("a", b"1", time=_AGO)
        for second in range(40):
            clicked.add("a", b"x", time=_AGO + _WINDOW + second)
        clicked = _Away(clicked)
        clicked.read_until = known
        clicked.is_known = known is not None
        source = self._join(shown, clicked)
        consumer = _following(source)
        clock = mock.Mock(time=time.time, monotonic=time.monotonic)
        with (
            mock.patch.object(join_source, "time", clock),
            mock.patch.object(join_source, "_FILLING_SECONDS", 0.0),
        ):
            found, begin = [], time.monotonic()
            for poll in range(30):
                clock.monotonic = lambda poll=poll: begin + 100 * poll
                some = consumer.poll(1, 0.0)
                found.append(sum(one.value is not None for one in some))
        self.assertEqual(sum(found[:10]), 0)
        self.assertEqual(sum(found) > 0, known is None)

    def test_sources_that_are_silent_for_long(self):
        now = time.time()
        shown, clicked = Queue(a=[], b=[]), Queue(a=[], b=[])
        shown.add("a", b"1", time=now)
        source = self._join(shown, clicked, window=20.0)
        consumer = _following(source)
        clock = mock.Mock(time=time.time, monotonic=time.monotonic)
        begin, found = time.monotonic(), []
        with mock.patch.object(join_source, "time", clock):
            for second in range(40):
                clock.time = lambda second=second: now + second
                clock.monotonic = lambda second=second: begin + second
                some = consumer.poll(8, 0.0)
                found += [second for one in some if one.value is not None]
        self.assertEqual(found, [26])  # Behind the window and `delay`.

    def test_later_records_are_read_without_a_pause(self):
        """A `first` that has nothing is not waited for meanwhile."""
        shown, clicked = Queue(a=[]), Queue(a=[])
        shown.add("a", b"1", time=_AGO)
        clicked.add("a", *[b"2"] * 20, time=_AGO)
        source = self._join(shown, clicked)
        consumer = _following(source)
        waited = []
        with mock.patch.object(time, "sleep", waited.append):
            for _ in range(25):
                consumer.poll(1, 0.5)
        self.assertEqual(waited.count(0.5), 25 - 1)

    def test_waits_for_later_records_if_no_first_ones_are_left(self):
        source = self._join(Queue(a=[]), Queue(a=[]))
        consumer = source.open({"first:a": 0, "later:a": 0}, False)
        later = consumer._later.consumer
        with mock.patch.object(later, "poll", return_value=[]) as poll:
            for seconds in (0.0, 0.5):
                self.assertEqual(consumer.poll(1, seconds), [])
        self.assertEqual(poll.call_args.args, (1, 0.5))

    @parameterized.parameters(Queue(a=[]), Queue(), _Away(Queue(a=[])))
    def test_what_comes_while_it_is_read_is_not_known(self, clicked):
        now = time.time()
        shown = Queue()
        shown.add("a", b"1", time=now - 20)
        source = self._join(shown, clicked)
        positions = dict.fromkeys(source.partitions(), 0)
        consumer = source.open(positions, False)
        with mock.patch.object(time, "time", lambda: now + 1000.0):
            self.assertIsNone(consumer.poll(8, 0.0))

    @parameterized.product(follow=[False, True], has_clicks=[False, True])
    def test_batches_of_a_backlog_are_full(self, follow, has_clicks):
        impressions = [(id_, _AGO + id_) for id_ in range(203)]
        clicks = [(id_, when + 10) for id_, when in impressions[::3]]
        queues = _queues(impressions, clicks * has_clicks, partitions=1)
        data = self._stream(self._join(*queues), follow=follow)
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
        queues = [_Away(shown), _Away(clicked)]
        for queue in queues:
            queue.is_known = is_known
        progress = tf_ext.data.StreamProgress()
        data = self._stream(self._join(*queues), progress=progress)
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
        shown.add("a", b"1", time=_AGO)
        source = self._join(shown, Queue())
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
        source = self._join(shown, clicked)
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
        source = self._join(shown, clicked)
        consumer = source.open({"first:a": 0, "later:a": 0}, True)
        values = [message.value for message in consumer.poll(8, 0.0)]
        self.assertEqual(values, [b"1", None])

    def test_repeated_and_keyless(self):
        shown, clicked = Queue(), Queue()
        shown.add("a", b"1", b"2", time=1.0)
        clicked.add("a", b"1", b"1", time=2.0)
        clicked.add("a", b"2", time=2.0)
        source = self._join(
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
            shown.add("a", b"1", time=_AGO + when)
        clicked.add("a", b"1", time=_AGO + 50.0)
        clicked.add("a", b"1", time=_AGO + 110.0)
        wanted = [b"1", b"1", b"1"]
        # The last one's click is that of 110, as it came before the first.
        source = self._join(shown, clicked, window=60.0, delay=5.0)
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
        shown.add("a", b"2", time=_AGO - 50.0)
        shown.add("a", b"1", time=_AGO)
        clicked.add("a", b"1", time=_AGO + by)
        source = self._join(shown, clicked, window=60.0, delay=5.0)
        for first in (0, 1):
            consumer = source.open({"first:a": first, "later:a": 0}, False)
            self.assertEqual(self._joined(consumer)[-1], joined)

    def test_the_oldest_of_several(self):
        for times in itertools.permutations(range(3)):
            shown, clicked = Queue(), Queue()
            shown.add("a", b"1", time=_AGO)
            for name, n in zip("abc", times):
                headers = {"n": b"%d" % n}
                clicked.add(name, b"1", headers=headers, time=_AGO + n)
            source = self._join(shown, clicked)
            consumer = source.open(dict.fromkeys(source.partitions(), 0), False)
            [found] = [one for one in self._all(consumer) if one.value]
            self.assertEqual(found.headers["n"], b"0")

    def test_a_click_after_a_copy_was_returned(self):
        shown, clicked = _Away(Queue(a=[])), _Away(Queue(a=[]))
        for when in (0.0, 50.0):
            shown.add("a", b"1", time=_AGO + when)
        consumer = _following(self._join(shown, clicked))
        for until, click, label in ((140.0, 130.0, 0.0), (200.0, 190.0, 1.0)):
            shown.read_until = clicked.read_until = {"a": _AGO + until}
            found = [one for one in consumer.poll(8, 0.0) if one.value]
            self.assertEqual(_labels(found), {1: label})
            self.assertLen(found, 1)
            clicked.add("a", b"1", time=_AGO + click)

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
        source = self._join(shown, clicked, id=None)
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
        joined = self._join(Queue(), Queue())
        for sources in ((joined, Queue()), (Queue(), joined)):
            with self.assertRaisesRegex(
                ValueError, "Source, but not a JoinSource"
            ):
                self._join(*sources)

    def test_later_messages_are_left_behind(self):
        """Those that no record will want are not read again."""
        rng = random.Random(3)
        impressions, clicks, _ = _events(rng, 200)
        queues = _queues(impressions, clicks, 1)
        progress = tf_ext.data.StreamProgress()
        data = self._stream(self._join(*queues), progress=progress)
        between = []
        for _ in data:
            progress.advance()
            between.append(progress.positions["later:p0"])
        self.assertEqual(between, sorted(between))
        self.assertBetween(between[len(between) // 2], 1, len(clicks) - 1)
        queues[0].add("p0", b"1000", time=_AGO + 10_000)
        found = self._read(data, progress)
        self.assertEqual(found, [(1000, 0.0)])
        self.assertEqual(
            progress.positions, {"first:p0": 201, "later:p0": len(clicks)}
        )

    def test_shards(self):
        source = self._join(Queue(), Queue())
        with self.assertRaisesRegex(ValueError, "`shard` of stream"):
            self._stream(source, shard=(0, 2))


if __name__ == "__main__":
    absltest.main()
