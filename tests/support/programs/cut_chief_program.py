"""A chief that trains in a network of its own until it is told to end.

Usage: cut_chief_program.py NAMESPACE STOP_FILE CLUSTER

It prints a line for each epoch, and for a lost server a line of JSON with the
names of the tasks lost, and ends with status 3.
"""

import json
import pathlib
import sys

from clusters import networks

if __name__ == "__main__":
    # Before there are threads, which stay where they are.
    networks.enter(sys.argv[1])

import numpy as np
from models.small_models import batch, compiled, functional, table

from tf_ext import distribute
from tf_ext._keras import keras

LOST_STATUS = 3


class _Epochs(keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self._path = pathlib.Path(path)

    def on_epoch_end(self, epoch, logs=None):
        print("epoch", epoch, flush=True)
        if self._path.exists():
            self.model.stop_training = True


def main():
    strategy = distribute.parameter_server_strategy(json.loads(sys.argv[3]))
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
            callbacks=[_Epochs(sys.argv[2])],
            verbose=0,
        )
    except distribute.ServerLostError as error:
        print(json.dumps(sorted(error.tasks)), flush=True)
        print(error, file=sys.stderr)
        sys.exit(LOST_STATUS)
    print(json.dumps("whole"), flush=True)


if __name__ == "__main__":
    main()
