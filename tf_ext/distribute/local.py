# SPDX-License-Identifier: Apache-2.0
"""A cluster of processes on this machine, for development and tests."""

import contextlib
import json
import pathlib
import tempfile
import threading
import time
import typing
import weakref

import tensorflow as tf

from tf_ext._checks import check_count
from tf_ext.distribute import coordinators
from tf_ext.distribute.addresses import task_addresses, task_name
from tf_ext.distribute.child_processes import (
    ChildProcesses,
    task_environment,
)
from tf_ext.distribute.cluster import LISTENS, PORT_IN_USE_STATUS
from tf_ext.distribute.forked_processes import (
    ForkedProcess,
    ForkServer,
    log_end,
)
from tf_ext.distribute.handshake import problems_of
from tf_ext.distribute.ports import free_ports
from tf_ext.distribute.strategy import parameter_server_strategy

_MODULE = "tf_ext.distribute.server"
_ATTEMPTS = 3
_POLL_SECONDS = 0.05
# A step that hangs ends with its process alone.
_DISCONNECT_SECONDS = 10.0


def local_cluster(
    workers: int = 2,
    ps: int = 2,
    start_timeout_seconds: float = 120.0,
    restart_lost: bool = False,
) -> "LocalCluster":
    """Starts workers and parameter servers as processes on this machine.

    They communicate over loopback, but TensorFlow's servers listen on all
    interfaces, without encryption or authentication: a firewall has to protect
    their ports (SECURITY.md).

    The processes end when the block ends, and when this process does, however
    it ends. The processors are divided among them, unless the environment
    variable `TF_NUM_INTRAOP_THREADS` says how many threads each has.

    Args:
      workers: int, the number of workers.
      ps: int, the number of parameter servers.
      start_timeout_seconds: float, how long they may take to listen.
      restart_lost: bool, whether a process that ends is started again, as a
        cluster manager would.

    Returns:
      A `LocalCluster`, to be used in a `with` statement.

    Raises:
      ValueError: workers or ps is less than 1.
      RuntimeError: a process ended, or does not listen in time, with its log;
        on entering the block.

    Example:
    ```python
    with tf_ext.distribute.local_cluster(workers=2, ps=2) as cluster:
        strategy = cluster.strategy()
    ```
    """
    return LocalCluster(workers, ps, start_timeout_seconds, restart_lost)


