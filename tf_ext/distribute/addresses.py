"""Which tasks of a cluster accept connections."""

import concurrent.futures
import contextlib
import socket
import time

_RETRY_SECONDS = 0.2


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


def is_listening(address, timeout_seconds=1.0):
    """Whether something accepts a TCP connection at "host:port"."""
    with contextlib.suppress(OSError):
        connection = socket.create_connection(
            split_address(address), timeout=timeout_seconds
        )
        # Towards a free port of this machine, TCP may connect to itself.
        with connection:
            return connection.getsockname() != connection.getpeername()
    return False


def wait_until_listening(tasks, timeout_seconds, give_up=None):
    """Waits until all tasks accept connections.

    Args:
      tasks: dict of task name -> "host:port".
      timeout_seconds: float, how long to wait at most.
      give_up: a function without arguments; waiting ends early once it
        returns True.

    Returns:
      The tasks that do not, as a dict like `tasks`; empty when all do.
    """
    end = time.monotonic() + timeout_seconds
    silent = dict(tasks)
    with concurrent.futures.ThreadPoolExecutor(min(32, len(tasks) or 1)) as p:
        while True:
            answers = p.map(is_listening, silent.values())
            silent = {
                task: address
                for (task, address), answer in zip(
                    list(silent.items()), answers, strict=True
                )
                if not answer
            }
            if not silent or time.monotonic() >= end:
                return silent
            if give_up is not None and give_up():
                return silent
            time.sleep(_RETRY_SECONDS)
