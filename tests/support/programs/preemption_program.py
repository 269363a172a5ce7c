# SPDX-License-Identifier: Apache-2.0
"""Training that SIGTERM interrupts: preemption_program.py DIRECTORY STRATEGY N.

STRATEGY is "servers", "workers" or "recovery": servers that may be lost. Each
sample has a row that counts how often it was trained on. The program writes
recovery points to DIRECTORY, and prints `{sample: count}` when training has
ended, after its own metrics. In the middle of an epoch it prints "waiting" and
waits for the file DIRECTORY/signalled-N, if there is none; with "recovery" in
the middle of each epoch E, for DIRECTORY/signalled-N-E.
"""

import json
import os
import sys
import time

import metrics_client
import tensorflow as tf
from models.model_building import counting_model, rows_of

import tf_ext
from tf_ext._keras import keras

SAMPLES, BATCH, EPOCHS = 60, 2, 2
READY = "waiting"
_READY_STEP = 7


class WaitForSignal(keras.callbacks.Callback):
    """Waits in the middle of an epoch until signals have been sent.

    Args:
      files: list of strings, the file of each epoch.
    """

    def __init__(self, files):
        super().__init__()
        self._files = files

    def on_epoch_begin(self, epoch, logs=None):
        self._file = self._files[epoch]

    def on_train_batch_end(self, batch, logs=None):
        if batch == _READY_STEP and not os.path.exists(self._file):
            print(READY, flush=True)
            while not os.path.exists(self._file):
                time.sleep(0.02)


def run(train, strategy):
    if strategy == "recovery":
        return tf_ext.distribute.run_with_recovery(train)
    if strategy == "servers":
        return train(tf_ext.distribute.parameter_server_strategy())
    return train(
        tf_ext.distribute.multi_worker_strategy(heartbeat_timeout_seconds=5)
    )


def signalled(directory, number):
    """The file for which the program of a number waits."""
    return os.path.join(directory, f"signalled-{number}")


def main(directory, strategy, number):
    served = tf_ext.utils.serve_metrics(0)
    print(json.dumps(metrics_client.get(served.port, "/ready")))
    file = signalled(directory, number)
    recovers = strategy == "recovery"
    files = [f"{file}-{e}" if recovers else file for e in range(EPOCHS)]

    def train(strategy):
        with strategy.scope():
            model, counts = counting_model(BATCH)
        points = tf_ext.callbacks.TableSnapshot(
            os.path.join(directory, "points"),
            steps=5 if recovers else 1000,
            on_sigterm=True,
        )
        model.fit(
            tf.data.Dataset.from_tensor_slices(
                (
                    {"id": tf.range(SAMPLES, dtype=tf.int64)},
                    tf.zeros([SAMPLES, 1]),
                )
            ).batch(BATCH),
            epochs=EPOCHS,
            callbacks=[WaitForSignal(files), points],
            verbose=0,
        )
        return rows_of(counts)

    rows = run(train, strategy)
    print(json.dumps(metrics_client.get(served.port, "/ready")))
    found = metrics_client.samples(served.port)
    print(json.dumps({" ".join(name): value for name, value in found.items()}))
    print(json.dumps({sample: float(row[0]) for sample, row in rows.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
