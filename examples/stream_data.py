# SPDX-License-Identifier: Apache-2.0
r"""The events of stream.py, and the brokers that they go through.

    python stream_data.py BROKER --rate=5000 --seconds=120

is the producer: it sends impressions and, later, clicks, each of them JSON.
What users like drifts, and items come and go, so that what a model has learnt
wears out. Time is compressed: an item lives for a minute rather than a day.
"""

import argparse
import heapq
import os
import pathlib
import signal
import threading
import time
import urllib.parse

import numpy as np

USERS = 50_000
SEGMENTS = TOPICS = 8
# Items that are shown at a time, how long each of them is, and how long it
# takes until a segment likes again what it likes now.
ITEMS = 1000
ITEM_SECONDS = 60.0
TASTE_SECONDS = 240.0
# A click comes after so many seconds, and within the window of a join.
CLICK_SECONDS = 0.2
TICK_SECONDS = 0.05
FEATURES = ("user", "segment", "item", "topic")


class World:
    """Who is shown what, and what is clicked.

    Args:
      seed: int.
    """

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self._quality = rng.normal(0, 1.0, 1 << 16)
        self._phase = rng.uniform(0, 2 * np.pi, [SEGMENTS, TOPICS])
        self._taste = rng.normal(0, 0.7, [SEGMENTS, TOPICS])

    def impressions(self, rng, when, count):
        """Impressions of a moment.

        Args:
          rng: np.random.Generator.
          when: float or float array `[count]`, seconds since the beginning.
          count: int.

        Returns:
          `(features, clicked)`: a dict of int arrays `[count]`, and the
          probabilities of clicks.
        """
        user = rng.integers(0, USERS, count)
        first = (np.asarray(when) * ITEMS / ITEM_SECONDS).astype(np.int64)
        item = first + rng.integers(0, ITEMS, count)
        segment, topic = user % SEGMENTS, item % TOPICS
        turn = 2 * np.pi * np.asarray(when) / TASTE_SECONDS
        taste = self._taste[segment, topic]
        taste = taste + np.sin(turn + self._phase[segment, topic])
        score = self._quality[item % len(self._quality)] + taste - 1.5
        found = {"user": user, "segment": segment, "item": item, "topic": topic}
        return found, 1 / (1 + np.exp(-score))


def texts(features):
    """Features as events and requests have them: lists of texts."""
    return {
        name: [f"{name[0]}{value}" for value in features[name].tolist()]
        for name in FEATURES
    }


def impression_line(id, user, segment, item, topic):
    """An impression, as JSON."""
    return (
        f'{{"id": "{id}", "user": "{user}", "segment": "{segment}", '
        f'"item": "{item}", "topic": "{topic}"}}'
    ).encode()


def id_of(message):
    """What an impression and its click have in common: the member `id`."""
    return message.value.split(b'"', 4)[3]


class DirectoryBroker:
    """Each topic is a folder, in which files appear."""

    def __init__(self, path):
        self._path = pathlib.Path(path)

    def make_topics(self, topics):
        for topic in topics:
            (self._path / topic).mkdir(parents=True, exist_ok=True)

    def source(self, topic):
        import tf_ext  # The producer does without.

        return tf_ext.data.DirectorySource(self._path / topic)

    def send(self, topic, lines):
        name = f"{time.time_ns():020d}"
        hidden = self._path / topic / f".{name}"
        hidden.write_bytes(b"".join(line + b"\n" for line in lines))
        hidden.rename(self._path / topic / name)


class RedisBroker:
    """Each topic is a stream of Redis."""

    # Of each stream; a restarted training needs those since its last point.
    RETAINED = 1_000_000

    def __init__(self, url):
        import redis

        self._url = url
        self._redis = redis.Redis.from_url(url)

    def make_topics(self, topics):
        self._redis.delete(*topics)

    def source(self, topic):
        import tf_ext

        return tf_ext.data.RedisSource(topic, self._url)

    def send(self, topic, lines):
        with self._redis.pipeline(transaction=False) as pipe:
            for line in lines:
                pipe.xadd(topic, {"value": line}, maxlen=self.RETAINED)
            pipe.execute()


