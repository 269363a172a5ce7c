# SPDX-License-Identifier: Apache-2.0
"""Which task of a cluster this process is: for its log, and for probes."""

import contextlib
import json
import logging
import os
from collections.abc import Iterator

from tf_ext.distribute.addresses import task_name


class _Task:
    def __init__(self) -> None:
        self.name = ""  # as "/job:ps/task:1"; "" if it is none
        self.connected = False


_task = _Task()


class _Named(logging.Filter):
    """Puts the task's name in front of messages."""

    def filter(self, record: logging.LogRecord) -> bool:
        if _task.name:
            record.msg = f"{_task.name}: {record.msg}"
        return True


_named = _Named()


def logger(name: str) -> logging.Logger:
    """The logger of a name, whose messages begin with the task's name.

    Filters of a logger see nothing of those below it, so each needs its own.
    """
    found = logging.getLogger(name)
    found.addFilter(_named)
    return found


# That of all modules outside of this package.
logger("tf_ext")


def set_connecting(job: str, index: int) -> None:
    """Notes which task this process is, when it begins to connect."""
    _task.name, _task.connected = task_name(job, index), False


@contextlib.contextmanager
def connecting(job: str, index: int) -> Iterator[None]:
    """This process is a task that connects; if that fails, what it was."""
    before = _task.name, _task.connected
    set_connecting(job, index)
    try:
        yield
    except BaseException:
        _task.name, _task.connected = before
        raise
    set_connected(job, index)


def set_connected(job: str, index: int) -> None:
    """The same when it has connected to the others."""
    _task.name, _task.connected = task_name(job, index), True


def name() -> str:
    """The name of this process's task, as "/job:ps/task:1"; "" if none."""
    return _task.name


def why_not_connected() -> str | None:
    """Why a chief or synchronous worker is not ready; None if it is.

    A process that is no task of a cluster is always ready.
    """
    if _task.connected or not (_task.name or _is_to_connect()):
        return None
    return "it has not connected to the other tasks of its cluster yet"


def _is_to_connect() -> bool:
    """Whether `TF_CONFIG` has a task that is a member of its cluster."""
    text = os.environ.get("TF_CONFIG")
    if not text:
        return False
    try:
        return bool(json.loads(text)["task"]["type"] != "evaluator")
    except (KeyError, TypeError, ValueError):
        return True  # The strategy will say what is wrong with it.
