# SPDX-License-Identifier: Apache-2.0
"""Synchronous workers that divide the partitions of a stream."""

import functools
import itertools
import pathlib
import tempfile

import tensorflow as tf
from killed_training import Kill, KilledError
from models import id_counting_models as models

import tf_ext
from tf_ext._keras import keras
from tf_ext.regimes import regime_of_model

COUNTS = (20, 40, 60, 80, 100)  # of records in a partition
RECORDS, PARTITIONS = sum(COUNTS), len(COUNTS)


def write(folder, counts=COUNTS):
    """Partitions of so many records, which have each number once."""
    numbers = iter(range(sum(counts)))
    for index, count in enumerate(counts):
        place = folder / f"writer-{index}"
        place.mkdir()
        lines = [f"{n},1\n" for n in itertools.islice(numbers, count)]
        (place / "part").write_text("".join(lines))


def _written(processes, counts):
    """A folder of all workers that has what `write` writes."""
    folder = pathlib.Path(processes.from_first(tempfile.mkdtemp()))
    if processes.rank == 0:
        write(folder, counts)
    processes.gather_json(0)
    return folder


def each_record_once(worker):
    """The counts of a worker's rows, after a life that ended early."""
    for life in range(2):
        with worker.strategy.scope():
            model, table = models.counting_model()
        processes = regime_of_model(model).processes
        if not life:
            folder = _written(processes, COUNTS)
        points = tf_ext.callbacks.TableSnapshot(
            folder / "_points", steps=2, incremental=True
        )

        try:
            model.fit(
                functools.partial(_share, folder),
                verbose=0,
                callbacks=[points, *([Kill(5)] if not life else [])],
            )
        except KilledError:
            continue
    return models.counts(table)


def _share(folder, context, **options):
    return tf_ext.data.stream(
        tf_ext.data.DirectorySource(folder),
        models.SCHEMA,
        batch_size=16,
        shard=context,
        **{"follow": False, "max_delay": 0.1, **options},
    )


def epochs_without_steps(worker):
    """What `fit` of several epochs refuses, and the steps of one."""
    with worker.strategy.scope():
        model, _ = models.counting_model()

    def function(context):
        count = 3 + context.input_pipeline_id
        data = tf.data.Dataset.range(8 * count).batch(8)
        return data.map(lambda n: ({"user": n}, tf.ones_like(n, tf.float32)))

    try:
        model.fit(function, epochs=2, verbose=0)
    except ValueError as error:
        refused = str(error)
    else:
        refused = ""
    history = model.fit(
        function,
        epochs=2,
        steps_per_epoch=2,
        validation_data=function,
        verbose=0,
    )
    return refused, len(history.history["val_loss"])


class _Stops(keras.callbacks.Callback):
    """Ends training after a number of steps."""

    def __init__(self, steps):
        super().__init__()
        self._steps = steps

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 >= self._steps:
            self.model.stop_training = True


def stopped_after_all_records(worker):
    """The records of a worker that a callback stopped when none is left."""
    with worker.strategy.scope():
        model, _ = models.counting_model()
    processes = regime_of_model(model).processes
    folder = _written(processes, [32] * processes.count)
    progress = tf_ext.data.StreamProgress()
    model.fit(
        functools.partial(
            _share,
            folder,
            follow=True,
            max_delay=60,  # Or a slow worker might make more batches.
            progress=progress,
        ),
        steps_per_epoch=10_000,
        verbose=0,
        callbacks=[_Stops(2)],
    )
    return progress.records


def a_stream_without_shards(worker):
    """The error of each worker."""
    with worker.strategy.scope():
        model, _ = models.counting_model()
    data = tf_ext.data.stream(
        tf_ext.data.DirectorySource(tempfile.mkdtemp()),
        models.SCHEMA,
        batch_size=16,
    )
    try:
        model.fit(data, verbose=0)
    except ValueError as error:
        return str(error)
    return None
