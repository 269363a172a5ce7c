"""One life of a training on files; `read_restart_test` runs it.

    read_restart_program.py DIRECTORY LIFE STEP   is killed after this step
    read_restart_program.py DIRECTORY LIFE 0      goes on to the end

It appends the samples of each step to DIRECTORY/LIFE.txt.
"""

import os
import pathlib
import signal
import sys

import tensorflow as tf

import tf_ext
from tf_ext._keras import keras

FILES = 3
RECORDS = 50  # of a file
BATCH = 8
STEPS = 8  # of an epoch, of which two passes over the files are not a multiple
EPOCHS = 5


class _Killed(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self._left = step

    def on_train_batch_end(self, batch, logs=None):
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    folder, life = pathlib.Path(sys.argv[1]), sys.argv[2]
    log = folder / f"{life}.txt"

    class Seeing(tf_ext.Model):
        def train_step(self, data):
            tf.print(
                data[0]["id"],
                summarize=-1,
                output_stream=f"file://{log}",
            )
            return super().train_step(data)

    schema = tf_ext.data.Schema(
        [
            tf_ext.data.Field("id", "int64"),
            tf_ext.data.Field("y", "float32"),
        ],
        label="y",
    )
    data = tf_ext.data.read(
        folder / "part-*",
        schema,
        "tsv",
        batch_size=BATCH,
        shuffle=40,
        max_errors=0.1,
        repeat=True,
    )
    table = tf_ext.SparseTable("id", dim=1)
    column = tf_ext.feature_column.category_column("id")
    inputs = {"id": keras.Input([], dtype="int64", name="id")}
    rows = tf_ext.layers.EmbeddingFeatures([column], table)(inputs)
    model = Seeing(inputs, rows)
    model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    points = tf_ext.callbacks.TableSnapshot(folder / "points", steps=1)
    model.fit(
        data,
        epochs=EPOCHS,
        steps_per_epoch=STEPS,
        verbose=0,
        callbacks=[points, _Killed(int(sys.argv[3]))],
    )


if __name__ == "__main__":
    main()
