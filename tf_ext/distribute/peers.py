# SPDX-License-Identifier: Apache-2.0
"""Notices synchronous workers that this one does not reach.

Heartbeats go to the leader alone: it does not notice that two other workers
cannot reach each other, whose collectives would wait for each other for ever.
So each worker also probes all others.
"""

import contextlib
import threading
import time
import weakref
from collections.abc import Mapping

import tensorflow as tf

from tf_ext._compat.clusters import abort_collectives
from tf_ext.distribute import handshake, this_task

# In relation to the time-out.
_PAUSES = 6
_ATTEMPTS = 5
_LONGEST_PAUSE_SECONDS = 5.0
_LONGEST_ATTEMPT_SECONDS = 2.0

_logger = this_task.logger(__name__)


def watch(
    strategy: tf.distribute.Strategy,
    peers: Mapping[str, str],
    timeout_seconds: float,
) -> None:
    """Aborts this process's collectives when a peer does not answer for long.

    They then raise an error that names the peer. A peer that refuses
    connections has ended, which TensorFlow notices by itself.

    Args:
      strategy: the strategy while which exists peers are watched.
      peers: dict of task name -> "host:port", the other workers.
      timeout_seconds: float, for how long a peer may be silent.
    """
    threading.Thread(
        target=_keep_looking,
        args=(weakref.ref(strategy), dict(peers), timeout_seconds),
        name="tf_ext_peers",
        daemon=True,
    ).start()


def _keep_looking(
    strategy: "weakref.ref[tf.distribute.Strategy]",
    peers: dict[str, str],
    timeout_seconds: float,
) -> None:
    pause = min(_LONGEST_PAUSE_SECONDS, timeout_seconds / _PAUSES)
    attempt = min(_LONGEST_ATTEMPT_SECONDS, timeout_seconds / _ATTEMPTS)
    silent_since: dict[str, float] = {}
    while strategy() is not None:
        begin = time.monotonic()
        # At the end of the program no thread can be started.
        with contextlib.suppress(RuntimeError):
            for peer, why in handshake.problems(peers, attempt).items():
                if why is None or why == handshake.REFUSES:
                    silent_since.pop(peer, None)
                    continue
                since = silent_since.setdefault(peer, begin)
                if time.monotonic() - since >= timeout_seconds:
                    _give_up(peer, f"{peers[peer]} {why}", timeout_seconds)
                    return
        time.sleep(pause)


def _give_up(peer: str, found: str, timeout_seconds: float) -> None:
    text = f"{peer} has not answered for {timeout_seconds:g} s: {found}"
    _logger.warning("%s.", text)
    abort_collectives(text)
