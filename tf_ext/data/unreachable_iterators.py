# SPDX-License-Identifier: Apache-2.0
"""Iterators in reference cycles are not freed by threads of TensorFlow.

An iterator that is freed waits for its threads, some of which run the Python
that reads its batches. Python's garbage collector runs in the thread that makes
an object too many. Where that was a thread of an iterator in a cycle, it waited
for itself: Python never collected garbage again, and the program did not end.
"""

import atexit
import gc
import sys
import typing

from tf_ext._compat.iterators import is_started_by_python, iterators_of

# Those that are kept for the collection that runs now.
_kept: list[typing.Any] = []
# Those that nothing else refers to any more.
_waiting: list[typing.Any] = []
# Of an object that a list and a call of `getrefcount` refer to.
_LEAST_REFERENCES = 2


def free_in_threads_of_python() -> None:
    """Leaves iterators to collections in threads that Python has started.

    From the first call on, for this process.
    """
    if _keep not in gc.callbacks:
        gc.callbacks.append(_keep)
        # Later on there is less than it takes, and no other thread.
        atexit.register(gc.callbacks.remove, _keep)


def _keep(phase: str, info: dict[str, int]) -> None:
    """Called as a collection begins, and as it ends; never by two at a time."""
    if is_started_by_python():
        if phase == "stop":
            _waiting.clear()
    elif phase == "start":
        _kept.extend(iterators_of(info["generation"]))
    else:
        while _kept:
            # The last other reference may be gone since the collection began.
            if sys.getrefcount(_kept[-1]) <= _LEAST_REFERENCES:
                _waiting.append(_kept[-1])
            _kept.pop()
