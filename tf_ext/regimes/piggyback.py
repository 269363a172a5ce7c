"""Data that workers gather beside the gradients of tables.

Each collective takes a round trip, and CPU time in all workers, however little
it sends.
"""

import contextlib
import contextvars

import tensorflow as tf


class Carried:
    """Words that wait to be carried, or have been.

    Attributes:
      words: int32 `[n]`, n static, of this worker; or None.
      rows: int32 `[workers, n]`, those of each worker; None if nothing has
        carried them.
    """

    def __init__(self, words):
        self.words = words
        self.rows = None


_waiting = contextvars.ContextVar("tf_ext_piggybacked", default=())


@contextlib.contextmanager
def piggybacked(words):
    """A context whose first exchange of gradients carries words along.

    Args:
      words: int32 `[n]`, n static; None to carry nothing.

    Yields:
      Carried.
    """
    carried = Carried(words)
    token = _waiting.set(_waiting.get() + (carried,) * (words is not None))
    try:
        yield carried
    finally:
        _waiting.reset(token)


def waiting():
    """List of Carried whose words the next exchange of gradients takes."""
    return [carried for carried in _waiting.get() if carried.rows is None]


def to_floats(waiting):
    """The words of a list of Carried, by their bits: float32 `[n]`."""
    words = [carried.words for carried in waiting]
    return tf.bitcast(
        tf.concat([tf.zeros([0], tf.int32), *words], 0), tf.float32
    )


def deliver(waiting, rows):
    """Sets the `rows` of a list of Carried.

    Args:
      waiting: list of Carried.
      rows: float32 `[workers, n]`, what `to_floats` returned on each.
    """
    sizes = [carried.words.shape[0] for carried in waiting]
    parts = tf.split(tf.bitcast(rows, tf.int32), sizes, 1) if sizes else []
    for carried, part in zip(waiting, parts):
        carried.rows = part
