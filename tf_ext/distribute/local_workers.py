# SPDX-License-Identifier: Apache-2.0
"""Synchronous workers as processes of this machine."""

import codecs
import json
import logging
import os
import pathlib
import signal
import sys
import tempfile
import time
import typing
from collections.abc import Iterable, Sequence

from tf_ext._checks import check_count
from tf_ext.distribute.child_processes import ChildProcesses
from tf_ext.distribute.forked_processes import log_end
from tf_ext.distribute.ports import free_ports

_POLL_SECONDS = 0.05
_logger = logging.getLogger(__name__)


def run_local_workers(
    command: Sequence[str | os.PathLike[str]],
    workers: int = 2,
    timeout_seconds: float | None = None,
    restarts: int = 0,
    report_timeout_seconds: float = 60.0,
) -> list["WorkerResult"]:
    """Runs a program as several workers on loopback until all have ended.

    This process repeats what worker 0 writes. When a worker has failed, the
    others have time to report its loss, and are then ended.

    Args:
      command: list of strings, the command line of the program, which calls
        `tf_ext.distribute.multi_worker_strategy()`. Each worker has its own
        `TF_CONFIG`, by which a program that starts itself also knows that it is
        a worker.
      workers: int, how many.
      timeout_seconds: float, how long they may take. None: as long as it takes.
      restarts: int, how often all are started again after one has failed.
      report_timeout_seconds: float, how long the others may run on after one
        has failed. It should be longer than their heartbeat time-out.

    Returns:
      list of `WorkerResult`, one per worker.

    Raises:
      ValueError: workers is less than 1, or restarts less than 0.
      LocalWorkersError: a worker failed, and no restarts are left; the message
        holds the ends of the logs of all but worker 0.
      TimeoutError: they took too long; the message holds the same.

    Example:
      >>> results = tf_ext.distribute.run_local_workers(["echo", "trained"], 2)
      trained
      >>> [result.status for result in results]
      [0, 0]

    A program that starts itself:
    ```python
    if "TF_CONFIG" in os.environ:
        train(tf_ext.distribute.multi_worker_strategy())
    else:
        tf_ext.distribute.run_local_workers([sys.executable, *sys.argv])
    ```
    """
    check_count("run_local_workers", "restarts", restarts, least=0)
    deadline = time.monotonic() + (timeout_seconds or float("inf"))
    while True:
        with LocalWorkers(command, workers) as running:
            _watch(running, deadline, report_timeout_seconds)
            statuses = running.statuses()
            late = None in statuses.values() and time.monotonic() >= deadline
            running.end()
            results = running.results()
            others = running.describe(range(1, workers))
        if late:
            raise TimeoutError(
                f"The workers have not ended after {timeout_seconds:g} s.\n"
                f"{others}"
            )
        failed = [worker for worker, status in statuses.items() if status]
        if not failed:
            return results
        if not restarts:
            raise LocalWorkersError(failed, results, others)
        _logger.warning(
            "Workers %s failed; all are restarted (at most %d more times).\n%s",
            failed,
            restarts,
            others,
        )
        restarts -= 1


class LocalWorkersError(RuntimeError):
    """Workers of `run_local_workers` failed.

    Attributes:
      results: list of `WorkerResult`, one per worker.
    """

    def __init__(
        self, failed: list[int], results: list["WorkerResult"], logs: str
    ) -> None:
        self._arguments = failed, results, logs
        self.results = results
        super().__init__(f"The workers {failed} failed.\n{logs}")

    def __reduce__(self) -> tuple[typing.Any, ...]:
        return type(self), self._arguments  # So it reaches other processes.


class WorkerResult(typing.NamedTuple):
    """The result of a worker that has ended.

    Attributes:
      status: int, its exit status; negative if a signal ended it.
      output: string, what it wrote to standard output.
      log: string, what it wrote to standard error.
    """

    status: int
    output: str
    log: str


