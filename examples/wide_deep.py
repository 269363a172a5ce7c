# SPDX-License-Identifier: Apache-2.0
r"""Trains a Wide & Deep model whose embedding tables grow with the data.

The model is that of Cheng et al., "Wide & Deep Learning for Recommender
Systems" (2016). Its wide part is a linear model of single features and crosses:
a table of dim 1, trained by FTRL. Its deep part is a multilayer perceptron on
embeddings: a table of dim 16, trained by the default rule, row-wise Adagrad. No
vocabulary is built: a row appears in a table when training first meets its id.

By default the examples are made up, three million of them with more than a
million distinct ids, and the best AUC that any model could reach is known and
printed. They are written into a temporary folder (420 MB), as all examples are
read from files, by tf_ext.data.read: pip install 'tf-ext[data]'.

    python wide_deep.py

Hashing every feature into few buckets, as a model with fixed embedding layers
would, costs accuracy:

    python wide_deep.py --bucket_size=1000

The number of rows can be limited: an id gets a row only when it occurs for the
second time, and rows of ids that did not occur for 500 steps are evicted, with

    python wide_deep.py --admission=2 --evict=500

and rows of the deep part can be stored in half the bytes, with

    python wide_deep.py --dtype=float16 --slot_dtype=bfloat16

Real data is read from a folder. That of `adult` (https://doi.org/10.24432/C5XW20)
has the files adult-train.csv and adult-test.csv. That of `criteo` (the Criteo
Display Advertising Challenge) has train.txt as Criteo distributes it, separated
by tabs, or dac_sample.txt, or the days day_* of the terabyte; or part_*.csv,
separated by commas, each with a header Id,Label,I1,...,I13,C1,...,C26:

    python wide_deep.py --data=/data/adult --format=adult

Training is spread over workers and parameter servers, here processes that the
program starts on this machine and ends again, with

    python wide_deep.py --strategy=ps --workers=2 --servers=2

or over synchronous workers, each with a share of every batch and of
the tables' rows, with

    python wide_deep.py --strategy=mwms --workers=2

Where the environment variable TF_CONFIG names a cluster, as on several
machines, that one is used, and --backup_dir should name a folder that all
machines share. A parameter server or a synchronous worker that is lost and
comes back costs the time since the last epoch's end.

The last line on standard output is a JSON object: `auc` and `log_loss` on the
test examples, `best_auc` (null for real data), `rows` and `bytes` of both
tables together, `saturated`, how often a weight exceeded float16, `examples`
trained on, all epochs counted, and the `seconds` that it took to train on them.
"""

import argparse
import functools
import importlib.util
import json
import os
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf
from tensorflow import keras
from wide_deep_data import FORMATS, TextFiles, find_format
from wide_deep_generator import GeneratedStream

import tf_ext

EMBEDDING_DIM = 16
HIDDEN_UNITS = (64, 32)
DROPOUT = 0.3
# How often synchronous workers are started again after one was lost.
RESTARTS = 3


@keras.utils.register_keras_serializable(package="wide_deep")
class Sum(keras.layers.Layer):
    """Sums the last axis: `[batch, n]` to `[batch, 1]`."""

    def call(self, inputs):
        return tf.reduce_sum(inputs, axis=-1, keepdims=True)


