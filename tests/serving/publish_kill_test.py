# SPDX-License-Identifier: Apache-2.0
"""Publishing, while trainers and a Redis are killed, or a Redis is full."""

import collections
import os
import pathlib
import random
import signal
import tempfile
import threading
import time

import numpy as np
import processes
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from clusters import redis_server
from programs import publish_program as program

import tf_ext
from tf_ext.serving import SinkError, store_cli

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(
        redis_server.missing() is not None or "TF_EXT_REDIS" in os.environ,
        reason="There is no redis-server to be killed.",
    ),
]

_SEED = 11
_AWAY_SECONDS = 60
# Of trainers, and as many of stores.
_KILLS = int(os.environ.get("TF_EXT_KILLS", "6"))


def _train(model, users, labels, epoch, snapshot, batch_size):
    """One epoch, the first of which is 1, with a point at its end."""
    model.fit(
        *({"user": users}, labels),
        batch_size=batch_size,
        epochs=epoch,
        initial_epoch=epoch - 1,
        verbose=0,
        callbacks=[snapshot],
    )


class _Reader(threading.Thread):
    """Reads the current version all the time, and compares it.

    Attributes:
      versions: the versions that were read.
      wrong: list of strings, what was not as it should be.
    """

    def __init__(self, sink, states):
        super().__init__(daemon=True)
        self._sink, self._states = sink, states
        self.versions, self.wrong = set(), []
        self.stopped = threading.Event()

    def run(self):
        while not self.stopped.wait(0.01):
            try:
                self._read()
            except SinkError:
                continue  # It is away, or the version was removed.
            except Exception as error:
                self.wrong.append(repr(error))

    def _read(self):
        version = self._sink.versions().current
        if not version:
            return
        manifest = self._sink.manifest(version)
        parts = list(self._sink.read_rows(version, "user"))
        signs, rows = map(np.concatenate, zip(*parts, strict=True))
        found = program.digest(signs, rows)
        [name] = [
            file["name"]
            for file in manifest["files"]
            if ".data-" in file["name"]
        ]
        dense = self._sink.read_file(version, name)
        noted = collections.defaultdict(list)
        for line in self._states.read_text().splitlines():
            step, *state = line.split()
            noted[int(step)].append(state)
        if not any(
            found == wanted and bytes.fromhex(kernel) in dense
            for wanted, kernel in noted[manifest["step"]]
        ):
            self.wrong.append(f"version {version} of {manifest['step']}")
        self.versions.add(version)


class PublishKillTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="tf_ext_publish_")
        self.root = pathlib.Path(self.enterContext(folder))
        self.states = self.root / "states"
        self.states.touch()
        self.points = str(self.root / "points")
        print(f"seed {_SEED}")
        self.rng = random.Random(_SEED)

    def start_server(self):
        self.server = redis_server.RedisServer(str(self.root))
        self.addCleanup(self.server.close)
        return self.server.url, "t"

    def life(self, place, epochs):
        return processes.Program(
            "publish_program.py",
            *(self.points, *place, self.states, epochs),
        )

    def wait_for(self, condition, seconds=120):
        end = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), end, "It takes too long.")
            time.sleep(0.01)

    @parameterized.parameters("redis", "directory")
    def test_kills(self, kind):
        if kind == "redis":
            place = self.start_server()
        else:
            place = (str(self.root / "store"), "")
        reader = _Reader(program.sink_of(*place), self.states)
        reader.start()
        sink = program.sink_of(*place)
        for _ in range(_KILLS):
            with self.life(place, 10_000) as life:
                before = max(reader.versions, default=0)
                self.wait_for(
                    lambda b=before: max(reader.versions, default=0) > b
                )
                time.sleep(self.rng.uniform(0, 0.5))
                if kind == "redis":
                    self.server.kill()
                    time.sleep(self.rng.uniform(0, 2))
                    self.server.start()
                    last = sink.versions().current
                    self.wait_for(
                        lambda v=last: sink.versions().current > v + 1
                    )
        epochs = len(self.states.read_text().splitlines()) + 10_000
        steps = sink.manifest(sink.versions().current)["step"]
        epochs = steps // program.STEPS + 3
        with self.life(place, epochs) as life:
            life.wait()
        reader.stopped.set()
        reader.join()
        self.assertEmpty(reader.wrong)
        self.assertGreater(len(reader.versions), _KILLS)
        against = f"{place[0]}#t" if kind == "redis" else place[0]
        command = ["verify-redis", against, "--against", self.points]
        self.assertEqual(store_cli.main(command), 0)
        if kind == "redis":  # Nothing is left of versions that were begun.
            keys = self.server.client.keys("*")
            self.assertLessEqual(len(keys), 1 + 3 * 3, keys)

    def test_a_store_that_does_not_answer(self):
        url, name = self.start_server()
        reader = _Reader(program.sink_of(url, name), self.states)
        reader.start()
        with self.life((url, name), 10_000):
            for _ in range(4):
                before = max(reader.versions, default=0)
                self.wait_for(
                    lambda b=before: max(reader.versions, default=0) > b
                )
                time.sleep(self.rng.uniform(0, 0.5))
                os.kill(self.server._process.pid, signal.SIGSTOP)
                lines = len(self.states.read_text().splitlines())
                time.sleep(4)  # Longer than the sink waits.
                # Training has gone on.
                now = len(self.states.read_text().splitlines())
                self.assertGreater(now, lines + 2)
                os.kill(self.server._process.pid, signal.SIGCONT)
            last = program.sink_of(url, name).versions().current
            self.wait_for(lambda: max(reader.versions) > last)
        reader.stopped.set()
        reader.join()
        self.assertEmpty(reader.wrong)
        # The life was killed: at most one version that was begun is left.
        keys = self.server.client.keys("*")
        self.assertLessEqual(len(keys), 2 + 3 * 3 + 2, keys)

    def test_a_store_that_is_away_for_a_minute(self):
        """Training goes on; what was missed comes in one version."""
        place = self.start_server()
        reader = _Reader(program.sink_of(*place), self.states)
        reader.start()
        sink = program.sink_of(*place)
        with self.life(place, 10_000):
            self.wait_for(lambda: len(reader.versions) > 2)
            self.server.kill()
            lines = len(self.states.read_text().splitlines())
            time.sleep(_AWAY_SECONDS)
            missed = len(self.states.read_text().splitlines())
            self.assertGreater(missed, lines + 2)
            self.server.start()
            before = sink.versions().current
            self.wait_for(lambda: sink.versions().current > before + 1)
        steps = sink.manifest(sink.versions().current)["step"]
        with self.life(place, steps // program.STEPS + 3) as life:
            life.wait()
        reader.stopped.set()
        reader.join()
        self.assertEmpty(reader.wrong)
        command = [*("verify-redis", f"{place[0]}#t", "--against", self.points)]
        self.assertEqual(store_cli.main(command), 0)

    def test_versions_rolled_back_under_load(self):
        """Requests are answered from one version each, whichever it is."""
        url, name = self.start_server()
        sink = program.sink_of(url, name)
        model, published = program.build(), {}
        publisher = tf_ext.serving.publish(model, self.points, sink, every=None)
        snapshot = tf_ext.callbacks.TableSnapshot(
            self.points, incremental=True, keep=9
        )
        users, rng = np.arange(2000), np.random.default_rng(5)

        def publish(epoch):
            labels = rng.normal(size=[2000, 1])
            _train(model, users, labels, epoch, snapshot, batch_size=500)
            outputs = model({"user": tf.constant(users)}).numpy()
            published[epoch] = outputs  # Before somebody reads it.
            self.assertTrue(publisher.update())
            self.assertEqual(publisher.version, epoch)

        for epoch in range(1, 4):
            publish(epoch)
        wrong, answers, stopped = [], collections.Counter(), threading.Event()
        lookup = tf_ext.serving.Lookup(sink, dense="tensorflow", every=0.05)
        self.addCleanup(lookup.close)

        def ask():
            random_users = np.random.default_rng()
            while not stopped.is_set():
                some = random_users.integers(0, 2000, 64)
                found = lookup.predict({"user": some})["output_0"]
                same = [
                    version
                    for version, outputs in published.copy().items()
                    if np.allclose(found, outputs[some], rtol=0, atol=1e-6)
                ]
                if len(same) != 1:
                    wrong.append((lookup.version, same))
                answers.update(same)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(_KILLS):
                for version in (1, 3, 2):
                    tf_ext.serving.rollback(sink, version)
                    self.wait_for(lambda v=version: lookup.version == v)
                    before = answers[version]
                    self.wait_for(
                        lambda v=version, b=before: wrong or answers[v] > b + 3
                    )
            sink.select(2, pinned=False)
            publish(4)
            self.wait_for(lambda: wrong or answers[4])
        finally:
            stopped.set()
            for thread in threads:
                thread.join()
        self.assertEmpty(wrong)
        self.assertEqual({*answers}, {1, 2, 3, 4})

    def test_a_full_store(self):
        url, name = self.start_server()
        client = self.server.client
        sink = program.sink_of(url, name)
        model = program.build()
        users = np.arange(2000)
        publisher = tf_ext.serving.publish(model, self.points, sink, every=None)
        snapshot = tf_ext.callbacks.TableSnapshot(self.points, incremental=True)
        epoch = 0

        def point(first):
            nonlocal epoch
            epoch += 1
            model.tables[0].pull(
                np.arange(first, first + 20_000), training=True
            )
            labels = np.ones([2000, 1])
            _train(model, users, labels, epoch, snapshot, batch_size=1000)

        point(0)
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        with self.assertRaisesRegex(
            SinkError, "`maxmemory-policy allkeys-lru`"
        ):
            publisher.update()
        client.config_set("maxmemory-policy", "noeviction")
        publisher.update()
        before = self._rows(sink, 1)
        self.assertLen(before, 20_000)
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", used + 500_000)
        for first in (20_000, 40_000):
            point(first)
            with self.assertRaisesRegex(SinkError, "used memory > 'maxmemory'"):
                publisher.update()
            self.assertEqual(sink.versions().current, 1)
            self.assertEqual(self._rows(sink, 1), before)
        self.assertGreater(publisher.lag_seconds, 0)
        # What was begun takes no memory.
        self.wait_for(
            lambda: client.info("memory")["used_memory"] < used + 400_000
        )
        client.config_set("maxmemory", "100mb")
        self.assertTrue(publisher.update())
        signs, fields = model.tables[0].export_rows()
        wanted = dict(
            zip(signs.tolist(), map(bytes, fields["weights"]), strict=True)
        )
        self.assertEqual(self._rows(sink, sink.versions().current), wanted)
        self.assertLen(wanted, 60_000)

    def _rows(self, sink, version):
        return {
            sign: bytes(row)
            for signs, rows in sink.read_rows(version, "user")
            for sign, row in zip(signs.tolist(), rows, strict=True)
        }


if __name__ == "__main__":
    absltest.main()
