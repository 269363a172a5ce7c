# SPDX-License-Identifier: Apache-2.0
"""Time limits for calls that may wait forever."""

import queue
import threading
import typing
from collections.abc import Callable

_T = typing.TypeVar("_T")


def call_within(seconds: float, function: Callable[[], _T]) -> _T:
    """Calls a function, and returns its result if it returns in time.

    A call that takes longer continues in its thread, as Python cannot end it.
    The thread does not keep the process from ending.

    Args:
      seconds: float.
      function: function without arguments.

    Raises:
      TimeoutError: it has not returned by then.
      Exception: what the function raises.

    Example:
      >>> from tf_ext.distribute import deadlines
      >>> deadlines.call_within(10.0, lambda: 3)
      3
    """
    outcome: queue.SimpleQueue[typing.Any] = queue.SimpleQueue()

    def call() -> None:
        try:
            outcome.put((function(), None))
        except BaseException as error:  # Raised again in the calling thread.
            outcome.put((None, error))

    threading.Thread(target=call, name="tf_ext_call", daemon=True).start()
    try:
        result, error = outcome.get(timeout=max(seconds, 0.0))
    except queue.Empty:
        raise TimeoutError(f"No answer after {seconds:g} s.") from None
    if error is not None:
        raise error
    return result
