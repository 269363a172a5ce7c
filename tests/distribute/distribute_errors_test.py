# SPDX-License-Identifier: Apache-2.0
"""Errors of clusters that need no processes: texts, addresses, TF_CONFIG."""

import contextlib
import gc
import io
import itertools
import json
import os
import socket
import weakref
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized
from clusters.listeners import Listener, speak_http2

from tf_ext import distribute
from tf_ext.distribute import addresses, errors, server

_CLUSTER = {"chief": ["d:4"], "worker": ["a:1", "b:2"], "ps": ["c:3"]}
_PS_LOST = (
    "failed to connect to all addresses\nAdditional GRPC error information "
    "from remote target /job:ps/replica:0/task:3/device:CPU:0 while calling "
    "/tensorflow.eager.EagerService/RunComponentFunction:\nAdditional GRPC "
    "error information from remote target /job:worker/replica:0/task:0 while "
    "calling /tensorflow.eager.EagerService/Enqueue"
)
_WORKER_LOST = "from remote target /job:worker/replica:0/task:1 while calling"


class _Coordinated(RuntimeError):
    """As the errors of ClusterCoordinator that carry another."""

    def __init__(self, original_exception):
        super().__init__("input of a closure")
        self.original_exception = original_exception


class _Strategy:
    """What of a strategy tells its cluster."""

    def __init__(self, cluster):
        self.cluster_resolver = distribute.cluster_resolver(cluster)


@contextlib.contextmanager
def _tf_config(value):
    text = value if isinstance(value, str) else json.dumps(value)
    with mock.patch.dict(os.environ, {"TF_CONFIG": text}):
        yield


def _task(job, index):
    return {"cluster": _CLUSTER, "task": {"type": job, "index": index}}


@contextlib.contextmanager
def _listening_socket():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def _closed_address():
    with _listening_socket() as address:
        return address


class NameLostServerTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("unavailable", tf.errors.UnavailableError(None, None, _PS_LOST)),
        ("aborted", tf.errors.AbortedError(None, None, _PS_LOST)),
        (
            "restarted_at_once",
            tf.errors.InvalidArgumentError(
                None, None, f"x unknown device. {_PS_LOST}"
            ),
        ),
        (
            "inside_a_coordinators_error",
            _Coordinated(tf.errors.UnavailableError(None, None, _PS_LOST)),
        ),
    )
    def test_is_the_one_of_the_message(self, error):
        cluster = {**_CLUSTER, "ps": ["c:1", "d:1", "e:1", "f:1"]}
        self.assertEqual(
            distribute.name_lost_tasks(error, _Strategy(cluster)),
            {"/job:ps/task:3": "f:1"},
        )

    @parameterized.named_parameters(
        ("a_worker", tf.errors.UnavailableError(None, None, _WORKER_LOST)),
        ("another_class", ValueError(_PS_LOST)),
        (
            "an_op_that_fails_on_a_server",
            tf.errors.InvalidArgumentError(None, None, f"rank 2. {_PS_LOST}"),
        ),
    )
    def test_is_none_for(self, error):
        cluster = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
        with mock.patch.object(errors, "is_listening", return_value=True):
            self.assertEmpty(
                distribute.name_lost_tasks(error, _Strategy(cluster))
            )

    def test_is_looked_for_when_the_message_has_none(self):
        error = tf.errors.UnavailableError(None, None, "Socket closed")
        with _listening_socket() as listening:
            closed = _closed_address()
            strategy = _Strategy(
                {
                    "chief": ["a:1"],
                    "worker": [_closed_address()],
                    "ps": [listening, closed],
                }
            )
            self.assertEqual(
                distribute.name_lost_tasks(error, strategy),
                {"/job:ps/task:1": closed},
            )
            with self.assertRaisesRegex(
                distribute.ServerLostError,
                f"servers: /job:ps/task:1 at {closed}. .*restore the last",
            ) as raised:
                with distribute.naming_lost_tasks(strategy):
                    raise error
        self.assertEqual(raised.exception.tasks, {"/job:ps/task:1": closed})
        self.assertIs(raised.exception.__cause__, error)

    def test_a_lost_task_keeps_its_name(self):
        lost = distribute.WorkerLostError({"/job:worker/task:1": "b:2"})
        self.assertEqual(
            distribute.name_lost_tasks(lost, None),
            {"/job:worker/task:1": "b:2"},
        )

    def test_there_are_none_without_a_cluster(self):
        for strategy in (None, tf.distribute.get_strategy()):
            with self.assertRaises(tf.errors.UnavailableError):
                with distribute.naming_lost_tasks(strategy):
                    raise tf.errors.UnavailableError(None, None, _WORKER_LOST)

    def test_other_errors_pass_through(self):
        strategy = _Strategy(_CLUSTER)
        with self.assertRaisesRegex(ValueError, "mine"):
            with distribute.naming_lost_tasks(strategy):
                raise ValueError("mine")


