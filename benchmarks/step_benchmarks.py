# SPDX-License-Identifier: Apache-2.0
"""Training: the compiled train function of a model, and all of `fit`."""

import contextlib
import gc
import pathlib
import sys

import batches
import numpy as np
import tables
import tensorflow as tf
from harness import Case, RemoteCase, StartError, measure, report, start

import tf_ext
from tf_ext._keras import keras

_BATCH = 2048  # Of `fit` and `fit_columns`.
_STEPS_AN_EPOCH = 100
_MAX_FITS = 20  # a repetition takes most of a second
_COLUMNS = [f"c{i}" for i in range(batches.IDS)]
_IDS_A_COLUMN = 10_000
_CACHED = 16  # batches that take turns
_HIDDEN_UNITS = (64, 32)
_SLOW = 20  # steps that update all rows of a dense matrix take a second
_EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
_TFRA = pathlib.Path(__file__).with_name("tfra_worker.py")


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
    with _tfra(args, rule) as cases_of_tfra:
        results = measure(cases + cases_of_tfra, args.repeats, warmup=10)
    report("train_step", results, settings, args.json)


@contextlib.contextmanager
def _tfra(args, rule):
    """Yields the case of TensorFlow Recommenders Addons, in a list.

    It needs another TensorFlow than tf_ext and so another Python, in a process
    that makes a repetition per call. Without `--tfra-python` the list is empty.

    Raises:
      SystemExit: if that Python does not exist or cannot import the modules.
    """
    if args.tfra_python is None:
        yield []
        return
    with contextlib.ExitStack() as stack:
        try:
            process = stack.enter_context(
                start("TFRA", args.tfra_python, _TFRA, args.threads)
            )
            process.ready()
        except StartError as error:
            raise SystemExit(
                f"--tfra-python={args.tfra_python} cannot run TFRA. "
                f"Install what benchmarks/README.md names there. {error}"
            ) from None
        sizes = {"rows": args.rows, "dim": args.dim, "batch": tables.BATCH}
        process.call("train_step", case="TFRA", rule=rule, **sizes)
        yield [RemoteCase(process, "TFRA", batches.SAMPLES)]


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
        "batch": _BATCH,
        "unit": "samples",
    }
    results = measure(
        compared_fit(args), min(args.repeats, _MAX_FITS), warmup=1
    )
    report("fit", results, settings, args.json)


def compared_fit(args):
    """The cases of `fit` that are compared with those of another build."""
    model, dataset, steps = _wide_deep(args)
    for _ in dataset:  # Caches it; `fit` may leave before it has ended.
        pass

    def run():
        model.fit(dataset, shuffle=False, verbose=0)

    samples = steps * _BATCH
    return [Case(f"tf_ext, {_keras_name()}", run, samples)]


def _wide_deep(args):
    """Makes the example's model and batches, which are cached.

    Args:
      args: the command line's arguments: `rows` bounds the steps of an epoch.

    Returns:
      `(model, dataset, steps)`: a compiled model, a dataset of one epoch and
      its number of batches.
    """
    # The example's modules import each other by name.
    sys.path.insert(0, str(_EXAMPLES))
    import wide_deep

    steps = min(_STEPS_AN_EPOCH, args.rows // _BATCH + 1)
    options = wide_deep.parse_arguments(
        [f"--batch_size={_BATCH}", f"--examples={2 * steps * _BATCH}"]
    )
    data = wide_deep.load_data(options)
    model = wide_deep.make_model(data, *wide_deep.make_tables(options), None)
    wide_deep.compile_model(model, options)
    # Making batches is the program's own work.
    return model, data.train().take(steps).cache(), steps


def fit_columns(args):
    """Steps of `fit` on columns of strings, on signs, and without a table."""
    settings = {
        "threads": args.threads,
        "batch": _BATCH,
        "columns": len(_COLUMNS),
        "ids_a_column": _IDS_A_COLUMN,
        "dim": args.dim,
        "steps": _STEPS_AN_EPOCH,
        "unit": "samples",
    }
    repeats = min(args.repeats, _MAX_FITS)
    results = measure(compared_fit_columns(args), repeats, warmup=1)
    report("fit_columns", results, settings, args.json)


def compared_fit_columns(args):
    """The cases of `fit_columns`, the dense network alone first."""
    rng = np.random.default_rng(0)
    size = (_CACHED * _BATCH, len(_COLUMNS) * args.dim)
    labels = rng.integers(0, 2, (size[0], 1)).astype(np.float32)
    strings = {name: _strings(rng, size[0]) for name in _COLUMNS}
    inputs = keras.Input(size[1:])
    alone = keras.Model(inputs, _perceptron(inputs))
    alone.compile(keras.optimizers.Adagrad(0.01), "binary_crossentropy")
    numbers = rng.normal(size=size).astype(np.float32)
    cases = [_fit_case("dense network alone", alone, (numbers, labels))]
    for name, is_hashed in {"strings": False, "signs": True}.items():
        columns = map(tf_ext.feature_column.category_column, _COLUMNS)
        table = tf_ext.SparseTable(name, args.dim, optimizer="adagrad")
        layer = tf_ext.layers.EmbeddingFeatures(list(columns), table)
        inputs = {key: keras.Input((), dtype="string") for key in _COLUMNS}
        model = tf_ext.Model(inputs, _perceptron(layer(inputs)))
        adagrad = keras.optimizers.Adagrad(0.01)
        model.compile(
            tf_ext.optimizers.Optimizer(adagrad), "binary_crossentropy"
        )
        columns = layer.columns if is_hashed else None
        cases.append(_fit_case(name, model, (strings, labels), columns))
    return cases


def _strings(rng, count):
    """Hexadecimal ids, as of Criteo."""
    ids = rng.integers(0, 1 << 32, _IDS_A_COLUMN).tolist()
    places = batches.zipf(rng, batches.ZIPF_EXPONENT, _IDS_A_COLUMN, count)
    return np.array([f"{i:08x}" for i in ids])[places]


def _perceptron(outputs):
    for units in _HIDDEN_UNITS:
        outputs = keras.layers.Dense(units, activation="relu")(outputs)
    return keras.layers.Dense(1, activation="sigmoid")(outputs)


def _fit_case(name, model, data, hashed=None):
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(_BATCH)
    if hashed is not None:
        dataset = tf_ext.data.hash_columns(dataset, hashed)
    dataset = dataset.cache()
    for _ in dataset:  # As in `compared_fit`.
        pass
    dataset = dataset.repeat().take(_STEPS_AN_EPOCH)

    def run():
        model.fit(dataset, shuffle=False, verbose=0)

    return Case(f"{name}, {_keras_name()}", run, _STEPS_AN_EPOCH * _BATCH)


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
    outputs = keras.layers.Lambda(batches.probability)(bag)
    model = tf_ext.Model(inputs, outputs)
    model.compile(tf_ext.optimizers.Optimizer("sgd"), "binary_crossentropy")
    step = batches.stepper(model, {"ids": tf.constant(ids)}, labels)
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
    outputs = any_keras.layers.Lambda(batches.summed_probability)(rows)
    model = any_keras.Model(inputs, outputs)
    model.compile(optimizer, "binary_crossentropy")
    return batches.stepper(model, tf.constant(ids), labels)
