# SPDX-License-Identifier: Apache-2.0
"""How long records of a join wait for partitions, sources and clocks."""

import random
import time
from unittest import mock

from absl.testing import absltest, parameterized
from cases.join_cases import (
    AGO,
    WINDOW,
    AwayQueue,
    draw_events,
    following,
    join,
    labels_of,
    queues_of,
)
from queue_source import Queue

from tf_ext.data import join_source


class WaitingTest(parameterized.TestCase):
    def test_partitions_that_were_not_read_during_a_pause(self):
        """As training stands still while it evaluates, say."""
        rng = random.Random(4)
        impressions, clicks, labels = draw_events(rng, 2000)
        source = join(*queues_of(impressions, clicks, 2))
        consumer = following(source)
        found = {}
        clock = mock.Mock(time=time.time, monotonic=time.monotonic)
        with mock.patch.object(join_source, "time", clock):
            for poll in range(200):
                if poll == 5:
                    clock.monotonic = lambda: time.monotonic() + 60
                found |= labels_of(consumer.poll(50, 0.0))
                if len(found) == len(labels):
                    break
        self.assertEqual(found, labels)

    @parameterized.parameters(0, 1)
    def test_a_source_that_is_away_is_waited_for(self, side):
        rng = random.Random(5)
        impressions, clicks, labels = draw_events(rng, 300)
        queues = queues_of(impressions, clicks)
        away = queues[side] = AwayQueue(queues[side])
        source = join(*queues)
        consumer = following(source)

        def read(polls):
            found = {}
            for _ in range(polls):
                found |= labels_of(consumer.poll(50, 0.0))
            return found

        found = read(2)
        away.is_away = True
        found |= read(50)
        self.assertLess(len(found), 300)
        away.is_away = False
        self.assertEqual(found | read(50), labels)

    def test_no_more_is_read_while_the_first_is_away(self):
        """What comes meanwhile would fall out before its records are read."""
        times = [AGO + 20 * number for number in range(40)]
        shown, clicked = queues_of(
            [*enumerate(times)],
            [(n, when + 1) for n, when in enumerate(times)],
            partitions=1,
        )
        shown = AwayQueue(shown)
        source = join(shown, clicked, most=15)
        consumer = following(source)
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
        shown.add("a", b"1", time=AGO)
        clicked = AwayQueue(clicked)
        source = join(shown, clicked)
        consumer = following(source)
        clicked.read_until = {"a": time.time()}
        self.assertEmpty(consumer.poll(8, 0.0))
        clicked.read_until = {"a": time.time(), "b": AGO + WINDOW + 4.9}
        self.assertEmpty(consumer.poll(8, 0.0))
        clicked.read_until["b"] = AGO + WINDOW + 5.1  # And `delay`.
        self.assertLen(consumer.poll(8, 0.0), 1)

    @parameterized.parameters((None,), ({},))
    def test_a_partition_that_is_idle(self, known):
        """After ten seconds of polls, if nobody knows about it."""
        shown, clicked = Queue(a=[]), Queue(a=[], idle=[])
        shown.add("a", b"1", time=AGO)
        for second in range(40):
            clicked.add("a", b"x", time=AGO + WINDOW + second)
        clicked = AwayQueue(clicked)
        clicked.read_until = known
        clicked.is_known = known is not None
        source = join(shown, clicked)
        consumer = following(source)
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

    @parameterized.parameters(0, 1)
    def test_a_partition_that_is_added(self, side):
        """Records wait until it is read, also while it cannot be listed."""
        now = time.time()
        queues = [Queue(a=[]), Queue(a=[])]
        source = join(*queues, window=20.0)
        queues[0].add("a", b"1", time=now)
        consumer = following(source)
        clock = mock.Mock(time=time.time, monotonic=time.monotonic)
        partitions = queues[side].partitions

        def labels(seconds):
            clock.time = lambda: now + seconds
            clock.monotonic = lambda: now + seconds
            return labels_of(consumer.poll(8, 0.0))

        with mock.patch.object(join_source, "time", clock):
            self.assertEmpty(labels(24))  # All is read up to 19.
            queues[side].partitions = mock.Mock(side_effect=OSError("away"))
            self.assertEmpty(labels(40))
            queues[side].partitions = partitions
            names = ["b", "a"] if side == 0 else ["a", "b"]
            queues[0].add(names[0], b"2", time=now + 19.5)
            queues[1].add(names[1], b"1", b"2", time=now + 19.5)
            self.assertEmpty(labels(60))
            consumer = following(source)
            self.assertEqual(labels(60), {1: 1.0, 2: 1.0})

    def test_a_partition_that_is_left_to_the_next_run(self):
        shown, clicked = Queue(a=[]), Queue(a=[])
        shown.add("a", b"1", time=AGO)
        source = join(shown, clicked)
        consumer = source.open(dict.fromkeys(source.partitions(), 0), False)
        clicked.add("b", b"1", time=AGO)
        self.assertEqual(labels_of(consumer.poll(8, 0.0)), {1: 0.0})

    @parameterized.parameters((0.0, 21), (2.0, 2))
    def test_how_often_partitions_are_listed(self, takes, most):
        """Once a second, or for a tenth of the time."""
        now = time.time()
        queues = [Queue(a=[]), Queue(a=[])]
        source = join(*queues)
        consumer = following(source)
        partitions, spent = queues[1].partitions, 0.0

        def listed():
            nonlocal spent
            spent += takes
            return partitions()

        listing = queues[1].partitions = mock.Mock(side_effect=listed)
        clock = mock.Mock(time=time.time)
        with mock.patch.object(join_source, "time", clock):
            for tick in range(200):  # Of 0.1 seconds.
                clock.time = lambda tick=tick: now + tick / 10
                clock.monotonic = lambda tick=tick: now + tick / 10 + spent
                consumer.poll(8, 0.0)
        self.assertBetween(listing.call_count, most - 1, most)

    def test_sources_that_are_silent_for_long(self):
        now = time.time()
        shown, clicked = Queue(a=[], b=[]), Queue(a=[], b=[])
        shown.add("a", b"1", time=now)
        source = join(shown, clicked, window=20.0)
        consumer = following(source)
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
        shown.add("a", b"1", time=AGO)
        clicked.add("a", *[b"2"] * 20, time=AGO)
        source = join(shown, clicked)
        consumer = following(source)
        waited = []
        with mock.patch.object(time, "sleep", waited.append):
            for _ in range(25):
                consumer.poll(1, 0.5)
        self.assertEqual(waited.count(0.5), 25 - 1)

    def test_waits_for_later_records_if_no_first_ones_are_left(self):
        source = join(Queue(a=[]), Queue(a=[]))
        consumer = source.open({"first:a": 0, "later:a": 0}, False)
        later = consumer._later.consumer
        with mock.patch.object(later, "poll", return_value=[]) as poll:
            for seconds in (0.0, 0.5):
                self.assertEqual(consumer.poll(1, seconds), [])
        self.assertEqual(poll.call_args.args, (1, 0.5))

    @parameterized.parameters(Queue(a=[]), Queue(), AwayQueue(Queue(a=[])))
    def test_what_comes_while_it_is_read_is_not_known(self, clicked):
        now = time.time()
        shown = Queue()
        shown.add("a", b"1", time=now - 20)
        source = join(shown, clicked)
        positions = dict.fromkeys(source.partitions(), 0)
        consumer = source.open(positions, False)
        with mock.patch.object(time, "time", lambda: now + 1000.0):
            self.assertIsNone(consumer.poll(8, 0.0))


if __name__ == "__main__":
    absltest.main()
