# SPDX-License-Identifier: Apache-2.0
"""A proxy that delays what processes send to each other, over loopback.

TensorFlow's processes connect through it where the environment has
`grpc_proxy`: gRPC asks it, by HTTP's CONNECT, for a connection to each address.
A file that is mapped into memory tells the delay, so it can change while
connections are open.
"""

import contextlib
import multiprocessing
import os
import queue
import socket
import tempfile
import threading
import time

import numpy as np

_VARIABLE = "grpc_proxy"
_START_SECONDS = 30
_CHUNK = 1 << 20


class Delay:
    """The delay of everything that is sent, and what came of it.

    Args:
      path: string, the file.
    """

    def __init__(self, path):
        self._values = np.memmap(path, np.float64, "r+", shape=3)

    @property
    def seconds(self):
        return float(self._values[0])

    @seconds.setter
    def seconds(self, value):
        self._values[:] = value, 0.0, 0.0

    def passed(self, seconds):
        """Counts something that took so long on its way."""
        self._values[1:] += seconds, 1

    def mean(self):
        """Seconds that things took since the delay was set."""
        return float(self._values[1] / max(1.0, self._values[2]))


@contextlib.contextmanager
def proxy():
    """Runs the proxy; processes that are started meanwhile connect through it.

    Yields:
      string, the path of the file for `Delay`.
    """
    spawning = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "delay")
        np.zeros(3).tofile(path)
        ours, theirs = spawning.Pipe()
        process = spawning.Process(target=_serve, args=(path, theirs))
        process.start()
        before = os.environ.get(_VARIABLE)
        try:
            if not ours.poll(_START_SECONDS):
                raise RuntimeError("The proxy did not start.")
            os.environ[_VARIABLE] = f"http://127.0.0.1:{ours.recv()}"
            yield path
        finally:
            os.environ.pop(_VARIABLE, None)
            if before is not None:
                os.environ[_VARIABLE] = before
            process.kill()
            process.join()


def _serve(path, started):
    delay = Delay(path)
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    started.send(listener.getsockname()[1])
    while True:
        client, _ = listener.accept()
        _start(_connect, client, delay)


def _start(function, *arguments):
    threading.Thread(target=function, args=arguments, daemon=True).start()


def _connect(client, delay):
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = client.recv(1)
        if not byte:
            return
        head += byte
    host, _, port = head.split()[1].decode().rpartition(":")
    try:
        server = socket.create_connection((host, int(port)))
    except OSError:
        # A task that is not up yet: gRPC tries again.
        client.close()
        return
    for one in (client, server):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    _start(_receive, client, server, delay)
    _start(_receive, server, client, delay)


def _receive(source, sink, delay):
    pending = queue.SimpleQueue()
    _start(_send, pending, sink, delay)
    while True:
        try:
            data = source.recv(_CHUNK)
        except OSError:
            data = b""
        pending.put((time.perf_counter(), delay.seconds, data))
        if not data:
            return


def _send(pending, sink, delay):
    while True:
        arrival, seconds, data = pending.get()
        time.sleep(max(0.0, arrival + seconds - time.perf_counter()))
        delay.passed(time.perf_counter() - arrival)
        try:
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(data)
        except OSError:
            return
