# SPDX-License-Identifier: Apache-2.0
"""The trainer and the publisher of stream.py, which starts them.

    python stream_training.py train FOLDER BROKER --topics SHOWN CLICKED ...
    python stream_training.py publish FOLDER STORE ...

The trainer reads impressions, joined with the clicks that have come within the
window, and writes a recovery point every second or so, in FOLDER/points. It
ends when it has trained on as many as it was told, and for an example that is
measured it notes two things: when the newest event of each step was, a line of
FOLDER/steps.jsonl, and what the model answers for some samples after it, a line
of FOLDER/answers.jsonl. The publisher reads the points, and puts what has
changed into a store: into one name at each point, into others more rarely. It
ends when its standard input does.
"""

import argparse
import json
import pathlib
import sys
import threading
import time

import stream_data
import tensorflow as tf
from tensorflow import keras

import tf_ext

BATCH_SIZE = 512
# How often the publisher looks for a point.
LOOK_SECONDS = 0.1
INFINITY = float("inf")
SCHEMA = tf_ext.data.Schema(
    [
        *map(tf_ext.data.Field, stream_data.FEATURES),
        tf_ext.data.Field("clicked", "float32"),
    ],
    label="clicked",
)


def make_model():
    """A compiled model of the events."""
    inputs = {
        name: keras.Input([], dtype="string", name=name)
        for name in stream_data.FEATURES
    }
    crossed = tf_ext.feature_column.crossed_column(["segment", "topic"])
    columns = [
        tf_ext.feature_column.category_column(name) for name in ("user", "item")
    ]
    # Rates stay what they are, as the stream has no end: Adam, not Adagrad.
    biases = tf_ext.SparseTable("biases", dim=1, optimizer="adam")
    deep = tf_ext.SparseTable("deep", dim=8, optimizer="adam")
    linear = tf_ext.layers.EmbeddingFeatures([crossed, *columns], biases)
    rows = tf_ext.layers.EmbeddingFeatures([crossed, *columns], deep)(inputs)
    hidden = keras.layers.Dense(16, "relu")(rows)
    logits = keras.layers.Add()(
        [
            keras.layers.Dense(1)(hidden),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(
                linear(inputs)
            ),
        ]
    )
    outputs = keras.layers.Activation("sigmoid")(logits)
    model = tf_ext.Model(inputs, outputs)
    model.compile(
        tf_ext.optimizers.Optimizer("adam"), keras.losses.BinaryCrossentropy()
    )
    return model


class Notes(keras.callbacks.Callback):
    """Notes what a measurement needs, and ends training.

    Args:
      folder: pathlib.Path.
      progress: tf_ext.data.StreamProgress.
      samples: dict of lists, features.
      records: int, after which training ends.
    """

    def __init__(self, folder, progress, samples, records):
        super().__init__()
        self._folder = folder
        self._progress = progress
        self._samples = {k: tf.constant(v) for k, v in samples.items()}
        self._records = records
        self._call = None

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations)
        progress = self._progress
        note = {"step": step, "event_time": progress.event_time}
        self._append("steps.jsonl", note | {"records": progress.records})
        if progress.records >= self._records:
            self.model.stop_training = True
        # Of each step, as any may be that of a recovery point.
        if self._call is None:
            self._call = tf.function(lambda x: self.model(x, training=False))
        scores = self._call(self._samples)[:, 0].numpy().tolist()
        self._append("answers.jsonl", {"step": step, "scores": scores})

    def _append(self, name, line):
        with open(self._folder / name, "a") as file:
            file.write(json.dumps(line) + "\n")


def train(args):
    broker = stream_data.broker_at(args.broker)
    source = tf_ext.data.JoinSource(
        *map(broker.source, args.topics),
        window=args.window,
        id=stream_data.id_of,
        delay=1.0,
    )
    progress = tf_ext.data.StreamProgress()
    events = tf_ext.data.stream(
        source,
        SCHEMA,
        "jsonl",
        batch_size=BATCH_SIZE,
        max_delay=0.2,
        envelope={"clicked": "header:joined"},
        progress=progress,
    )
    points = str(args.folder / "points")
    samples = json.loads((args.folder / "samples.json").read_text())
    model = make_model()
    print("ready", flush=True)
    model.fit(
        events.prefetch(2),
        shuffle=False,
        epochs=sys.maxsize,
        steps_per_epoch=100,  # Of which logs are means.
        verbose=0,
        callbacks=[
            tf_ext.callbacks.TableSnapshot(
                points, seconds=args.point_seconds, incremental=True
            ),
            tf_ext.callbacks.StreamLogs(progress),
            Notes(args.folder, progress, samples, args.records),
        ],
    )
    counts = source.counts
    print(json.dumps(vars(counts) | {"records": progress.records}), flush=True)


def publish(args):
    points = str(args.folder / "points")
    model = make_model()
    ended = threading.Event()
    threading.Thread(
        target=lambda: (sys.stdin.read(), ended.set()), daemon=True
    ).start()
    publishers = []
    for text in args.models:
        name, _, seconds = text.rpartition(":")
        sink = stream_data.sink_at(args.store, name)
        publisher = tf_ext.serving.publish(model, points, sink, every=None)
        publishers.append((publisher, float(seconds)))
    print("ready", flush=True)
    # Those that are never renewed wait until something has been learnt.
    due = {one: 0.0 if every < INFINITY else every for one, every in publishers}
    first = None
    while not ended.wait(LOOK_SECONDS):
        for publisher, every in publishers:
            if time.monotonic() >= due[publisher] and update(publisher):
                due[publisher] = time.monotonic() + every
                first = first or time.monotonic()
            elif every == INFINITY and not publisher.version and first:
                due[publisher] = first + args.warm_seconds
    # Of each model that is renewed at all: the end of the training.
    for publisher, every in publishers:
        if every < INFINITY:
            update(publisher)
        publisher.close()


def update(publisher):
    """Publishes the newest point; returns whether there was one."""
    try:
        return publisher.update()
    except (RuntimeError, OSError, tf.errors.OpError) as error:
        # It is away; the next version has what this one would have had.
        print(f"publisher: {error}", file=sys.stderr, flush=True)
        return False


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    roles = parser.add_subparsers(required=True)
    training = roles.add_parser("train")
    training.set_defaults(role=train)
    training.add_argument("folder", type=pathlib.Path)
    training.add_argument("broker")
    training.add_argument("--topics", nargs=2, required=True)
    training.add_argument("--records", type=int, required=True)
    training.add_argument("--window", type=float, required=True)
    training.add_argument("--point_seconds", type=float, required=True)
    publishing = roles.add_parser("publish")
    publishing.set_defaults(role=publish)
    publishing.add_argument("folder", type=pathlib.Path)
    publishing.add_argument("store")
    publishing.add_argument(
        "--models",
        nargs="+",
        required=True,
        metavar="NAME:SECONDS",
        help="where in the store, and how often; inf: once, after",
    )
    publishing.add_argument("--warm_seconds", type=float, required=True)
    args = parser.parse_args()
    stream_data.end_with_the_parent()
    keras.utils.set_random_seed(0)
    args.role(args)


if __name__ == "__main__":
    main()
