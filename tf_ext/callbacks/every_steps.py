# SPDX-License-Identifier: Apache-2.0
"""A callback that acts at multiples of a number of steps."""

import typing

import tensorflow as tf

from tf_ext._keras import keras


class EverySteps(keras.callbacks.Callback):
    """Acts after each step that reaches or passes a multiple of `every`.

    Steps are those of the optimizer, so it acts at the same steps in every
    process, also after training was interrupted and resumed.

    Args:
      every: int, at least 1.
    """

    def __init__(self, every: int) -> None:
        super().__init__()
        self._every = int(every)
        self._step = 0  # The optimizer's step when it was last read.
        self._has_begun = False
        self._until_look = 0  # Batches before the step must be read again.
        self._batch = -1

    def begin(self, step: int) -> None:
        """What is done before the first step of a `fit`.

        Every callback has restored what it restores by then.

        Args:
          step: int, the optimizer's step.
        """

    def act(self, step: int, logs: dict[str, typing.Any]) -> None:
        """What is done after a step; to be overridden.

        Args:
          step: int, the optimizer's step.
          logs: dict, those of the batch.
        """
        raise NotImplementedError

    def on_train_begin(self, logs: dict[str, typing.Any] | None = None) -> None:
        """Called by Keras."""
        self._has_begun = False

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        """Called by Keras."""
        # The first batch of an epoch is not 0 if training was resumed.
        self._until_look, self._batch = 0, -1
        if not self._has_begun:
            self._has_begun = True
            self._step = self._iterations()
            self.begin(self._step)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        """Called by Keras."""
        # Reading the step may require a request to a server.
        self._until_look -= batch - self._batch
        self._batch = batch
        if self._until_look > 0:
            return
        step = self._iterations()
        if step // self._every > self._step // self._every:
            self.act(step, logs or {})
        self._step = step
        self._until_look = self._every - step % self._every

    def _iterations(self) -> int:
        return int(tf.convert_to_tensor(self.model.optimizer.iterations))
