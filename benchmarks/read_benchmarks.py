# SPDX-License-Identifier: Apache-2.0
"""Readers of files, and training from files, beside other libraries'."""

import json
import os
import pathlib
import tempfile
import typing

import batches
import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json
import pyarrow.parquet as parquet
import tensorflow as tf
from harness import Case, measure, report, report_slopes

import tf_ext
from tf_ext._keras import keras

_NUMBERS = [f"I{i}" for i in range(14)]
_STRINGS = [f"C{i}" for i in range(batches.IDS)]
_NAMES = [*_NUMBERS, *_STRINGS]
_LABEL, *_INPUTS = _NUMBERS  # Of models.
_DEFAULTS = [0.0] * len(_NUMBERS) + [""] * len(_STRINGS)
_SEPARATORS = {"csv": ",", "tsv": "\t"}
_FORMATS = (*_SEPARATORS, "jsonl", "tfrecord", "parquet")
_ROWS = 200_000
_BATCH = 1024
_IDS = 10_000  # in a column of strings
# Of `fit_files`.
_FILES, _FITTED_ROWS = 4, 400_000
# The short epoch has one sample of so many.
_SHORT = 20
_HIDDEN_UNITS = (64, 32)
_RATE = 0.01


def read(args):
    """Whole files of 40 columns, of which 26 are strings, in all readers."""
    rows = min(args.rows, _ROWS)
    pa.set_cpu_count(args.threads)
    table = _samples(rows)
    with tempfile.TemporaryDirectory() as folder:
        for format in _FORMATS:
            path = os.fspath(pathlib.Path(folder, format))
            _write(path, format, table)
            settings = {
                "threads": args.threads,
                "format": format,
                "ids_a_column": _IDS,
                "batch": _BATCH,
                "unit": "rows",
            }
            cases = _cases(path, rows, format, args.threads)
            results = measure(cases, args.repeats, warmup=1, settle=False)
            report("read", results, settings, args.json)
            os.remove(path)


def _texts(ids):
    """Hexadecimal ids, as of Criteo."""
    return np.array([f"{i:08x}" for i in ids.tolist()])


def _write(path, format, table):
    if format == "parquet":
        types = [(name, pa.float32()) for name in _NUMBERS]
        types += [(name, pa.string()) for name in _STRINGS]
        floats = table.cast(pa.schema(types))
        parquet.write_table(floats, path, row_group_size=50_000)
    elif format == "tfrecord":
        with tf.io.TFRecordWriter(path) as file:
            for sample in table.to_pylist():
                file.write(_example(sample))
    elif format == "jsonl":
        with open(path, "w") as file:
            for sample in table.to_pylist():
                file.write(json.dumps(sample) + "\n")
    else:
        options = arrow_csv.WriteOptions(
            include_header=False,
            delimiter=_SEPARATORS[format],
            quoting_style="none",
        )
        arrow_csv.write_csv(table, path, options)


def _example(sample):
    example = tf.train.Example()
    features = example.features.feature
    for name, value in sample.items():
        if isinstance(value, str):
            features[name].bytes_list.value.append(value.encode())
        else:
            features[name].float_list.value.append(value)
    return example.SerializeToString()


def _cases(path, rows, format, threads):
    """The subject, what TensorFlow has, and pyarrow."""
    datasets = {
        "tf_ext.data.read": lambda: tf_ext.data.read(
            path, _schema(), format, batch_size=_BATCH, threads=threads
        ),
        "tf_ext.data.read, hashed": lambda: tf_ext.data.read(
            *(path, _schema(), format),
            batch_size=_BATCH,
            threads=threads,
            columns=_columns(),
        ),
    }
    if format in _SEPARATORS:
        separator = _SEPARATORS[format]
        datasets["make_csv_dataset"] = lambda: _made(path, separator)
        datasets["TextLineDataset, decode_csv"] = lambda: _decoded(
            path, separator, threads
        )
    elif format == "tfrecord":
        datasets["TFRecordDataset, parse_example"] = lambda: _parsed(
            path, threads
        )
    cases = [
        Case(name, lambda make=make: _check(_rows(make()), rows), rows)
        for name, make in datasets.items()
    ]
    if format != "tfrecord":
        cases.append(
            Case(
                "pyarrow alone, no tensors",
                lambda: _check(len(_bare(path, format, threads > 1)), rows),
                rows,
            )
        )
    return cases


def _columns():
    return [*map(tf_ext.feature_column.category_column, _STRINGS)]


