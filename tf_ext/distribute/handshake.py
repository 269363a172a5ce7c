# SPDX-License-Identifier: Apache-2.0
"""Checks of what answers at the address of a task.

A server of TensorFlow speaks HTTP/2, and sends its settings as soon as a client
connects. TensorFlow would wait forever for anything else that listens
there, and for a server process that is stopped, as the system still accepts
connections for it.
"""

import concurrent.futures
import contextlib
import socket
import ssl
import time
import typing
from collections.abc import Iterator, Mapping

from tf_ext.distribute.addresses import connect

_THREADS = 64
_RETRY_SECONDS = 0.2
_ATTEMPT_SECONDS = 2.0
_LAST_ATTEMPT_SECONDS = 1.0
_SHOWN_BYTES = 40

# RFC 9113: the client's preface with empty settings, and the head of a frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
_HEAD_BYTES = 9
_SETTINGS = 4
_TLS_ALERT = b"\x15\x03"

# What `problem` finds where a process has ended.
REFUSES = "refuses connections: nothing listens there"

# The file descriptors of the connections that `problem` has open.
_asking_descriptors: set[int] = set()


def problem(address: str, timeout_seconds: float) -> str | None:
    """Why the task at "host:port" cannot be used, as a text.

    Args:
      address: string, "host:port".
      timeout_seconds: float, how long an answer may take.

    Returns:
      A string that continues a sentence after the address; None if a server of
      TensorFlow, or another one that speaks HTTP/2, answers.

    Example:
      >>> from tf_ext.distribute import handshake, ports
      >>> [port] = ports.free_ports(1)
      >>> handshake.problem(f"127.0.0.1:{port}", 1.0)
      'refuses connections: nothing listens there'
    """
    deadline = time.monotonic() + timeout_seconds
    try:
        connection = connect(address, timeout_seconds)
    except TimeoutError:
        return (
            f"does not accept a connection within {timeout_seconds:.2g} s: "
            "the machine is off, a firewall drops the packets, or the "
            "process is stopped"
        )
    except ConnectionRefusedError:
        return REFUSES
    except OSError as error:
        return f"cannot be connected to ({error.strerror or error})"
    with connection, _asking(connection):
        try:
            answer = _answer(connection, deadline)
        except TimeoutError:
            return (
                "accepts connections but does not answer: it is stopped or "
                "overloaded, or is not a TensorFlow server"
            )
        except OSError as error:
            return (
                f"breaks connections ({error.strerror or error}): it is not a "
                "TensorFlow server, or a proxy without one behind it"
            )
    if not answer and _speaks_tls(address, timeout_seconds):
        answer = _TLS_ALERT
    return _what_answered(answer)


@contextlib.contextmanager
def _asking(connection: socket.socket) -> Iterator[None]:
    descriptor = connection.fileno()
    _asking_descriptors.add(descriptor)
    try:
        yield
    finally:
        _asking_descriptors.discard(descriptor)


def is_asking(descriptor: int) -> bool:
    """Whether a socket of this process belongs to a call of `problem`."""
    return descriptor in _asking_descriptors


def _speaks_tls(address: str, timeout_seconds: float) -> bool:
    """Whether a listener that closes on plain text speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            connect(address, timeout_seconds) as connection,
            context.wrap_socket(connection),
        ):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _answer(connection: socket.socket, deadline: float) -> bytes:
    """The first bytes that an HTTP/2 client receives."""
    connection.sendall(_PREFACE)
    answer = b""
    while len(answer) < _HEAD_BYTES:
        # A time-out of 0 would mean not to wait at all.
        connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        try:
            received = connection.recv(_SHOWN_BYTES - len(answer))
        except OSError:
            if answer:
                break
            raise
        if not received:
            break
        answer += received
    return answer


def _what_answered(answer: bytes) -> str | None:
    if len(answer) >= _HEAD_BYTES and answer[3] == _SETTINGS:
        return None
    if answer.startswith(b"HTTP/"):
        what = "speaks HTTP/1"
    elif answer.startswith(_TLS_ALERT):
        what = "speaks TLS, which TensorFlow's protocol does not"
    elif answer:
        what = f"answers {answer!r}"
    else:
        what = "closes connections without an answer"
    return f"{what}: it is another program or a proxy, not a TensorFlow server"


class Answer(typing.NamedTuple):
    """What `problem` returns, and how long it took."""

    problem: str | None
    seconds: float


def answers(
    tasks: Mapping[str, str], timeout_seconds: float
) -> dict[str, Answer]:
    """The Answer of each of several tasks, asked at once.

    Args:
      tasks: dict of task name -> "host:port".
      timeout_seconds: float, as of `problem`.
    """

    def ask(address: str) -> Answer:
        begin = time.monotonic()
        found = problem(address, timeout_seconds)
        return Answer(found, time.monotonic() - begin)

    threads = min(_THREADS, len(tasks) or 1)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return dict(zip(tasks, pool.map(ask, tasks.values()), strict=True))


def problems(
    tasks: Mapping[str, str], timeout_seconds: float
) -> dict[str, str | None]:
    """The same without the times."""
    found = answers(tasks, timeout_seconds)
    return {task: answer.problem for task, answer in found.items()}


def problems_of(tasks: Mapping[str, str]) -> str:
    """Why tasks do not answer now, as a text; "" if all do.

    Args:
      tasks: dict of task name -> "host:port".
    """
    return wait_until_answering(tasks, 0.0)


def wait_until_answering(
    tasks: Mapping[str, str], timeout_seconds: float
) -> str:
    """Waits until servers of TensorFlow answer at the addresses of all tasks.

    Args:
      tasks: dict of task name -> "host:port".
      timeout_seconds: float, how long to wait at most.

    Returns:
      A text that lists the tasks that do not, and why; "" if all do.
    """
    end = time.monotonic() + timeout_seconds

    silent = dict(tasks)
    while True:
        left = max(end - time.monotonic(), _LAST_ATTEMPT_SECONDS)
        found = problems(silent, min(left, _ATTEMPT_SECONDS))
        silent = {task: tasks[task] for task, why in found.items() if why}
        if not silent or time.monotonic() >= end:
            break
        time.sleep(_RETRY_SECONDS)
    return "; ".join(
        f"{task} at {address} {found[task]}" for task, address in silent.items()
    )
