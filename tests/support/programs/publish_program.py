# SPDX-License-Identifier: Apache-2.0
"""One life of a training that publishes its points, which tests kill.

    publish_program.py POINTS URL NAME STATES EPOCHS

publishes into NAME in the Redis at URL, or with the NAME "" into the directory
URL. Before each point it appends a line to STATES: the step, a digest of the
rows, and a dense weight.
"""

import hashlib
import sys

import numpy as np
from models.model_building import id_column

import tf_ext
from tf_ext._keras import keras

STEPS = 4  # of an epoch, at whose end there is a point
ROWS = 20_000


def digest(signs, rows):
    """A digest of rows, in whichever order they come."""
    order = np.argsort(signs)
    text = hashlib.sha256(np.ascontiguousarray(signs[order], "<i8"))
    text.update(np.ascontiguousarray(rows[order]).view(np.uint8))
    return text.hexdigest()


def build():
    """A compiled model, whose table has many rows before the first step."""
    inputs = {"user": keras.Input((), dtype="int64", name="user")}
    table = tf_ext.SparseTable("user", dim=4, optimizer="adam")
    rows = tf_ext.layers.EmbeddingFeatures([id_column("user")], table)(inputs)
    model = tf_ext.Model(inputs, keras.layers.Dense(1, name="top")(rows))
    model.compile(tf_ext.optimizers.Optimizer("adam"), "mse")
    return model


class _Noted(keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self._path = path
        self._rng = np.random.default_rng()

    def on_epoch_end(self, epoch, logs=None):
        table = self.model.tables[0]
        table.pull(self._rng.integers(0, ROWS, 4000), training=True)
        table.erase(self._rng.integers(0, ROWS, 1000))
        signs, fields = table.export_rows()
        step = int(np.asarray(self.model.optimizer.iterations))
        kernel = np.asarray(self.model.get_layer("top").kernel)
        line = f"{step} {digest(signs, fields['weights'])} "
        with open(self._path, "a") as file:
            file.write(f"{line}{kernel.tobytes().hex()}\n")


def sink_of(url, name):
    """The sink of the command line."""
    if name:
        return tf_ext.serving.RedisSink(f"{url}?socket_timeout=2", name)
    return tf_ext.serving.DirectorySink(url)


def main():
    points, url, name, states, epochs = sys.argv[1:]
    model = build()
    model.tables[0].pull(np.arange(ROWS), training=True)
    rng = np.random.default_rng()
    users = rng.integers(0, ROWS, [STEPS * 1000])
    labels = rng.normal(size=[len(users), 1])
    snapshot = tf_ext.callbacks.TableSnapshot(points, incremental=True)
    with tf_ext.serving.publish(
        model, points, sink_of(url, name), every=0.01
    ) as publisher:
        model.fit(
            *({"user": users}, labels),
            batch_size=1000,
            epochs=int(epochs),
            verbose=0,
            callbacks=[_Noted(states), snapshot],
        )
    assert publisher.error is None, publisher.error


if __name__ == "__main__":
    main()
