"""Rows a CPU-second of readers of text files, beside TensorFlow's own."""

import os
import pathlib
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import tensorflow as tf
from harness import Case, measure, report

import tf_ext

_ROWS = 200_000
_NUMBERS, _STRINGS = 14, 26
_BATCH = 1024
_NAMES = [
    *(f"I{i}" for i in range(_NUMBERS)),
    *(f"C{i}" for i in range(_STRINGS)),
]
_SEPARATORS = {"csv": ",", "tsv": "\t"}


def read(args):
    """Whole files of 40 columns, of which 26 are strings, in all readers."""
    rows = min(args.rows, _ROWS)
    with tempfile.TemporaryDirectory() as folder:
        for format, separator in _SEPARATORS.items():
            path = os.fspath(pathlib.Path(folder, format))
            _write(path, rows, separator)
            cases = _cases(path, rows, format, separator, args.threads)
            settings = {
                "threads": args.threads,
                "format": format,
                "batch": _BATCH,
                "unit": "rows",
            }
            results = measure(cases, args.repeats, warmup=1, settle=False)
            report("read", results, settings, args.json)


def _write(path, rows, separator):
    """Numbers below 1,000 and hexadecimal ids, as of Criteo."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 1000, [rows, _NUMBERS])
    ids = rng.integers(0, 1 << 32, [rows, _STRINGS])
    with open(path, "w") as file:
        for of_numbers, of_ids in zip(numbers, ids, strict=True):
            fields = [*map(str, of_numbers), *(f"{i:08x}" for i in of_ids)]
            file.write(separator.join(fields) + "\n")


def _cases(path, rows, format, separator, threads):
    schema = tf_ext.data.Schema(
        [
            tf_ext.data.Field(name, "float32" if name[0] == "I" else "string")
            for name in _NAMES
        ]
    )
    defaults = [
        tf.constant([], tf.float32 if name[0] == "I" else tf.string)
        for name in _NAMES
    ]

    def all_of(dataset):
        count = 0
        for batch in dataset:
            first = batch["I0"] if isinstance(batch, dict) else batch[0]
            count += len(first)
        _check(count, rows)

    def decoded():
        lines = tf.data.TextLineDataset(path).batch(_BATCH)
        return lines.map(
            lambda line: tuple(
                tf.io.decode_csv(line, defaults, field_delim=separator)
            ),
            num_parallel_calls=threads,
        ).prefetch(2)

    def made():
        return tf.data.experimental.make_csv_dataset(
            path,
            _BATCH,
            column_names=_NAMES,
            column_defaults=defaults,
            field_delim=separator,
            header=False,
            num_epochs=1,
            shuffle=False,
            num_parallel_reads=1,
        )

    def ours():
        return tf_ext.data.read(
            path, schema, format, batch_size=_BATCH, threads=threads
        )

    def bare():
        table = arrow_csv.read_csv(
            path,
            arrow_csv.ReadOptions(use_threads=threads > 1, column_names=_NAMES),
            arrow_csv.ParseOptions(delimiter=separator),
            arrow_csv.ConvertOptions(
                column_types={
                    name: pa.float32() if name[0] == "I" else pa.string()
                    for name in _NAMES
                }
            ),
        )
        _check(len(table), rows)

    return [
        Case("tf_ext.data.read", lambda: all_of(ours()), rows),
        Case("make_csv_dataset", lambda: all_of(made()), rows),
        Case("TextLineDataset, decode_csv", lambda: all_of(decoded()), rows),
        Case("pyarrow alone, no tensors", bare, rows),
    ]


def _check(found, expected):
    if found != expected:
        raise RuntimeError(f"{found} rows were read, not {expected}.")
