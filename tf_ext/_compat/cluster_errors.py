# SPDX-License-Identifier: Apache-2.0
"""The lost tasks that the texts of TensorFlow's errors name.

The errors have no attribute for them.
"""

import re

_PS_TARGET = re.compile(r"remote target /job:ps/replica:\d+/task:(\d+)")
_RESTARTED = re.compile("unknown device|relevant tensor remote_handle", re.I)
_WORKER = re.compile(r"/job:(chief|worker)(?:/replica:\d+)?/task:(\d+)")
_LEADER_RESTARTED = re.compile("must be registered before sending heartbeat")
_LEADER_LOST = re.compile(
    "/tensorflow.CoordinationService/|Leader incarnation|"
    + _LEADER_RESTARTED.pattern
)


def server_in(message):
    """The index of the parameter server that did not answer, or None.

    Seen in: TensorFlow 2.18 to 2.21.
    """
    found = _PS_TARGET.search(message)
    return int(found.group(1)) if found else None


def is_of_restarted_server(message):
    """Whether an InvalidArgumentError comes from a restarted server.

    That is, of a server that restarted before its connections broke.

    Seen in: TensorFlow 2.18 to 2.21.
    """
    return _RESTARTED.search(message) is not None


def workers_in(message):
    """The workers that the message names, as a list of (job, index).

    Seen in: TensorFlow 2.18 to 2.21.
    """
    return [(job, int(index)) for job, index in _WORKER.findall(message)]


def is_of_leader(message):
    """Whether the leader of the coordination service does not answer.

    Seen in: TensorFlow 2.18 to 2.21.
    """
    return _LEADER_LOST.search(message) is not None


def is_of_restarted_leader(message):
    """Whether an InvalidArgumentError comes from a restarted leader.

    Its coordination service does not know the task that sends heartbeats, which
    is the one that the message names.

    Seen in: TensorFlow 2.18 to 2.21.
    """
    return _LEADER_RESTARTED.search(message) is not None