class ClusterResolverTest(parameterized.TestCase):
    def test_from_an_argument(self):
        resolver = distribute.cluster_resolver(_CLUSTER)
        self.assertEqual(resolver.cluster_spec().as_dict(), _CLUSTER)
        self.assertEqual((resolver.task_type, resolver.task_id), ("chief", 0))

    def test_from_tf_config(self):
        with _tf_config(_task("chief", 0)):
            resolver = distribute.cluster_resolver()
        self.assertEqual(resolver.cluster_spec().as_dict(), _CLUSTER)

    @parameterized.named_parameters(
        (
            "text",
            "a:1",
            "Argument `cluster` of cluster_resolver must be {.* Received: "
            "'a:1'",
        ),
        (
            "no_ps",
            {"chief": ["a:1"], "worker": ["b:1"]},
            "at least one task of job 'ps'. Received: {",
        ),
        (
            "no_worker",
            {"chief": ["a:1"], "ps": ["b:1"]},
            "at least one task of job 'worker'",
        ),
        (
            "no_chief",
            {"worker": ["a:1"], "ps": ["b:1"]},
            "at least one task of job 'chief'",
        ),
        (
            "no_ps_address",
            {"chief": ["a:1"], "worker": ["b:1"], "ps": []},
            "at least one task of job 'ps'",
        ),
        (
            "unknown_job",
            {"worker": ["a:1"], "ps": ["b:1"], "master": ["c:1"]},
            "no jobs other than 'chief', 'worker', 'ps'. Received: 'master'",
        ),
        (
            "one_string",
            {"worker": "a:1", "ps": ["b:1"]},
            "list of addresses for job 'worker'. Received: 'a:1'",
        ),
        (
            "no_port",
            {"worker": ["a"], "ps": ["b:1"]},
            "'host:port'. Received: 'a' for job 'worker'",
        ),
        (
            "twice",
            {"chief": ["b:1"], "worker": ["a:1"], "ps": ["a:1"]},
            "each address once. Received: 'a:1' 2 times",
        ),
        (
            "two_chiefs",
            {"worker": ["a:1"], "ps": ["b:1"], "chief": ["c:1", "d:1"]},
            "must have one 'chief'. Received: \\['c:1', 'd:1'\\]",
        ),
    )
    def test_refuses_cluster(self, cluster, message):
        with self.assertRaisesRegex(ValueError, message):
            distribute.cluster_resolver(cluster)

    @parameterized.named_parameters(
        ("unset", "", "TF_CONFIG is not set and no cluster is given"),
        ("not_json", "{worker", "TF_CONFIG must be JSON. Received: {worker"),
        ("no_task", {"cluster": _CLUSTER}, "TF_CONFIG must have the form"),
        (
            "no_cluster",
            {"task": {"type": "chief", "index": 0}},
            "TF_CONFIG's cluster must be {.* Received: None",
        ),
        (
            "a_worker",
            _task("worker", 1),
            "must be task 0 of job 'chief'.* Received: task 1 of job 'worker'.*"
            "tf_ext.distribute.server",
        ),
        (
            "unknown_type",
            _task("trainer", 0),
            "job of the cluster: 'chief', 'worker', 'ps'. Received: 'trainer'",
        ),
        (
            "high_index",
            _task("worker", 2),
            "one of the tasks 0 to 1 of job 'worker'. Received: 2",
        ),
    )
    def test_refuses_tf_config(self, value, message):
        with _tf_config(value), self.assertRaisesRegex(ValueError, message):
            distribute.cluster_resolver()


