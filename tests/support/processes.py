# SPDX-License-Identifier: Apache-2.0
"""Runs programs of the tests in processes of their own."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import fork_servers
from paths import PROGRAMS, SUPPORT

import tf_ext

_STOP_TIMEOUT_SECONDS = 200
# Programs that check how a process without TensorFlow gets it, or does not.
_NOT_FORKED = frozenset(
    [
        "cpp_session_program.py",
        "serving_load_program.py",
        "split_lookup_program.py",
    ]
)


def run(program, *arguments, timeout_seconds=300, **environment):
    """Runs `tests/support/programs/<program>` to its end.

    Args:
      program: string, the file's name; "-m" for the module that follows.
      *arguments: of its command line.
      timeout_seconds: int; a program that takes longer is killed.
      **environment: variables of the environment that are set for it.

    Returns:
      What it wrote to standard output.

    Raises:
      AssertionError: the program failed or took too long; the message holds
        the end of what it wrote.
    """
    return _run(
        _arguments(program, *arguments),
        f"{program} {arguments}",
        timeout_seconds,
        **environment,
    )


class Program:
    """A running program, which ends with its `with` block.

    Args:
      program: string, the name of a file of tests/support/programs, or an
        absolute path; "-m" for the module that follows.
      *arguments: of its command line.
      **environment: variables of the environment that are set for it.
    """

    def __init__(self, program, *arguments, **environment):
        self._name = f"{program} {arguments}"
        # Not pipes, which nothing would read meanwhile.
        self._output = tempfile.TemporaryFile()
        self._log = tempfile.TemporaryFile()
        self.process = start(
            _arguments(program, *arguments),
            self._output,
            self._log,
            {**program_environment(), **environment},
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def has_ended(self):
        return self.process.poll() is not None

    def output(self):
        """What it has written to standard output."""
        return _text_of(self._output)

    def log(self):
        """What it has written to standard error."""
        return _text_of(self._log)

    def wait(self, status=0):
        """Waits until it has ended; what it wrote to standard output.

        Raises:
          AssertionError: it ended with another status, or takes too long.
        """
        found = self.process.wait(_STOP_TIMEOUT_SECONDS)
        if found != status:
            raise AssertionError(
                f"{self._name} ended with {found}:\n"
                f"{_ends_of(self._output, self._log)}"
            )
        return self.output()


def _text_of(file):
    # The process has the same offset, where it writes on.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(
        errors="replace"
    )


def run_program(text, folder, timeout_seconds=300):
    """Runs a program in a folder, as its user would.

    Args:
      text: string, the program.
      folder: string, its working folder; `program.py` is written there.
      timeout_seconds: int; a program that takes longer is killed.

    Returns:
      What it wrote to standard output.

    Raises:
      AssertionError: as of `run`; the message holds the program too.
    """
    path = pathlib.Path(folder, "program.py")
    path.write_text(text)
    lines = "\n".join(
        f"{number:4} {line}" for number, line in enumerate(text.splitlines(), 1)
    )
    return _run(
        [str(path)],
        f"The program\n{lines}\n",
        timeout_seconds,
        folder,
    )


def _arguments(program, *arguments):
    start = program if program == "-m" else str(PROGRAMS / program)
    return [start, *map(str, arguments)]


def _run(arguments, name, timeout_seconds, folder=None, **environment):
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as log:
        process = start(
            arguments,
            output,
            log,
            {**program_environment(), **environment},
            folder,
        )
        status = _wait(process, name, timeout_seconds, output, log)
        if status != 0:
            raise AssertionError(
                f"{name} ended with {status}:\n{_ends_of(output, log)}"
            )
        return _text_of(output)


def start(arguments, output, log, environment, folder=None):
    """Starts `python <arguments>`, which has a session of its own.

    It is a fork of a process that has imported TensorFlow, unless the variables
    of its environment, or the program itself, could make a difference to that.
    """
    name = pathlib.Path(arguments[0]).name
    server = None if name in _NOT_FORKED else fork_server(environment)
    if server:
        return server.start(arguments, environment, output, log, folder)
    return subprocess.Popen(
        [sys.executable, "-P", *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=log,
        start_new_session=True,
    )


def fork_server(environment):
    """A `ForkServer` of an environment; None for one that is rare."""
    usual, given = (
        fork_servers.without(each, "TF_CONFIG", "TF_USE_LEGACY_KERAS")
        for each in (program_environment(), environment)
    )
    return fork_servers.of(environment) if usual == given else None


def _wait(process, name, timeout_seconds, output, log):
    try:
        return process.wait(timeout_seconds)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(
            f"{name} took more than {timeout_seconds} s:\n"
            f"{_ends_of(output, log)}"
        ) from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def program_environment():
    """The variables of a process that imports tf_ext from anywhere."""
    return dict(
        os.environ,
        PYTHONPATH=os.pathsep.join(
            [
                str(SUPPORT),
                # The same tf_ext, wherever this process has it from.
                str(pathlib.Path(tf_ext.__file__).parents[1]),
                *filter(None, [os.environ.get("PYTHONPATH")]),
            ]
        ),
    )


def wait_until(condition):
    """Waits until a function returns a true value.

    Raises:
      AssertionError: it still does not.
    """
    deadline = time.monotonic() + _STOP_TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("what the test waits for has not happened")
        time.sleep(0.1)


def is_running(pid):
    """Whether there is a process, which may be a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_ended(pids):
    """Waits until there are no such processes.

    Raises:
      AssertionError: there still are.
    """
    wait_until(lambda: not any(map(is_running, pids)))


def kill_parent(program):
    """Kills a program that has started others, and waits until those end.

    Args:
      program: string, the name of a file of tests/support/programs, which
        prints the ids of the processes that it started on a line.

    Returns:
      List of those ids.

    Raises:
      AssertionError: they are still running.
    """
    parent = subprocess.Popen(
        [sys.executable, "-P", PROGRAMS / program],
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    wait_until_ended(pids)
    return pids


def _ends_of(*files):
    return "\n".join(_text_of(file)[-4000:] for file in files)
