# SPDX-License-Identifier: Apache-2.0
"""Tasks that cannot reach each other for some time, in networks of their own.

Training goes on, or ends with an error that names the task that was not
reached. It never hangs.
"""

import contextlib
import json
import pathlib
import tempfile
import time

import processes
import pytest
from absl.testing import absltest, parameterized
from clusters import multi_worker_util as util
from clusters import networks

from tf_ext import distribute

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not networks.are_permitted(), reason="may not make networks"
    ),
]

_LOST_STATUS = 3
_PORT = 2222
_START_SECONDS = 120
# A busy machine.
_MARGIN_SECONDS = 60
_POLL_SECONDS = 0.1
_EPOCHS_AFTER = 3


def _wait_until(condition, seconds, describe):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"It hangs after {seconds} s.\n{describe()}")
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _cut(network, pairs):
    for pair in pairs:
        network.cut(*pair)
    try:
        yield
    finally:
        for pair in pairs:
            network.heal(*pair)


class _Training:
    """Processes that train until a file is there.

    Args:
      outputs: function to the list of what each that counts epochs has written.
      statuses: function to the list of their exit statuses, None while they
        run.
      describe: function to a text for errors.
      stop: pathlib.Path, the file.
    """

    def __init__(self, outputs, statuses, describe, stop):
        self.outputs = outputs
        self.describe = describe
        self._statuses = statuses
        self._stop = stop

    def begin(self):
        def has_begun():
            assert not any(self._statuses()), self.describe()
            return all(self._goes_on(0))

        _wait_until(has_begun, _START_SECONDS, self.describe)

    def through(self, cut, seconds, timeout_seconds):
        """The statuses after a cut; all go on after it, or all end."""
        with cut:
            with contextlib.suppress(AssertionError):
                _wait_until(self._have_ended, seconds, self.describe)
        counts = [text.count("epoch") for text in self.outputs()]

        def go_on():
            more = [
                text.count("epoch") >= count + _EPOCHS_AFTER
                for text, count in zip(self.outputs(), counts, strict=True)
            ]
            return all(more) or self._have_ended()

        limit = max(timeout_seconds, seconds) + 30.0 - seconds
        _wait_until(go_on, limit + _MARGIN_SECONDS, self.describe)
        self._stop.touch()
        _wait_until(self._have_ended, _MARGIN_SECONDS, self.describe)
        return self._statuses()

    def _goes_on(self, count):
        return [text.count("epoch") > count for text in self.outputs()]

    def _have_ended(self):
        return None not in self._statuses()


class WorkersTest(parameterized.TestCase):
    """Two of three synchronous workers."""

    def _through(self, pair, seconds, timeout_seconds):
        """The result of each worker: "whole", or the tasks that it lost."""
        with (
            networks.Network(3) as network,
            tempfile.TemporaryDirectory() as folder,
            util.forks(),
            distribute.LocalWorkers(
                [util.PROGRAMS / "cut_workers_program.py"], 3, start=[]
            ) as running,
        ):
            stop = pathlib.Path(folder, "stop")
            running.addresses = [f"{a}:{_PORT}" for a in network.addresses]
            command = running._command
            for worker, namespace in enumerate(network.namespaces):
                running._command = [
                    *command,
                    *[namespace, str(stop), str(timeout_seconds)],
                ]
                running.start(worker)
            training = _Training(
                lambda: [running.output(worker) for worker in range(3)],
                lambda: list(running.statuses().values()),
                running.describe,
                stop,
            )
            try:
                training.begin()
                statuses = training.through(
                    _cut(network, [pair]), seconds, timeout_seconds
                )
            finally:
                print(running.describe())
            results = [
                json.loads(t.splitlines()[-1]) for t in training.outputs()
            ]
            for status, result in zip(statuses, results, strict=True):
                self.assertEqual(
                    status, 0 if result == "whole" else _LOST_STATUS
                )
            return results

    def _assert_names(self, results, pair):
        """Each names a worker that it did not reach, or that did not."""
        tasks = [f"/job:worker/task:{worker}" for worker in range(3)]
        for worker, lost in enumerate(results):
            others = {tasks[one] for one in pair} - {tasks[worker]}
            self.assertTrue(others & set(lost), results)

    @pytest.mark.slow
    def test_name_each_other(self):
        results = self._through((1, 2), 30, timeout_seconds=4)
        self._assert_names(results, (1, 2))
        self.assertIn("/job:worker/task:2", results[1])
        self.assertIn("/job:worker/task:1", results[2])

    @parameterized.product(
        seconds=(5, 20, 30, 100), pair=((0, 1), (0, 2), (1, 2))
    )
    @pytest.mark.slow
    @pytest.mark.timeout(900)
    def test_go_on_or_name_each_other(self, seconds, pair):
        results = self._through(pair, seconds, timeout_seconds=30)
        if set(map(str, results)) != {"whole"}:
            self._assert_names(results, pair)
        if seconds == 5 or (seconds == 20 and pair == (1, 2)):
            self.assertEqual(results, ["whole"] * 3)
        if seconds == 100:
            self.assertNotIn("whole", results)


class ServersTest(parameterized.TestCase):
    """A parameter server, which is host 2; the chief is 0, a worker 1."""

    def _through(self, pairs, seconds):
        """The result of the chief: "whole", or the tasks that it lost."""
        with (
            networks.Network(3) as network,
            tempfile.TemporaryDirectory() as folder,
            contextlib.ExitStack() as stack,
        ):
            stop = pathlib.Path(folder, "stop")
            hosts = [[f"{a}:{_PORT}"] for a in network.addresses]
            cluster = json.dumps(
                dict(zip(("chief", "worker", "ps"), hosts, strict=True))
            )
            chief, *_ = programs = [
                stack.enter_context(processes.Program(*arguments))
                for arguments in (
                    (
                        "cut_chief_program.py",
                        *(network.namespaces[0], str(stop), cluster),
                    ),
                    *(
                        (
                            *(
                                "cut_server_program.py",
                                network.namespaces[host],
                            ),
                            *(f"--job={job}", "--task=0"),
                            *(f"--cluster={cluster}", "--grace_seconds=0"),
                        )
                        for host, job in ((1, "worker"), (2, "ps"))
                    ),
                )
            ]

            def describe():
                return "\n--\n".join(p.output() + p.log() for p in programs)

            training = _Training(
                lambda: [chief.output()],
                lambda: [chief.process.poll()],
                describe,
                stop,
            )
            try:
                training.begin()
                # Connections wait for 60 s.
                [status] = training.through(
                    _cut(network, pairs), seconds, timeout_seconds=60
                )
            finally:
                print(describe())
            result = json.loads(chief.output().splitlines()[-1])
            self.assertEqual(status, 0 if result == "whole" else _LOST_STATUS)
            return result

    @parameterized.parameters(15, 25)
    @pytest.mark.slow
    @pytest.mark.timeout(900)
    def test_is_waited_for(self, seconds):
        # By itself, gRPC gives it up after 20 s.
        result = self._through([(0, 2), (1, 2)], seconds)
        self.assertEqual(result, "whole")

    @parameterized.parameters(5, 20, 30, 100)
    @pytest.mark.slow
    @pytest.mark.timeout(900)
    def test_goes_on_or_is_named(self, seconds):
        result = self._through([(0, 2)], seconds)
        if result != "whole":
            self.assertEqual(result, ["/job:ps/task:0"])
        if seconds < 30:
            self.assertEqual(result, "whole")


if __name__ == "__main__":
    absltest.main()
