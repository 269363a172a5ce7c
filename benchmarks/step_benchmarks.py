"""Training: the compiled train function of a model, and all of `fit`."""

import gc

import batches
import numpy as np
import tables
import tensorflow as tf
import tfra
import training
import wide_deep_steps
from harness import Case, measure, report

import tf_ext
from tf_ext._keras import keras

_MAX_FITS = 20  # a repetition takes most of a second
_SLOW = 20  # steps that update all rows of a dense matrix take a second


def train_step(args):
    """Ids summed to one vector, then log loss; all rows exist before."""
    for rule in args.rules:
        _measure_rule(rule, args)
        keras.backend.clear_session()
        gc.collect()


def _measure_rule(rule, args):
    ids, labels = batches.training_batch(args.rows)
    cases = [
        *_our_cases(rule, args, ids, labels),
        *_dense_cases(rule, args, ids, labels),
    ]
    settings = {
        "threads": args.threads,
        "rule": rule,
        "rows": args.rows,
        "dim": args.dim,
        **tables.types(args),
        "batch": batches.SAMPLES,
        "ids": batches.IDS,
        "keys": f"Zipf({batches.ZIPF_EXPONENT})",
        "distinct": len(np.unique(ids)),
        "unit": "samples",
    }
    with tfra.start(args) as worker:
        if worker:
            cases.append(
                worker.case(
                    "train_step",
                    batches.SAMPLES,
                    rule=rule,
                    rows=args.rows,
                    dim=args.dim,
                    batch=tables.BATCH,
                )
            )
        results = measure(cases, args.repeats, warmup=10)
    report("train_step", results, settings, args.json)


def compared_train_step(args):
    """The cases of `train_step` that are compared with those of a build."""
    ids, labels = batches.training_batch(args.rows)
    cases = []
    for rule in args.rules:
        for case in _our_cases(rule, args, ids, labels):
            case.name += f", {rule}"
            cases.append(case)
    return cases


def fit(args):
    """Steps of the Wide & Deep example, by `fit`."""
    settings = {
        "threads": args.threads,
        "batch": wide_deep_steps.BATCH,
        "unit": "samples",
    }
    results = measure(
        compared_fit(args), min(args.repeats, _MAX_FITS), warmup=1
    )
    report("fit", results, settings, args.json)


def compared_fit(args):
    """The cases of `fit` that are compared with those of another build."""
    model, dataset, steps = wide_deep_steps.make(args)
    for _ in dataset:  # Caches it; `fit` may leave before it has ended.
        pass

    def run():
        model.fit(dataset, shuffle=False, verbose=0)

    samples = steps * wide_deep_steps.BATCH
    return [Case(f"tf_ext, {_keras_name()}", run, samples)]


def _keras_name():
    return "tf_keras" if keras.__name__.startswith("tf_keras") else "Keras 3"


def _our_cases(rule, args, ids, labels):
    return [
        _our_case(suffix, table, args.rows, ids, labels)
        for suffix, table in tables.to_measure(rule, args).items()
    ]


def _our_case(suffix, table, rows, ids, labels):
    column = tf_ext.feature_column.category_column("ids", hashing="identity")
    tables.fill(table, rows)
    inputs = {"ids": keras.Input([batches.IDS], dtype="int64", name="ids")}
    bag = tf_ext.layers.EmbeddingFeatures([column], table)(inputs)
    outputs = keras.layers.Lambda(training.probability)(bag)
    model = tf_ext.Model(inputs, outputs)
    model.compile(tf_ext.optimizers.Optimizer("sgd"), "binary_crossentropy")
    step = training.stepper(model, {"ids": tf.constant(ids)}, labels)
    return Case(f"tf_ext, {_keras_name()}{suffix}", step, batches.SAMPLES)


def _dense_cases(rule, args, ids, labels):
    """Embedding layers: tf_keras's with its legacy optimizer, and Keras's."""
    cases = [
        Case(
            f"dense Embedding, {_keras_name()}",
            _dense(keras, keras.optimizers, rule, args, ids, labels),
            batches.SAMPLES,
            every=_SLOW,
        )
    ]
    try:
        import tf_keras
    except ImportError:
        return cases
    legacy = tf_keras.optimizers.legacy
    return [
        Case(
            "dense Embedding, tf_keras legacy",
            _dense(tf_keras, legacy, rule, args, ids, labels),
            batches.SAMPLES,
            # Only its Adam has moments that move in all rows.
            every=_SLOW if rule == "adam" else 1,
        ),
        *cases,
    ]


def _dense(any_keras, optimizers, rule, args, ids, labels):
    optimizer = {
        "adagrad": optimizers.Adagrad,
        "adam": optimizers.Adam,
        "ftrl": optimizers.Ftrl,
        "sgd": optimizers.SGD,
    }[rule](0.01)
    inputs = any_keras.Input([batches.IDS], dtype="int64")
    rows = any_keras.layers.Embedding(args.rows, args.dim)(inputs)
    outputs = any_keras.layers.Lambda(training.summed_probability)(rows)
    model = any_keras.Model(inputs, outputs)
    model.compile(optimizer, "binary_crossentropy")
    return training.stepper(model, tf.constant(ids), labels)
