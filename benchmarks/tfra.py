"""TensorFlow Recommenders Addons as a reference, in a process of its own.

It needs another TensorFlow than tf_ext and so another Python. That process
keeps running and makes a repetition per call, so that it alternates with the
cases of this one.
"""

import contextlib
import pathlib

import remote
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
      SystemExit: if that Python does not exist or cannot import the modules.
    """
    if args.tfra_python is None:
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            process = stack.enter_context(
                remote.start(_NAME, args.tfra_python, _SCRIPT, args.threads)
            )
            process.ready()
        except remote.StartError as error:
            raise SystemExit(
                f"--tfra-python={args.tfra_python} cannot run TFRA. "
                f"Install what benchmarks/README.md names there. {error}"
            ) from None
        yield Tfra(process)


class Tfra:
    """The process, once it runs."""

    def __init__(self, process):
        self.call = process.call

    def case(self, method, items, **arguments):
        """A case that `method` of the worker prepares."""
        self.call(method, case=_NAME, **arguments)
        return _RemoteCase(self, items)


class _RemoteCase(Case):
    def __init__(self, worker, items):
        super().__init__(_NAME, lambda: worker.call("run", case=_NAME), items)
        self._worker = worker

    def time(self):
        """Times of the other process, as it measured them."""
        return self._worker.call("time", case=_NAME)
