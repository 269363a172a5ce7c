"""Names and addresses of the tasks of a cluster, and connections to them."""

import contextlib
import errno
import socket


def task_name(job, index):
    """The name that TensorFlow gives to a task, as "/job:ps/task:1"."""
    return f"/job:{job}/task:{index}"


def task_addresses(cluster, jobs=("ps", "worker")):
    """Task name -> "host:port" of the tasks of `jobs`.

    Args:
      cluster: dict of job -> list of "host:port".
      jobs: the jobs wanted.
    """
    return {
        task_name(job, index): address
        for job in jobs
        for index, address in enumerate(cluster.get(job, ()))
    }


def named(tasks):
    """Tasks in words, from a dict as `task_addresses` makes it."""
    return ", ".join(f"{task} at {address}" for task, address in tasks.items())


def split_address(address):
    """("host", port) of "host:port"; an IPv6 host stands in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def connect(address, timeout_seconds):
    """A TCP connection to "host:port"; OSError if there is none."""
    connection = socket.create_connection(
        split_address(address), timeout=timeout_seconds
    )
    # Towards a free port of this machine, TCP may connect to itself.
    if connection.getsockname() == connection.getpeername():
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    return connection


def is_listening(address, timeout_seconds=1.0):
    """Whether something accepts a TCP connection at "host:port"."""
    with contextlib.suppress(OSError), connect(address, timeout_seconds):
        return True
    return False
