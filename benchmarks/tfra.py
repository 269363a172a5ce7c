"""TensorFlow Recommenders Addons as a reference, in a process of its own.

It needs another TensorFlow than tf_ext and so another Python. That process
stays and runs a repetition whenever it is asked to, so that it alternates with
the cases of this one.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import tempfile

from harness import Case

_SCRIPT = pathlib.Path(__file__).with_name("tfra_worker.py")
_NAME = "TFRA"


@contextlib.contextmanager
def start(args):
    """Starts the process, and ends it when the context is left.

    Args:
      args: the command line's; without `--tfra-python` nothing is started.

    Yields:
      A Tfra, or None.

    Raises:
      SystemExit: that Python is not there or cannot import what is needed.
    """
    if args.tfra_python is None:
        yield None
        return
    replies, their_end = os.pipe()
    with tempfile.TemporaryFile("w+") as log, os.fdopen(replies) as replies:
        process = _process(args.tfra_python, their_end, log)
        try:
            worker = Tfra(process, replies, log)
            try:
                worker.call("start", threads=args.threads)
            except RuntimeError as error:
                raise SystemExit(
                    f"--tfra-python={args.tfra_python} cannot run TFRA. "
                    f"Install what benchmarks/README.md names there. {error}"
                ) from None
            yield worker
        finally:
            process.kill()
            process.wait()


def _process(python, replies, log):
    # What this Python imports from is not that one's; the script finds its
    # modules because they are in its own folder.
    environment = dict(os.environ)
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        environment.pop(name, None)
    try:
        return subprocess.Popen(
            [python, str(_SCRIPT), str(replies)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
            env=environment,
            pass_fds=[replies],
        )
    except OSError as error:
        raise SystemExit(
            f"--tfra-python={python} cannot run: {error}"
        ) from None
    finally:
        os.close(replies)


class Tfra:
    """The process, once it runs."""

    def __init__(self, process, replies, log):
        self._process = process
        self._replies = replies
        self._log = log

    def call(self, method, **arguments):
        """Has a method of the worker run; returns its result.

        Raises:
          RuntimeError: it failed; the message has the worker's traceback.
        """
        line = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([method, arguments]) + "\n")
            self._process.stdin.flush()
            line = self._replies.readline()
        if not line:
            status = self._process.wait()
            self._log.seek(0)
            raise RuntimeError(
                f"TFRA's process ended with status {status} at {method}. "
                f"It wrote last:\n{self._log.read()[-4000:]}"
            )
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(f"TFRA failed at {method}:\n{reply['error']}")
        return reply["result"]

    def case(self, method, items, **arguments):
        """A case that `method` of the worker makes ready."""
        self.call(method, case=_NAME, **arguments)
        return _RemoteCase(self, items)


class _RemoteCase(Case):
    def __init__(self, worker, items):
        super().__init__(_NAME, lambda: worker.call("run", case=_NAME), items)
        self._worker = worker

    def time(self):
        """Times of the other process, as it measured them."""
        return self._worker.call("time", case=_NAME)