def _schema(label=None):
    fields = [
        tf_ext.data.Field(name, "float32" if name in _NUMBERS else "string")
        for name in _NAMES
    ]
    return tf_ext.data.Schema(fields, label=label)


def _made(path, separator):
    return tf.data.experimental.make_csv_dataset(
        path,
        _BATCH,
        column_names=_NAMES,
        column_defaults=_DEFAULTS,
        field_delim=separator,
        header=False,
        num_epochs=1,
        shuffle=False,
        num_parallel_reads=1,
    )


def _decoded(path, separator, threads):
    lines = tf.data.TextLineDataset(path).batch(_BATCH)
    return lines.map(
        lambda line: tuple(
            tf.io.decode_csv(line, _DEFAULTS, field_delim=separator)
        ),
        num_parallel_calls=threads,
    ).prefetch(2)


def _parsed(path, threads):
    features = {
        name: tf.io.FixedLenFeature(
            [], tf.float32 if name in _NUMBERS else tf.string
        )
        for name in _NAMES
    }
    records = tf.data.TFRecordDataset(path).batch(_BATCH)
    return records.map(
        lambda serialized: tf.io.parse_example(serialized, features),
        num_parallel_calls=threads,
    ).prefetch(2)


def _bare(path, format, use_threads):
    types = {
        name: pa.float32() if name in _NUMBERS else pa.string()
        for name in _NAMES
    }
    if format == "parquet":
        return parquet.read_table(path, use_threads=use_threads)
    if format == "jsonl":
        return arrow_json.read_json(
            path,
            arrow_json.ReadOptions(use_threads=use_threads),
            arrow_json.ParseOptions(explicit_schema=pa.schema(types)),
        )
    return arrow_csv.read_csv(
        path,
        arrow_csv.ReadOptions(use_threads=use_threads, column_names=_NAMES),
        arrow_csv.ParseOptions(delimiter=_SEPARATORS[format]),
        arrow_csv.ConvertOptions(column_types=types),
    )


def _rows(dataset):
    count = 0
    for batch in dataset:
        first = batch[_NAMES[0]] if isinstance(batch, dict) else batch[0]
        count += len(first)
    return count


def _check(found, expected):
    if found != expected:
        raise RuntimeError(f"{found} rows were read, not {expected}.")