def positive_int(text):
    """An argument's type: an integer greater than 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not greater than 0")
    return value


def parse_arguments(arguments=None):
    """Returns the program's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", help="folder of a real data set")
    parser.add_argument(
        "--format", choices=sorted(FORMATS), help="what is in --data"
    )
    parser.add_argument(
        "--examples",
        type=positive_int,
        default=3_000_000,
        help="how many to generate for training, without --data",
    )
    parser.add_argument(
        "--epochs",
        type=positive_int,
        default=1,
        help="rare ids are learnt by heart in more than one",
    )
    parser.add_argument(
        "--batch_size",
        type=positive_int,
        help="default: 2048 on generated data, 256 on real data",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--bucket_size",
        type=positive_int,
        help="hash every feature into so many ids; default: no limit",
    )
    parser.add_argument(
        "--admission",
        type=positive_int,
        metavar="N",
        help="an id gets a row when it occurs for the Nth time, at most 255",
    )
    parser.add_argument(
        "--evict",
        type=positive_int,
        metavar="STEPS",
        help="evict rows of ids that did not occur for so many steps",
    )
    parser.add_argument(
        "--dtype",
        choices=["float32", "float16", "bfloat16"],
        default="float32",
        help="in which the deep table stores weights",
    )
    parser.add_argument(
        "--slot_dtype",
        choices=["float32", "bfloat16"],
        default="float32",
        help="in which the deep table stores the optimizer's slots",
    )
    parser.add_argument(
        "--learning_rate", type=float, default=0.001, help="of the perceptron"
    )
    parser.add_argument("--log_dir", help="where to write TensorBoard logs")
    parser.add_argument(
        "--strategy",
        choices=["one", "ps", "mwms"],
        default="one",
        help="one process (the default), parameter servers, or synchronous "
        "workers",
    )
    parser.add_argument(
        "--workers",
        type=positive_int,
        default=2,
        help="for --strategy=ps and --strategy=mwms",
    )
    parser.add_argument(
        "--servers", type=positive_int, default=2, help="for --strategy=ps"
    )
    parser.add_argument(
        "--backup_dir",
        help="where to keep the state at the last epoch's end while training;\n"
        "default with several processes: a temporary folder",
    )
    args = parser.parse_args(arguments)
    if (args.data is None) != (args.format is None):
        parser.error("--data and --format go together")
    if args.log_dir and importlib.util.find_spec("tensorboard") is None:
        parser.error("--log_dir needs TensorBoard: pip install tensorboard")
    if args.batch_size is None:
        args.batch_size = 256 if args.data else 2048
    return args


def load_data(args):
    """Returns the examples: a TextFiles or a GeneratedStream."""
    if args.data:
        text_format = find_format(args.data, args.format)
        return TextFiles(args.data, text_format, args.batch_size, args.seed)
    return GeneratedStream(args.examples, args.batch_size, args.seed)


def make_inputs(schema):
    """Returns the inputs of a model, by feature."""
    return {
        field.name: keras.Input(
            (None,) if field.bag else (),
            dtype=field.dtype,
            ragged=field.bag,
            name=field.name,
        )
        for field in schema.features
    }


def make_columns(data, bucket_size):
    """Returns the features' columns and the crosses of some of them."""
    columns = {
        field.name: tf_ext.feature_column.category_column(
            field.name,
            bucket_size=bucket_size,
            boundaries=data.boundaries.get(field.name),
            combiner="mean",
        )
        for field in data.schema.features
    }
    crosses = [
        tf_ext.feature_column.crossed_column(
            [columns[name] for name in names], bucket_size=bucket_size
        )
        for names in data.crosses
    ]
    return list(columns.values()), crosses


def make_tables(args):
    """Returns the tables of the wide and of the deep part."""
    lifetime = {}
    if args.admission:
        lifetime["admission"] = tf_ext.admission.Count(args.admission)
    if args.evict:
        lifetime["eviction"] = tf_ext.eviction.Unseen(steps=args.evict)
    wide = tf_ext.SparseTable(
        "wide", dim=1, optimizer="ftrl", initializer="zeros", **lifetime
    )
    # The wide table stays float32: its rows of one weight are mostly sign and
    # index, and the sum that FTRL derives the weight from needs the precision.
    deep = tf_ext.SparseTable(
        "deep",
        dim=EMBEDDING_DIM,
        seed=args.seed,
        dtype=args.dtype,
        slot_dtype=args.slot_dtype,
        **lifetime,
    )
    return wide, deep


def make_model(data, wide, deep, bucket_size):
    """Returns a model of the probability that an example's label is 1."""
    inputs = make_inputs(data.schema)
    columns, crosses = make_columns(data, bucket_size)
    features = tf_ext.layers.EmbeddingFeatures(
        {wide: columns + crosses, deep: columns}
    )(inputs)
    hidden = keras.layers.Dropout(DROPOUT)(features["deep"])
    for units in HIDDEN_UNITS:
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
        hidden = keras.layers.Dropout(DROPOUT)(hidden)
    logit = keras.layers.Add()(
        [Sum()(features["wide"]), keras.layers.Dense(1)(hidden)]
    )
    output = keras.layers.Activation("sigmoid", dtype="float32")(logit)
    return tf_ext.Model(inputs, output)


def compile_model(model, args):
    """Says how the model is trained."""
    model.compile(
        tf_ext.optimizers.Optimizer(keras.optimizers.Adam(args.learning_rate)),
        loss="binary_crossentropy",
        metrics=[keras.metrics.AUC(name="auc")],
    )