class ServerArgumentsTest(parameterized.TestCase):
    @parameterized.named_parameters(
        (
            "no_task",
            ["--cluster={}", "--job=ps"],
            "--cluster must be given together with --job and --task. "
            "Received: --job=ps, --task=None",
        ),
        (
            "not_json",
            ["--cluster={", "--job=ps", "--task=0"],
            "--cluster must be JSON. Received: {",
        ),
        (
            "unknown_job",
            [f"--cluster={json.dumps(_CLUSTER)}", "--job=p", "--task=0"],
            "The task to run must be of a job of the cluster: 'chief', "
            "'worker', 'ps'. Received: 'p'",
        ),
        (
            "high_task",
            [f"--cluster={json.dumps(_CLUSTER)}", "--job=ps", "--task=1"],
            "one of the tasks 0 to 0 of job 'ps'. Received: '1'",
        ),
        (
            "chief",
            [f"--cluster={json.dumps(_CLUSTER)}", "--job=chief", "--task=0"],
            "The task to run must be of job 'worker' or 'ps': the 'chief' is "
            "your own program that trains. Received: 'chief'",
        ),
        ("nothing", [], "TF_CONFIG is not set and no cluster is given"),
    )
    def test_refuses(self, arguments, message):
        written = io.StringIO()
        with (
            _tf_config(""),
            contextlib.redirect_stderr(written),
            self.assertRaises(SystemExit) as ended,
        ):
            server.main(arguments)
        self.assertEqual(ended.exception.code, 2)
        self.assertIn(message, " ".join(written.getvalue().split()))


class EvaluatorTest(tf.test.TestCase):
    """TensorFlow's own tutorial has one in TF_CONFIG."""

    def config(self, job):
        cluster = {**_CLUSTER, "evaluator": ["e:5"]}
        return {"cluster": cluster, "task": {"type": job, "index": 0}}

    def test_is_no_part_of_the_cluster(self):
        with _tf_config(self.config("chief")):
            resolver = distribute.cluster_resolver()
        self.assertEqual(resolver.cluster_spec().as_dict(), _CLUSTER)
        resolver = distribute.cluster_resolver(self.config("chief")["cluster"])
        self.assertEqual(resolver.cluster_spec().as_dict(), _CLUSTER)

    def test_is_told_what_it_is(self):
        message = (
            "TF_CONFIG's task must be a member of the cluster. Received: an "
            "'evaluator'. An evaluator is not a task of the cluster: it is a "
            "program that creates the model without a strategy and "
            "evaluates each new"
        )
        with _tf_config(self.config("evaluator")):
            with self.assertRaisesRegex(ValueError, message):
                distribute.cluster_resolver()
            written = io.StringIO()
            with (
                contextlib.redirect_stderr(written),
                self.assertRaises(SystemExit),
            ):
                server.main([])
        self.assertIn(message, " ".join(written.getvalue().split()))


class AddressesTest(tf.test.TestCase):
    def test_reads_addresses(self):
        self.assertEqual(addresses.split_address("[::1]:22"), ("::1", 22))
        self.assertEqual(addresses.split_address("host:22"), ("host", 22))


class ParameterServerStrategyTest(tf.test.TestCase):
    def test_names_the_tasks_that_do_not_answer(self):
        first, second = _closed_address(), _closed_address()
        with self.assertRaisesRegex(
            TimeoutError,
            "Not all workers and parameter servers answer after 0 s: "
            f"/job:ps/task:0 at {first} refuses connections: nothing listens "
            f"there; /job:worker/task:0 at {second} refuses connections: "
            "nothing listens there. Start each with",
        ):
            distribute.parameter_server_strategy(
                {"chief": ["a:1"], "worker": [second], "ps": [first]},
                timeout_seconds=0,
            )

    def test_another_strategy_is_refused(self):
        with self.assertRaisesRegex(
            ValueError, "must be a tf.distribute.ParameterServerStrategy"
        ):
            distribute.check_cluster(tf.distribute.get_strategy())


def _server_lost():
    return distribute.ServerLostError({"/job:ps/task:0": "host:1"})