def fit_files(args):
    """An epoch over the same files by each library, reading included."""
    rows = min(args.rows, _FITTED_ROWS)
    settings = {
        "threads": args.threads,
        "ids_a_column": _IDS,
        "dim": args.dim,
        "batch": _BATCH,
        "unit": "samples",
    }
    with tempfile.TemporaryDirectory() as folder:
        cases = []
        for count in (rows // _SHORT, rows):
            place = pathlib.Path(folder, f"{count}")
            place.mkdir()
            files = _write_samples(place, count)
            cases += _fitting_cases(files, count, args, short=count < rows)
        results = measure(cases, args.repeats, warmup=1, settle=False)
    report("fit_files", results, settings, args.json)
    short, long = (
        [result for result in results if (result["items"] < rows) is is_short]
        for is_short in (True, False)
    )
    report_slopes("fit_files", short, long, settings, args.json)


def _fitting_cases(files, rows, args, short):
    """Of long files only those that are fast."""
    cases = [
        _our_case(name, files, rows, args, columns)
        for name, columns in (("tf_ext, hashed", _columns()), ("tf_ext", None))
    ]
    for library in _libraries():
        cases += _reference_cases(library, files, rows, args, short)
    return cases


def write_events(path, format, rows):
    """A file of the samples of `fit_files`, without a header."""
    _write(os.fspath(path), format, _samples(rows))


def schema():
    """The schema of such a file."""
    return _schema(_LABEL)


def _write_samples(folder, rows):
    table, size = _samples(rows), -(-rows // _FILES)
    files = [os.fspath(folder / f"part-{i}.csv") for i in range(_FILES)]
    for number, file in enumerate(files):
        arrow_csv.write_csv(table.slice(number * size, size), file)
    return files


def _samples(rows):
    """Labels, numbers below 1,000 and ids that repeat."""
    rng = np.random.default_rng(0)
    columns = {_LABEL: rng.integers(0, 2, rows)}
    columns |= {name: rng.integers(0, 1000, rows) for name in _INPUTS}
    for name in _STRINGS:
        texts = _texts(rng.integers(0, 1 << 32, _IDS))
        places = batches.zipf(rng, batches.ZIPF_EXPONENT, _IDS, rows)
        columns[name] = texts[places]
    return pa.table(columns)


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


def _our_case(name, files, rows, args, columns):
    dataset = tf_ext.data.read(
        files,
        _schema(_LABEL),
        batch_size=_BATCH,
        header=True,
        threads=args.threads,
        columns=columns,
    )
    return training_case(name, lambda: dataset, rows, args.dim)


def training_case(name, make, rows, dim):
    """An epoch of tf_ext over the dataset of samples that `make` returns."""
    # Like a vocabulary that is not built yet: each epoch inserts all rows.
    model, table = training_model(dim)
    return Case(name, _epoch(model, make, rows), rows, before=table.clear)


def training_model(dim):
    """The model of such samples, and its table."""
    table = tf_ext.SparseTable("rows", dim, optimizer="adagrad")
    inputs = _inputs(keras, "string")
    rows_of_ids = tf_ext.layers.EmbeddingFeatures(_columns(), table)(inputs)
    model = tf_ext.Model(inputs, _outputs(keras, inputs, [rows_of_ids]))
    adagrad = keras.optimizers.Adagrad(_RATE)
    model.compile(tf_ext.optimizers.Optimizer(adagrad), "binary_crossentropy")
    return model, table


def _reference_cases(library, files, rows, args, short):
    """What turns strings into indices runs in the dataset, before `fit`."""
    layers = library.keras.layers

    def adapted():
        """Lookups of all texts, of one pass over the files."""
        seen = [
            features for features, _ in _decoded_samples(files, args.threads)
        ]
        lookups = {}
        for name in _STRINGS:
            lookups[name] = layers.StringLookup()
            texts = tf.concat([features[name] for features in seen], 0)
            # Of an array, tf_keras would take 32 at a time.
            batches_of_texts = tf.data.Dataset.from_tensor_slices(texts)
            lookups[name].adapt(batches_of_texts.batch(_BATCH))
        return lookups

    def epoch(lookups, sizes, read=_decoded_samples):
        def to_indices(features, labels):
            indices = {name: lookups[name](features[name]) for name in _STRINGS}
            return {**features, **indices}, labels

        dataset = read(files, args.threads).map(
            to_indices, num_parallel_calls=args.threads
        )
        model = _dense_model(library, sizes, args.dim)
        return _epoch(model, lambda: dataset.prefetch(2), rows)

    lookups = adapted()
    sizes = {name: lookups[name].vocabulary_size() for name in _STRINGS}
    looked_up = epoch(lookups, sizes)

    def adapt_and_fit():
        adapted()
        looked_up()

    hashes = {name: layers.Hashing(_IDS) for name in _STRINGS}
    buckets = dict.fromkeys(_STRINGS, _IDS)
    cases = {"StringLookup": looked_up, "Hashing": epoch(hashes, buckets)}
    if short:
        cases["StringLookup and adapt"] = adapt_and_fit
        made = epoch(hashes, buckets, _made_samples)
        cases["Hashing by make_csv_dataset"] = made
    return [
        Case(f"{name}, {library.name}", run, rows)
        for name, run in cases.items()
    ]


def _decoded_samples(files, threads):
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


def _made_samples(files, threads):
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
        **dict.fromkeys(_INPUTS, "float32"),
        **dict.fromkeys(_STRINGS, dtype_of_ids),
    }
    return {
        name: any_keras.Input((), dtype=dtype, name=name)
        for name, dtype in dtypes.items()
    }


def _outputs(any_keras, inputs, embedded):
    layers = any_keras.layers
    numbers = [layers.Reshape([1])(inputs[name]) for name in _INPUTS]
    scaled = layers.Rescaling(1e-3)(layers.Concatenate()(numbers))
    hidden = layers.Concatenate()([scaled, *embedded])
    for units in _HIDDEN_UNITS:
        hidden = layers.Dense(units, activation="relu")(hidden)
    return layers.Dense(1, activation="sigmoid")(hidden)


def _epoch(model, make, rows):
    """A function that trains a model on all rows, and checks that it did."""
    steps = -(-rows // _BATCH)

    def run():
        before = int(model.optimizer.iterations)
        model.fit(make(), shuffle=False, verbose=0)
        done = int(model.optimizer.iterations) - before
        # Keras 3 counts one more where it does not know a dataset's length.
        if done not in (steps, steps + 1):
            raise RuntimeError(f"{done} steps were trained, not {steps}.")

    return run
