# SPDX-License-Identifier: Apache-2.0
"""What a chief asks of tasks before it uses them; this process is the task."""

import json
import os
import threading
import time
import types
from unittest import mock

import tensorflow as tf
from absl.testing import absltest, parameterized
from clusters.listeners import Listener, speak_http2

import tf_ext
from tf_ext.distribute import deadlines, peers, strategy, this_task
from tf_ext.ops.table import owner_ops

_TASK = "/job:localhost/replica:0/task:0"
_CLUSTER = {"worker": ["a:1"], "ps": ["b:2"], "chief": ["c:3"]}


def _started(**changes):
    about = {"job": "ps", "index": 0, "cluster": _CLUSTER} | changes
    return [json.dumps(about)]


class ChecksTest(parameterized.TestCase):
    def test_versions(self):
        mine = [tf_ext.__version__, tf.__version__]
        strategy._check_versions("a", mine)
        for found, said in (
            (None, "a has not loaded the op library of tf_ext"),
            (
                ["0.0.1", mine[1]],
                f"a runs tf_ext 0.0.1, but .* {mine[0]}. Inst",
            ),
            (
                [mine[0], "1.2"],
                "a runs TensorFlow 1.2, but this program runs T",
            ),
        ):
            with self.assertRaisesRegex(RuntimeError, said):
                strategy._check_versions("a", found)

    def test_the_cluster_that_a_task_was_started_for(self):
        name = "/job:ps/task:0"
        others = {**_CLUSTER, "chief": ["other:3"]}
        for found in (None, [""], _started(), _started(cluster=others)):
            strategy._check_task(name, "b:2", found, _CLUSTER)
        for changes in (
            {"index": 1},
            {"job": "worker"},
            {"cluster": {**_CLUSTER, "ps": ["b:4"]}},
            {"cluster": {**_CLUSTER, "worker": ["a:1", "a:2"]}},
        ):
            with self.assertRaisesRegex(
                RuntimeError, "^/job:ps/task:0 at b:2 was started as .* of the"
            ):
                strategy._check_task(name, "b:2", _started(**changes), _CLUSTER)

    def test_tables_that_a_dead_process_left(self):
        for found, said in (([2, 3 << 20], "2 tables (3.0 MiB)"), ([0, 0], "")):
            with (
                mock.patch.object(
                    owner_ops, "release_sparse_tables", autospec=True
                ) as release,
                mock.patch.object(strategy._logger, "info") as log,
            ):
                release.return_value = tf.constant(found, tf.int64)
                strategy._release_tables(_TASK, "b:2", ("c:3", "run"))
            release.assert_called_once_with("c:3", "run")
            texts = [call.args[0] % call.args[1:] for call in log.mock_calls]
            self.assertLen(texts, bool(said))
            if said:
                self.assertIn(f"{_TASK} at b:2 freed {said}", texts[0])

    def test_answers(self):
        def ask(op, seconds=20.0):
            deadline = time.monotonic() + seconds
            return strategy._answer(_TASK, "b:2", deadline, op)

        self.assertEqual(ask(lambda: tf.constant([["a"], ["ä"]])), ["a", "ä"])
        self.assertEqual(ask(lambda: tf.constant("b")), ["b"])

        def no_op():
            raise tf.errors.NotFoundError(None, None, "no op")

        self.assertIsNone(ask(no_op))

        def other():
            raise tf.errors.InternalError(None, None, "what is this")

        with self.assertRaisesRegex(
            RuntimeError, "b:2 does not answer like a .*says: what is this"
        ):
            ask(other)

    def test_tries_again_until_a_connection_is_open(self):
        tries = []

        def op():
            tries.append(1)
            if len(tries) < 3:
                raise tf.errors.UnavailableError(None, None, "closed")
            return tf.constant("found")

        with mock.patch.object(strategy, "_RETRY_SECONDS", 0.01):
            deadline = time.monotonic() + 20
            found = strategy._answer(_TASK, "b:2", deadline, op)
            self.assertEqual(found, ["found"])

        def closed():
            raise tf.errors.UnavailableError(None, None, "closed")

        with (
            mock.patch.object(strategy, "_RETRY_SECONDS", 0.01),
            mock.patch.object(strategy, "call_within", lambda _, ask: ask()),
            self.assertRaisesRegex(RuntimeError, "not answer.*says: closed"),
        ):
            strategy._answer(_TASK, "b:2", time.monotonic() + 0.2, closed)

    def test_calls_that_are_not_waited_for(self):
        found, release = [], threading.Event()
        self.addCleanup(release.set)

        def call():
            found.append(threading.current_thread())
            release.wait()

        with self.assertRaisesRegex(TimeoutError, "No answer after 0.1 s"):
            deadlines.call_within(0.1, call)
        while not found:
            time.sleep(0.001)
        # A program that gives up ends, whatever TensorFlow still waits for.
        self.assertTrue(found[0].daemon)

    def test_tasks_that_answer_at_the_last_moment(self):
        found = []

        def check(made, seconds):
            found.append((made, seconds))

        cluster = {"chief": ["c:3"]}
        for job in ("worker", "ps"):
            listener = Listener(speak_http2)
            self.addCleanup(listener.close)
            cluster[job] = [listener.address]
        with (
            # What takes a cluster, or changes this process for good.
            mock.patch.dict(os.environ),
            mock.patch.object(this_task, "_task", this_task._Task()),
            mock.patch.object(strategy, "connect_in_turns"),
            mock.patch.object(strategy, "set_server_patience"),
            mock.patch.object(tf.distribute, "ParameterServerStrategy") as make,
            mock.patch.object(strategy, "check_cluster", check),
        ):
            strategy.parameter_server_strategy(cluster, timeout_seconds=0.0)
        [(made, seconds)] = found
        self.assertIs(made, make.return_value)
        self.assertGreater(seconds, 1.0)
        self.assertLessEqual(seconds, 10.0)

    def test_tasks_that_reach_each_other(self):
        deadline = time.monotonic() + 20
        strategy._check_reach({_TASK: "a:1"}, {_TASK: "b:2"}, deadline)
        with self.assertRaisesRegex(
            RuntimeError,
            f"{_TASK} at a:1 and one of /job:ps/task:7 at b:2 cannot reach",
        ):
            strategy._check_reach(
                {_TASK: "a:1"}, {"/job:ps/task:7": "b:2"}, deadline
            )