class LocalCluster:
    """A cluster of local processes, made by `local_cluster`.

    Attributes:
      cluster: dict of "chief", "worker" and "ps" to lists of "host:port",
        inside the block. The chief is this process.
    """

    def __init__(
        self,
        workers: int,
        ps: int,
        start_timeout_seconds: float,
        restart_lost: bool,
    ) -> None:
        for name, count in (("workers", workers), ("ps", ps)):
            check_count("local_cluster", name, count, least=1)
        self._counts = {"worker": workers, "ps": ps}
        self._start_timeout_seconds = start_timeout_seconds
        self._restart_lost = restart_lost
        self._fork_server: typing.Any = None
        self._processes: typing.Any = None
        self._strategies: weakref.WeakSet[typing.Any] = weakref.WeakSet()
        self._is_connected = False
        # Held where processes are started and ended.
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._folder: typing.Any = None
        self.cluster: dict[str, list[str]] | None = None

    def __enter__(self) -> typing.Self:
        self._folder = tempfile.TemporaryDirectory(prefix="tf_ext_cluster_")
        self._fork_server = ForkServer(task_environment())
        self._processes = ChildProcesses(
            sum(self._counts.values()), self._fork_server
        )
        try:
            self._start_all()
        except BaseException:
            self._close()
            raise
        if self._restart_lost:
            self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def strategy(self, **options: typing.Any) -> tf.distribute.Strategy:
        """A `tf.distribute.ParameterServerStrategy` on the cluster.

        Args:
          **options: of `tf_ext.distribute.parameter_server_strategy`.
        """
        self._is_connected = True
        strategy = parameter_server_strategy(self.cluster, **options)
        self._strategies.add(strategy)
        return strategy

    def pid(self, job: str, task: int) -> int:
        """The process id of a task; after a kill, that of its last process."""
        return self._process(job, task).pid

    def log(self, job: str, task: int) -> str:
        """The output of all processes of a task."""
        self._process(job, task)
        return self._log_path(job, task).read_text(errors="replace")

    def kill(self, job: str, task: int) -> None:
        """Ends a task at once, by SIGKILL, and waits until it has ended."""
        self._process(job, task)
        self._processes.kill((job, task))

    def restart(self, job: str, task: int) -> None:
        """Starts a task again at its address, and waits until it listens.

        Args:
          job: string, "worker" or "ps".
          task: int, which of the job's tasks.

        Raises:
          RuntimeError: it ends or does not listen in time, with its log.
        """
        with self._lock:
            self.kill(job, task)
            deadline = time.monotonic() + self._start_timeout_seconds
            self._wait(job, task, self._start(job, task), deadline)

    def _start_all(self) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            ports = free_ports(1 + sum(self._counts.values()))
            self.cluster = {
                job: [f"127.0.0.1:{ports.pop()}" for _ in range(count)]
                for job, count in {"chief": 1, **self._counts}.items()
            }
            deadline = time.monotonic() + self._start_timeout_seconds
            tasks = [
                (job, task)
                for job, count in self._counts.items()
                for task in range(count)
            ]
            try:
                begins = [self._start(*task) for task in tasks]
                for (job, task), begin in zip(tasks, begins, strict=True):
                    self._wait(job, task, begin, deadline)
                return
            except _PortInUseError:
                # Another process has taken the port meanwhile.
                self._processes.end_all()
                if attempt == _ATTEMPTS:
                    raise

    def _watch(self) -> None:
        while not self._closing.wait(_POLL_SECONDS):
            with self._lock:
                for task in self._processes.keys():
                    if self._processes.status(task) is not None:
                        self._start(*task)

    def _start(self, job: str, task: int) -> int:
        """Starts a process; returns where its part of the log begins."""
        path = self._log_path(job, task)
        command = [
            *["-m", _MODULE],
            f"--cluster={json.dumps(self.cluster)}",
            *[f"--job={job}", f"--task={task}"],
            "--grace_seconds=0",  # The chief ends it.
        ]
        with path.open("ab") as log:
            begin = log.tell()
            self._processes.start((job, task), command, log, log)
        return begin

    def _wait(self, job: str, task: int, begin: int, deadline: float) -> None:
        path = self._log_path(job, task)
        while True:
            # Read after the status: an ended process writes no more.
            status = self._processes.status((job, task))
            text = path.read_bytes()[begin:].decode(errors="replace")
            name = task_name(job, task)
            if status is not None:
                error = (
                    _PortInUseError
                    if status == PORT_IN_USE_STATUS
                    else RuntimeError
                )
                raise error(
                    f"{name} ended with status {status} when it was started. "
                    f"Its log ends with:\n{log_end(text)}"
                )
            if f"{name}: {LISTENS}" in text:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{name} does not listen after "
                    f"{self._start_timeout_seconds} s. Its log ends with:\n"
                    f"{log_end(text)}"
                )
            time.sleep(_POLL_SECONDS)

    def _process(self, job: str, task: int) -> ForkedProcess:
        known = self._processes.keys()
        if (job, task) not in known:
            known = ", ".join(task_name(*key) for key in known)
            raise ValueError(
                f"Arguments `job` and `task` must name one of {known}. "
                f"Received: {task_name(job, task)}"
            )
        process: ForkedProcess = self._processes[job, task]
        return process

    def _log_path(self, job: str, task: int) -> pathlib.Path:
        return pathlib.Path(self._folder.name) / f"{job}-{task}.log"

    def _close(self) -> None:
        self._closing.set()
        if self._watcher.is_alive():
            self._watcher.join()
        for strategy in self._strategies:
            coordinators.keep(strategy)
        disconnecting = threading.Thread(target=_disconnect, daemon=True)
        if self._is_connected and self._answers():
            disconnecting.start()
            disconnecting.join(_DISCONNECT_SECONDS)
        self._processes.close()
        self._fork_server.close()
        if self._is_connected:
            if disconnecting.ident is None:
                disconnecting.start()
            disconnecting.join()
        self._folder.cleanup()
        self.cluster = None

    def _answers(self) -> bool:
        """Whether all tasks answer.

        TensorFlow logs an error for each that it cannot disconnect from, and
        would wait for one that is stopped.
        """
        return self.cluster is not None and not problems_of(
            task_addresses(self.cluster)
        )


def _disconnect() -> None:
    """Has TensorFlow forget the tasks of the cluster.

    It sends each new function to all tasks, also to those that have ended, and
    logs an error for each. What is on this process's devices stays there.
    """
    # It only is about the log.
    with contextlib.suppress(tf.errors.OpError):
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec({"chief": [f"127.0.0.1:{free_ports(1)[0]}"]}),
            job_name="chief",
            task_index=0,
            make_master_device_default=False,
        )


class _PortInUseError(RuntimeError):
    pass