class KafkaBroker:
    """Topics of Apache Kafka."""

    def __init__(self, url):
        import confluent_kafka

        self._servers = urllib.parse.urlsplit(url).netloc
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._servers,
                "enable.idempotence": True,  # Each event once, in order.
                "linger.ms": 5,
            }
        )

    def make_topics(self, topics):
        from confluent_kafka import admin

        client = admin.AdminClient({"bootstrap.servers": self._servers})
        made = client.create_topics([admin.NewTopic(t, 1) for t in topics])
        for result in made.values():
            result.result(30)

    def source(self, topic):
        import tf_ext

        return tf_ext.data.KafkaSource(topic, self._servers)

    def send(self, topic, lines):
        for line in lines:
            self._producer.produce(topic, line)
        self._producer.flush()


def broker_at(address):
    """The broker at kafka://HOST:PORT, redis://HOST:PORT/0, or in a folder."""
    scheme, _, _ = address.partition("://")
    kinds = {"kafka": KafkaBroker, "redis": RedisBroker}
    return kinds.get(scheme, DirectoryBroker)(address)


def sink_at(address, name):
    """The sink of a name at redis://HOST:PORT/0, or in a folder."""
    import tf_ext

    if address.startswith("redis://"):
        return tf_ext.serving.RedisSink(address, name)
    return tf_ext.serving.DirectorySink(pathlib.Path(address, name))


def redis_cpu_seconds(address):
    """The CPU time that a Redis has taken."""
    import redis

    info = redis.Redis.from_url(address).info("cpu")
    return info["used_cpu_user"] + info["used_cpu_sys"]


def end_with_the_parent():
    """Ends this program soon after the one that started it."""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def produce(broker, topics, rate, seconds, window, begin):
    """Sends events at a rate: `rate * seconds` impressions, and their clicks.

    Args:
      broker: what `broker_at` returned.
      topics: names of the topics of impressions and clicks.
      rate: int, impressions a second.
      seconds: int.
      window: float, after how many seconds clicks have come.
      begin: float, the time at which the world begins.
    """
    world, rng = World(), np.random.default_rng()
    shown, clicked = topics
    sent, waiting = 0, []
    while sent < rate * seconds or waiting:
        time.sleep(TICK_SECONDS)
        now = time.time()
        count = min(int(rate * (now - begin)), rate * seconds) - sent
        if count > 0:
            features, chances = world.impressions(rng, now - begin, count)
            rows = zip(*texts(features).values(), strict=True)
            ids = [f"{sent + index:012d}" for index in range(count)]
            broker.send(
                shown,
                [impression_line(i, *row) for i, row in zip(ids, rows)],
            )
            delays = rng.exponential(CLICK_SECONDS, count)
            # Those that come later would be taken for none.
            delays = np.minimum(delays, 0.8 * window)
            for place in np.flatnonzero(rng.random(count) < chances):
                heapq.heappush(waiting, (now + delays[place], ids[place]))
            sent += count
        due = []
        while waiting and waiting[0][0] <= now:
            due.append(f'{{"id": "{heapq.heappop(waiting)[1]}"}}'.encode())
        if due:
            broker.send(clicked, due)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("broker")
    parser.add_argument("--topics", nargs=2, default=["impressions", "clicks"])
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--window", type=float, default=1.0)
    parser.add_argument("--begin", type=float, default=None)
    args = parser.parse_args()
    end_with_the_parent()
    begin = time.time() if args.begin is None else args.begin
    produce(
        broker_at(args.broker),
        *(args.topics, args.rate, args.seconds, args.window, begin),
    )


if __name__ == "__main__":
    main()