def train(model, data, args):
    """Trains the model; returns how many seconds it took."""
    callbacks = []
    if args.backup_dir:
        callbacks.append(keras.callbacks.BackupAndRestore(args.backup_dir))
    if args.evict:
        callbacks.append(tf_ext.callbacks.Evict(steps=-(-args.evict // 4)))
    if args.log_dir:
        callbacks += [
            keras.callbacks.TensorBoard(args.log_dir, update_freq=100),
            tf_ext.callbacks.TableStats(args.log_dir, every=200),
        ]
    start = time.perf_counter()
    model.fit(
        data.train(), epochs=args.epochs, shuffle=False, callbacks=callbacks
    )
    return time.perf_counter() - start


def auc(labels, predictions):
    """The area under the ROC curve, exactly.

    It is the chance that an example of label 1 is above one of label 0, ties
    counting half.

    Args:
      labels: array `[n]` of 0 and 1.
      predictions: array `[n]`.
    """
    _, order, counts = np.unique(
        predictions, return_inverse=True, return_counts=True
    )
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[order]
    positives = labels.sum(dtype=np.float64)
    negatives = len(labels) - positives
    above = ranks[labels > 0].sum() - positives * (positives + 1) / 2
    return above / (positives * negatives)


def log_loss(labels, predictions):
    """The mean of the log loss, in nats."""
    predictions = np.clip(predictions.astype(np.float64), 1e-7, 1 - 1e-7)
    return -np.mean(np.log(np.where(labels > 0, predictions, 1 - predictions)))


def evaluate(model, data):
    """Returns the measures on the test examples, a dict."""
    labels = data.test_labels()
    predictions = model.predict(data.test())[:, 0]
    best = data.best_predictions()
    return {
        "auc": float(auc(labels, predictions)),
        "log_loss": float(log_loss(labels, predictions)),
        "best_auc": None if best is None else float(auc(labels, best)),
    }


def train_and_evaluate(strategy, args, data):
    """Trains a model under a strategy and measures it.

    Args:
      strategy: a tf.distribute strategy.
      args: the program's arguments.
      data: a TextFiles or a GeneratedStream.

    Returns:
      The measures, a dict.
    """
    keras.utils.set_random_seed(args.seed)
    with strategy.scope():
        wide, deep = make_tables(args)
        model = make_model(data, wide, deep, args.bucket_size)
        compile_model(model, args)
    seconds = train(model, data, args)
    result = evaluate(model, data)
    print(f"test AUC {result['auc']:.4f}, log loss {result['log_loss']:.4f}")
    if result["best_auc"] is not None:
        print(f"the best AUC possible is {result['best_auc']:.4f}")
    stats = {table.name: table.stats() for table in (wide, deep)}
    for name, counts in stats.items():
        print(
            f"table {name}: {counts['rows']:,} rows, {counts['bytes']:,} bytes"
        )
    result["rows"] = sum(counts["rows"] for counts in stats.values())
    result["bytes"] = sum(counts["bytes"] for counts in stats.values())
    result["saturated"] = stats["deep"]["saturated"]
    result["seconds"] = round(seconds, 3)
    result["examples"] = data.train_examples * args.epochs
    return result


def run_on_servers(args, data):
    """`train_and_evaluate` on TF_CONFIG's cluster, or one on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        args.backup_dir = args.backup_dir or folder
        job = functools.partial(train_and_evaluate, args=args, data=data)
        if "TF_CONFIG" in os.environ:
            return tf_ext.distribute.run_with_recovery(job)
        with tf_ext.distribute.local_cluster(
            args.workers, args.servers, restart_lost=True
        ) as cluster:
            return tf_ext.distribute.run_with_recovery(job, cluster.strategy)


def start_workers(args):
    """Runs this program as several workers on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        folder = args.backup_dir or folder
        tf_ext.distribute.run_local_workers(
            [sys.executable, *sys.argv, f"--backup_dir={folder}"],
            args.workers,
            restarts=RESTARTS,
        )


def main():
    args = parse_arguments()
    if args.strategy == "mwms" and "TF_CONFIG" not in os.environ:
        start_workers(args)
        return
    if args.strategy == "mwms":
        strategy = tf_ext.distribute.multi_worker_strategy()
        is_first = strategy.cluster_resolver.task_id == 0
        if not is_first:
            args.log_dir = None
        result = train_and_evaluate(strategy, args, load_data(args))
        if not is_first:
            return
    elif args.strategy == "ps":
        result = run_on_servers(args, load_data(args))
    else:
        strategy = tf.distribute.get_strategy()
        result = train_and_evaluate(strategy, args, load_data(args))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
