# SPDX-License-Identifier: Apache-2.0
"""Forks processes that need not import TensorFlow, as this one has.

The import takes seconds of a processor. This program is run by its path and
does not import tf_ext, which starts threads: a fork has only the thread that
forked. Its argument is the number of a socket's file descriptor. A message on
it is a JSON object of a process to start, with the file descriptors of its
standard output and standard error. The answer is `[pid, null, number]`, with
the number in the message. When the process has ended, it is `[pid, status,
null]`, the status as of `subprocess`. This program ends when the other end of
the socket is closed.
"""

import gc
import io
import json
import os
import runpy
import selectors
import socket
import sys
import typing

# Of a message; the system's limit is less.
MESSAGE_BYTES = 1 << 20


def serve(channel: socket.socket) -> list[str] | None:
    """Forks until the other end is closed.

    Args:
      channel: socket.socket, of packets.

    Returns:
      None in this process; in a fork, the list of strings of its command line.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd != channel.fileno():
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    _, status = os.waitpid(key.data, 0)
                    status = os.waitstatus_to_exitcode(status)
                    _send(channel, [key.data, status, None])
                    continue
                message, files, *_ = socket.recv_fds(channel, MESSAGE_BYTES, 2)
                if not message:
                    return None
                process = os.fork()
                request = json.loads(message)
                if not process:
                    others = [key.fd for key in selector.get_map().values()]
                    return _become(request, files, others)
                for file in files:
                    os.close(file)
                selector.register(
                    os.pidfd_open(process), selectors.EVENT_READ, process
                )
                _send(channel, [process, None, request["number"]])


def _send(channel: socket.socket, answer: list[int | None]) -> None:
    channel.send(json.dumps(answer).encode())


def _become(
    process: dict[str, typing.Any], files: list[int], others: list[int]
) -> list[str]:
    """Makes this fork the process that a message describes."""
    os.setsid()
    for file, target in zip(files, (1, 2), strict=True):
        os.dup2(file, target)
    for file in [*files, *others]:
        os.close(file)
    os.chdir(process["folder"])
    for name in process["unset"]:
        del os.environ[name]
    os.environ.update(process["set"])
    # The file is read while the process runs.
    typing.cast(io.TextIOWrapper, sys.stdout).reconfigure(line_buffering=True)
    arguments: list[str] = process["arguments"]
    return arguments


def _main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    import numpy as np
    import tensorflow  # noqa: F401

    # Forks share its memory, and their collector does not walk through it.
    gc.collect()
    gc.freeze()
    arguments = serve(channel)
    if arguments is None:
        return
    channel.detach()  # Its file descriptor is closed.
    np.random.seed()  # The state is the same in all forks.
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    _main()
