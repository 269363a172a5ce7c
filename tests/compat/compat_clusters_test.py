# SPDX-License-Identifier: Apache-2.0
"""What TensorFlow's runtime does with signals, time-outs and gRPC."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import types
from concurrent import futures
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import absltest

from tf_ext import _core
from tf_ext._compat import clusters, sockets

pytestmark = pytest.mark.slow_except(
    "ConnectInTurnsTest::*",
    "EndCoordinatorTest::*",
    "KeepingSigtermTest::*",
    "SocketsTest::test_those_of_this_process_but_for_errors",
)

_STRATEGY = """
    import json, os, signal, socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % one.getsockname()[1]
    cluster = {"worker": [address]}
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    )
    import tensorflow as tf
    from tensorflow.python.eager import context
    from tf_ext._compat import clusters
"""


_CONNECTION = """
    import os

    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"
    os.environ["TF_CPP_VMODULE"] = "grpc_channel=5"
    from tf_ext._compat import grpc_options

    {before}
    import tensorflow as tf

    server = tf.distribute.Server.create_local_server()
    tf.config.experimental_connect_to_host(server.target)
    with tf.device("/job:worker/task:0"):
        tf.constant(1.0) + 1.0
    os._exit(0)
"""


def _run(*programs):
    return _done(*programs).stdout.split()


def _done(*programs, status=0):
    # Another test of this process may have set them.
    settings = {"GRPC_FAIL_FAST", "TF_GRPC_DEFAULT_OPTIONS"}
    kept = os.environ.keys() - settings
    done = subprocess.run(
        [sys.executable, "-c", "".join(map(textwrap.dedent, programs))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={name: os.environ[name] for name in kept},
    )
    if status is not None and done.returncode != status:
        raise AssertionError(f"{done.stdout}\n{done.stderr}")
    return done


class CoordinationTest(absltest.TestCase):
    def test_time_outs_outlive_the_strategys_own(self):
        found = _run(
            _STRATEGY,
            """
            timed = clusters.configure_coordination(
                cluster, ("worker", 0), 12.0, 7.0
            )
            tf.distribute.MultiWorkerMirroredStrategy()
            service = context.context().coordination_service
            print(service.heartbeat_timeout_in_ms)
            print(service.cluster_register_timeout_in_ms)
            print(timed)
            print(getattr(service, "cluster_register_with_barrier", False))
            """,
        )
        timed = str(not tf.__version__.startswith("2.18."))
        self.assertEqual(found, ["7000", "12000", timed, timed])

    def test_the_strategys_own_are_others(self):
        found = _run(
            _STRATEGY,
            """
            tf.distribute.MultiWorkerMirroredStrategy()
            service = context.context().coordination_service
            print(service.heartbeat_timeout_in_ms if service else 0)
            """,
        )
        self.assertNotEqual(found, ["7000"])

    def test_collectives_are_aborted_for_good(self):
        found = _run(
            _STRATEGY,
            """
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
            clusters.abort_collectives("lost /job:worker/task:7")

            @tf.function
            def collective():
                return tf.raw_ops.CollectiveGatherV2(
                    input=[1.0], group_size=1, group_key=9, instance_key=9,
                    ordering_token=[],
                )

            for _ in range(2):
                try:
                    collective()
                    print("computed")
                except tf.errors.UnavailableError as error:
                    print("lost /job:worker/task:7" in error.message)
            os._exit(0)
            """,
        )
        self.assertEqual(found, ["True", "True"])

    def _outlives_sigterm(self, block):
        found = _run(
            _STRATEGY,
            f"""
            import contextlib, threading, time
            clusters.configure_coordination(cluster, ("worker", 0), 12.0, 7.0)
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
            with {block}:
                tf.distribute.MultiWorkerMirroredStrategy()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1.0)
            print("alive", flush=True)
            os._exit(0)
            """,
        )
        return found == ["alive"]

    def test_sigterm_does_what_it_did(self):
        self.assertFalse(self._outlives_sigterm("clusters.keeping_sigterm()"))

    def test_tensorflow_takes_sigterm(self):
        self.assertTrue(self._outlives_sigterm("contextlib.nullcontext()"))

    def test_sigterm_ends_a_worker_that_waits_for_another(self):
        begin = time.monotonic()
        done = _done(
            _STRATEGY,
            """
            import subprocess
            cluster["worker"].append("127.0.0.1:9")
            os.environ["TF_CONFIG"] = json.dumps(
                {"cluster": cluster, "task": {"type": "worker", "index": 0}}
            )
            clusters.configure_coordination(cluster, ("worker", 0), 60.0, 60.0)
            kill = f"sleep 3; kill -TERM {os.getpid()}"
            subprocess.Popen(["sh", "-c", kill])
            with clusters.keeping_sigterm():
                tf.distribute.MultiWorkerMirroredStrategy()
            """,
            status=-signal.SIGTERM,
        )
        self.assertLess(time.monotonic() - begin, 55.0, done.stderr)


class KeepingSigtermTest(absltest.TestCase):
    """`KeptSignalHandler`, without a strategy."""

    def _set(self, handler):
        """Sets a handler of SIGTERM that Python does not know; the former."""
        function = ctypes.pythonapi.PyOS_setsig
        function.argtypes = [ctypes.c_int, ctypes.c_void_p]
        function.restype = ctypes.c_void_p
        return function(signal.SIGTERM, handler)

    def _found(self):
        function = ctypes.pythonapi.PyOS_getsig
        function.restype = ctypes.c_void_p
        return function(signal.SIGTERM)

    def setUp(self):
        super().setUp()
        before = self._found()
        self.addCleanup(self._set, before)

    def test_handlers_set_by_others_do_not_stay(self):
        caught = []
        before = signal.signal(signal.SIGTERM, lambda *_: caught.append(1))
        self.addCleanup(signal.signal, signal.SIGTERM, before)
        own = self._found()
        for _ in range(3):
            with clusters.keeping_sigterm():
                self._set(int(signal.SIG_IGN))
                deadline = time.monotonic() + 60
                while self._found() != own and time.monotonic() < deadline:
                    time.sleep(0.001)
                os.kill(os.getpid(), signal.SIGTERM)
                self._set(int(signal.SIG_IGN))
            self.assertEqual(self._found(), own)
        self.assertEqual(caught, [1, 1, 1])

    def test_stay_after_the_block(self):
        with self.assertRaises(KeyError), clusters.keeping_sigterm():
            raise KeyError
        self._set(int(signal.SIG_IGN))
        time.sleep(0.05)
        self.assertEqual(self._found(), int(signal.SIG_IGN))

    def test_one_block_at_a_time(self):
        kept = _core.KeptSignalHandler(signal.SIGTERM)
        for _ in range(2):
            with kept, self.assertRaisesRegex(ValueError, "has begun"):
                kept.__enter__()

    def test_numbers_that_are_no_signals(self):
        for number in (0, -1, 1000):
            with self.assertRaisesRegex(ValueError, f"Received: {number}"):
                _core.KeptSignalHandler(number).__enter__()


class _Coordinator:
    """One whose failure handler ends when `ending` is set."""

    def __init__(self, ending):
        self.is_stopped = False
        thread = threading.Thread(target=ending.wait)
        thread.start()
        handler = types.SimpleNamespace(_preemption_handler_thread=thread)
        self._cluster = types.SimpleNamespace(failure_handler=handler)

    def __del__(self):
        self.is_stopped = True


class EndCoordinatorTest(absltest.TestCase):
    def test_waits_for_the_thread_that_connects_to_workers(self):
        ending = threading.Event()
        self.addCleanup(ending.set)
        coordinator = _Coordinator(ending)
        end = threading.Thread(
            target=clusters.end_coordinator, args=(coordinator,)
        )
        end.start()
        end.join(0.2)
        self.assertTrue(coordinator.is_stopped)
        self.assertTrue(end.is_alive())
        ending.set()
        end.join(60)
        self.assertFalse(end.is_alive())


class _Context:
    def __init__(self):
        self.most = self._now = 0

    def update_server_def(self, server_def):
        self._now += 1
        self.most = max(self.most, self._now)
        time.sleep(0.01)
        self._now -= 1


class ConnectInTurnsTest(absltest.TestCase):
    def _most_at_once(self, in_turns):
        context = _Context()
        module = sys.modules["tensorflow.python.eager.context"]
        with mock.patch.object(module, "context", lambda: context):
            for _ in range(2 if in_turns else 0):
                clusters.connect_in_turns()
        with futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: context.update_server_def(None), range(8)))
        return context.most

    def test_one_thread_at_a_time(self):
        self.assertEqual(self._most_at_once(in_turns=True), 1)
        self.assertGreater(self._most_at_once(in_turns=False), 1)


class GrpcOptionsTest(absltest.TestCase):
    def _log(self, before, status=0):
        return _done(_CONNECTION.format(before=before), status=status).stderr

    def test_connections_are_kept_alive(self):
        log = self._log("grpc_options.set_grpc_options()")
        self.assertRegex(log, "Setting GRPC default.*keepalive_time_ms.*330000")
        self.assertNotIn("Invalid GRPC", log)

    def test_tensorflow_keeps_none_alive_itself(self):
        self.assertNotIn("keepalive_time_ms", self._log(""))

    def _timeouts(self, call):
        """TCP_USER_TIMEOUT in ms of a server's connections: early, late."""
        return _run(
            """
            import os, socket, stat

            import tensorflow as tf
            from tf_ext._compat import grpc_options

            server = tf.distribute.Server.create_local_server()
            port = int(server.target.rpartition(":")[2])
            option = socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT

            def connect():
                client = socket.create_connection(("127.0.0.1", port))
                client.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n")
                client.sendall(b"\\0\\0\\0\\4\\0\\0\\0\\0\\0")
                client.recv(1)  # The server has accepted it.
                return client

            def timeout(client):
                for name in os.listdir("/proc/self/fd"):
                    try:
                        one = socket.socket(fileno=os.dup(int(name)))
                        with one:
                            if one.getpeername()[1] == client.getsockname()[1]:
                                return one.getsockopt(*option)
                    except (OSError, IndexError):
                        pass

            early = connect()
            other = socket.socket()
            """
            + call,
            """
            print(timeout(early), timeout(connect()), other.getsockopt(*option))
            os._exit(0)
            """,
        )

    def test_servers_wait_as_long_as_they_are_told(self):
        found = self._timeouts(
            """
            grpc_options.set_server_patience(port, 61.5)
            """
        )
        self.assertEqual(found, ["61500", "61500", "0"])

    def test_servers_wait_for_20_seconds_themselves(self):
        self.assertEqual(self._timeouts(""), ["20000", "20000", "0"])

    def test_who_calls_decides_whether_to_wait(self):
        # It ends badly; that TensorFlow reads the variable is what counts.
        log = self._log(
            'os.environ["GRPC_FAIL_FAST"] = "something"', status=None
        )
        self.assertIn("Invalid GRPC_FAIL_FAST config: something", log)


class SocketsTest(absltest.TestCase):
    def test_those_of_this_process_but_for_errors(self):
        pair = socket.socketpair()
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()) as client,
            pair[0],
            pair[1],
        ):

            def peer(descriptor, connection):
                # The one that listens has none.
                return descriptor, connection.getpeername()

            found = dict(sockets.use_sockets(peer))
            self.assertEqual(found[client.fileno()], listener.getsockname())
            others = (listener, *pair)
            self.assertNoCommonElements(found, [s.fileno() for s in others])
            # Copies are closed, not what they are copies of.
            self.assertEqual(client.getpeername(), listener.getsockname())
            all_found = sockets.use_sockets(lambda descriptor, _: descriptor)
            self.assertContainsSubset(
                [client.fileno(), listener.fileno()], all_found
            )


if __name__ == "__main__":
    absltest.main()
