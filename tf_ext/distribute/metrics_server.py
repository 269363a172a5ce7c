# SPDX-License-Identifier: Apache-2.0
"""Serves the metrics of this process over HTTP, and whether it is ready."""

import contextlib
import errno
import math
import socket
import sys
import threading
import time
import typing
import urllib.parse
import wsgiref.simple_server
from collections.abc import Callable, Iterable, Iterator

from tf_ext._checks import is_int, refuse
from tf_ext.distribute import metrics, this_task

LOOPBACK = "127.0.0.1"
# Each client has a thread: it must not be kept by one that is silent, sends a
# byte from time to time, or does not read. The making of the answer does not
# count.
_REQUEST_SECONDS = 10.0
# Of the environment of WSGI: the context in which an answer is made.
_ANSWERING = "tf_ext.answering"
# The argument of /ready.
_PROGRESS = "progress_seconds"
_MOST_CLIENTS = 32  # at a time; the oldest has to make room for another one

_logger = this_task.logger(__name__)


def serve_metrics(port: int, host: str = LOOPBACK) -> "MetricsServer":
    """Serves the metrics of this process over HTTP, from a thread.

    For the chief and for synchronous workers; `python -m
    tf_ext.distribute.server` has the options `--metrics_port` and
    `--metrics_host`. Call it first, before the strategy is made.

    - `/metrics`: in the format of OpenMetrics or Prometheus, by what the client
      accepts. docs/metrics.md lists them.
    - `/ready`: status 200 if this process has connected to its cluster, or has
      none; otherwise 503. `/ready?progress_seconds=600` is 503 as well if the
      process has neither trained, pulled, pushed nor hashed anything for so
      long, as probes see it; the first one begins.

    There is no authentication and no encryption: whoever reaches the port reads
    the names of tables and how large they are.

    Args:
      port: int, 0 to 65535. 0: one that is free, see the attribute `port`.
      host: string, the address or name to listen at: "127.0.0.1" is this
        machine alone, "0.0.0.0" all interfaces of IPv4, "::" all interfaces.

    Returns:
      A `MetricsServer`. It serves until it is closed or the process ends.

    Raises:
      ModuleNotFoundError: prometheus_client is not installed.
      RuntimeError: the address cannot be listened at, as its port is in use.
      ValueError: an argument is invalid.

    Example:
      >>> import urllib.request
      >>> server = tf_ext.utils.serve_metrics(0)
      >>> url = f"http://127.0.0.1:{server.port}/metrics"
      >>> text = urllib.request.urlopen(url).read().decode()
      >>> "tf_ext_task_info" in text
      True
      >>> server.close()
    """
    return MetricsServer(port, host, this_task.why_not_connected)


class MetricsServer:
    """What `serve_metrics` returns.

    Args:
      port: int.
      host: string.
      why_not_ready: function that returns None if this process is ready, or
        else a text that says why not.

    Attributes:
      port: int, where it listens.
    """

    def __init__(
        self, port: int, host: str, why_not_ready: Callable[[], str | None]
    ) -> None:
        if not is_int(port) or not 0 <= port <= 65535:
            refuse("serve_metrics", "port", "an int of 0 to 65535", port)
        if not isinstance(host, str) or not host:
            refuse("serve_metrics", "host", "an address or a name", host)
        registry = metrics.registry(_prometheus_client())
        app = _app(registry, why_not_ready, _Idle())
        try:
            self._server = _listen(port, host, app)
        except OSError as error:
            hint = ""
            if error.errno == errno.EADDRINUSE:
                hint = ". Is another process using the port?"
            raise RuntimeError(
                f"Metrics cannot be served at {host}:{port}: "
                f"{error.strerror or error}{hint}"
            ) from error
        self.port: int = self._server.server_address[1]
        threading.Thread(
            target=self._server.serve_forever,
            name="tf_ext_metrics",
            daemon=True,
        ).start()
        _logger.info("Metrics are served at %s, port %d.", host, self.port)

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()


def _prometheus_client() -> typing.Any:
    try:
        import prometheus_client.core
        import prometheus_client.exposition
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "prometheus_client":
            raise
        raise ModuleNotFoundError(
            "Metrics are served by prometheus_client, which is not installed: "
            "pip install 'tf_ext[metrics]'",
            name="prometheus_client",
        ) from None
    return prometheus_client


