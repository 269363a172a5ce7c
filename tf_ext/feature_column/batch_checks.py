# SPDX-License-Identifier: Apache-2.0
"""Checks of a batch's features in addition to those of the hash op."""

import typing

import tensorflow as tf


class _Check(typing.NamedTuple):
    """A bool scalar that must be true, and the error message otherwise."""

    holds: tf.Tensor
    message: str


class BatchChecks:
    """The checks of one batch, in the order in which they are reported.

    `assertions` raises their errors, `first_error` returns them.

    Args:
      return_error: whether the errors of this batch are returned. If so, `fail`
        adds a check that fails, otherwise it raises.

    Attributes:
      return_error: as above.
    """

    def __init__(self, return_error: bool) -> None:
        self.return_error = return_error
        self._checks: list[_Check] = []

    def __len__(self) -> int:
        return len(self._checks)

    def add(self, holds: tf.Tensor, message: str) -> None:
        """Adds a check that fails with `message` unless the scalar holds."""
        self._checks.append(_Check(holds, message))

    def fail(self, message: str) -> None:
        """Fails with `message`, about static sizes."""
        if not self.return_error:
            raise ValueError(message)
        self.add(tf.constant(False), message)

    def assertions(self) -> list[tf.Operation]:
        """Raises if a check fails; in a graph, returns the ops that raise."""
        if not tf.executing_eagerly():
            return [
                tf.debugging.Assert(check.holds, [check.message])
                for check in self._checks
            ]
        for check in self._checks:
            if not check.holds:
                raise tf.errors.InvalidArgumentError(None, None, check.message)
        return []

    def first_error(self, error: tf.Tensor) -> tf.Tensor:
        """The message of the first check that fails, otherwise `error`.

        Args:
          error: string scalar.

        Returns:
          String scalar.
        """
        fails = [tf.logical_not(check.holds) for check in self._checks]
        messages = [check.message for check in self._checks]
        place = tf.argmax(tf.cast(tf.stack([*fails, True]), tf.int32))
        return tf.gather(tf.stack([*messages, error]), place)
