"""Remote calls to a process that may run another Python.

Uses only the standard library, as each of these Pythons imports it.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import traceback


class StartError(Exception):
    """The process did not start, or not far enough to receive calls."""


@contextlib.contextmanager
def start(name, python, script, threads, environment=None):
    """Starts a process that `serve`s, and ends it when the context is left.

    Several processes can start at the same time: `Remote.ready` waits for one.

    Args:
      name: string, the name of the process in errors.
      python: string, the path of the Python.
      script: pathlib.Path; modules are imported from its folder.
      threads: int, the number of TensorFlow's threads.
      environment: dict, that of the process. None: that of this process without
        the import path of this Python.

    Yields:
      A Remote.

    Raises:
      StartError: if there is no such Python.
    """
    if environment is None:
        environment = dict(os.environ)
        for variable in ("PYTHONPATH", "PYTHONSAFEPATH"):
            environment.pop(variable, None)
    replies, their_end = os.pipe()
    with tempfile.TemporaryFile("w+") as log, os.fdopen(replies) as replies:
        try:
            process = subprocess.Popen(
                [python, str(script), str(their_end)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                env=environment,
                pass_fds=[their_end],
            )
        except OSError as error:
            raise StartError(str(error)) from None
        finally:
            os.close(their_end)
        try:
            remote = Remote(name, process, replies, log)
            remote.send("start", threads=threads)
            yield remote
        finally:
            process.kill()
            process.wait()


class Remote:
    """The process, once it runs."""

    def __init__(self, name, process, replies, log):
        self.name = name
        self._process = process
        self._replies = replies
        self._log = log

    def ready(self):
        """Waits until the process has started; must be called first.

        Raises:
          StartError: if the process fails to import a module.
        """
        try:
            self.result("start")
        except RuntimeError as error:
            raise StartError(str(error)) from None

    def call(self, method, **arguments):
        """Calls a method of the process; returns its result.

        Raises:
          RuntimeError: if it failed; the message has the process's traceback.
        """
        self.send(method, **arguments)
        return self.result(method)

    def send(self, method, **arguments):
        """Starts a call; `result` must be called next."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([method, arguments]) + "\n")
            self._process.stdin.flush()

    def result(self, method):
        """Waits for the result of the call that was started; see `call`."""
        line = self._replies.readline()
        if not line:
            status = self._process.wait()
            self._log.seek(0)
            raise RuntimeError(
                f"{self.name}'s process ended with status {status} at "
                f"{method}. It wrote last:\n{self._log.read()[-4000:]}"
            )
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(
                f"{self.name} failed at {method}:\n{reply['error']}"
            )
        return reply["result"]


def serve(worker):
    """Runs methods of `worker` until standard input ends.

    A request is a line of JSON on standard input, `[method, arguments]`. The
    reply is a line for the file descriptor that the command line names:
    libraries print to standard output.
    """
    with os.fdopen(int(sys.argv[1]), "w") as replies:
        for line in sys.stdin:
            method, arguments = json.loads(line)
            try:
                reply = {"result": getattr(worker, method)(**arguments)}
            except Exception:
                reply = {"error": traceback.format_exc()}
            print(json.dumps(reply), file=replies, flush=True)
