"""What is checked of a batch's features beside what their op checks."""

import typing

import tensorflow as tf


class _Check(typing.NamedTuple):
    """A bool scalar that must be true, and what to say where it is not."""

    holds: tf.Tensor
    message: str


class BatchChecks:
    """The checks of one batch, in the order in which they are reported.

    Either `assertions` makes them exceptions, or `first_error` a value.

    Args:
      return_error: whether the errors of this batch are to be a value. Then
        `fail` is a check that fails, else it raises.
    """

    def __init__(self, return_error):
        self._return_error = return_error
        self._checks = []

    def __len__(self):
        return len(self._checks)

    def add(self, holds, message):
        """Checks that the bool scalar `holds`, or else says `message`."""
        self._checks.append(_Check(holds, message))

    def fail(self, message):
        """Says `message` of sizes that are known before the values are."""
        if not self._return_error:
            raise ValueError(message)
        self.add(tf.constant(False), message)

    def assertions(self):
        """Raises if a check fails; in a graph, the ops that will."""
        if not tf.executing_eagerly():
            return [
                tf.debugging.Assert(check.holds, [check.message])
                for check in self._checks
            ]
        for check in self._checks:
            if not check.holds:
                raise tf.errors.InvalidArgumentError(None, None, check.message)
        return []

    def first_error(self, error):
        """The message of the first check that fails, or else `error`.

        Args:
          error: string scalar.

        Returns:
          String scalar.
        """
        fails = [tf.logical_not(check.holds) for check in self._checks]
        messages = [check.message for check in self._checks]
        place = tf.argmax(tf.cast(tf.stack([*fails, True]), tf.int32))
        return tf.gather(tf.stack([*messages, error]), place)
