"""Training that SIGTERM interrupts: preemption_program.py DIRECTORY STRATEGY N.

STRATEGY is "servers" or "workers". Each sample has a row that counts how often
it was trained on. The program writes recovery points to DIRECTORY, and prints
`{sample: count}` when training has ended. In the middle of an epoch it prints
"ready" and waits for the file DIRECTORY/signalled-N, if there is none.
"""

import json
import os
import sys
import time

import tensorflow as tf
from model_building import counting_model, rows_of

import tf_ext
from tf_ext._keras import keras

SAMPLES, BATCH, EPOCHS = 60, 2, 2
READY = "ready"
_READY_STEP = 7


class WaitForSignal(keras.callbacks.Callback):
    """Waits once in the middle of an epoch until signals have been sent."""

    def __init__(self, file):
        super().__init__()
        self._file = file

    def on_train_batch_end(self, batch, logs=None):
        if batch == _READY_STEP and not os.path.exists(self._file):
            print(READY, flush=True)
            while not os.path.exists(self._file):
                time.sleep(0.02)


def make_strategy(name):
    if name == "servers":
        return tf_ext.distribute.parameter_server_strategy()
    return tf_ext.distribute.multi_worker_strategy(heartbeat_timeout_seconds=5)


def signalled(directory, number):
    """The file for which the program of a number waits."""
    return os.path.join(directory, f"signalled-{number}")


def main(directory, strategy, number):
    with make_strategy(strategy).scope():
        model, counts = counting_model(BATCH)
    data = tf.data.Dataset.from_tensor_slices(
        ({"id": tf.range(SAMPLES, dtype=tf.int64)}, tf.zeros([SAMPLES, 1]))
    ).batch(BATCH)
    wait = WaitForSignal(signalled(directory, number))
    points = tf_ext.callbacks.TableSnapshot(
        os.path.join(directory, "points"), steps=1000, on_sigterm=True
    )
    model.fit(
        data,
        epochs=EPOCHS,
        callbacks=[wait, points],
        verbose=0,
    )
    rows = rows_of(counts)
    print(json.dumps({sample: float(row[0]) for sample, row in rows.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
