# SPDX-License-Identifier: Apache-2.0
"""The serving example: a whole run, and how it judges answers."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from absl.testing import absltest
from paths import ROOT

pytestmark = pytest.mark.both_kerases(slow=True)

_EXAMPLES = ROOT / "examples"
_TIMEOUT_SECONDS = 300

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(_EXAMPLES))

import serve  # noqa: E402


def _run(*arguments):
    """Runs the example; returns the JSON of its last line."""
    environment = dict(os.environ)
    # The program finds its modules because they are in its own folder.
    environment.pop("PYTHONSAFEPATH", None)
    run = subprocess.run(
        [sys.executable, str(_EXAMPLES / "serve.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        env=environment,
        check=False,
    )
    if run.returncode:
        raise AssertionError(f"{run.stdout[-2000:]}\n{run.stderr[-8000:]}")
    return json.loads(run.stdout.splitlines()[-1])


def _left():
    """Command lines of processes of the example that still run."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().decode().split("\0")
        except OSError:
            continue
        if any(
            part.endswith(("serve_http.py", "serve_training.py"))
            for part in text
        ):
            found.append(text)
    return found


class RunTest(absltest.TestCase):
    def _assert_right(self, result):
        self.assertCountEqual(result, serve.ROLES)
        for role, found in result.items():
            self.assertEqual((found["wrong"], found["failed"]), (0, 0), role)
            self.assertGreater(found["answers"], 0, role)
            self.assertLessEqual(found["p50_ms"], found["p99_ms"])
        self.assertEqual(result["stock"]["between"], 0)
        self.assertEmpty(_left())

    @pytest.mark.slow
    def test_small(self):
        # The last of the 7 batches is after the last of the 3 publications.
        self._assert_right(_run("--examples=13000", "--publications=3"))

    @pytest.mark.slow
    def test_while_training_goes_on(self):
        # How many steps are seen depends on when the servers have started.
        self._assert_right(_run())


_EXPECTED = {10: [0.1, 0.2, 0.3], 20: [0.4, 0.5, 0.6], 30: [0.7, 0.8, 0.9]}


class JudgeTest(absltest.TestCase):
    def _judge(self, scores, steps, changing=False):
        answer = serve.Answer([2, 0], scores, steps, changing, 0.01)
        return serve.judge(answer, _EXPECTED)

    def test_of_the_step_that_is_named(self):
        self.assertEqual(self._judge([0.3, 0.1], [10, 10]), "right")
        self.assertEqual(self._judge([0.3, 0.100001], [10, 10]), "right")
        self.assertEqual(self._judge([0.3, 0.1001], [10, 10]), "wrong")
        self.assertEqual(self._judge([0.1, 0.3], [10, 10]), "wrong")
        self.assertEqual(self._judge([0.6, 0.4], [10, 10]), "wrong")
        self.assertEqual(self._judge([0.3], [10, 10]), "wrong")
        self.assertEqual(self._judge([0.3, 0.1], [11, 11]), "wrong")

    @pytest.mark.slow
    def test_while_rows_change(self):
        for scores, found in (
            ([0.3, 0.1], "right"),
            ([0.6, 0.4], "right"),
            ([0.6, 0.1], "between"),
        ):
            self.assertEqual(self._judge(scores, [10, 10], True), found)
        self.assertEqual(self._judge([0.3, 0.1], [20, 20], True), "between")
        self.assertEqual(self._judge([0.6, 0.4], [10, 20]), "right")

    def test_summary(self):
        client = serve.Client("stock", 0, {"user": ["a", "b", "c"]})
        for scores in ([0.3, 0.1], [0.3, 0.2]):
            client.answers += [
                serve.Answer([2, 0], scores, [10, 10], False, 0.01)
            ]
        client.answers += client.answers[:1] * 98
        client.failures += ["refused"]
        self.assertEqual(
            serve.summarize(client, _EXPECTED),
            {
                "answers": 100,
                "steps": 1,
                "between": 0,
                "wrong": 1,
                "failed": 1,
                "p50_ms": 10.0,
                "p95_ms": 10.0,
                "p99_ms": 10.0,
            },
        )


if __name__ == "__main__":
    absltest.main()
