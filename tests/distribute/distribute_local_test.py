# SPDX-License-Identifier: Apache-2.0
"""A strategy on real processes: connecting, checking, losing, ending."""

import concurrent.futures
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from unittest import mock

import processes
import pytest
import tensorflow as tf
from paths import PROGRAMS

import tf_ext
from tf_ext import distribute
from tf_ext.distribute import local
from tf_ext.distribute import strategy as strategy_module
from tf_ext.ops import process_ops

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.process,
    pytest.mark.slow_tests(
        "CheckClusterTest::test_refuses_a_worker_of_another_cluster",
        "CheckClusterTest::test_refuses_a_worker_without_the_op_library",
        "ServerTest::test_names_the_port_that_is_in_use",
        "LocalClusterTest::test_a_process_that_fails_shows_its_log",
    ),
]

_TASKS = [("worker", 0), ("ps", 0), ("ps", 1)]
_STOP_TIMEOUT_SECONDS = 200
_cluster = None


def setUpModule():
    global _cluster
    _cluster = distribute.local_cluster(workers=1, ps=2).__enter__()


def tearDownModule():
    pids = [_cluster.pid(*task) for task in _TASKS]
    pids.append(_cluster._fork_server._process.pid)
    _cluster.__exit__(None, None, None)
    left = [pid for pid in pids if processes.is_running(pid)]
    assert not left, f"processes are left: {left}"


