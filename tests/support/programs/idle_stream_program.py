# SPDX-License-Identifier: Apache-2.0
"""Workers that divide a stream, which has no more records soon.

idle_stream_program.py DIRECTORY: trains on the files of DIRECTORY/events, and
prints "waiting" once a worker has trained on as many of its batches as it has.
Recovery points go to DIRECTORY/points.
"""

import functools
import os
import pathlib
import sys

from models import id_counting_models as models

import tf_ext
from tf_ext._keras import keras

BATCH, STEPS, PARTITIONS = 8, 3, 2
READY = "waiting"


def write(folder):
    """A partition for each worker."""
    number = 0
    for index in range(PARTITIONS):
        place = pathlib.Path(folder, "events", f"writer-{index}")
        place.mkdir(parents=True)
        last = number + BATCH * STEPS
        lines = [f"{n},1\n" for n in range(number, last)]
        (place / "part").write_text("".join(lines))
        number = last


class _Tell(keras.callbacks.Callback):
    """Prints when there are no more records."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == STEPS - 1:
            print(READY, flush=True)


def _share(folder, context):
    return tf_ext.data.stream(
        tf_ext.data.DirectorySource(os.path.join(folder, "events")),
        models.SCHEMA,
        batch_size=BATCH,
        max_delay=0.1,
        shard=context,
    )


def main(folder):
    strategy = tf_ext.distribute.multi_worker_strategy(
        heartbeat_timeout_seconds=5
    )
    with strategy.scope():
        model, _ = models.counting_model()
    points = tf_ext.callbacks.TableSnapshot(
        os.path.join(folder, "points"), steps=1000, on_sigterm=True
    )
    model.fit(
        functools.partial(_share, folder),
        steps_per_epoch=100,
        epochs=2,
        verbose=0,
        callbacks=[points, _Tell()],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
