# SPDX-License-Identifier: Apache-2.0
"""Clusters of workers and their errors, as far as they need no processes."""

import contextlib
import json
import os
import socket
import types
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from tf_ext import distribute
from tf_ext.distribute import multi_worker

_CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
_RESET = (
    "Collective ops is aborted by: recvmsg:Connection reset by peer\n"
    "Additional GRPC error information from remote target "
    "/job:worker/replica:0/task:1 while calling "
    "/tensorflow.WorkerService/RecvBuf:"
)
_NO_HEARTBEAT = (
    "Collective ops is aborted by: Error reported from /job:worker/task:1: The "
    "following tasks are unhealthy (stopped sending heartbeats):\n"
    "/job:worker/replica:0/task:1\nThe tasks have crashed."
)
_SILENT_LEADER = (
    "Collective ops is aborted by: Deadline Exceeded\n"
    "RPC: /tensorflow.CoordinationService/Heartbeat"
)
_UNKNOWN_TO_LEADER = (
    "Collective ops is aborted by: Task with task_name=/job:worker/replica:0/"
    "task:{own} must be registered before sending heartbeat messages. The "
    "service might have restarted, please restart / reset and register again"
)


@contextlib.contextmanager
def _listening():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def _closed():
    with _listening() as address:
        return address


@contextlib.contextmanager
def _gpus(count, configuration=None):
    """Has TensorFlow list GPUs, each with the same logical devices."""
    gpus = [
        tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU")
        for i in range(count)
    ]
    with (
        mock.patch.object(tf.config, "get_visible_devices", return_value=gpus),
        mock.patch.object(
            tf.config,
            "get_logical_device_configuration",
            return_value=configuration,
        ),
    ):
        yield


