# SPDX-License-Identifier: Apache-2.0
"""Clients of the metrics endpoint that do not behave."""

import contextlib
import io
import socket
import threading
import time
from unittest import mock

import metrics_client
import pytest
from absl.testing import absltest

from tf_ext.distribute import metrics_server

pytestmark = pytest.mark.slow_tests(
    "ClientsTest::test_a_silent_one_is_left",
    "ClientsTest::test_the_oldest_make_room_for_others",
    "ClientsTest::test_one_that_drips_bytes_is_left",
)

_TIMEOUT_SECONDS = 60  # of what comes at once if all is well


class ClientsTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.written = io.StringIO()
        self.enterContext(contextlib.redirect_stderr(self.written))

    def limit(self, name, value):
        self.enterContext(mock.patch.object(metrics_server, name, value))

    def serve(self, why_not_ready=lambda: None):
        server = metrics_server.MetricsServer(0, "127.0.0.1", why_not_ready)
        self.addCleanup(server.close)
        return server

    def connect(self, server, text=b""):
        client = socket.create_connection(
            ("127.0.0.1", server.port), _TIMEOUT_SECONDS
        )
        self.addCleanup(client.close)
        client.sendall(text)
        return client

    def assert_ended(self, client):
        """The server ends the connection, without an answer."""
        with contextlib.suppress(ConnectionError):
            self.assertEqual(client.recv(100), b"")

    def assert_no_traceback(self, server):
        """Of all threads, which have ended when this one has been joined."""
        self.wait_for_threads()
        self.limit("_REQUEST_SECONDS", 600)
        self.assertEqual(metrics_client.get(server.port, "/ready")[0], 200)
        self.assertNotIn("Traceback", self.written.getvalue())

    def wait_for_threads(self):
        for thread in threading.enumerate():
            if "process_request_thread" in thread.name:
                thread.join(_TIMEOUT_SECONDS)
                self.assertFalse(thread.is_alive())

    def test_a_silent_one_is_left(self):
        self.limit("_REQUEST_SECONDS", 0.1)
        server = self.serve()
        for text in (b"", b"GET", b"GET /metrics HTTP/1.1\r\nHost: a"):
            self.assert_ended(self.connect(server, text))
        self.assert_no_traceback(server)

    def test_one_that_drips_bytes_is_left(self):
        self.limit("_REQUEST_SECONDS", 0.1)
        server = self.serve()
        client = self.connect(server, b"GET /metrics HTTP/1.1\r\n")
        with self.assertRaises(ConnectionError):
            while True:
                client.sendall(b"X-More: bytes\r\n")
                client.settimeout(0.01)
                with contextlib.suppress(TimeoutError):
                    if client.recv(100) == b"":
                        raise ConnectionResetError
        self.assert_no_traceback(server)

    def test_one_that_reads_nothing_is_left(self):
        self.limit("_REQUEST_SECONDS", 0.1)
        # More than the buffers of a connection hold.
        size = 64 << 20
        answers = iter(["x" * size, None])
        server = self.serve(lambda: next(answers))
        client = self.connect(server, b"GET /ready HTTP/1.1\r\n\r\n")
        client.recv(1)
        self.wait_for_threads()
        found = 0
        with contextlib.suppress(ConnectionError):
            while some := client.recv(1 << 20):
                found += len(some)
        self.assertLess(found, size)
        self.assert_no_traceback(server)

    def test_the_time_of_the_answer_does_not_count(self):
        self.limit("_REQUEST_SECONDS", 600)

        def take_hours():
            later = time.monotonic() + 7200
            with mock.patch.object(metrics_server, "time") as clock:
                clock.monotonic.return_value = later
                server._server.service_actions()

        server = self.serve(take_hours)
        client = self.connect(server, b"GET /ready HTTP/1.1\r\n\r\n")
        self.assertIn(b"200 OK", client.recv(100))
        self.assert_no_traceback(server)

    def test_the_oldest_make_room_for_others(self):
        self.limit("_MOST_CLIENTS", 3)
        self.limit("_REQUEST_SECONDS", 600)
        server = self.serve()
        clients = [self.connect(server, b"GET") for _ in range(8)]
        for client in clients[:5]:
            self.assert_ended(client)
        # Of the others, one makes room for this.
        self.assertEqual(metrics_client.get(server.port, "/ready")[0], 200)
        self.assert_ended(clients[5])
        for client in clients[6:]:
            client.sendall(b" /ready HTTP/1.1\r\n\r\n")
            self.assertIn(b"200 OK", client.recv(100))
        self.assert_no_traceback(server)

    def test_closing_ends_connections(self):
        self.limit("_REQUEST_SECONDS", 600)
        server = self.serve()
        client = self.connect(server, b"GET")
        self.assertEqual(metrics_client.get(server.port, "/ready")[0], 200)
        server.close()
        self.assert_ended(client)
        self.wait_for_threads()
        self.assertNotIn("Traceback", self.written.getvalue())

    def test_errors_of_the_server_are_printed(self):
        def fail():
            raise ZeroDivisionError("of the test")

        server = self.serve(fail)
        self.assertEqual(metrics_client.get(server.port, "/ready")[0], 500)
        self.wait_for_threads()
        self.assertIn("of the test", self.written.getvalue())

    def test_usual_limits(self):
        """Short enough that probes find their thread, long for a scrape."""
        self.assertBetween(metrics_server._REQUEST_SECONDS, 1, 60)
        self.assertBetween(metrics_server._MOST_CLIENTS, 8, 256)


if __name__ == "__main__":
    absltest.main()
