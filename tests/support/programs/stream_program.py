# SPDX-License-Identifier: Apache-2.0
"""One life of a training on a stream, which tests kill.

    stream_program.py KIND PLACE POINTS TOTAL

KIND is "directory" with a folder as PLACE, "kafka" with HOST:PORT/TOPIC, or
"redis" with a URL, whose streams are `STREAMS`. When the rows have counted
TOTAL records, it writes the counts of ids to POINTS/counts.json.
"""

import json
import pathlib
import sys
import time

from models import id_counting_models as models

import tf_ext
from tf_ext._keras import keras

BATCH = 16
STREAMS = ("clicks-0", "clicks-1", "clicks-2")


def source_of(kind, place):
    """The source that is trained on."""
    if kind == "directory":
        return tf_ext.data.DirectorySource(place)
    if kind == "redis":
        return tf_ext.data.RedisSource(STREAMS, place)
    servers, topic = place.split("/")
    # Little is fetched ahead.
    config = {"fetch.message.max.bytes": 1000, "queued.min.messages": 1}
    return tf_ext.data.KafkaSource(topic, servers, config)


def train(source, points, callbacks=(), format="csv", fit=None, **options):
    """One life; returns the counts of ids."""
    model, table = models.counting_model()
    options = {"follow": False, **options}
    data = tf_ext.data.stream(
        source,
        models.SCHEMA,
        format,
        batch_size=BATCH,
        max_errors=0.5,
        **options,
    )
    snapshot = tf_ext.callbacks.TableSnapshot(points, steps=3, incremental=True)
    callbacks = [snapshot, *callbacks]
    model.fit(data, verbose=0, callbacks=callbacks, **fit or {})
    return models.counts(table)


class _Until(keras.callbacks.Callback):
    """Ends training when a number of records has been counted."""

    def __init__(self, total):
        super().__init__()
        self._total = total

    def on_train_begin(self, logs=None):
        self._check()

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.01)  # Most kills shall meet a training at work.
        self._check()

    def _check(self):
        counted = sum(models.counts(self.model.tables[0]).values())
        assert counted <= self._total, counted
        if counted == self._total:
            self.model.stop_training = True


def main():
    kind, place, points, total = sys.argv[1:]
    found = train(
        source_of(kind, place),
        points,
        [_Until(int(total))],
        follow=True,
        max_delay=0.1,
        fit={"epochs": 10**6, "steps_per_epoch": 20},
    )
    (pathlib.Path(points) / "counts.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
