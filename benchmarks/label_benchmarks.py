# SPDX-License-Identifier: Apache-2.0
"""What a join of clicks that arrive late costs in AUC, on Criteo's examples.

Examples are impressions, 50 a second of event time. Clicks follow them after a
time of log-normal distribution, with a median of 10 seconds, in Redis streams
of their own. Models train on the joined streams, on files that have all labels,
and on labels that are known at once, in the same order and batches.
"""

import pathlib
import statistics
import tempfile

import default_rates
import numpy as np
import tensorflow as tf
from harness import write_json
from store_benchmarks import redis_at
from tensorflow import keras

import tf_ext

import wide_deep  # isort: skip

_PER_SECOND = 50.0
_MEDIAN_SECONDS, _SIGMA = 10.0, 0.7
_BATCH = 64
_TEST = 2_000
_AT_ONCE = 500
_NUMBERS = [f"I{n}" for n in range(1, 14)]
_IDS = [f"C{n}" for n in range(1, 27)]
_WINDOWS = (600.0, 60.0, 15.0, 5.0)


def _schema(label):
    kind = "float32" if label == "Label" else "unused"
    fields = [tf_ext.data.Field("id", "unused")]
    fields += [tf_ext.data.Field("Label", kind)]
    fields += [tf_ext.data.Field(n, "float32", default=0.0) for n in _NUMBERS]
    fields += [tf_ext.data.Field(n, default="") for n in _IDS]
    if label != "Label":
        fields += [tf_ext.data.Field(label, "float32")]
    return tf_ext.data.Schema(fields, label=label)


def _model(seed):
    keras.utils.set_random_seed(seed)
    inputs = {n: keras.Input([], dtype="float32", name=n) for n in _NUMBERS}
    inputs |= {n: keras.Input([], dtype="string", name=n) for n in _IDS}
    columns = [tf_ext.feature_column.category_column(n) for n in _IDS]
    table = tf_ext.SparseTable("ids", dim=8, seed=seed)
    rows = tf_ext.layers.EmbeddingFeatures(columns, table)(
        {n: inputs[n] for n in _IDS}
    )
    numbers = keras.layers.Concatenate()(
        [keras.layers.Reshape([1])(inputs[n]) for n in _NUMBERS]
    )
    hidden = keras.layers.Concatenate()([rows, numbers])
    for units in (64, 32):
        hidden = keras.layers.Dense(units, "relu")(hidden)
    model = tf_ext.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    model.compile(tf_ext.optimizers.Optimizer("adam"), "binary_crossentropy")
    return model


def _logs(features, labels):
    logs = {n: tf.math.log1p(tf.nn.relu(features[n])) for n in _NUMBERS}
    return features | logs, labels


def _auc(seed, data, test):
    model = _model(seed)
    model.fit(data.map(_logs), verbose=0)
    features, labels = _logs(*test)
    scores = model.predict(features, batch_size=_BATCH, verbose=0)[:, 0]
    return float(wide_deep.auc(labels.numpy(), scores))


def _send(client, name, ids, values, seconds):
    """Adds messages to a stream, at times of their own."""
    order = np.argsort(seconds, kind="stable")
    last = None
    for begin in range(0, len(order), _AT_ONCE):
        with client.pipeline(transaction=False) as pipe:
            for row in order[begin : begin + _AT_ONCE]:
                at = int(1000 * seconds[row])
                last = (at, last[1] + 1) if last and last[0] == at else (at, 1)
                pipe.xadd(
                    name,
                    {"value": values[row], "key": ids[row]},
                    id=f"{last[0]}-{last[1]}",
                )
            pipe.execute()


def late_labels(args):
    """Trains on labels by window, and prints a table."""
    folder = pathlib.Path(args.data, default_rates.FOLDERS["criteo"])
    lines = []
    for path in sorted(folder.glob("*.csv")):
        lines += path.read_text().splitlines()[1:]
    labels = np.array([float(line.split(",", 2)[1]) for line in lines])
    trained = len(lines) - _TEST
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        for seed in args.seeds:
            place = pathlib.Path(temporary, str(seed))
            place.mkdir()
            one = _by_window(place, lines, labels, trained, seed)
            for name, value in one.items():
                results.setdefault(name, []).append(value)
    base = results["files"]
    lines = []
    for name, values in results.items():
        less = [a - b for a, b in zip(values, base, strict=True)]
        auc, difference = map(statistics.mean, (values, less))
        most = max(map(abs, less))
        print(f"{name:12} {auc:.4f} {difference:+.4f} (at most {most:.4f})")
        lines.append(
            {
                "benchmark": "late_labels",
                "labels": name,
                "seeds": args.seeds,
                "auc": values,
                "less": less,
            }
        )
    write_json(lines, args.json)


def _by_window(place, lines, labels, trained, seed):
    """The AUC by where labels are from."""
    files = {name: place / name for name in ("train.csv", "test.csv")}
    files["train.csv"].write_text("\n".join(lines[:trained]) + "\n")
    files["test.csv"].write_text("\n".join(lines[trained:]) + "\n")

    def read(name, size):
        return tf_ext.data.read(
            *(files[name], _schema("Label"), "csv"), batch_size=size
        )

    [test] = list(read("test.csv", _TEST))
    found = {"files": _auc(seed, read("train.csv", _BATCH), test)}
    rng = np.random.default_rng(seed)
    shown = 1e6 + np.arange(trained) / _PER_SECOND
    delays = rng.lognormal(np.log(_MEDIAN_SECONDS), _SIGMA, trained)
    clicked = np.flatnonzero(labels[:trained])
    ids = [line.split(",", 1)[0] for line in lines[:trained]]
    with redis_at(str(place)) as (address, client):
        _send(client, "shown", ids, lines, shown)
        _send(
            *(client, "clicks", [ids[row] for row in clicked]),
            *([b"1"] * len(clicked), (shown + delays)[clicked]),
        )
        for window in _WINDOWS:
            source = tf_ext.data.JoinSource(
                tf_ext.data.RedisSource("shown", address),
                tf_ext.data.RedisSource("clicks", address),
                window=window,
            )
            data = tf_ext.data.stream(
                *(source, _schema("clicked"), "csv"),
                batch_size=_BATCH,
                max_delay=60.0,
                envelope={"clicked": "header:joined"},
                follow=False,
            )
            missed = np.mean(delays[clicked] > window)
            name = f"window {window:g} s, {missed:.1%} late"
            found[name.split(",")[0]] = _auc(seed, data, test)
            print(f"seed {seed}: {name}, {vars(source.counts)}", flush=True)
    return found