class _Strategy:
    pass


class PeersTest(absltest.TestCase):
    def _watch(self, *rounds, seconds=12.0):
        """Why the watch gives up, as probes find this one after the other."""
        left = list(rounds)
        kept = [_Strategy()]
        gave_up = []
        ended = threading.Event()
        now = [0.0]

        def sleep(seconds):
            now[0] += seconds

        clock = types.SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)

        def find(tasks, seconds):
            del tasks, seconds
            if not left:
                kept.clear()
                return {}
            return left.pop(0)

        def keep_looking(ref, tasks, seconds):
            del ref
            peers_keep(lambda: kept[0] if kept else None, tasks, seconds)
            ended.set()

        peers_keep = peers._keep_looking
        with (
            mock.patch.object(peers.handshake, "problems", find),
            mock.patch.object(peers, "abort_collectives", gave_up.append),
            mock.patch.object(peers, "_keep_looking", keep_looking),
            mock.patch.object(peers._logger, "warning"),
            mock.patch.object(peers, "time", clock),
        ):
            peers.watch(kept[0], {"w1": "a:1", "w2": "b:2"}, seconds)
            self.assertTrue(ended.wait(60))
        return gave_up

    def test_gives_up_on_who_is_silent_for_long(self):
        silent = {"w1": None, "w2": "is silent"}
        self.assertEqual(self._watch(*[silent] * 6), [])
        # It looks every five seconds at least.
        self.assertEqual(self._watch(*[silent] * 12, seconds=60.0), [])
        self.assertLen(self._watch(*[silent] * 13, seconds=60.0), 1)
        found = self._watch(*[silent] * 7)
        self.assertEqual(found, ["w2 has not answered for 12 s: b:2 is silent"])

    def test_answers_and_ends_are_no_silence(self):
        silent = {"w1": None, "w2": "is silent"}
        for other in (None, peers.handshake.REFUSES):
            found = self._watch(*[silent, {"w1": None, "w2": other}] * 6)
            self.assertEqual(found, [])

    def test_peers_without_a_problem_are_among_the_answers(self):
        # Those that are left out would stay silent for the one who watches.
        handshake = peers.handshake
        problems = {"w1": None, "w2": handshake.REFUSES}
        answers = {
            peer: handshake.Answer(problem, 0.1)
            for peer, problem in problems.items()
        }
        with mock.patch.object(handshake, "answers", return_value=answers):
            found = handshake.problems({"w1": "a:1", "w2": "b:2"}, 1.0)
        self.assertEqual(found, problems)


if __name__ == "__main__":
    absltest.main()
