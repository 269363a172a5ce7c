# SPDX-License-Identifier: Apache-2.0
"""Files of JSON lines, TFRecord and Parquet, and their malformed records."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet
import tensorflow as tf

import tf_ext
from oracles.readable_files import Field

SCHEMA = tf_ext.data.Schema(
    [
        Field("label", "float32"),
        Field("number", "int64"),
        Field("price", "float32", default=-1.0),
        Field("name"),
        Field("tags", bag=True),
        Field("tags_weight", "float32", bag=True),
    ],
    label="label",
)
FORMATS = ("jsonl", "tfrecord", "parquet")


def record(number, /, **changes):
    """A sample; what is missing is None or absent."""
    tags = [f"t{number}-{i}" for i in range(number % 3)]
    return {
        "label": number % 2,
        "number": number,
        "price": number / 4 if number % 5 else None,
        "name": f"näme{number}",
        "tags": tags,
        "tags_weight": [i / 2 for i in range(len(tags))],
        "other": {"any": [None, number]},
        **changes,
    }


def json_line(number, /, **changes):
    """The line of a sample; with `ä` escaped or not."""
    return json.dumps(
        record(number, **changes), ensure_ascii=number % 2 == 0
    ).encode()


def example(number, /, **changes):
    """The serialized tf.train.Example of a sample."""
    features = {}
    values = record(number, **changes)
    del values["other"]
    for name, value in values.items():
        found = value if isinstance(value, list) else [value]
        if value is None:
            continue
        if isinstance(found[0] if found else None, str):
            texts = [text.encode() for text in found]
            made = tf.train.Feature(bytes_list=tf.train.BytesList(value=texts))
        elif name in ("label", "number") and not isinstance(found[0], float):
            made = tf.train.Feature(int64_list=tf.train.Int64List(value=found))
        else:
            made = tf.train.Feature(float_list=tf.train.FloatList(value=found))
        features[name] = made
    whole = tf.train.Features(feature=features)
    return tf.train.Example(features=whole).SerializeToString()


def write_records(path, serialized, compressed=""):
    """Writes a TFRecord file."""
    with tf.io.TFRecordWriter(str(path), compressed) as file:
        for one in serialized:
            file.write(one)


def write_parquet(path, records, rows=64, **kwargs):
    """Writes a Parquet file with a row group for each `rows` records."""
    fields = [("label", pa.int8()), ("number", pa.int64())]
    fields += [("price", pa.float64()), ("name", pa.string())]
    fields += [("tags", pa.list_(pa.string()))]
    fields += [("tags_weight", pa.list_(pa.float32()))]
    table = pa.Table.from_pylist(records, pa.schema(fields))
    pyarrow.parquet.write_table(table, path, row_group_size=rows, **kwargs)


def sample(number, format):
    """A well-formed sample, for `write_samples`."""
    make = {"jsonl": json_line, "tfrecord": example, "parquet": record}
    return make[format](number)


def malformed(format):
    """A sample that is not."""
    return {
        "jsonl": b"[]",
        "tfrecord": b"\xff",
        "parquet": record(-7, number=None),
    }[format]


def write_samples(path, format, samples, compressed=False):
    """Writes samples of a format: lines, serialized ones or rows."""
    if format == "tfrecord":
        write_records(path, samples, "GZIP" if compressed else "")
    elif format == "parquet":
        # With checksums, where a flipped bit of a value is noticed.
        write_parquet(path, samples, write_page_checksum=compressed)
    else:
        text = b"".join(line + b"\n" for line in samples)
        with open(path, "wb") as file:
            file.write(gzip.compress(text) if compressed else text)


def write(path, format, numbers, compressed=False):
    """Writes well-formed samples with the given numbers."""
    samples = [sample(number, format) for number in numbers]
    write_samples(path, format, samples, compressed)


def bad_lines():
    """Pairs of a malformed line of JSON and its reason, of each kind."""
    line = json_line(-7)
    absent = record(-7)
    del absent["number"]
    return [
        (b"[1]", "no JSON object"),
        (b"null", "no JSON object"),
        (b"{}null{}", "bad JSON"),
        (line + line, "bad JSON"),
        (line + b"," + line, "bad JSON"),
        (line + b"}", "bad JSON"),
        (b'{"number": ' + b"[" * 400_000, "bad JSON"),
        (line[:-1], "bad JSON"),
        (line + b"x", "bad JSON"),
        (line[:-1] + b', "number": 3}', "bad JSON"),
        (line.replace(b'"number"', b"'number'"), "bad JSON"),
        (line.replace(b"name", b"\\ud800", 1), "bad JSON"),
        (json_line(-7, name=3), "wrong type"),
        (json_line(-7, name=["a"]), "wrong type"),
        (json_line(-7, label="1"), "wrong type"),
        (json_line(-7, number=True), "wrong type"),
        (json_line(-7, tags="a"), "wrong type"),
        (json_line(-7, tags=[1], tags_weight=[1]), "wrong type"),
        (json_line(-7, number=1.5), "bad number"),
        (json_line(-7, number=2**63), "bad number"),
        (json_line(-7, price=float("nan")), "bad number"),
        (json_line(-7, price=1e39), "bad number"),
        (line.replace(b"-1.75", b"1e400"), "bad number"),
        (json_line(-7, number=None), "missing value"),
        (json.dumps(absent).encode(), "missing value"),
        (json_line(-7, tags=[None], tags_weight=[1]), "missing value"),
        (json_line(-7, tags=["a"], tags_weight=[]), "bad weight"),
        (line.replace(b"me-7", b"m\xc3-7"), "invalid UTF-8"),
        (line.replace(b"me-7", b"m\0-7"), "NUL byte"),
        (line.replace(b"me-7", b"m\r-7"), "carriage return"),
        (line.replace(b"me-7", b"x" * 10_000_000), "line above 1 MiB"),
    ]


def bad_examples():
    """Pairs of malformed data of a record and the reason."""
    return [
        (b"", "missing value"),
        (example(-7, number=None), "missing value"),
        (b"\xff\xff", "no tf.train.Example"),
        (example(-7)[:-1], "no tf.train.Example"),
        (example(-7, number=2.5), "wrong type"),
        (example(-7, name=3.5), "wrong type"),
        (example(-7, number=[1, 2]), "several values"),
        (example(-7, price=float("inf")), "bad number"),
        (example(-7, tags=["a"], tags_weight=[]), "bad weight"),
    ]


def bad_rows():
    """Pairs of a malformed row of Parquet and the reason."""
    return [
        (record(-7, number=None), "missing value"),
        (record(-7, price=float("nan")), "bad number"),
        (record(-7, price=1e39), "bad number"),
        (record(-7, tags=[None], tags_weight=[0.0]), "missing value"),
        (record(-7, tags=["a"], tags_weight=None), "bad weight"),
    ]


def write_broken(path, format, records, every=100, first=0):
    """Writes records of which each n-th is malformed, each kind in turn.

    Args:
      path: path of the file.
      format: string.
      records: int, the number of records.
      every: int, which of them are malformed.
      first: int, the number of the first record.

    Returns:
      `(numbers, counts)`: of the well-formed records, in order, and dict of
      the numbers of malformed records by reason.
    """
    cases = {
        "jsonl": bad_lines,
        "tfrecord": bad_examples,
        "parquet": bad_rows,
    }[format]()
    found, numbers, counts = [], [], {}
    for number in range(first, first + records):
        if number % every != every // 2:
            found.append(sample(number, format))
            numbers.append(number)
            continue
        case, reason = cases[number // every % len(cases)]
        found.append(case)
        counts[reason] = counts.get(reason, 0) + 1
    write_samples(path, format, found)
    return numbers, dict(sorted(counts.items()))
