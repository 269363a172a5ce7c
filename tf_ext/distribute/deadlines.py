"""Calls that may wait without end, given a time to end in."""

import queue
import threading


def call_within(seconds, function):
    """What a function returns, if it does in time.

    The call goes on in a thread of its own if it takes longer: nothing in
    Python can end it. The thread does not keep the process from ending.

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
    outcome = queue.SimpleQueue()

    def call():
        try:
            outcome.put((function(), None))
        except BaseException as error:  # To be raised where it is waited for.
            outcome.put((None, error))

    threading.Thread(target=call, name="tf_ext_call", daemon=True).start()
    try:
        result, error = outcome.get(timeout=max(seconds, 0.0))
    except queue.Empty:
        raise TimeoutError(f"No answer after {seconds:g} s.") from None
    if error is not None:
        raise error
    return result
