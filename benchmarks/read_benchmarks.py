"""Readers of files, beside TensorFlow's own; training on such a file."""

import os
import pathlib
import tempfile

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json
import pyarrow.parquet as parquet
import tensorflow as tf
from harness import Case, measure, report
from read_files import FORMATS, NAMES, NUMBERS, SEPARATORS, STRINGS, write

import tf_ext
from tf_ext._keras import keras

_ROWS = 200_000
_BATCH = 1024


def read(args):
    """Whole files of 40 columns, of which 26 are strings, in all readers."""
    rows = min(args.rows, _ROWS)
    pa.set_cpu_count(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        for format in FORMATS:
            path = os.fspath(pathlib.Path(folder, format))
            write(path, format, rows)
            settings = {
                "threads": args.threads,
                "format": format,
                "batch": _BATCH,
                "unit": "rows",
            }
            cases = _cases(path, rows, format, args.threads)
            results = measure(cases, args.repeats, warmup=1, settle=False)
            report("read", results, settings, args.json)
            os.remove(path)


def read_fit(args):
    """Epochs of `fit` on a TSV file, hashed in the dataset or in the model."""
    rows = min(args.rows, _ROWS)
    with tempfile.TemporaryDirectory() as folder:
        path = os.fspath(pathlib.Path(folder, "tsv"))
        write(path, "tsv", rows)
        cases = [
            Case(
                f"{name}, {keras.__name__.split('.')[0]}",
                _epoch(path, args, hashed),
                rows,
            )
            for name, hashed in (("hash_columns", True), ("model", False))
        ]
        settings = {
            "threads": args.threads,
            "batch": _BATCH,
            "dim": args.dim,
            "unit": "rows",
        }
        # The first epoch creates all rows.
        results = measure(cases, args.repeats, warmup=2, settle=False)
        report("read_fit", results, settings, args.json)


def _epoch(path, args, hashed):
    table = tf_ext.SparseTable("ids", args.dim, "adagrad")
    layer = tf_ext.layers.EmbeddingFeatures(
        [tf_ext.feature_column.category_column(name) for name in STRINGS], table
    )
    inputs = {n: keras.Input((), dtype="string", name=n) for n in STRINGS}
    hidden = keras.layers.Dense(64, "relu")(layer(inputs))
    model = tf_ext.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(tf_ext.optimizers.Optimizer("adam"), "mse")
    fields = [
        tf_ext.data.Field(
            name,
            "string" if name in STRINGS else "float32",
        )
        for name in (NUMBERS[0], *STRINGS)
    ]
    unused = [tf_ext.data.Field(n, "unused") for n in NUMBERS[1:]]
    schema = tf_ext.data.Schema(
        [fields[0], *unused, *fields[1:]], label=NUMBERS[0]
    )
    dataset = tf_ext.data.read(path, schema, "tsv", batch_size=_BATCH)
    if hashed:
        dataset = tf_ext.data.hash_columns(dataset, layer.columns)
    dataset = dataset.prefetch(2)
    return lambda: model.fit(dataset, verbose=0)


def _cases(path, rows, format, threads):
    """The subject, what TensorFlow has, and pyarrow."""
    datasets = {"tf_ext.data.read": lambda: _ours(path, format, threads)}
    if format in SEPARATORS:
        separator = SEPARATORS[format]
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


def _ours(path, format, threads):
    schema = tf_ext.data.Schema(
        [
            tf_ext.data.Field(name, "float32" if name in NUMBERS else "string")
            for name in NAMES
        ]
    )
    return tf_ext.data.read(
        path, schema, format, batch_size=_BATCH, threads=threads
    )


def _defaults():
    return [
        tf.constant([], tf.float32 if name in NUMBERS else tf.string)
        for name in NAMES
    ]


def _made(path, separator):
    return tf.data.experimental.make_csv_dataset(
        path,
        _BATCH,
        column_names=NAMES,
        column_defaults=_defaults(),
        field_delim=separator,
        header=False,
        num_epochs=1,
        shuffle=False,
        num_parallel_reads=1,
    )


def _decoded(path, separator, threads):
    defaults = _defaults()
    lines = tf.data.TextLineDataset(path).batch(_BATCH)
    return lines.map(
        lambda line: tuple(
            tf.io.decode_csv(line, defaults, field_delim=separator)
        ),
        num_parallel_calls=threads,
    ).prefetch(2)


def _parsed(path, threads):
    features = {
        name: tf.io.FixedLenFeature(
            [], tf.float32 if name in NUMBERS else tf.string
        )
        for name in NAMES
    }
    records = tf.data.TFRecordDataset(path).batch(_BATCH)
    return records.map(
        lambda serialized: tf.io.parse_example(serialized, features),
        num_parallel_calls=threads,
    ).prefetch(2)


def _bare(path, format, use_threads):
    types = {
        name: pa.float32() if name in NUMBERS else pa.string() for name in NAMES
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
        arrow_csv.ReadOptions(use_threads=use_threads, column_names=NAMES),
        arrow_csv.ParseOptions(delimiter=SEPARATORS[format]),
        arrow_csv.ConvertOptions(column_types=types),
    )


def _rows(dataset):
    count = 0
    for batch in dataset:
        first = batch[NAMES[0]] if isinstance(batch, dict) else batch[0]
        count += len(first)
    return count


def _check(found, expected):
    if found != expected:
        raise RuntimeError(f"{found} rows were read, not {expected}.")
