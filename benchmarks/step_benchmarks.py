"""A whole training step, through the compiled train function of a model."""

import json
import pathlib
import subprocess

import numpy as np
import tensorflow as tf
from harness import Case, measure, report, zipf

import tf_ext
from tf_ext._keras import keras

_SEED = 1
_BATCH = 4096
_IDS = 26
_DENSE_ROWS = 10_000_000


def train_step(args):
    """Ids summed to one vector, then log loss; tf_ext beside dense tables."""
    ids = zipf(np.random.default_rng(_SEED), 1.05, _DENSE_ROWS, (_BATCH, _IDS))
    labels = np.random.default_rng(_SEED).integers(0, 2, (_BATCH, 1))
    labels = labels.astype(np.float32)
    for rule in args.rules:
        cases = [
            Case(
                "tf_ext, " + keras_name(),
                _ours(rule, args.dim, ids, labels),
                _BATCH,
            ),
            *_dense(rule, args.dim, ids, labels),
        ]
        settings = {
            "threads": args.threads,
            "rule": rule,
            "batch": _BATCH,
            "ids": _IDS,
            "distinct": len(np.unique(ids)),
            "dim": args.dim,
        }
        results = measure(cases, args.repeats, warmup=10)
        if args.tfra_python:
            results.append(_tfra(args, rule, results[0]["cpu_ms"]))
        report("train_step", results, settings, args.json)


def keras_name():
    """Which Keras runs."""
    return "tf_keras" if keras.__name__.startswith("tf_keras") else "Keras 3"


def _stepper(model, features, labels):
    """One step of a compiled model's train function on ready tensors."""
    model.make_train_function()
    data = tf.data.Dataset.from_tensors((features, labels)).repeat()
    iterator = iter(data)

    def step():
        logs = model.train_function(iterator)
        tf.nest.map_structure(lambda value: value.numpy(), logs)

    return step


def _ours(rule, dim, ids, labels):
    column = tf_ext.feature_column.category_column("ids", hashing="identity")
    table = tf_ext.SparseTable("bench", dim, rule, "normal")
    inputs = {"ids": keras.Input([_IDS], dtype="int64", name="ids")}
    bag = tf_ext.layers.EmbeddingFeatures([column], table)(inputs)
    outputs = keras.layers.Lambda(_probability)(bag)
    model = tf_ext.Model(inputs, outputs)
    model.compile(tf_ext.optimizers.Optimizer("sgd"), "binary_crossentropy")
    return _stepper(model, {"ids": tf.constant(ids)}, labels)


def _probability(bag):
    return tf.sigmoid(tf.reduce_sum(bag, axis=1, keepdims=True))


def _dense(rule, dim, ids, labels):
    """tf_keras's Embedding with its legacy optimizer, which is sparse."""
    try:
        import tf_keras
    except ImportError:
        return []
    optimizers = {
        "adagrad": tf_keras.optimizers.legacy.Adagrad,
        "ftrl": tf_keras.optimizers.legacy.Ftrl,
        "sgd": tf_keras.optimizers.legacy.SGD,
    }
    if rule not in optimizers:
        return []
    inputs = tf_keras.Input([_IDS], dtype="int64")
    rows = tf_keras.layers.Embedding(_DENSE_ROWS, dim)(inputs)
    outputs = tf_keras.layers.Lambda(
        lambda x: _probability(tf.reduce_sum(x, axis=1))
    )(rows)
    model = tf_keras.Model(inputs, outputs)
    model.compile(optimizers[rule](0.01), "binary_crossentropy")
    run = _stepper(model, tf.constant(ids), labels)
    return [Case("dense Embedding, tf_keras legacy", run, _BATCH)]


def _tfra(args, rule, our_cpu_ms):
    """The same step with TensorFlow Recommenders Addons, in its own Python."""
    script = pathlib.Path(__file__).with_name("tfra_step.py")
    done = subprocess.run(
        [
            args.tfra_python,
            str(script),
            f"--rule={rule}",
            f"--dim={args.dim}",
            f"--threads={args.threads}",
            f"--repeats={args.repeats}",
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=1800,
    )
    result = json.loads(done.stdout.splitlines()[-1])
    return {**result, "ratio": result["cpu_ms"] / our_cpu_ms}
