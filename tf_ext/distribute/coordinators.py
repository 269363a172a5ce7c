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

# Of each strategy, the event that ends the thread.
_kept: weakref.WeakKeyDictionary[
    tf.distribute.Strategy, tuple[threading.Event, threading.Thread]
] = weakref.WeakKeyDictionary()


def keep(strategy: tf.distribute.Strategy) -> None:
    """Keeps the coordinator of a strategy from being freed.

    Args:
      strategy: a `tf.distribute.ParameterServerStrategy`.
    """
    coordinator = coordinator_of(strategy)
    if coordinator is None or strategy in _kept:
        return
    end = threading.Event()
    # The frame of a daemon thread is not cleaned up when the program ends.
    thread = threading.Thread(
        target=_hold, args=(coordinator, end), name="tf_ext_keep", daemon=True
    )
    thread.start()
    _kept[strategy] = end, thread


def release(strategy: tf.distribute.Strategy) -> threading.Thread | None:
    """Frees a coordinator that was kept, when that no longer waits.

    Args:
      strategy: a `tf.distribute.ParameterServerStrategy`, which is not used
        after this.

    Returns:
      threading.Thread, which ends when the coordinator has ended; None if it
      was not kept. TensorFlow crashes if a program connects to a cluster while
      a coordinator connects to workers that have come back.
    """
    end, thread = _kept.pop(strategy, (None, None))
    if end is not None:
        end.set()
    return thread


def _hold(
    coordinator: tf.distribute.coordinator.ClusterCoordinator,
    end: threading.Event,
) -> None:
    end.wait()
    end_coordinator(coordinator)  # Here, and not when it is freed.