def _strategy(cluster, job="worker", index=0):
    """What of a strategy tells its cluster."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type=job, task_id=index
    )
    return types.SimpleNamespace(cluster_resolver=resolver)


class ClusterTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("a_list", ["a:1"], "`cluster` .*must be {.*}. Received: .'a:1'"),
        (
            "parameter_servers",
            {"worker": ["a:1"], "ps": ["b:1"]},
            "no jobs other than 'worker', 'chief'. Received: 'ps'. Synchronous",
        ),
        ("no_workers", {"chief": ["a:1"]}, "one task of job 'worker'"),
        (
            "two_chiefs",
            {"worker": ["a:1"], "chief": ["b:1", "c:1"]},
            "must have one 'chief'",
        ),
    )
    def test_refuses(self, cluster, message):
        with self.assertRaisesRegex(ValueError, message):
            distribute.multi_worker_strategy(cluster, 0)

    @parameterized.named_parameters(
        ("none", None),
        ("text", "1"),
        ("high", 3),
        ("negative", -1),
        ("a_truth_value", True),
    )
    def test_refuses_task(self, task):
        with self.assertRaisesRegex(
            ValueError, f"must be an integer from 0 to 2, .*task={task!r}"
        ):
            distribute.multi_worker_strategy(_CLUSTER, task)

    def test_refuses_a_task_without_a_cluster(self):
        with self.assertRaisesRegex(
            ValueError, "None without `cluster`.*task=1"
        ):
            distribute.multi_worker_strategy(task=1)

    def test_refuses_parameter_servers_in_tf_config(self):
        config = {
            "cluster": {"worker": ["a:1"], "ps": ["b:1"]},
            "task": {"type": "worker", "index": 0},
        }
        with (
            mock.patch.dict(os.environ, {"TF_CONFIG": json.dumps(config)}),
            self.assertRaisesRegex(
                ValueError, "TF_CONFIG's cluster must .* Received: 'ps'"
            ),
        ):
            distribute.multi_worker_strategy()

    def test_an_evaluator_is_no_worker(self):
        config = {
            "cluster": {"worker": ["a:1", "b:2"], "evaluator": ["c:1"]},
            "task": {"type": "worker", "index": 1},
        }
        with mock.patch.dict(os.environ, {"TF_CONFIG": json.dumps(config)}):
            own = multi_worker._own_task(None, None)
        self.assertEqual(own, ({"worker": ["a:1", "b:2"]}, "worker", 1))
        config["task"] = {"type": "evaluator", "index": 0}
        with (
            mock.patch.dict(os.environ, {"TF_CONFIG": json.dumps(config)}),
            self.assertRaisesRegex(
                ValueError, "Received: an 'evaluator'. .*SidecarEvaluator does"
            ),
        ):
            distribute.multi_worker_strategy()

    def test_counts_the_chief_first(self):
        tasks = [multi_worker._own_task(_CLUSTER, task) for task in range(3)]
        self.assertEqual(
            [(task.job, task.index) for task in tasks],
            [("chief", 0), ("worker", 0), ("worker", 1)],
        )

    @parameterized.product(
        name=("timeout_seconds", "heartbeat_timeout_seconds"),
        value=(0, float("nan"), True, "1"),
    )
    def test_refuses_timeouts(self, name, value):
        with self.assertRaisesRegex(
            ValueError, f"`{name}` of .* must be a positive .*={value!r}"
        ):
            distribute.multi_worker_strategy(**{name: value})


class StrategyTest(tf.test.TestCase):
    def test_of_one_worker_alone(self):
        for arguments in ((), ({"worker": ["localhost:1"]},)):
            strategy = distribute.multi_worker_strategy(*arguments)
            self.assertIsInstance(
                strategy, tf.distribute.MultiWorkerMirroredStrategy
            )
            self.assertEqual(strategy.num_replicas_in_sync, 1)

    def test_refuses_to_come_too_late(self):
        tf.constant(1.0)
        with self.assertRaisesRegex(
            RuntimeError, "must be called before TensorFlow makes its first"
        ):
            distribute.multi_worker_strategy(_CLUSTER, 0)

    def test_names_the_address_that_is_taken(self):
        with (
            socket.create_server(("", 0)) as taken,
            mock.patch.object(multi_worker, "_has_begun", lambda: False),
        ):
            address = f"localhost:{taken.getsockname()[1]}"
            with self.assertRaisesRegex(
                RuntimeError,
                f"/job:worker/task:1 cannot listen at {address}: Address "
                "already in use. Is another process using the port",
            ):
                distribute.multi_worker_strategy(
                    {"worker": ["a:1", address]}, 1
                )

    def test_refuses_several_gpus(self):
        halves = [tf.config.LogicalDeviceConfiguration()] * 2
        for count, configuration in ((2, None), (1, halves)):
            with (
                _gpus(count, configuration),
                self.assertRaisesRegex(
                    ValueError, "at most one GPU. Received: 2 GPUs"
                ),
            ):
                distribute.multi_worker_strategy()

    def test_takes_one_gpu(self):
        with (
            _gpus(1),
            self.assertRaisesRegex(RuntimeError, "must be called before"),
        ):
            distribute.multi_worker_strategy(_CLUSTER, 0)


class NameLostWorkersTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("connection", tf.errors.UnavailableError, _RESET),
        ("heartbeat", tf.errors.UnavailableError, _NO_HEARTBEAT),
        ("restart", tf.errors.AbortedError, _RESET),
    )
    def test_takes_the_name_of_the_message(self, kind, message):
        with _listening() as first, _listening() as second:
            strategy = _strategy({"worker": ["a:1", first, second]})
            with self.assertRaisesRegex(
                distribute.WorkerLostError,
                f"Lost workers: /job:worker/task:1 at {first}. .*start them "
                "again: they resume from the last checkpoint",
            ) as raised:
                with distribute.naming_lost_tasks(strategy):
                    raise kind(None, None, message)
            self.assertEqual(
                raised.exception.tasks, {"/job:worker/task:1": first}
            )
            self.assertIsInstance(raised.exception.__cause__, kind)

    @parameterized.named_parameters(
        ("worker_0", "worker", {"worker": ["a:1", "b:1"]}, 1),
        ("chief", "chief", {"chief": ["a:1"], "worker": ["b:1"]}, 0),
    )
    def test_takes_the_leader_that_is_silent_(self, job, cluster, own):
        error = tf.errors.DeadlineExceededError(None, None, _SILENT_LEADER)
        with _listening() as address:
            cluster[job][0] = address
            self.assertEqual(
                distribute.name_lost_tasks(
                    error, _strategy(cluster, "worker", own)
                ),
                {f"/job:{job}/task:0": address},
            )

    @parameterized.named_parameters(
        ("worker_0", "worker", {"worker": ["a:1", "b:1"]}, 1),
        ("chief", "chief", {"chief": ["a:1"], "worker": ["b:1"]}, 0),
    )
    def test_takes_the_leader_that_was_restarted_(self, job, cluster, own):
        message = _UNKNOWN_TO_LEADER.format(own=own)
        with _listening() as address:
            cluster[job][0] = address
            with self.assertRaises(distribute.WorkerLostError) as raised:
                with distribute.naming_lost_tasks(
                    _strategy(cluster, "worker", own)
                ):
                    raise tf.errors.InvalidArgumentError(None, None, message)
        self.assertEqual(
            raised.exception.tasks, {f"/job:{job}/task:0": address}
        )

    def test_looks_for_those_that_do_not_listen(self):
        closed = _closed()
        with _listening() as first:
            strategy = _strategy({"worker": ["a:1", first, closed]})
            for message, lost in (
                ("Socket closed", {"/job:worker/task:2": closed}),
                (
                    _RESET,
                    {
                        "/job:worker/task:1": first,
                        "/job:worker/task:2": closed,
                    },
                ),
            ):
                error = tf.errors.UnavailableError(None, None, message)
                self.assertEqual(
                    distribute.name_lost_tasks(error, strategy), lost
                )

    def test_other_errors_pass_through(self):
        with _listening() as address:
            strategy = _strategy({"worker": ["a:1", address]})
            for error in (
                ValueError(_RESET),
                tf.errors.InvalidArgumentError(None, None, _RESET),
                tf.errors.CancelledError(None, None, "on /job:worker/task:0"),
            ):
                with self.assertRaises(type(error)):
                    with distribute.naming_lost_tasks(strategy):
                        raise error


if __name__ == "__main__":
    tf.test.main()
