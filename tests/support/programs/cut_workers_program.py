"""A synchronous worker that trains in a network of its own until it is told.

Usage: cut_workers_program.py NAMESPACE STOP_FILE TIMEOUT_SECONDS

It prints the number of each step as it ends, and for a lost worker a line of
JSON with the names of the tasks lost, and ends with status 3.
"""

import json
import pathlib
import sys

from clusters import networks

if __name__ == "__main__":
    # Before there are threads, which stay where they are.
    networks.enter(sys.argv[1])

import numpy as np
import tensorflow as tf
from models.small_models import batch, compiled, functional, table

from tf_ext import distribute
from tf_ext._keras import keras

LOST_STATUS = 3


class _Steps(keras.callbacks.Callback):
    """Prints steps, and ends when all workers see the file."""

    def __init__(self, path):
        super().__init__()
        self._path = pathlib.Path(path)

    def on_epoch_end(self, epoch, logs=None):
        print("epoch", epoch, flush=True)
        # Workers look at slightly different times.
        value = int(self._path.exists())
        context = tf.constant([value], tf.int64)
        regime = self.model.tables[0].rows.regime
        if int(tf.reduce_max(regime.gather(context))):
            self.model.stop_training = True


def main():
    strategy = distribute.multi_worker_strategy(
        heartbeat_timeout_seconds=float(sys.argv[3])
    )
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
            callbacks=[_Steps(sys.argv[2])],
            verbose=0,
        )
    except distribute.WorkerLostError as error:
        print(json.dumps(sorted(error.tasks)), flush=True)
        print(error, file=sys.stderr)
        sys.exit(LOST_STATUS)
    print(json.dumps("whole"), flush=True)


if __name__ == "__main__":
    main()
