# SPDX-License-Identifier: Apache-2.0
"""Listeners at the addresses of tasks that are not TensorFlow servers."""

import contextlib
import socket
import threading
import time

# What a server of TensorFlow sends first, and nothing after it.
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


class Listener:
    """Listens on loopback and does the same with each connection.

    Args:
      serve: function of a connection; None to accept none.
    """

    def __init__(self, serve=None):
        backlog = 0 if serve is None else 16
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._serve = serve
        self._open = []
        self._fillers = []
        if serve is None:
            self._fill_the_queue()
        else:
            threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self._open.append(connection)
                with contextlib.suppress(OSError):
                    self._serve(connection)

    def _fill_the_queue(self):
        # Then the system drops what asks for a connection.
        host, port = self.address.split(":")
        for _ in range(8):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex((host, int(port)))
            self._fillers.append(filler)
        time.sleep(0.1)

    def close(self):
        for each in (self._socket, *self._open, *self._fillers):
            each.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def speak_http2(connection):
    """Sends the first bytes that a TensorFlow server sends."""
    connection.sendall(SETTINGS)
