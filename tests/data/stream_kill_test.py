# SPDX-License-Identifier: Apache-2.0
"""Trainings on streams, and what they read from, are killed at random.

TF_EXT_KILLS is how often, in each test.
"""

import collections
import json
import os
import pathlib
import random
import tempfile
import time

import processes
import pytest
from absl.testing import absltest, parameterized
from clusters import kafka_broker, redis_server
from programs import stream_program as program

import tf_ext

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow,
    pytest.mark.timeout(7200),
]

_KILLS = int(os.environ.get("TF_EXT_KILLS", "6"))
_RECORDS = 480  # are written after each kill


class _Folder:
    missing = None

    def __init__(self, root):
        self.place = root / "data"
        self.place.mkdir()
        self._files = 0

    def write(self, values):
        for writer in range(2):
            folder = self.place / f"writer-{writer}"
            folder.mkdir(exist_ok=True)
            name = f"part-{self._files:05}"
            text = b"".join(value + b"\n" for value in values[writer::2])
            (folder / f".{name}").write_bytes(text)
            (folder / f".{name}").rename(folder / name)
        self._files += 1

    def close(self):
        pass


class _Redis:
    missing = redis_server.missing()

    def __init__(self, root):
        self._server = redis_server.RedisServer(str(root))
        self.place = self._server.url
        self.kill, self.start = self._server.kill, self._server.start
        self.close = self._server.close

    def write(self, values):
        pipeline = self._server.client.pipeline(transaction=True)
        for number, value in enumerate(values):
            name = program.STREAMS[number % len(program.STREAMS)]
            pipeline.xadd(name, {"value": value})
        pipeline.execute()


class _Kafka:
    missing = kafka_broker.missing()

    def __init__(self, root):
        folder = root / "kafka"
        folder.mkdir()
        self._broker = kafka_broker.Broker(str(folder))
        self._topic = self._broker.topic()
        self.place = f"{self._broker.servers}/{self._topic}"
        self.kill, self.start = self._broker.kill, self._broker.start
        self.close = self._broker.close

    def write(self, values):
        kafka_broker.produce(self._broker.producer, self._topic, values)


_KINDS = {"directory": _Folder, "redis": _Redis, "kafka": _Kafka}


class StreamKillTest(parameterized.TestCase):
    @parameterized.product(kind=["directory", "redis", "kafka"])
    def test_trainers(self, kind):
        self._check(kind, ["trainer"])

    @parameterized.product(kind=["redis", "kafka"])
    def test_brokers(self, kind):
        self._check(kind, ["broker"])

    @parameterized.product(kind=["redis", "kafka"])
    def test_both(self, kind):
        self._check(kind, ["trainer", "broker"])

    def _check(self, kind, victims):
        if _KINDS[kind].missing:
            self.skipTest(_KINDS[kind].missing)
        seed = int(os.environ.get("TF_EXT_SEED", "7"))
        print(f"seed {seed}")
        rng = random.Random(seed)
        folder = tempfile.TemporaryDirectory(prefix="tf_ext_kills_")
        root = pathlib.Path(self.enterContext(folder))
        queue = _KINDS[kind](root)
        self.addCleanup(queue.close)
        points = root / "points"
        points.mkdir()
        total = (_KILLS + 1) * _RECORDS
        expected = collections.Counter()
        for victim in self._victims(rng, victims):
            numbers = [rng.randrange(2000) for _ in range(_RECORDS)]
            expected.update(numbers)
            values = [b"%d,1" % number for number in numbers]
            bad = rng.randrange(_RECORDS)
            queue.write([*values[:bad], b"bad", *values[bad:]])
            if not hasattr(self, "life"):
                self.life = processes.Program(
                    "stream_program.py", kind, queue.place, points, total
                )
                self.addCleanup(self.life.process.kill)
            if victim is None:
                break
            first = self._newest(points)
            processes.wait_until(
                lambda first=first: (
                    self.life.has_ended() or self._newest(points) != first
                )
            )
            time.sleep(rng.uniform(0.0, 0.4))
            self.assertFalse(self.life.has_ended(), self.life.log()[-3000:])
            if victim == "trainer":
                self.life.process.kill()
                self.life.process.wait()
                del self.life
            else:
                queue.kill()
                time.sleep(rng.uniform(0.0, 1.0))
                queue.start()
        self.life.wait()
        found = json.loads((points / "counts.json").read_text())
        self.assertEqual({int(k): v for k, v in found.items()}, expected)

    def _victims(self, rng, victims):
        """Who is killed, as often as is to be; and None."""
        each = [one for one in victims for _ in range(_KILLS // len(victims))]
        each += victims[: _KILLS - len(each)]
        rng.shuffle(each)
        return [*each, None]

    def _newest(self, points):
        return tf_ext.callbacks.latest_point(points)


if __name__ == "__main__":
    absltest.main()
