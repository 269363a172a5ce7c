# SPDX-License-Identifier: Apache-2.0
"""Processes that have imported TensorFlow once, for those that tests start."""

import json
import os
import pathlib
import socket
import tempfile
import time

from paths import PROGRAMS

from tf_ext.distribute import fork_server
from tf_ext.distribute.forked_processes import ForkedProcess, ForkServer

_PROGRAM = PROGRAMS / "lent_fork_server_program.py"
_CONNECT_SECONDS = 60
_LEGACY = "TF_USE_LEGACY_KERAS"

# The folder of a `Lent`, in the environment of the process that may use it.
_VARIABLE = "TF_EXT_TEST_FORK_SERVER"
_lent_folder = os.environ.pop(_VARIABLE, None)


class Lent:
    """A fork server for the use of a process that is to be started.

    It is a fork itself, so that the process does not wait for an import.

    Args:
      server: ForkServer.
      environment: dict, the environment variables of its user, to which one is
        added.
      log: file for what it writes.
    """

    def __init__(self, server: ForkServer, environment: dict[str, str], log):
        self._folder = tempfile.TemporaryDirectory(prefix="tf_ext_forks_")
        folder = pathlib.Path(self._folder.name)
        (folder / "environment").write_text(json.dumps(environment))
        self._process: ForkedProcess = server.start(
            [_PROGRAM, folder / "socket", fork_server.__file__],
            environment,
            log,
            log,
        )
        environment[_VARIABLE] = str(folder)

    def end(self):
        """Ends it; not what it has started."""
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


class _Borrowed(ForkServer):
    """The server that has been lent to this process.

    Args:
      folder: pathlib.Path, of the `Lent`.
    """

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        super().__init__(json.loads((folder / "environment").read_text()))

    def _start(self):
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        deadline = time.monotonic() + _CONNECT_SECONDS
        while True:
            try:
                channel.connect(str(self._folder / "socket"))
                return channel, _Unknown()
            except (ConnectionRefusedError, FileNotFoundError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


class _Unknown:
    """The process of a lent server, which is not a child of this one."""

    def wait(self):
        return None


_servers: list[tuple[dict[str, str], ForkServer]] = []


def of(environment: dict[str, str]) -> ForkServer:
    """The server of an environment; no second one is started."""
    global _lent_folder
    own = without(environment, "TF_CONFIG")
    for others, server in _servers:
        if others == own:
            return server
    if _lent_folder and own.get(_LEGACY) == os.environ.get(_LEGACY):
        server = _Borrowed(pathlib.Path(_lent_folder))
        _lent_folder = None
    else:
        server = ForkServer(own)
    _servers.append((own, server))
    return server


def without(environment: dict[str, str], *names: str) -> dict[str, str]:
    """Variables but those of names, and those that differ between tests."""
    names = {*names, _VARIABLE, "PYTEST_CURRENT_TEST"}
    return {n: v for n, v in environment.items() if n not in names}