class LocalClusterTestCase(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        # pytest shows it if the test fails.
        self.addCleanup(self._print_logs)

    def _print_logs(self):
        for task in _TASKS:
            print(f"-- log of {task}:\n{_cluster.log(*task)[-4000:]}")


class StrategyTest(LocalClusterTestCase):
    def test_trains_on_the_servers(self):
        strategy = _cluster.strategy()
        with strategy.scope():
            variables = [tf.Variable(tf.zeros([2])) for _ in range(2)]
        self.assertEqual(
            [tf.DeviceSpec.from_string(v.device).task for v in variables],
            [0, 1],
        )
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

        @tf.function
        def step():
            for variable in variables:
                variable.assign_add(tf.ones([2]))

        for _ in range(20):
            coordinator.schedule(step)
        coordinator.join()
        for variable in variables:
            self.assertAllEqual(variable, [20.0, 20.0])

    def test_goes_on_after_a_worker_was_lost(self):
        strategy = _cluster.strategy()
        with strategy.scope():
            steps = tf.Variable(0)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        step = tf.function(lambda: steps.assign_add(1))
        coordinator.schedule(step)
        coordinator.join()
        _cluster.kill("worker", 0)
        for _ in range(10):
            coordinator.schedule(step)
        _cluster.restart("worker", 0)
        coordinator.join()
        self.assertGreaterEqual(int(steps), 11)

    def test_message_of_a_lost_server(self):
        strategy = _cluster.strategy()
        with strategy.scope():
            on_first, on_second = tf.Variable(1.0), tf.Variable(2.0)
        _cluster.kill("ps", 1)
        with self.assertRaisesRegex(
            distribute.ServerLostError,
            f"servers: /job:ps/task:1 at {_cluster.cluster['ps'][1]}. They",
        ):
            with distribute.naming_lost_tasks(strategy):
                on_second.assign_add(on_first)
        _cluster.restart("ps", 1)
        # What was restarted is as lost as what is gone.
        with self.assertRaises(distribute.ServerLostError) as raised:
            with distribute.naming_lost_tasks(strategy):
                on_second.assign_add(on_first)
        self.assertEqual(list(raised.exception.tasks), ["/job:ps/task:1"])


class RecoveryTest(LocalClusterTestCase):
    def test_goes_on_from_the_last_checkpoint(self):
        folder = self.get_temp_dir()
        began_at = []

        def train(strategy):
            with strategy.scope():
                steps = tf.Variable(0)
                # On the other server.
                twice = tf.Variable(0)
            checkpoint = tf.train.Checkpoint(steps=steps, twice=twice)
            manager = tf.train.CheckpointManager(checkpoint, folder, 2)
            if manager.latest_checkpoint:
                checkpoint.restore(manager.latest_checkpoint)
            began_at.append((int(steps), int(twice)))
            coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

            @tf.function
            def step():
                steps.assign_add(1)
                twice.assign_add(2)

            for epoch in range(int(steps) // 10, 3):
                for _ in range(10):
                    coordinator.schedule(step)
                if len(began_at) == 1 and epoch == 1:
                    _cluster.kill("ps", 1)
                    restart = threading.Thread(
                        target=_cluster.restart, args=("ps", 1)
                    )
                    self.addCleanup(restart.join)
                    restart.start()
                coordinator.join()
                manager.save()
            return int(steps), int(twice)

        result = distribute.run_with_recovery(train, _cluster.strategy)
        self.assertEqual(began_at, [(0, 0), (10, 20)])
        self.assertEqual(result, (30, 60))


class CheckClusterTest(LocalClusterTestCase):
    def test_passes_once_for_a_strategy_of_tensorflow(self):
        strategy = tf.distribute.ParameterServerStrategy(
            distribute.cluster_resolver(_cluster.cluster)
        )
        distribute.check_cluster(strategy)
        with mock.patch.object(
            process_ops, "versions", side_effect=AssertionError
        ):
            distribute.check_cluster(strategy)

    def test_refuses_another_version_of_tf_ext(self):
        with (
            mock.patch.object(strategy_module, "__version__", "9.8.7"),
            self.assertRaisesRegex(
                RuntimeError,
                "/job:ps/task:0 at 127.0.0.1:[0-9]+ runs tf_ext .*, but this "
                "program runs tf_ext 9.8.7. Install tf_ext 9.8.7 there",
            ),
        ):
            _cluster.strategy()

    def test_refuses_another_version_of_tensorflow(self):
        running = tf.__version__
        with (
            mock.patch.object(tf, "__version__", "2.21.99"),
            self.assertRaisesRegex(
                RuntimeError,
                f"runs TensorFlow {running}, but this program runs TensorFlow "
                "2.21.99. Install",
            ),
        ):
            _cluster.strategy()

    def _refuses(self, message, *command):
        """Refuses a process in the place of worker 0.

        A process cannot connect to a second cluster and then again to the
        first.
        """
        _cluster.kill("worker", 0)
        self.addCleanup(_cluster.restart, "worker", 0)
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                [sys.executable, "-P", *command],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                with self.assertRaisesRegex(RuntimeError, message):
                    _cluster.strategy()
            finally:
                process.kill()
                process.wait()
                log.seek(0)
                print(log.read().decode(errors="replace"))

    def test_refuses_a_worker_without_the_op_library(self):
        self._refuses(
            "/job:worker/task:0 at 127.0.0.1:[0-9]+ has not loaded the op "
            "library of tf_ext",
            PROGRAMS / "plain_server_program.py",
            json.dumps(_cluster.cluster),
        )

    def test_refuses_a_worker_of_another_cluster(self):
        cluster = _cluster.cluster
        other = dict(cluster, ps=cluster["ps"][::-1])
        [address] = cluster["worker"]
        text = re.escape(
            f"/job:worker/task:0 at {address} was started as "
            f"/job:worker/task:0 of the cluster {json.dumps(other)}, but this "
            f"program's cluster is {json.dumps(cluster)}. Start all tasks"
        )
        self._refuses(
            text,
            *["-m", "tf_ext.distribute.server", "--job=worker", "--task=0"],
            *[f"--cluster={json.dumps(other)}", "--grace_seconds=0"],
        )

    def test_takes_servers_that_were_started_with_another_chief(self):
        task = {"job": "worker", "index": 0}
        cluster = dict(_cluster.cluster, chief=["10.0.0.9:1"])
        [address] = cluster["worker"]
        for index in (0, 1):
            text = json.dumps({**task, "index": index, "cluster": cluster})
            arguments = ("/job:worker/task:0", address, [text])
            if index == 0:
                strategy_module._check_task(*arguments, _cluster.cluster)
                continue
            with self.assertRaisesRegex(
                RuntimeError, "was started as /job:worker/task:1 of the cluster"
            ):
                strategy_module._check_task(*arguments, _cluster.cluster)


class ChiefAddressTest(LocalClusterTestCase):
    def test_is_named_when_it_cannot_be_had(self):
        with socket.create_server(("", 0)) as taken:
            chief = f"127.0.0.1:{taken.getsockname()[1]}"
            with self.assertRaisesRegex(
                RuntimeError,
                f"cannot listen at the chief's address, {chief}: another",
            ):
                distribute.parameter_server_strategy(
                    dict(_cluster.cluster, chief=[chief])
                )


class ServerTest(LocalClusterTestCase):
    def test_says_what_it_is(self):
        for job, task in _TASKS:
            self.assertRegex(
                _cluster.log(job, task),
                f"/job:{job}/task:{task}: Listens at "
                f"{_cluster.cluster[job][task]}, and at that port of all other "
                "addresses of this machine, without encryption or "
                f"authentication \\(tf_ext {tf_ext.__version__}, TensorFlow "
                f"{tf.__version__}, process {_cluster.pid(job, task)}\\)",
            )

    def test_listens_on_all_interfaces(self):
        # What the log, the documentation and SECURITY.md say.
        for job, task in _TASKS:
            port = int(_cluster.cluster[job][task].rpartition(":")[2])
            found = [
                line.split()[1].rpartition(":")[0]
                for name in ("tcp", "tcp6")
                for line in pathlib.Path("/proc/net", name)
                .read_text()
                .splitlines()[1:]
                if line.split()[3] == "0A"  # LISTEN
                and int(line.split()[1].rpartition(":")[2], 16) == port
            ]
            self.assertLen(found, 1)
            self.assertIn(found[0], ("0" * 8, "0" * 32))

    def test_ends_cleanly_on_signals(self):
        ended = {("ps", 1): signal.SIGTERM, ("worker", 0): signal.SIGINT}
        for task, number in ended.items():
            os.kill(_cluster.pid(*task), number)
            process = _cluster._processes[task]
            self.assertEqual(process.wait(_STOP_TIMEOUT_SECONDS), 0)
            job, index = task
            self.assertIn(
                f"/job:{job}/task:{index}: Ends on {number.name}",
                _cluster.log(*task),
            )
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(lambda task: _cluster.restart(*task), ended))

    def test_names_the_port_that_is_in_use(self):
        done = subprocess.run(
            [
                *[sys.executable, "-P", "-m", "tf_ext.distribute.server"],
                *["--job=ps", "--task=1"],
                f"--cluster={json.dumps(_cluster.cluster)}",
            ],
            capture_output=True,
            text=True,
            timeout=_STOP_TIMEOUT_SECONDS,
            check=False,
        )
        self.assertEqual(done.returncode, 98, done.stderr)
        self.assertIn(
            f"/job:ps/task:1: Cannot listen at {_cluster.cluster['ps'][1]}: "
            "Address already in use. Is another process using the port?",
            done.stderr,
        )


class LocalClusterTest(LocalClusterTestCase):
    @pytest.mark.slow
    def test_processes_end_when_their_parent_is_killed(self):
        pids = processes.kill_parent("local_cluster_program.py")
        self.assertLen(pids, 2)

    @pytest.mark.slow
    def test_tensorflow_works_silently_after_it(self):
        done = subprocess.run(
            [sys.executable, "-P", PROGRAMS / "ended_cluster_program.py"],
            capture_output=True,
            text=True,
            timeout=240,
        )
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        self.assertEqual(done.stdout, "8 8 9 3.0\n" * 2)
        for name in ("first", "second"):
            _, _, later = done.stderr.partition(f"after {name}\n")
            later, _, _ = later.partition(f"end of {name}\n")
            self.assertNotIn("remote", later)
        # Nor when the block ends.
        self.assertNotIn("GRPC", done.stderr)
        self.assertNotIn("failed to connect", done.stderr)

    @pytest.mark.slow
    def test_takes_other_ports_when_one_is_taken(self):
        free_ports = local.free_ports
        with socket.create_server(("", 0)) as taken:
            taken_port = taken.getsockname()[1]
            # The last is the chief's, which is not started here.
            choices = [[taken_port, *free_ports(2)], free_ports(3)]
            with mock.patch.object(local, "free_ports", side_effect=choices):
                with distribute.local_cluster(workers=1, ps=1) as cluster:
                    self.assertEmpty(
                        [
                            address
                            for addresses in cluster.cluster.values()
                            for address in addresses
                            if address.endswith(f":{taken_port}")
                        ]
                    )

    def test_a_process_that_fails_shows_its_log(self):
        with (
            mock.patch.dict(os.environ, {"TF_CPP_MIN_LOG_LEVEL": "3"}),
            # As if the installation was broken there.
            mock.patch.object(local, "_MODULE", "tf_ext.distribute.nothing"),
            self.assertRaisesRegex(
                RuntimeError,
                "(?s)/job:worker/task:0 ended with status 1 when it was "
                "started. Its log ends with:.*No module named",
            ),
        ):
            distribute.local_cluster(workers=1, ps=1).__enter__()

    def test_refuses_counts(self):
        with self.assertRaisesRegex(
            ValueError, "`ps` of local_cluster must be .* 1. Received: ps=0"
        ):
            distribute.local_cluster(workers=1, ps=0)

    def test_refuses_a_task_that_is_not_there(self):
        with self.assertRaisesRegex(
            ValueError,
            "must name one of /job:worker/task:0, /job:ps.*: /job:ps/task:2",
        ):
            _cluster.kill("ps", 2)


if __name__ == "__main__":
    tf.test.main()
