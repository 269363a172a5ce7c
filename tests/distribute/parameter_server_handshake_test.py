# SPDX-License-Identifier: Apache-2.0
"""Connecting to addresses where something else than a server answers."""

import contextlib
import socket
import ssl
import threading
import time
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import parameterized
from clusters.listeners import SETTINGS, Listener, speak_http2

from tf_ext import distribute
from tf_ext.distribute import addresses, handshake, liveness, ports, strategy

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow_tests(
        "HandshakeTest::test_names_the_task_and_what_was_found_drops_packets",
        "HandshakeTest::test_names_the_task_and_what_was_found_tls",
        "HandshakeTest::test_names_the_task_and_what_was_found_mail",
        "HandshakeTest::test_names_the_task_and_what_was_found_closes",
    ),
]


def _say_nothing(connection):
    del connection


def _speak_http(connection):
    connection.recv(1000)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def _speak_tls(connection):
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    received.write(connection.recv(1000))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with contextlib.suppress(ssl.SSLError):
        context.wrap_bio(received, sent, server_side=True).do_handshake()
    connection.sendall(sent.read())
    connection.close()


def _greet(connection):
    connection.sendall(b"220 mail.example ESMTP\r\n")


def _close(connection):
    connection.recv(1000)
    connection.close()


_FOUND = (
    (
        "says_nothing",
        _say_nothing,
        "accepts connections but does not answer: it is stopped or "
        "overloaded, or is not a TensorFlow server",
    ),
    (
        "http",
        _speak_http,
        "speaks HTTP/1: it is another program or a proxy, not a "
        "TensorFlow server",
    ),
    (
        "tls",
        _speak_tls,
        "speaks TLS, which TensorFlow's protocol does not: it is another "
        "program or a proxy",
    ),
    ("mail", _greet, "answers b'220 mail.example ESMTP"),
    ("closes", _close, "closes connections without an answer: it is another"),
    (
        "drops_packets",
        None,
        "does not accept a connection within 1 s: the machine is off, a "
        "firewall drops the packets, or the process is stopped",
    ),
)


