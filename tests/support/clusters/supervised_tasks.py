# SPDX-License-Identifier: Apache-2.0
"""Processes that are started again when they end, as a cluster manager does."""

import contextlib
import pathlib
import resource
import signal
import sys
import threading
import time

from clusters import multi_worker_util as util
from tf_ext.distribute import child_processes, local_workers

_POLL_SECONDS = 0.1
_LOG_END = 6000


class SupervisedTasks:
    """Tasks of a cluster, in a `with` statement, which ends them.

    Args:
      commands: {name: (list of strings, `TF_CONFIG`)}, programs and their
        arguments.
      training: names of those that are not started again after status 0.
      folder: pathlib.Path, where their logs are.

    Attributes:
      ends: list of `(time.monotonic(), name, status)`, of processes that ended.
    """

    def __init__(self, commands, training, folder):
        self._commands = commands
        self._training = frozenset(training)
        self._folder = folder
        self._lock = threading.RLock()
        self._starts = dict.fromkeys(commands, 0)
        self._environments = {}
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self.ends = []

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.enter_context(util.forks())
            self._forks = local_workers.ChildProcesses(len(self._commands))
            # Those of other environments, which forks cannot have.
            self._others = child_processes.ChildProcesses(len(self._commands))
            stack.callback(self._close)
            for name in self._commands:
                self._start(name)
            self._watcher.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _close(self):
        self._closing.set()
        if self._watcher.ident is not None:
            self._watcher.join()
        for name in self._commands:
            self.send(name, signal.SIGKILL)
        self._forks.close()
        self._others.close()

    def send(self, name, number):
        """Sends a signal to a task; the id of its process."""
        with self._lock:
            self._processes(name).send(name, number)
            return self._processes(name)[name].pid

    def limit_files(self, pid, are_limited):
        """Makes each write of a process to a file fail, or lets it succeed."""
        with contextlib.suppress(ProcessLookupError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            soft = 0 if are_limited else hard
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))

    def starts(self, name):
        """How often a task was started."""
        return self._starts[name]

    @contextlib.contextmanager
    def killed(self, name):
        """Kills a task, and starts it again after the block."""
        with self._lock:
            self._processes(name).kill(name)
            yield

    def change(self, name, **environment):
        """Kills a task, which has further environment variables from then."""
        with self._lock:
            self._processes(name).kill(name)
            self.ends.append((time.monotonic(), name, -signal.SIGKILL))
            self._environments[name] = environment
            self._start(name)

    def have_trained(self):
        """Whether all tasks that train have ended with status 0."""
        with self._lock:
            return all(self._status(n) == 0 for n in self._training)

    def describe(self):
        """A text with the ends of the logs."""
        texts = [f"{at:.1f} {name}: {end}" for at, name, end in self.ends]
        for name in self._commands:
            for path in self._paths(name):
                end = path.read_text(errors="replace")[-_LOG_END:]
                texts.append(f"-- {path.name}\n{end}")
        return "\n".join(texts)

    def _processes(self, name):
        return self._others if name in self._environments else self._forks

    def _status(self, name):
        return self._processes(name).status(name)

    def _paths(self, name):
        return [
            pathlib.Path(self._folder, f"{name}.{kind}")
            for kind in ("out", "err")
        ]

    def _start(self, name):
        command, config = self._commands[name]
        output, log = self._paths(name)
        with output.open("ab") as output_file, log.open("ab") as log_file:
            note = f"== {time.monotonic():.3f} start {self._starts[name]}\n"
            log_file.write(note.encode())
            log_file.flush()
            environment = self._environments.get(name, {})
            if environment:
                command = [sys.executable, *command]
            self._processes(name).start(
                name,
                command,
                output_file,
                log_file,
                **environment,
                TF_CONFIG=config,
                TF_NUM_INTEROP_THREADS="1",
                OMP_NUM_THREADS="1",
                PYTHONUNBUFFERED="1",
            )
        self._starts[name] += 1

    def _watch(self):
        noted = set()
        while not self._closing.wait(_POLL_SECONDS):
            for name in self._commands:
                with self._lock:
                    status = self._status(name)
                    key = name, self._starts[name]
                    if status is None:
                        continue
                    if key not in noted:
                        noted.add(key)
                        self.ends.append((time.monotonic(), name, status))
                    if not (status == 0 and name in self._training):
                        self._start(name)
