# SPDX-License-Identifier: Apache-2.0
"""Training while a network is cut, for programs with networks of their own."""

import json
import pathlib
import sys

import numpy as np
from models.small_models import batch, compiled, functional, table

from tf_ext._keras import keras

LOST_STATUS = 3


class UntilTold(keras.callbacks.Callback):
    """Prints a line for each epoch, and ends `fit` when a file exists.

    Args:
      path: string, the file's.
    """

    def __init__(self, path):
        super().__init__()
        self._path = pathlib.Path(path)

    def is_told(self):
        """Whether to end."""
        return self._path.exists()

    def on_epoch_end(self, epoch, logs=None):
        print("epoch", epoch, flush=True)
        if self.is_told():
            self.model.stop_training = True


def train(strategy, callback, lost):
    """Trains until the callback ends it, or tasks are lost.

    It prints a line of JSON: "whole", or the names of the tasks lost, after
    which the process ends with `LOST_STATUS`.

    Args:
      strategy: tf.distribute.Strategy.
      callback: UntilTold.
      lost: class of the error of a lost task.
    """
    with strategy.scope():
        model = compiled(functional(table("adagrad")))
    features, labels = batch(np.random.default_rng(0), 32)
    try:
        model.fit(
            features,
            labels,
            batch_size=8,
            shuffle=False,
            epochs=1_000_000,
            callbacks=[callback],
            verbose=0,
        )
    except lost as error:
        print(json.dumps(sorted(error.tasks)), flush=True)
        print(error, file=sys.stderr)
        sys.exit(LOST_STATUS)
    print(json.dumps("whole"), flush=True)
