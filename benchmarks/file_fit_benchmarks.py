"""Training from CSV files: samples a CPU-second of reading, ids and `fit`."""

import os
import pathlib
import tempfile
import typing

import batches
import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import tensorflow as tf
from harness import Case, measure, report

import tf_ext
from tf_ext._keras import keras

_ROWS = 100_000
_FILES = 4
_IDS = 10_000  # In a column of strings.
_BATCH = 1024
_NUMBERS = [f"I{i}" for i in range(13)]
_STRINGS = [f"C{i}" for i in range(batches.IDS)]
_LABEL = "label"
_NAMES = [_LABEL, *_NUMBERS, *_STRINGS]
_DEFAULTS = [0.0] * (1 + len(_NUMBERS)) + [""] * len(_STRINGS)
_HIDDEN_UNITS = (64, 32)
_RATE = 0.01


def fit_files(args):
    """An epoch over the same files by each library, reading included."""
    rows = min(args.rows, _ROWS)
    with tempfile.TemporaryDirectory() as folder:
        files = _write(pathlib.Path(folder), rows)
        cases = [_our_case(files, rows, args)]
        for library in _libraries():
            cases += _reference_cases(library, files, rows, args)
        settings = {
            "threads": args.threads,
            "ids_a_column": _IDS,
            "dim": args.dim,
            "batch": _BATCH,
            "unit": "samples",
        }
        results = measure(cases, args.repeats, warmup=1, settle=False)
        report("fit_files", results, settings, args.json)


