"""Files that `read_benchmarks` reads: the same rows in each format."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import tensorflow as tf

NUMBERS = [f"I{i}" for i in range(14)]
STRINGS = [f"C{i}" for i in range(26)]
NAMES = [*NUMBERS, *STRINGS]
SEPARATORS = {"csv": ",", "tsv": "\t"}
FORMATS = (*SEPARATORS, "jsonl", "tfrecord", "parquet")


def write(path, format, rows):
    """Numbers below 1,000 and hexadecimal ids, as of Criteo."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 1000, [rows, len(NUMBERS)])
    ids = rng.integers(0, 1 << 32, [rows, len(STRINGS)])
    samples = (
        [*of_numbers.tolist(), *(f"{i:08x}" for i in of_ids.tolist())]
        for of_numbers, of_ids in zip(numbers, ids, strict=True)
    )
    if format == "parquet":
        _write_parquet(path, samples)
    elif format == "tfrecord":
        with tf.io.TFRecordWriter(path) as file:
            for sample in samples:
                file.write(_example(sample))
    else:
        with open(path, "w") as file:
            for sample in samples:
                file.write(_line(sample, format) + "\n")


def _line(sample, format):
    if format == "jsonl":
        return json.dumps(dict(zip(NAMES, sample, strict=True)))
    return SEPARATORS[format].join(map(str, sample))


def _example(sample):
    example = tf.train.Example()
    features = example.features.feature
    for name, value in zip(NAMES, sample, strict=True):
        if isinstance(value, str):
            features[name].bytes_list.value.append(value.encode())
        else:
            features[name].float_list.value.append(value)
    return example.SerializeToString()


def _write_parquet(path, samples):
    columns = dict(zip(NAMES, zip(*samples, strict=True), strict=True))
    types = [(name, pa.float32()) for name in NUMBERS]
    types += [(name, pa.string()) for name in STRINGS]
    table = pa.table(columns, pa.schema(types))
    parquet.write_table(table, path, row_group_size=50_000)
