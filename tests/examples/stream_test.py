# SPDX-License-Identifier: Apache-2.0
"""The example of a stream: whole runs, and how it measures."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest, parameterized
from clusters import redis_server
from paths import ROOT

_EXAMPLES = ROOT / "examples"
_TIMEOUT_SECONDS = 500
_OF_TEST = "TF_EXT_STREAM_TEST"

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(_EXAMPLES))

import stream  # noqa: E402
import stream_data  # noqa: E402

_PROGRAMS = ("stream_data.py", "stream_training.py", "stream_server.py")


def _start(*arguments):
    # Its own processes are told by it from those of a test beside this one.
    environment = dict(os.environ, **{_OF_TEST: str(os.getpid())})
    # The program finds its modules because they are in its own folder.
    environment.pop("PYTHONSAFEPATH", None)
    return subprocess.Popen(
        [sys.executable, str(_EXAMPLES / "stream.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def _left():
    """Command lines of processes of the example that still run."""
    own = f"{_OF_TEST}={os.getpid()}".encode()
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            text = (path / "cmdline").read_bytes().decode().split("\0")
            environment = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        names = [str(_EXAMPLES / name) for name in _PROGRAMS]
        if own in environment and any(name in text for name in names):
            found.append(text)
    return found


@pytest.mark.slow
class RunTest(absltest.TestCase):
    def _check(self, *arguments):
        process = _start(
            *("--rate=400", "--seconds=20", "--warm_seconds=8"),
            *("--bin_seconds=6", "--every", "4", *arguments),
        )
        with process:
            out, errors = process.communicate(timeout=_TIMEOUT_SECONDS)
        self.assertEqual(
            process.returncode, 0, f"{out[-2000:]}{errors[-5000:]}"
        )
        found = json.loads(out.splitlines()[-1])
        self.assertEqual(found["trained"], 8000)
        self.assertGreater(found["joined"], 500)
        for name in ("wrong", "failed", "not_served"):
            self.assertEqual(found[name], 0, name)
        self.assertGreater(found["answers"], 10)
        self.assertGreater(found["versions"], 1)
        self.assertCountEqual(found["auc"], ["fresh", "every-4", "once"])
        # With the window of the join.
        self.assertGreater(found["lag_seconds"]["p50"], 1.0)
        self.assertEmpty(_left())

    def test_folders(self):
        self._check()

    @pytest.mark.skipif(
        redis_server.missing() is not None, reason=str(redis_server.missing())
    )
    def test_redis(self):
        with tempfile.TemporaryDirectory() as folder:
            server = redis_server.RedisServer(folder)
            self.addCleanup(server.close)
            self._check(f"--broker={server.url}", f"--store={server.url}")

    @pytest.mark.skipif(
        not os.environ.get("TF_EXT_KAFKA"),
        reason="TF_EXT_KAFKA names no Kafka.",
    )
    def test_kafka(self):
        self._check(f"--broker=kafka://{os.environ['TF_EXT_KAFKA']}")

    def test_nothing_is_left_behind(self):
        with _start() as process:
            while len(_left()) < len(_PROGRAMS):
                time.sleep(0.1)
                self.assertIsNone(process.poll())
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, 1)
        self.assertEmpty(_left())


def _answer(steps, scores, when=0.0):
    known = list(zip([2, 0], scores, strict=True))
    return stream.Answer("fresh", when, steps, 0.5, known, [], [])


class MeasureTest(parameterized.TestCase):
    def test_auc_is_that_of_labels_drawn_by_the_chances(self):
        rng = np.random.default_rng(1)
        chances = rng.uniform(size=200)
        scores = rng.normal(size=200) + chances
        clicks, others = chances[:, None], 1 - chances[None, :]
        above = scores[:, None] > scores[None, :]
        halves = 0.5 * np.eye(200)
        wanted = ((above + halves) * clicks * others).sum()
        wanted /= chances.sum() * (1 - chances).sum()
        self.assertAlmostEqual(stream.auc_of(scores, chances), wanted)
        labels = (chances > 0.5).astype(float)
        self.assertAlmostEqual(stream.auc_of(chances, labels), 1.0)
        self.assertAlmostEqual(stream.auc_of(-chances, labels), 0.0)

    @parameterized.parameters(
        ([10, 10], [0.3, 0.1], True),
        ([10, 10], [0.3, 0.100001], True),
        ([10, 10], [0.3, 0.1001], False),
        ([10, 10], [0.6, 0.4], False),
        ([10, 20], [0.6, 0.4], True),
        ([10, 20], [0.6, 0.1], False),
        ([11, 19], [0.6, 0.4], False),
        ([20, 20], [0.3, 0.1], False),
    )
    def test_answers_are_those_of_a_step(self, steps, scores, wanted):
        expected = {10: [0.1, 0.2, 0.3], 20: [0.4, 0.5, 0.6]}
        found = stream.is_right(_answer(steps, scores), expected)
        self.assertEqual(found, wanted)

    def test_lags(self):
        steps = [{"step": n, "event_time": float(n)} for n in range(1, 5)]
        # Step 2 is known at 3.5, step 4 at 7.5; an answer may be of step 5.
        answers = [
            _answer([2, 2], [0, 0], 3.0),
            _answer([2, 4], [0, 0], 5.0),
            _answer([5, 5], [0, 0], 7.0),
        ]
        lags = stream.lags_of(steps, answers, 1.5, 4.5)
        self.assertAlmostEqual(lags[0], 2.0)
        # Every 20 ms, until the last step.
        self.assertBetween(len(lags), 124, 127)
        self.assertAlmostEqual(lags[-1], 3.5, 1)
        self.assertAlmostEqual(max(lags), 5.5, 1)
        self.assertAlmostEqual(min(lags), 1.5, 1)

    def test_bins(self):
        args = stream.parse_arguments(
            ["--warm_seconds=10", "--seconds=30", "--bin_seconds=10"]
        )
        made = [
            stream.Answer("fresh", when, [1, 1], 0.1, [], scores, [0.0, 1.0])
            for when, scores in (
                *((115.0, [0.1, 0.2]), (118.0, [0.1, 0.2])),
                *((125.0, [0.2, 0.1]), (130.0, [0.1, 0.2])),
            )
        ]
        found = stream.auc_by_bin(made[:2], 100.0, args)
        self.assertEqual(found, {"fresh": [1.0, None]})
        found = stream.auc_by_bin(made[2:3], 100.0, args)
        self.assertEqual(found, {"fresh": [None, 0.0]})

    @parameterized.parameters(
        (["--rate=0"], "--rate must be at least 1"),
        (["--seconds=20"], "--seconds=20 must be at least --warm_seconds"),
    )
    def test_arguments(self, arguments, message):
        with mock.patch("sys.stderr") as err, self.assertRaises(SystemExit):
            stream.parse_arguments(arguments)
        printed = "".join(call.args[0] for call in err.write.call_args_list)
        self.assertIn(message, printed)


class EventsTest(absltest.TestCase):
    def test_tastes_drift_and_items_go(self):
        world, count = stream_data.World(), 4000
        rng = np.random.default_rng(0)
        now, chances = world.impressions(rng, 0.0, count)
        later, _ = world.impressions(rng, stream_data.ITEM_SECONDS, count)
        self.assertEmpty({*now["item"]} & {*later["item"]})
        self.assertBetween(chances.mean(), 0.15, 0.4)
        # Of the same impressions, at another time.
        same = mock.Mock(
            integers=lambda *_: np.arange(count) % stream_data.ITEMS
        )
        _, before = world.impressions(same, 0.0, count)
        _, after = world.impressions(same, 0.01, count)
        _, much_later = world.impressions(
            same, stream_data.TASTE_SECONDS / 2, count
        )
        self.assertLess(np.abs(before - after).max(), 0.01)
        self.assertGreater(np.abs(before - much_later).mean(), 0.1)

    def test_a_broker_of_folders(self):
        with tempfile.TemporaryDirectory() as folder:
            broker = stream_data.broker_at(folder)
            broker.make_topics(["shown", "clicked"])
            stream_data.produce(
                *(broker, ("shown", "clicked"), 200, 1, 0.1, time.time() - 1)
            )
            shown = self._ids(folder, "shown")
            clicked = self._ids(folder, "clicked")
        self.assertEqual(shown, [b"%012d" % n for n in range(200)])
        self.assertBetween(len(clicked), 10, 120)
        self.assertContainsSubset(clicked, shown)
        self.assertLen({*clicked}, len(clicked))

    def _ids(self, folder, topic):
        files = sorted(pathlib.Path(folder, topic).iterdir())
        lines = b"".join(file.read_bytes() for file in files).splitlines()
        for line in lines:
            json.loads(line)
        return [stream_data.id_of(mock.Mock(value=line)) for line in lines]


if __name__ == "__main__":
    absltest.main()