class RunWithRecoveryTest(tf.test.TestCase):
    """The loop around training, without servers to be killed."""

    def setUp(self):
        super().setUp()
        listener = Listener(speak_http2)
        self.addCleanup(listener.close)
        address = listener.address
        self._strategies = weakref.WeakSet()
        self._cluster = {"worker": [address], "ps": [address]}

    def _make_strategy(self):
        strategy = mock.Mock(spec=["cluster_resolver"])
        spec = strategy.cluster_resolver.cluster_spec.return_value
        spec.as_dict.return_value = self._cluster
        self._strategies.add(strategy)
        return strategy

    def _run(self, failures, **options):
        calls = []

        def train(strategy):
            self.assertLen(self._strategies, 1, "the last one is not freed")
            calls.append(id(strategy))
            if len(calls) <= failures:
                raise tf.errors.AbortedError(None, None, _PS_LOST)
            return f"trained at call {len(calls)}"

        return distribute.run_with_recovery(
            train, self._make_strategy, **options
        )

    def test_returns_the_result_after_losses(self):
        with self.assertLogs("tf_ext.distribute.recovery") as logged:
            self.assertEqual(self._run(failures=2), "trained at call 3")
        self.assertRegex(
            logged.output[0], "Lost parameter servers: /job:ps/task:3. They"
        )

    def test_collects_garbage_itself_before_it_connects_again(self):
        enabled = []
        collect = gc.collect

        def note():
            enabled.append(gc.isenabled())
            collect()

        with mock.patch.object(gc, "collect", note):
            self._run(failures=1)
        self.assertEqual(enabled, [False])
        self.assertTrue(gc.isenabled())

    def test_waits_while_another_thread_collects_garbage(self):
        collect = gc.collect
        # Then it returns at once, and nothing is freed.
        calls = itertools.chain([int, int], itertools.repeat(collect))
        with mock.patch.object(gc, "collect", lambda: next(calls)()):
            self._run(failures=1)

    def test_waits_for_no_longer_than_the_timeout(self):
        with (
            mock.patch.object(gc, "collect"),
            self.assertRaisesRegex(TimeoutError, "does not end collecting"),
        ):
            self._run(failures=1, timeout_seconds=0.1)

    def test_restarts_after_the_loss_of_a_step(self):
        lost = distribute.StepLostError({"/job:worker/task:0": "host:1"})
        train = mock.Mock(side_effect=[lost, "trained"])
        found = distribute.run_with_recovery(train, self._make_strategy)
        self.assertEqual(found, "trained")

    def test_connects_until_tasks_reach_each_other(self):
        train = mock.Mock(side_effect=[_server_lost(), "trained"])
        cut = [TimeoutError("a cut")] * 2
        strategies = [self._make_strategy(), *cut, self._make_strategy()]
        connect = mock.Mock(side_effect=strategies)
        with self.assertLogs("tf_ext.distribute.recovery") as logged:
            found = distribute.run_with_recovery(train, connect)
        self.assertEqual(found, "trained")
        self.assertIn("a cut Trying again.", logged.output[-1])

    def test_connects_for_no_longer_than_the_timeout(self):
        train = mock.Mock(side_effect=[_server_lost()])
        cut = [TimeoutError("a cut")] * 2
        connect = mock.Mock(side_effect=[self._make_strategy(), *cut])
        with self.assertRaisesRegex(TimeoutError, "a cut"):
            distribute.run_with_recovery(train, connect, timeout_seconds=0.1)

    def test_connects_once_before_there_was_a_loss(self):
        connect = mock.Mock(side_effect=[TimeoutError("no cluster")])
        with self.assertRaisesRegex(TimeoutError, "no cluster"):
            distribute.run_with_recovery(mock.Mock(), connect)

    def test_gives_up_after_max_restarts(self):
        with self.assertRaises(distribute.ServerLostError):
            self._run(failures=3, max_restarts=2)

    def test_other_errors_pass_through(self):
        with self.assertRaisesRegex(ValueError, "mine"):
            distribute.run_with_recovery(
                mock.Mock(side_effect=ValueError("mine")), self._make_strategy
            )

    def test_names_the_tasks_that_do_not_come_back(self):
        closed = _closed_address()
        self._cluster = {**self._cluster, "ps": [closed]}
        with self.assertRaisesRegex(
            TimeoutError,
            "After 0 s tasks still do not answer: /job:ps/task:0 at "
            f"{closed} refuses connections: nothing listens there. Start",
        ):
            self._run(failures=1, timeout_seconds=0)

    def test_refuses_negative_max_restarts(self):
        with self.assertRaisesRegex(
            ValueError,
            "Argument `max_restarts` of run_with_recovery must be an integer "
            "of at least 0. Received: max_restarts=-1",
        ):
            self._run(failures=0, max_restarts=-1)


if __name__ == "__main__":
    tf.test.main()
