# SPDX-License-Identifier: Apache-2.0
"""Impressions and clicks in queues, and what a join returns of them."""

import math
import time

from queue_source import Queue

import tf_ext

WINDOW = 100.0
AGO = 1e6  # Long ago, so that nothing is young.


def value_of(message):
    return message.value


def queues_of(impressions, clicks, partitions=3):
    """Queues of `(id, time)`, each partition in the order of times."""
    queues = []
    for events in (impressions, clicks):
        queue = Queue(**{f"p{n}": [] for n in range(partitions)})
        for id_, when in sorted(events, key=lambda event: event[1]):
            name = f"p{id_ % partitions}"
            queue.add(name, b"%d" % id_, time=when)
        queues.append(queue)
    return queues


class AwayQueue(Queue):
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


def following(source):
    """A consumer of all partitions, from their first messages on."""
    return source.open(dict.fromkeys(source.partitions(), 0), True)


def labels_of(messages):
    """The label of each impression that was returned, by its id."""
    return {
        int(one.value): float(one.headers["joined"])
        for one in messages
        if one.value is not None
    }


def draw_events(rng, count):
    """Impressions and clicks, and the label of each impression."""
    impressions, clicks, labels = [], [], {}
    for id_ in range(count):
        when = AGO + rng.uniform(0, 1000)
        impressions.append((id_, when))
        labels[id_] = 0.0
        if rng.random() < 0.4:
            after = rng.uniform(0, 1.5 * WINDOW)
            clicks.append((id_, when + after))
            labels[id_] = float(after <= WINDOW)
    return impressions, clicks, labels


def join(impressions, clicks, **options):
    """A JoinSource of both, by their values."""
    options = {"window": WINDOW, "id": value_of, **options}
    return tf_ext.data.JoinSource(impressions, clicks, **options)