def _write(folder, rows):
    """Files of labels, numbers below 1,000 and hexadecimal ids."""
    rng = np.random.default_rng(0)
    columns = {_LABEL: rng.integers(0, 2, rows)}
    columns |= {name: rng.integers(0, 1000, rows) for name in _NUMBERS}
    for name in _STRINGS:
        texts = np.array([f"{i:08x}" for i in rng.integers(0, 1 << 32, _IDS)])
        places = batches.zipf(rng, batches.ZIPF_EXPONENT, _IDS, rows)
        columns[name] = texts[places]
    table, size = pa.table(columns), -(-rows // _FILES)
    files = [os.fspath(folder / f"part-{i}.csv") for i in range(_FILES)]
    for number, file in enumerate(files):
        arrow_csv.write_csv(table.slice(number * size, size), file)
    return files


class _Library(typing.NamedTuple):
    """A Keras, and the optimizers of it that update embeddings best."""

    name: str
    keras: typing.Any
    optimizers: typing.Any


def _libraries():
    """The Keras of this process, and tf_keras beside Keras 3."""
    try:
        import tf_keras
    except ImportError:
        return [_Library("Keras 3", keras, keras.optimizers)]
    legacy = _Library("tf_keras", tf_keras, tf_keras.optimizers.legacy)
    if keras is tf_keras:
        return [legacy]
    return [_Library("Keras 3", keras, keras.optimizers), legacy]


def _our_case(files, rows, args):
    fields = [
        tf_ext.data.Field(_LABEL, "float32"),
        *(tf_ext.data.Field(name, "float32") for name in _NUMBERS),
        *(tf_ext.data.Field(name) for name in _STRINGS),
    ]
    schema = tf_ext.data.Schema(fields, label=_LABEL)

    dataset = tf_ext.data.read(
        files, schema, batch_size=_BATCH, header=True, threads=args.threads
    )
    # Like a vocabulary that is not built yet: each epoch inserts all rows.
    table = tf_ext.SparseTable("rows", args.dim, optimizer="adagrad")
    columns = map(tf_ext.feature_column.category_column, _STRINGS)
    inputs = _inputs(keras, "string")
    rows_of_ids = tf_ext.layers.EmbeddingFeatures(list(columns), table)(inputs)
    model = tf_ext.Model(inputs, _outputs(keras, inputs, [rows_of_ids]))
    adagrad = keras.optimizers.Adagrad(_RATE)
    model.compile(tf_ext.optimizers.Optimizer(adagrad), "binary_crossentropy")
    epoch = _epoch(model, dataset, rows)
    return Case("tf_ext", epoch, rows, before=table.clear)


def _reference_cases(library, files, rows, args):
    """What turns strings into indices runs in the dataset, before `fit`."""
    layers = library.keras.layers

    def adapted():
        """Lookups of all texts, of one pass over the files."""
        seen = [features for features, _ in _decoded(files, args.threads)]
        lookups = {}
        for name in _STRINGS:
            lookups[name] = layers.StringLookup()
            texts = tf.concat([features[name] for features in seen], 0)
            # Of an array, tf_keras would take 32 at a time.
            batches_of_texts = tf.data.Dataset.from_tensor_slices(texts)
            lookups[name].adapt(batches_of_texts.batch(_BATCH))
        return lookups

    def epoch(lookups, sizes, read=_decoded):
        def to_indices(features, labels):
            indices = {name: lookups[name](features[name]) for name in _STRINGS}
            return {**features, **indices}, labels

        dataset = read(files, args.threads).map(
            to_indices, num_parallel_calls=args.threads
        )
        model = _dense_model(library, sizes, args.dim)
        return _epoch(model, dataset.prefetch(2), rows)

    lookups = adapted()
    sizes = {name: lookups[name].vocabulary_size() for name in _STRINGS}
    looked_up = epoch(lookups, sizes)

    def adapt_and_fit():
        adapted()
        looked_up()

    hashes = {name: layers.Hashing(_IDS) for name in _STRINGS}
    buckets = dict.fromkeys(_STRINGS, _IDS)
    cases = {
        "StringLookup": looked_up,
        "StringLookup and adapt": adapt_and_fit,
        "Hashing": epoch(hashes, buckets),
        "Hashing by make_csv_dataset": epoch(hashes, buckets, _made),
    }
    return [
        Case(f"{name}, {library.name}", run, rows)
        for name, run in cases.items()
    ]


def _decoded(files, threads):
    """The fastest of TensorFlow's own readers."""

    def decode(lines):
        values = tf.io.decode_csv(lines, _DEFAULTS)
        features = dict(zip(_NAMES, values, strict=True))
        return features, features.pop(_LABEL)

    return (
        tf.data.Dataset.from_tensor_slices(files)
        .flat_map(lambda file: tf.data.TextLineDataset(file).skip(1))
        .batch(_BATCH)
        .map(decode, num_parallel_calls=threads)
    )


def _made(files, threads):
    del threads  # It has its own number of them.
    return tf.data.experimental.make_csv_dataset(
        files,
        _BATCH,
        label_name=_LABEL,
        num_epochs=1,
        shuffle=False,
        num_parallel_reads=1,
        column_defaults=_DEFAULTS,
    )


def _dense_model(library, sizes, dim):
    inputs = _inputs(library.keras, "int64")
    embedded = [
        library.keras.layers.Embedding(sizes[name], dim)(inputs[name])
        for name in _STRINGS
    ]
    outputs = _outputs(library.keras, inputs, embedded)
    model = library.keras.Model(inputs, outputs)
    adagrad = library.optimizers.Adagrad(_RATE)
    model.compile(adagrad, "binary_crossentropy")
    return model


def _inputs(any_keras, dtype_of_ids):
    dtypes = {
        **dict.fromkeys(_NUMBERS, "float32"),
        **dict.fromkeys(_STRINGS, dtype_of_ids),
    }
    return {
        name: any_keras.Input((), dtype=dtype, name=name)
        for name, dtype in dtypes.items()
    }


def _outputs(any_keras, inputs, embedded):
    layers = any_keras.layers
    numbers = [layers.Reshape([1])(inputs[name]) for name in _NUMBERS]
    scaled = layers.Rescaling(1e-3)(layers.Concatenate()(numbers))
    hidden = layers.Concatenate()([scaled, *embedded])
    for units in _HIDDEN_UNITS:
        hidden = layers.Dense(units, activation="relu")(hidden)
    return layers.Dense(1, activation="sigmoid")(hidden)


def _epoch(model, dataset, rows):
    """A function that trains a model on all rows, and checks that it did."""
    steps = -(-rows // _BATCH)

    def run():
        before = int(model.optimizer.iterations)
        model.fit(dataset, shuffle=False, verbose=0)
        done = int(model.optimizer.iterations) - before
        # Keras 3 counts one more where it does not know a dataset's length.
        if done not in (steps, steps + 1):
            raise RuntimeError(f"{done} steps were trained, not {steps}.")

    return run
