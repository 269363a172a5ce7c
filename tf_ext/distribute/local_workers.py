"""Workers as processes of this machine, for development and tests."""

import json
import pathlib
import signal
import tempfile
import time
import typing

from tf_ext.distribute.child_processes import ChildProcesses, log_end
from tf_ext.distribute.ports import free_ports

_POLL_SECONDS = 0.05


class WorkerResult(typing.NamedTuple):
    """What is left of a worker that has ended.

    Attributes:
      status: int, its exit status; negative if a signal ended it.
      output: string, what it wrote to standard output.
      log: string, what it wrote to standard error.
    """

    status: int
    output: str
    log: str


class LocalWorkers:
    """A program as several workers on loopback, each told who it is.

    They run inside a `with` statement and end with it, and when this process
    does, however it ends.

    Args:
      command: list of strings, the command line of the program, which calls
        `tf_ext.distribute.multi_worker_strategy()`.
      workers: int, how many. Each has its own `TF_CONFIG`.
      start: the workers that are started at once. None: all.

    Attributes:
      addresses: list of "host:port", one a worker.
    """

    def __init__(self, command, workers, start=None):
        if workers < 1:
            raise ValueError(f"workers must be at least 1, but is {workers}.")
        self._command = list(map(str, command))
        self._workers = workers
        self._start = range(workers) if start is None else start
        self._processes = None
        self._folder = None
        self.addresses = None

    def __enter__(self):
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

    def __exit__(self, *_):
        self._processes.close()
        self._folder.cleanup()

    def start(self, worker):
        """Starts a worker, or starts it again."""
        config = {
            "cluster": {"worker": self.addresses},
            "task": {"type": "worker", "index": worker},
        }
        output, log = self._paths(worker)
        with output.open("ab") as output_file, log.open("ab") as log_file:
            self._processes.start(
                worker,
                self._command,
                output_file,
                log_file,
                TF_CONFIG=json.dumps(config),
                PYTHONUNBUFFERED="1",
            )

    def send(self, worker, number):
        """Sends a signal to a worker."""
        self._processes.send(worker, number)

    def kill(self, worker):
        """Ends a worker at once, by SIGKILL."""
        self._processes.kill(worker)

    def statuses(self):
        """Worker -> its exit status, None while it runs."""
        return {
            worker: self._processes.status(worker)
            for worker in self._processes.keys()
        }

    def output(self, worker):
        """What a worker has written to standard output."""
        return self._paths(worker)[0].read_text(errors="replace")

    def log(self, worker):
        """What a worker has written to standard error."""
        return self._paths(worker)[1].read_text(errors="replace")

    def wait(self, timeout_seconds=None, workers=None):
        """Waits until workers have ended.

        Args:
          timeout_seconds: float, how long to wait. None: as long as it takes.
          workers: the workers to wait for. None: all that were started.

        Returns:
          list of `WorkerResult`, in the order of `workers`.

        Raises:
          TimeoutError: workers have not ended in time, with their logs.
        """
        workers = self._processes.keys() if workers is None else workers
        deadline = time.monotonic() + (timeout_seconds or float("inf"))
        while running := [w for w in workers if self.statuses()[w] is None]:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"The workers {running} have not ended after "
                    f"{timeout_seconds:g} s.\n{self.describe()}"
                )
            time.sleep(_POLL_SECONDS)
        return [
            WorkerResult(self.statuses()[w], self.output(w), self.log(w))
            for w in workers
        ]

    def describe(self):
        """Statuses and ends of logs of all workers, in words."""
        return "\n".join(
            f"-- worker {worker} at {self.addresses[worker]} "
            f"{_status_in_words(status)}. It wrote:\n"
            f"{log_end(self.output(worker))}\n{log_end(self.log(worker))}"
            for worker, status in self.statuses().items()
        )

    def _paths(self, worker):
        folder = pathlib.Path(self._folder.name)
        return folder / f"{worker}.out", folder / f"{worker}.err"


def _status_in_words(status):
    if status is None:
        return "runs"
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
