"""Coordinators whose cluster has lost a task.

When a ClusterCoordinator is freed it waits for its thread that brings lost
workers back, and that one waits for all tasks of the cluster: for ever, if one
of them does not come back. A program would hang when it ends.
"""

import threading
import weakref

_ends = weakref.WeakKeyDictionary()


def keep(strategy):
    """Keeps the coordinator of a strategy from being freed.

    Args:
      strategy: a `tf.distribute.ParameterServerStrategy`.
    """
    coordinator = getattr(strategy, "_cluster_coordinator", None)
    if coordinator is None or strategy in _ends:
        return
    end = _ends[strategy] = threading.Event()
    # The frame of a daemon thread is not cleaned up when the program ends.
    threading.Thread(
        target=_hold, args=(coordinator, end), name="tf_ext_keep", daemon=True
    ).start()


def release(strategy):
    """Frees a coordinator that is kept, once that does not wait any more.

    Args:
      strategy: a `tf.distribute.ParameterServerStrategy`, which is not used
        after this.
    """
    end = _ends.pop(strategy, None)
    if end is not None:
        end.set()


def _hold(coordinator, end):
    end.wait()
    coordinator.__del__()  # Waits here, and not again when it is freed.