class LocalWorkers:
    """A program run as several workers on loopback, to test losses.

    They run inside a `with` statement. They end with it, or with this process,
    however it ends.

    Args:
      command: list of strings, the command line of the program, which calls
        `tf_ext.distribute.multi_worker_strategy()`.
      workers: int, how many. Each has its own `TF_CONFIG`.
      start: the workers that are started at once. None: all.
      environment: dict of environment variables that they get, besides those of
        this process.

    Attributes:
      addresses: list of "host:port", one per worker.

    Example:
      >>> with tf_ext.distribute.LocalWorkers(["sleep", "60"], 2) as workers:
      ...     workers.kill(1)
      ...     print(workers.statuses())
      {0: None, 1: -9}
    """

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        workers: int,
        start: Iterable[int] | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        check_count("LocalWorkers", "workers", workers, least=1)
        self._command = list(map(str, command))
        self._workers = workers
        self._start = range(workers) if start is None else start
        self._environment = environment or {}
        self._processes: typing.Any = None
        self._folder: typing.Any = None
        self.addresses: typing.Any = None

    def __enter__(self) -> typing.Self:
        self._folder = tempfile.TemporaryDirectory(prefix="tf_ext_workers_")
        self._processes = ChildProcesses(self._workers)
        try:
            self.addresses = [
                f"127.0.0.1:{port}" for port in free_ports(self._workers)
            ]
            for worker in self._start:
                self.start(worker)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()
        self._folder.cleanup()

    def start(self, worker: int) -> None:
        """Starts a worker, or starts it again."""
        config = {
            "cluster": {"worker": self.addresses},
            "task": {"type": "worker", "index": worker},
        }
        output, log = self.paths(worker)
        with output.open("ab") as output_file, log.open("ab") as log_file:
            self._processes.start(
                worker,
                self._command,
                output_file,
                log_file,
                TF_CONFIG=json.dumps(config),
                PYTHONUNBUFFERED="1",
                **self._environment,
            )

    def send(self, worker: int, number: int) -> None:
        """Sends a signal to a worker."""
        self._processes.send(worker, number)

    def kill(self, worker: int) -> None:
        """Ends a worker at once, by SIGKILL."""
        self._processes.kill(worker)

    def pids(self) -> list[int]:
        """The process ids of the workers, including those that have ended."""
        return [self._processes[w].pid for w in self._processes.keys()]

    def statuses(self) -> dict[int, int | None]:
        """Worker -> its exit status, None while it runs."""
        return {
            worker: self._processes.status(worker)
            for worker in self._processes.keys()
        }

    def output(self, worker: int) -> str:
        """What a worker has written to standard output."""
        return self.paths(worker)[0].read_text(errors="replace")

    def log(self, worker: int) -> str:
        """What a worker has written to standard error."""
        return self.paths(worker)[1].read_text(errors="replace")

    def wait(
        self, timeout_seconds: float, workers: Iterable[int] | None = None
    ) -> list[WorkerResult]:
        """Waits until workers have ended.

        Args:
          timeout_seconds: float, how long to wait.
          workers: the workers to wait for. None: all that were started.

        Returns:
          list of `WorkerResult`, in the order of `workers`.

        Raises:
          TimeoutError: workers have not ended in time, with their logs.
        """
        workers = list(self.statuses() if workers is None else workers)
        deadline = time.monotonic() + timeout_seconds
        while running := [w for w in workers if self.statuses()[w] is None]:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"The workers {running} have not ended after "
                    f"{timeout_seconds:g} s.\n{self.describe()}"
                )
            time.sleep(_POLL_SECONDS)
        return self.results(workers)

    def end(self) -> None:
        """Ends the workers that still run."""
        self._processes.end_all()

    def results(
        self, workers: Iterable[int] | None = None
    ) -> list[WorkerResult]:
        """The list of `WorkerResult` of some started workers, or of all."""
        statuses: dict[int, typing.Any] = self.statuses()
        return [
            WorkerResult(statuses[w], self.output(w), self.log(w))
            for w in (statuses if workers is None else workers)
        ]

    def describe(self, workers: Iterable[int] | None = None) -> str:
        """A text with the status and the end of the log of each worker."""
        statuses = self.statuses()
        return "\n".join(
            f"-- worker {worker} at {self.addresses[worker]} "
            f"{_status_in_words(statuses[worker])}. It wrote:\n"
            f"{log_end(self.output(worker))}\n{log_end(self.log(worker))}"
            for worker in (statuses if workers is None else workers)
        )

    def paths(self, worker: int) -> tuple[pathlib.Path, pathlib.Path]:
        """The files with standard output and standard error of a worker."""
        folder = pathlib.Path(self._folder.name)
        return folder / f"{worker}.out", folder / f"{worker}.err"


class _Copy:
    """Copies what is appended to a file to a stream."""

    def __init__(self, path: pathlib.Path, stream: typing.TextIO) -> None:
        self._file = path.open("rb")
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stream = stream

    def go_on(self) -> None:
        text = self._decoder.decode(self._file.read())
        if text:
            self._stream.write(text)
            self._stream.flush()

    def close(self) -> None:
        self.go_on()
        self._file.close()


def _watch(
    running: LocalWorkers, deadline: float, report_timeout_seconds: float
) -> None:
    """Waits for the end of all workers, or until they have to be ended."""
    copies = [
        _Copy(path, stream)
        for path, stream in zip(
            running.paths(0), (sys.stdout, sys.stderr), strict=True
        )
    ]
    while time.monotonic() < deadline:
        statuses = running.statuses().values()
        for copy in copies:
            copy.go_on()
        if None not in statuses:
            break
        if any(statuses):
            # The deadline of the other workers.
            deadline = min(deadline, time.monotonic() + report_timeout_seconds)
            report_timeout_seconds = float("inf")
        time.sleep(_POLL_SECONDS)
    for copy in copies:
        copy.close()


def _status_in_words(status: int | None) -> str:
    if status is None:
        return "runs"
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
