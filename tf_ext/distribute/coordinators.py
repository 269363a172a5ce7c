# SPDX-License-Identifier: Apache-2.0
"""Coordinators of clusters that have lost a task.

A ClusterCoordinator that is freed joins the thread in which it recovers lost
workers. That thread waits for all tasks of the cluster: for ever, if one of
them does not come back, so that a program would hang at its end.
"""

import threading
import weakref

import tensorflow as tf

from tf_ext._compat.clusters import coordinator_of, end_coordinator

_holders: weakref.WeakKeyDictionary[tf.distribute.Strategy, "_Holder"] = (
    weakref.WeakKeyDictionary()
)


def keep(strategy: tf.distribute.Strategy) -> None:
    """Keeps the coordinator of a strategy from being freed.

    Args:
      strategy: a `tf.distribute.ParameterServerStrategy`.
    """
    coordinator = coordinator_of(strategy)
    if coordinator is None or strategy in _holders:
        return
    _holders[strategy] = _Holder(coordinator)


def release(strategy: tf.distribute.Strategy) -> threading.Event:
    """Frees a coordinator that was kept, when that no longer waits.

    Args:
      strategy: a `tf.distribute.ParameterServerStrategy`, which is not used
        after this.

    Returns:
      threading.Event, which is set when the coordinator has ended. TensorFlow
      crashes if a program connects to a cluster while a coordinator connects
      to workers that have come back.
    """
    holder = _holders.pop(strategy, None)
    if holder is None:
        ended = threading.Event()
        ended.set()
        return ended
    holder.end.set()
    return holder.ended


class _Holder:
    """A thread that holds a coordinator until `end` is set."""

    def __init__(
        self, coordinator: tf.distribute.coordinator.ClusterCoordinator
    ) -> None:
        self.end = threading.Event()
        self.ended = threading.Event()
        # The frame of a daemon thread is not cleaned up when the program ends.
        threading.Thread(
            target=_hold,
            args=(coordinator, self.end, self.ended),
            name="tf_ext_keep",
            daemon=True,
        ).start()


def _hold(
    coordinator: tf.distribute.coordinator.ClusterCoordinator,
    end: threading.Event,
    ended: threading.Event,
) -> None:
    end.wait()
    end_coordinator(coordinator)  # Here, and not when it is freed.
    ended.set()
