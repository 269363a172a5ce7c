# SPDX-License-Identifier: Apache-2.0
"""Data that workers send beside the gradients of tables.

Each collective takes a round trip, and CPU time in all workers, however little
it sends.
"""

import typing
from collections.abc import Callable, Sequence

import tensorflow as tf

_Complete: typing.TypeAlias = Callable[[tf.Tensor], list[tf.Tensor]]


class Carried:
    """Words that the first exchange of gradients carries along.

    Args:
      words: int32 `[n]`, n static, for all workers, or `[workers, n]`, a row
        for each.
      complete: function of what was `gathered`, to a list of tensors that
        depend on all collectives it begins. It is called as soon as they have
        come: an error of the step must not find another collective under way.
        None: nothing is to be done.

    Attributes:
      words: as given.
      gathered: int32 `[workers, n]`, row p from worker p; None if nothing has
        carried them.
    """

    def __init__(
        self, words: tf.Tensor, complete: _Complete | None = None
    ) -> None:
        self.words = words
        self.gathered: typing.Any = None
        self._complete = complete

    def deliver(self, gathered: tf.Tensor) -> list[tf.Tensor]:
        """Sets `gathered`; returns tensors that errors have to wait for."""
        self.gathered = gathered
        return [] if self._complete is None else self._complete(gathered)


def to_floats(waiting: Sequence[Carried], size: int) -> tf.Tensor:
    """The words of a list of Carried, by their bits: float32 `[size, n]`.

    Args:
      waiting: list of Carried.
      size: int, the number of workers.
    """
    parts = [
        words
        if words.shape.rank == 2
        else tf.tile(words[tf.newaxis], [size, 1])
        for words in (carried.words for carried in waiting)
    ]
    return tf.bitcast(
        tf.concat([tf.zeros([size, 0], tf.int32), *parts], 1), tf.float32
    )


def deliver(waiting: Sequence[Carried], gathered: tf.Tensor) -> list[tf.Tensor]:
    """Delivers the words of a list of Carried.

    Args:
      waiting: list of Carried.
      gathered: float32 `[workers, n]`, what `to_floats` made for this worker on
        each.

    Returns:
      List of tensors that have to be there before an error is raised.
    """
    if not waiting:
        return []
    sizes = [tf.shape(carried.words)[-1] for carried in waiting]
    parts = tf.split(tf.bitcast(gathered, tf.int32), tf.stack(sizes), 1)
    before_errors = []
    for carried, part in zip(waiting, parts):
        part.set_shape([None, carried.words.shape[-1]])
        before_errors += carried.deliver(part)
    return before_errors
