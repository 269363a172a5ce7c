# SPDX-License-Identifier: Apache-2.0
"""Training that ends as if its process were killed."""

from tf_ext._keras import keras


class KilledError(Exception):
    """What ends a life."""


class Kill(keras.callbacks.Callback):
    """Raises after a number of steps."""

    def __init__(self, steps):
        super().__init__()
        self._left = steps

    def on_train_batch_end(self, batch, logs=None):
        self._left -= 1
        if not self._left:
            raise KilledError