class HandshakeTest(tf.test.TestCase, parameterized.TestCase):
    def listener(self, serve):
        listener = Listener(serve)
        self.addCleanup(listener.close)
        return listener.address

    def test_another_watch_that_breaks_off_leaves_the_question_alone(self):
        with Listener(_say_nothing) as listener:
            found = []
            asking = threading.Thread(
                target=lambda: found.append(
                    handshake.problem(listener.address, 1.0)
                )
            )
            asking.start()
            with socket.create_connection(
                addresses.split_address(listener.address)
            ):
                time.sleep(0.3)
                # That one alone.
                self.assertEqual(liveness.break_off(listener.address), 1)
            asking.join()
        self.assertStartsWith(
            found[0], "accepts connections but does not answer"
        )

    @mock.patch.object(liveness, "SILENT_SECONDS", 0.0)
    @mock.patch.object(liveness, "_ATTEMPT_SECONDS", 0.1)
    @mock.patch.object(liveness, "_keep_looking", lambda reference: None)
    def test_a_worker_that_stays_silent_is_left_three_times(self):
        address = self.listener(_say_nothing)
        watch = liveness.Watch({"worker": address}, {})
        peer = addresses.split_address(address)
        shut = []
        with self.assertLogs(liveness.__name__) as logged:
            for _ in range(4):
                watch.look()  # Nothing is connected, and nothing counts.
                with socket.create_connection(peer) as connection:
                    watch.look()
                    connection.setblocking(False)
                    try:
                        shut.append(connection.recv(1) == b"")
                    except BlockingIOError:
                        shut.append(False)
        self.assertEqual(shut, [True, True, True, False])
        self.assertLen(logged.output, 1)

    @parameterized.parameters((0.0, True), (600.0, False))
    @mock.patch.object(liveness, "SILENT_SECONDS", 0.0)
    @mock.patch.object(liveness, "_ATTEMPT_SECONDS", 0.1)
    @mock.patch.object(liveness, "_keep_looking", lambda reference: None)
    def test_a_server_is_left_later(self, seconds, is_left):
        address = self.listener(_say_nothing)
        watch = liveness.Watch({}, {"server": address})
        peer = addresses.split_address(address)
        with (
            mock.patch.object(liveness, "SILENT_SERVER_SECONDS", seconds),
            socket.create_connection(peer) as connection,
        ):
            watch.look()
            connection.setblocking(False)
            try:
                shut = connection.recv(1) == b""
            except BlockingIOError:
                shut = False
        self.assertEqual(shut, is_left)
        self.assertIn("server", watch.lost())

    @parameterized.named_parameters(*_FOUND)
    def test_names_the_task_and_what_was_found(self, serve, found):
        address = self.listener(serve)
        answering = self.listener(speak_http2)
        [port] = ports.free_ports(1)
        begin = time.monotonic()
        with self.assertRaises(TimeoutError) as raised:
            distribute.parameter_server_strategy(
                {
                    "chief": [f"127.0.0.1:{port}"],
                    "worker": [answering],
                    "ps": [
                        answering.replace("127.0.0.1", "localhost"),
                        address,
                    ],
                },
                timeout_seconds=1.0,
            )
        self.assertBetween(time.monotonic() - begin, 1.0, 60.0)
        message = str(raised.exception)
        self.assertIn(
            f"after 1 s: /job:ps/task:1 at {address} {found}", message
        )
        self.assertIn("Start each with `python -m tf_ext.distribute.", message)
        self.assertNotIn("worker/task:0", message)
        self.assertNotIn("ps/task:0", message)

    def test_waits_for_a_server_that_starts(self):
        [port] = ports.free_ports(1)
        address = f"127.0.0.1:{port}"
        self.assertEqual(
            handshake.problem(address, 1.0),
            "refuses connections: nothing listens there",
        )

        def start():
            with socket.create_server(("127.0.0.1", port)) as late:
                connection, _ = late.accept()
                connection.sendall(SETTINGS)
                connection.close()

        timer = threading.Timer(0.5, start)
        self.addCleanup(timer.join)
        timer.start()
        tasks = {"/job:ps/task:0": address}
        self.assertEqual(handshake.wait_until_answering(tasks, 20.0), "")

    def test_a_connection_to_itself_is_none(self):
        # What TCP may do towards a port that nothing listens at.
        [port] = ports.free_ports(1)
        own = socket.socket()
        self.addCleanup(own.close)
        own.bind(("127.0.0.1", port))
        own.connect(("127.0.0.1", port))
        with mock.patch.object(socket, "create_connection", return_value=own):
            self.assertStartsWith(
                handshake.problem(f"127.0.0.1:{port}", 1.0), "refuses connect"
            )

    def test_a_name_that_is_not_known(self):
        self.assertStartsWith(
            handshake.problem("no.such.host.invalid:1", 1.0),
            "cannot be connected to (",
        )


class LateAnswerTest(parameterized.TestCase):
    """Tasks that were there, and do not answer a question in time."""

    @parameterized.parameters(
        (False, "tasks did not answer: {} refuses connections.*Start each ag"),
        (True, "one of {} did not answer, although something that speaks HTT"),
    )
    def test_what_is_found_at_the_address(self, listens, message):
        address = f"127.0.0.1:{ports.free_ports(1)[0]}"
        if listens:
            listener = Listener(speak_http2)
            self.addCleanup(listener.close)
            address = listener.address
        asked = threading.Event()
        self.addCleanup(asked.set)
        name = "/job:worker/task:0"
        expected = message.format(f"{name} at {address}")
        with self.assertRaisesRegex(TimeoutError, expected):
            strategy._answer(name, address, 0.0, asked.wait)


if __name__ == "__main__":
    tf.test.main()
