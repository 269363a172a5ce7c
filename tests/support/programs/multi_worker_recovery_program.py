# SPDX-License-Identifier: Apache-2.0
"""A worker that trains with backups; one may die once in the middle."""

import argparse
import json
import os
import pathlib
import signal

import numpy as np
import tensorflow as tf
from models.sharded_tables import counters_of
from models.small_models import batch, compiled, functional, table

import tf_ext
from tf_ext import distribute
from tf_ext._keras import keras

BATCH = 128
SAMPLES, EPOCHS, LOST_IN_EPOCH = 40 * BATCH, 4, 2


class DieOnce(keras.callbacks.Callback):
    """Ends this process in the middle of an epoch, the first time.

    Args:
      marker: string, a file that is made then.
      waits_for: string, a file that must be there; or None.
    """

    def __init__(self, marker, waits_for):
        super().__init__()
        self._marker = pathlib.Path(marker)
        self._waits_for = waits_for
        self._epoch = None

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        dies = self._epoch == LOST_IN_EPOCH and batch >= 10
        if dies and self._waits_for is not None:
            dies = os.path.exists(self._waits_for)
        if dies and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Epochs(keras.callbacks.Callback):
    """Keeps the numbers of the epochs."""

    def __init__(self):
        super().__init__()
        self.begun = []

    def on_epoch_begin(self, epoch, logs=None):
        self.begun.append(epoch)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--lose", type=int, help="the worker that dies")
    parser.add_argument("--snapshots", action="store_true")
    args = parser.parse_args()
    strategy = distribute.multi_worker_strategy(heartbeat_timeout_seconds=4)
    rank = strategy.cluster_resolver.task_id
    with strategy.scope():
        admission = tf_ext.admission.Count(8, forget=7)
        model = functional(table("adagrad", admission=admission))
        compiled(model, keras.optimizers.Adam(0.01), metrics=["AUC"])
    epochs = Epochs()
    backup = (
        tf_ext.callbacks.TableSnapshot(
            f"{args.folder}/points", steps=15, incremental=True
        )
        if args.snapshots
        else keras.callbacks.BackupAndRestore(f"{args.folder}/backup")
    )
    callbacks = [backup]
    callbacks.append(epochs)
    if rank == args.lose:
        inside_the_epoch = f"{args.folder}/points/point-0000000090/point.json"
        callbacks.append(
            DieOnce(
                f"{args.folder}/lost",
                inside_the_epoch if args.snapshots else None,
            )
        )
    features, labels = batch(np.random.default_rng(0), SAMPLES, ids=500)
    data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(BATCH)
    model.fit(data, epochs=EPOCHS, callbacks=callbacks, verbose=0)
    _, auc = model.evaluate(data, verbose=0)
    print(
        json.dumps(
            {
                "auc": auc,
                "epochs": epochs.begun,
                "steps": int(
                    np.asarray(tf.convert_to_tensor(model.optimizer.iterations))
                ),
                "rows": model.tables[0].size(),
                "counters": sorted(counters_of(model.tables[0])[1].items()),
                "sum": float(model.tables[0].export_rows()[1]["weights"].sum()),
            }
        )
    )


if __name__ == "__main__":
    main()
