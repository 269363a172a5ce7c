# SPDX-License-Identifier: Apache-2.0
"""One life of a training on files; `read_restart_test` runs it.

    read_restart_program.py DIRECTORY FORMAT LIFE STEP   is killed after a step
    read_restart_program.py DIRECTORY FORMAT LIFE 0      goes on to the end

It appends the samples of each step to DIRECTORY/LIFE.txt.
"""

import os
import pathlib
import signal
import sys

from models.number_models import COLUMN, logging_model

import tf_ext
from tf_ext._keras import keras

FILES = 5
SHARD = (1, 2)  # Files 1 and 3.
RECORDS = 40  # of a file
BATCH = 8
STEPS = 8  # of an epoch, of which two passes over the files are not a multiple
EPOCHS = 3


class Stop(keras.callbacks.Callback):
    """Calls a function after a number of steps, and their points.

    Attributes:
      points: the TableSnapshot of the training.
    """

    def __init__(self, steps, stop):
        super().__init__()
        self._left = steps
        self._stop = stop
        self._is_due = False
        self.points = None

    def on_train_batch_end(self, batch, logs=None):
        self._left -= 1
        self._is_due = not self._left

    def on_train_batch_begin(self, batch, logs=None):
        if self._is_due:
            self.points._go_on(wait=True)
            self._stop()


def read(folder, format, **kwargs):
    """The dataset that is trained on."""
    schema = tf_ext.data.Schema(
        [
            tf_ext.data.Field("number", "int64"),
            tf_ext.data.Field("label", "float32"),
        ],
        label="label",
    )
    return tf_ext.data.read(
        folder / "part-*",
        schema,
        format,
        batch_size=BATCH,
        shuffle=40,
        repeat=True,
        shard=SHARD,
        max_errors=0.1,
        **kwargs,
    )


def train(folder, format, life, stop):
    """One life."""
    # The first life trains the same model on raw features.
    hashed = {"columns": [COLUMN], "keep": ["number"]}
    data = read(folder, format, **(hashed if str(life) == "2" else {}))
    if str(life) == "1":
        data = tf_ext.data.hash_columns(data, **hashed)
    model = logging_model(folder / f"{life}.txt")
    points = tf_ext.callbacks.TableSnapshot(folder / "points", steps=1)
    stop.points = points
    model.fit(
        data,
        epochs=EPOCHS,
        steps_per_epoch=STEPS,
        verbose=0,
        callbacks=[points, stop],
    )


def main():
    folder, format, life, step = sys.argv[1:]
    stop = Stop(int(step), lambda: os.kill(os.getpid(), signal.SIGKILL))
    train(pathlib.Path(folder), format, life, stop)


if __name__ == "__main__":
    main()
