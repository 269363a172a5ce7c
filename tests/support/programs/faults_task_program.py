# SPDX-License-Identifier: Apache-2.0
"""A task of a cluster that faults are made against, by its `TF_CONFIG`.

Usage: faults_task_program.py NAMESPACE HOSTS FOLDER DATA EXECUTION RETRY

NAMESPACE: of its network, and HOSTS: its /etc/hosts; both "-" for this
machine's. DATA: "chief" or "workers" read them, or "stream": workers read files
that are added before each epoch. EXECUTION: steps of one, with a
sign: steps overlap. RETRY: 0 or 1, `retry_steps`.

Workers and servers of a chief serve. A chief and synchronous workers train
until FOLDER/stop exists, and write recovery points to FOLDER/points. The row of
an id counts how often it was trained on, which is once in each epoch. The first
task appends lines `SECONDS PROCESS STEP` to FOLDER/steps, at the beginning of
the first step and after each. In the end, each task that trains writes
FOLDER/result-INDEX: `{"epochs", "iterations", "rows": {id: count}}`.
"""

import json
import os
import pathlib
import sys
import time

from clusters import networks

if __name__ == "__main__" and sys.argv[1] != "-":
    # Before there are threads, which stay where they are.
    networks.take_host_names(sys.argv[2])
    networks.enter(sys.argv[1])

import tensorflow as tf
from models.model_building import counting_model, number, rows_of

import tf_ext
from tf_ext._keras import keras
from tf_ext.distribute import server

WORKERS, BATCH, STEPS = 3, 8, 300
IDS = BATCH * STEPS
_POINT_SECONDS = 2.0
# Shorter than the default, as so many wait for it.
_HEARTBEAT_SECONDS = 10.0
_MAX_RESTARTS = 1000


class Tell(keras.callbacks.Callback):
    """Writes down where training is, and ends it after an epoch."""

    def __init__(self, folder, writes, points, stream):
        super().__init__()
        self._points, self._stream = points, stream
        self._stop = folder / "stop"
        self._file = (folder / "steps").open("a") if writes else None
        self._began = False
        self.epochs = 0

    def _write(self):
        if self._file:
            step = self._points._point.step
            self._file.write(f"{time.monotonic():.3f} {os.getpid()} {step}\n")
            self._file.flush()

    def on_train_begin(self, logs=None):
        self._began = False

    def on_epoch_begin(self, epoch, logs=None):
        if self._stream is not None:
            self._stream.add()

    def on_train_batch_begin(self, batch, logs=None):
        if not self._began:
            self._began = True
            self._write()

    def on_train_batch_end(self, batch, logs=None):
        self._write()

    def on_epoch_end(self, epoch, logs=None):
        self.epochs = self._stream.files if self._stream else epoch + 1
        told = tf.constant([int(self._stop.exists())], tf.int64)
        # Workers look at different times.
        processes = self.model.tables[0].rows.regime.processes
        if bool(tf.reduce_max(processes.gather(told))):
            self.model.stop_training = True


def _samples(ids):
    return tf.data.Dataset.from_tensor_slices(
        ({"id": ids}, tf.zeros([len(ids), 1]))
    ).batch(BATCH)


def _share(context):
    return _samples(range(IDS)[context.input_pipeline_id :: WORKERS])


class _Stream:
    """Files of all ids: one more in each partition for each epoch.

    Args:
      folder: pathlib.Path.
    """

    def __init__(self, folder):
        self._folder = folder
        self._partitions = [folder / f"{n}" for n in range(WORKERS)]

    @property
    def files(self):
        """How many each partition has."""
        return min(len(list(p.glob("[0-9]*"))) for p in self._partitions)

    def add(self):
        """Adds a file to each partition, if an end was not in between."""
        for partition in self._partitions:
            partition.mkdir(parents=True, exist_ok=True)
        number = self.files
        for index, partition in enumerate(self._partitions):
            lines = [f"{n},0\n" for n in range(IDS)[index::WORKERS]]
            hidden = partition / f".{number:07}"
            hidden.write_text("".join(lines))
            # Where it is there already, it is replaced by the same.
            hidden.rename(partition / f"{number:07}")

    def __call__(self, context):
        return tf_ext.data.stream(
            tf_ext.data.DirectorySource(self._folder),
            tf_ext.data.Schema(
                [
                    tf_ext.data.Field("id", "int64"),
                    tf_ext.data.Field("label", "float32"),
                ],
                label="label",
            ),
            batch_size=BATCH,
            max_delay=60.0,
            follow=False,
            shard=context,
        )


def main(folder, data, execution, retry):
    folder = pathlib.Path(folder)
    config = json.loads(os.environ["TF_CONFIG"])
    job, index = config["task"]["type"], config["task"]["index"]
    has_servers = "ps" in config["cluster"]
    if has_servers and job != "chief":
        server.main([])

    def train(strategy):
        with strategy.scope():
            model, table = counting_model(BATCH)
            model.compile(
                model.optimizer,
                model.loss,
                steps_per_execution=abs(int(execution)),
            )
        stream = _Stream(folder / "stream") if data == "stream" else None
        x = _share if data == "workers" else stream
        points = tf_ext.callbacks.TableSnapshot(
            folder / "points",
            seconds=_POINT_SECONDS,
            incremental=True,
            on_sigterm=True,
        )
        tell = Tell(folder, index == 0, points, stream)
        model.fit(
            x or _samples(range(IDS)),
            epochs=1_000_000,
            callbacks=[points, tell],
            verbose=0,
            retry_steps=bool(int(retry)),
            **({"overlap_steps": True} if int(execution) < 0 else {}),
        )
        result = {
            "epochs": tell.epochs,
            "iterations": int(number(model.optimizer.iterations)),
            "rows": {k: float(v[0]) for k, v in rows_of(table).items()},
        }
        (folder / f"result-{index}").write_text(json.dumps(result))

    if has_servers:
        tf_ext.distribute.run_with_recovery(train, max_restarts=_MAX_RESTARTS)
    else:
        train(
            tf_ext.distribute.multi_worker_strategy(
                heartbeat_timeout_seconds=_HEARTBEAT_SECONDS
            )
        )


if __name__ == "__main__":
    main(*sys.argv[3:])