class _Idle:
    """For how long this process has done nothing, by those who ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._since = 0.0

    def seconds(self) -> float:
        """Since a call first saw what calls still see."""
        done = metrics.work_done()
        with self._lock:
            now = time.monotonic()
            if done != self._seen:
                self._seen, self._since = done, now
            return now - self._since


def _app(
    registry: typing.Any,
    why_not_ready: Callable[[], str | None],
    idle: _Idle,
) -> Callable[..., Iterable[bytes]]:
    """The WSGI application of both paths."""
    of_metrics = _prometheus_client().make_wsgi_app(registry)

    def app(
        environ: dict[str, typing.Any], start_response: Callable[..., object]
    ) -> Iterable[bytes]:
        with environ[_ANSWERING]:
            return answer(environ, start_response)

    def answer(
        environ: dict[str, typing.Any], start_response: Callable[..., object]
    ) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return typing.cast(
                Iterable[bytes], of_metrics(environ, start_response)
            )
        status, text = "404 Not Found", "There are /metrics and /ready."
        if path == "/ready":
            try:
                limit = _progress_seconds(environ.get("QUERY_STRING", ""))
            except ValueError as error:
                status, text = "400 Bad Request", str(error)
            else:
                why_not = why_not_ready() or _why_idle(idle, limit)
                status, text = (
                    ("200 OK", "ready")
                    if why_not is None
                    else ("503 Service Unavailable", f"Not ready: {why_not}.")
                )
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{text}\n".encode()]

    return app


def _progress_seconds(query: str) -> float | None:
    """The argument of `/ready`; ValueError if there is another one."""
    arguments = urllib.parse.parse_qs(query, keep_blank_values=True)
    texts = arguments.pop(_PROGRESS, None)
    if arguments:
        raise ValueError(
            f"/ready has the argument {_PROGRESS}. Received: {query}"
        )
    if texts is None:
        return None
    try:
        [seconds] = map(float, texts)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(
            f"{_PROGRESS} must be a positive number. Received: {query}"
        )
    return seconds


def _why_idle(idle: _Idle, limit: float | None) -> str | None:
    if limit is None or (seconds := idle.seconds()) < limit:
        return None
    return f"it has done nothing for {seconds:.0f} s"


class _Handler(wsgiref.simple_server.WSGIRequestHandler):
    server: typing.Any

    def get_environ(self) -> dict[str, typing.Any]:
        """The environment of WSGI."""
        answering = self.server.answering(self.connection)
        return {**super().get_environ(), _ANSWERING: answering}

    def log_message(self, format: str, *args: typing.Any) -> None:
        """Probes every few seconds would fill the log."""


class _Bounded:
    """Part of a threading server that ends connections of clients."""

    def __init__(self, *args: typing.Any) -> None:
        self._lock = threading.Lock()
        # {connection: when it ends}, the oldest first.
        self._ends: dict[socket.socket, float] = {}
        super().__init__(*args)

    def process_request(self, request: socket.socket, address: object) -> None:
        """Notes a new connection, and starts its thread."""
        with self._lock:
            while len(self._ends) >= _MOST_CLIENTS:
                self._end(next(iter(self._ends)))
            self._ends[request] = time.monotonic() + _REQUEST_SECONDS
        super().process_request(request, address)  # type: ignore[misc]

    @contextlib.contextmanager
    def answering(self, request: socket.socket) -> Iterator[None]:
        """The context in which the answer is made, whose time is not limited.

        A busy machine may take long for a thousand tables.
        """
        self._put_off(request, math.inf)
        try:
            yield
        finally:
            self._put_off(request, time.monotonic() + _REQUEST_SECONDS)

    def _put_off(self, request: socket.socket, end: float) -> None:
        with self._lock:
            if request in self._ends:
                self._ends[request] = end

    def shutdown_request(self, request: socket.socket) -> None:
        """Ends a connection that was answered."""
        with self._lock:
            self._ends.pop(request, None)
        super().shutdown_request(request)  # type: ignore[misc]

    def service_actions(self) -> None:
        """Ends connections that take too long; called every half a second."""
        now = time.monotonic()
        with self._lock:
            for request in [r for r, end in self._ends.items() if end <= now]:
                self._end(request)

    def server_close(self) -> None:
        """Stops listening, and ends all connections."""
        super().server_close()  # type: ignore[misc]
        with self._lock:
            for request in list(self._ends):
                self._end(request)

    def handle_error(self, request: object, address: object) -> None:
        """Prints an error's traceback, unless the connection has ended."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, address)  # type: ignore[misc]

    def _end(self, request: socket.socket) -> None:
        """Lets the thread of a connection find its end."""
        del self._ends[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


def _listen(
    port: int, host: str, app: Callable[..., Iterable[bytes]]
) -> wsgiref.simple_server.WSGIServer:
    [family, _, _, _, address], *_ = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    of_family = type(
        "_Server",
        (_Bounded, _prometheus_client().exposition.ThreadingWSGIServer),
        {"address_family": family},
    )
    return wsgiref.simple_server.make_server(
        str(address[0]), port, app, of_family, _Handler
    )
