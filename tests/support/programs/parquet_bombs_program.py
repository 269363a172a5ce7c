# SPDX-License-Identifier: Apache-2.0
"""Reads small Parquet files of much content: FOLDER [write].

With `write`, writes them only. Else prints what came of each, as JSON, and by
how many MiB the largest resident memory of the process grew.
"""

import json
import os
import resource
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import tensorflow as tf

from tf_ext import data

_ROWS = 16384
_MEBIBYTE = "x" * (1 << 20)


def _indices(n):
    return pa.array(np.zeros(n, np.int32))


def _texts(values, n):
    return pa.DictionaryArray.from_arrays(_indices(n), pa.array(values))


def _list(values):
    return pa.ListArray.from_arrays(
        pa.array([0, len(values)], pa.int32()), values
    )


# {kind: (column, options of write_table)}
_KINDS = {
    "dictionary": lambda: (_texts([_MEBIBYTE], _ROWS), {}),
    "plain_type": lambda: (
        _texts([_MEBIBYTE], _ROWS),
        {"store_schema": False},
    ),
    "one_long_of_many": lambda: (
        _texts([*map(str, range(1000)), _MEBIBYTE], _ROWS),
        {"store_schema": False},
    ),
    "prefixes": lambda: (
        pa.array(["x" * (1 << 16)] * 4096),
        {
            "use_dictionary": False,
            "column_encoding": {"column": "DELTA_BYTE_ARRAY"},
        },
    ),
    "list_of_numbers": lambda: (
        _list(pa.array(np.zeros(1 << 23, np.int64))),
        {},
    ),
    "list_of_texts": lambda: (_list(_texts(["x" * 10_000], 1 << 20)), {}),
    "list_of_plain_texts": lambda: (
        _list(_texts(["x" * 10_000], 1 << 20)),
        {"store_schema": False},
    ),
}


def _write(kind, path):
    column, options = _KINDS[kind]()
    parquet.write_table(
        pa.table({"column": column}), path, compression="zstd", **options
    )
    assert os.path.getsize(path) < 100_000, os.path.getsize(path)


def _read(path, column_type="string", bag=False):
    """The number of batches that were read, or `refused:` and the error."""
    field = data.Field("column", column_type, bag=bag)
    dataset = data.read(
        path, data.Schema([field]), "parquet", batch_size=8, threads=1
    )
    try:
        return sum(1 for _ in dataset.take(20))
    except tf.errors.OpError as error:
        return f"refused: {str(error).splitlines()[0]}"


def main(folder, write=None):
    paths = {kind: f"{folder}/{kind}.parquet" for kind in _KINDS}
    small = f"{folder}/small.parquet"
    if write:
        for kind, path in paths.items():
            _write(kind, path)
        parquet.write_table(pa.table({"column": ["x"] * 100}), small)
        return
    _read(small)  # The libraries' own memory.
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {
        kind: _read(
            path,
            "int64" if kind == "list_of_numbers" else "string",
            bag=kind.startswith("list"),
        )
        for kind, path in paths.items()
    }
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps(found))
    print((after - before) >> 10)


if __name__ == "__main__":
    main(*sys.argv[1:])
