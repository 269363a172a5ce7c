# SPDX-License-Identifier: Apache-2.0
"""Names and addresses of the tasks of a cluster, and connections to them."""

import contextlib
import errno
import socket
from collections.abc import Iterable, Mapping, Sequence


def task_name(job: str, index: int) -> str:
    """The name that TensorFlow gives to a task, as "/job:ps/task:1"."""
    return f"/job:{job}/task:{index}"


def task_addresses(
    cluster: Mapping[str, Sequence[str]], jobs: Iterable[str] = ("ps", "worker")
) -> dict[str, str]:
    """The addresses of tasks: a dict of task name -> "host:port".

    Args:
      cluster: dict of job -> list of "host:port".
      jobs: the jobs wanted.
    """
    return {
        task_name(job, index): address
        for job in jobs
        for index, address in enumerate(cluster.get(job, ()))
    }


def named(tasks: Mapping[str, str | None]) -> str:
    """A text that lists tasks, from a dict as `task_addresses` returns.

    An address may be None, and is then left out.
    """
    return ", ".join(
        f"{task} at {address}" if address else task
        for task, address in tasks.items()
    )


def split_address(address: str) -> tuple[str, int]:
    """("host", port) of "host:port"; an IPv6 host is in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def connect(address: str, timeout_seconds: float) -> socket.socket:
    """A TCP connection to "host:port"; OSError if there is none."""
    connection = socket.create_connection(
        split_address(address), timeout=timeout_seconds
    )
    # A connection to a free port of this machine may connect to itself.
    if connection.getsockname() == connection.getpeername():
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    return connection


def is_listening(address: str, timeout_seconds: float = 1.0) -> bool:
    """Whether something accepts a TCP connection at "host:port"."""
    with contextlib.suppress(OSError), connect(address, timeout_seconds):
        return True
    return False
