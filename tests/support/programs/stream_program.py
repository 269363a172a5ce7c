# SPDX-License-Identifier: Apache-2.0
"""One life of a training on a stream, which tests kill.

    stream_program.py KIND PLACE POINTS   goes on to the end of what there is

KIND is "directory" with a folder as PLACE, or "kafka" with HOST:PORT/TOPIC.
It writes the counts of ids to POINTS/counts.json at its end.
"""

import json
import pathlib
import sys

from models import id_counting_models as models

import tf_ext

BATCH = 16


def source_of(kind, place):
    """The source that is trained on."""
    if kind == "directory":
        return tf_ext.data.DirectorySource(place)
    servers, topic = place.split("/")
    # Little is fetched ahead.
    config = {"fetch.message.max.bytes": 1000, "queued.min.messages": 1}
    return tf_ext.data.KafkaSource(topic, servers, config)


def train(source, points, callbacks=(), format="csv", **options):
    """One life; returns the counts of ids."""
    model, table = models.counting_model()
    data = tf_ext.data.stream(
        source,
        models.SCHEMA,
        format,
        batch_size=BATCH,
        follow=False,
        max_errors=0.5,
        **options,
    )
    snapshot = tf_ext.callbacks.TableSnapshot(points, steps=3, incremental=True)
    model.fit(data, verbose=0, callbacks=[snapshot, *callbacks])
    return models.counts(table)


def main():
    kind, place, points = sys.argv[1:]
    found = train(source_of(kind, place), points)
    (pathlib.Path(points) / "counts.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
