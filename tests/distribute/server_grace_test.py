# SPDX-License-Identifier: Apache-2.0
"""How long a server stays after SIGTERM."""

import contextlib
import io
import signal
import socket
import threading
import time
from unittest import mock

import pytest
from absl.testing import absltest, parameterized

from tf_ext.distribute import server


class _EndedError(Exception):
    pass


class GraceTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        before = signal.getsignal(signal.SIGTERM)
        self.addCleanup(signal.signal, signal.SIGTERM, before)
        self.enterContext(
            mock.patch.object(server, "_end", side_effect=_EndedError)
        )
        self.listener = self.enterContext(socket.create_server(("", 0)))
        self.chief = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.slept = 0
        self.enterContext(mock.patch.object(time, "sleep", self._sleep))

    def _sleep(self, seconds):
        self.slept += 1
        if self.slept == 3:
            self.listener.close()

    def leave(self, grace_seconds):
        with self.assertRaises(_EndedError):
            server._leave(signal.SIGTERM, self.chief, grace_seconds)

    def test_stays_while_the_chief_is_there(self):
        with self.assertLogs("tf_ext.distribute.server", "INFO") as logs:
            self.leave(1e9)
        self.assertEqual(self.slept, 3)
        self.assertIn("Stays on SIGTERM until the chief at", logs.output[0])
        self.assertIn("Ends on SIGTERM", logs.output[1])
        # Those who send it twice want no less time.
        self.assertEqual(signal.getsignal(signal.SIGTERM), signal.SIG_IGN)

    def test_ends_after_the_grace_period(self):
        times = iter([100.0, 101.0, 124.9, 125.1])
        with mock.patch.object(time, "monotonic", lambda: next(times)):
            self.leave(25.0)
        self.assertEqual(self.slept, 2)

    @parameterized.parameters((0.0, False), (25.0, True))
    def test_ends_at_once(self, grace_seconds, chief_ended):
        if chief_ended:
            self.listener.close()
        self.leave(grace_seconds)
        self.assertEqual(self.slept, 0)

    @pytest.mark.timeout(60)
    def test_handles_a_signal_that_another_thread_got(self):
        def end(number, frame):
            raise _EndedError

        def receive():
            received.wait(0.2)  # Until the main thread waits.
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            received.wait()

        received = threading.Event()
        self.addCleanup(received.set)
        signal.signal(signal.SIGTERM, end)
        threading.Thread(target=receive).start()
        with self.assertRaises(_EndedError):
            server._handle_signals()

    @parameterized.parameters("-1", "nan", "inf", "soon")
    def test_refuses_other_periods(self, seconds):
        written = io.StringIO()
        with (
            contextlib.redirect_stderr(written),
            self.assertRaises(SystemExit) as ended,
        ):
            server.main([f"--grace_seconds={seconds}"])
        self.assertEqual(ended.exception.code, 2)
        self.assertIn("--grace_seconds", written.getvalue())


if __name__ == "__main__":
    absltest.main()
