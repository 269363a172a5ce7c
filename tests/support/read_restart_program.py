"""One life of a training on files; `read_restart_test` runs it.

    read_restart_program.py DIRECTORY FORMAT LIFE STEP   is killed after a step
    read_restart_program.py DIRECTORY FORMAT LIFE 0      goes on to the end

It appends the samples of each step to DIRECTORY/LIFE.txt.
"""

import os
import pathlib
import signal
import sys

import tensorflow as tf

import tf_ext
from tf_ext._keras import keras

FILES = 5
SHARD = (1, 2)  # Files 1 and 3.
RECORDS = 40  # of a file
BATCH = 8
STEPS = 8  # of an epoch, of which two passes over the files are not a multiple
EPOCHS = 3


class Stop(keras.callbacks.Callback):
    """Calls a function after a number of steps."""

    def __init__(self, steps, stop):
        super().__init__()
        self._left = steps
        self._stop = stop

    def on_train_batch_end(self, batch, logs=None):
        self._left -= 1
        if not self._left:
            self._stop()


def read(folder, format):
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
    )


def train(folder, format, life, stop):
    """One life."""
    log = folder / f"{life}.txt"

    class Seeing(tf_ext.Model):
        def train_step(self, data):
            tf.print(
                data[0]["number"],
                summarize=-1,
                output_stream=f"file://{log}",
            )
            return super().train_step(data)

    data = read(folder, format)
    table = tf_ext.SparseTable("number", dim=1)
    column = tf_ext.feature_column.category_column("number")
    if str(life) == "1":
        # The others train the same model on raw features.
        data = tf_ext.data.hash_columns(data, [column], keep=["number"])
    inputs = {"number": keras.Input([], dtype="int64", name="number")}
    rows = tf_ext.layers.EmbeddingFeatures([column], table)(inputs)
    model = Seeing(inputs, rows)
    model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    points = tf_ext.callbacks.TableSnapshot(folder / "points", steps=1)
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
