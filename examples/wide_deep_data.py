# SPDX-License-Identifier: Apache-2.0
"""The real data sets of the Wide & Deep example, read by `tf_ext.data.read`.

Malformed records are left out and counted. A missing value reads as its field's
default: an id of its own.
"""

import collections
import dataclasses
import pathlib
import sys
import typing

import numpy as np
import tensorflow as tf

import tf_ext
from tf_ext.data import Field

# Examples that are shuffled together.
WINDOW_SIZE = 100_000
NUMERIC_BUCKETS = 20
# Below every boundary, so that missing numbers are a bucket of their own.
MISSING_NUMBER = float("-inf")
HELD_OUT_FRACTION = 0.2


@dataclasses.dataclass(frozen=True)
class Format:
    """How a data set is written down, and what to make of it.

    Attributes:
      schema: tf_ext.data.Schema.
      train_files: list of patterns of the names of the files to train on. Those
        of the first pattern that fits any count.
      test_files: the same of those to test on; None holds out the last fifth of
        the records instead.
      crosses: list of tuples of names.
      name: string, "csv" or "tsv".
      header: bool, whether each file begins with a line of names.
    """

    schema: tf_ext.data.Schema
    train_files: list[str]
    test_files: list[str] | None
    crosses: list[tuple[str, ...]]
    name: str
    header: bool = False


def _number(name):
    return Field(name, "float32", default=MISSING_NUMBER)


# A comma is followed by a space here, which becomes a part of the text: readers
# keep texts as they are. As all values of a field have it, ids are the same.
ADULT = Format(
    schema=tf_ext.data.Schema(
        [
            _number("age"),
            Field("workclass"),
            _number("fnlwgt"),
            Field("education"),
            _number("education_num"),
            Field("marital_status"),
            Field("occupation"),
            Field("relationship"),
            Field("race"),
            Field("sex"),
            _number("capital_gain"),
            _number("capital_loss"),
            _number("hours_per_week"),
            Field("native_country"),
            Field(
                "income",
                "float32",
                values={
                    **{" <=50K": 0.0, " >50K": 1.0},
                    # In the test's file.
                    **{" <=50K.": 0.0, " >50K.": 1.0},
                },
            ),
        ],
        label="income",
        missing=[" ?", "?"],
    ),
    train_files=["adult-train.csv"],
    test_files=["adult-test.csv"],
    crosses=[
        ("education", "occupation"),
        ("marital_status", "occupation"),
        ("native_country", "occupation"),
        ("age", "education", "occupation"),
    ],
    name="csv",
)

# As Criteo distributes them: the challenge, its sample, and the days of the
# terabyte. Ids are hexadecimal text.
CRITEO = Format(
    schema=tf_ext.data.Schema(
        [
            Field("Label", "float32", values={"0": 0.0, "1": 1.0}),
            *(_number(f"I{i}") for i in range(1, 14)),
            *(Field(f"C{i}") for i in range(1, 27)),
        ],
        label="Label",
    ),
    train_files=["train.txt", "dac_sample.txt", "day_*[0-9]"],
    test_files=None,
    crosses=[],
    name="tsv",
)

CRITEO_CSV = dataclasses.replace(
    CRITEO, train_files=["part_*.csv"], name="csv", header=True
)

# What `--format` names: the first one whose files are there.
FORMATS = {"adult": [ADULT], "criteo": [CRITEO, CRITEO_CSV]}


def find_format(path, name):
    """The Format of a data set of which a folder has the files.

    Args:
      path: string, the folder.
      name: string, in FORMATS.

    Raises:
      FileNotFoundError: the folder has no such files.
    """
    for text_format in FORMATS[name]:
        if _matching(path, text_format.train_files):
            return text_format
    patterns = [p for one in FORMATS[name] for p in one.train_files]
    raise _no_files(path, patterns)


def read_all(path, name):
    """All examples of a data set in memory, first those to train on.

    Args:
      path: string, the folder.
      name: string, in FORMATS.

    Returns:
      `({feature: array [n]}, labels [n])`.

    Raises:
      FileNotFoundError: the folder has no such files.
    """
    found = find_format(path, name)
    files = _find_files(path, found.train_files)
    if found.test_files:
        files += _find_files(path, found.test_files)
    batches = tf_ext.data.read(
        files,
        found.schema,
        found.name,
        batch_size=WINDOW_SIZE,
        header=found.header,
    )
    columns, labels = zip(*batches.as_numpy_iterator())
    features = {
        key: np.concatenate([values[key] for values in columns])
        for key in columns[0]
    }
    return features, np.concatenate(labels)


def _matching(path, patterns):
    """Sorted names of the files of the first pattern that fits any."""
    for pattern in patterns:
        files = sorted(str(file) for file in pathlib.Path(path).glob(pattern))
        if files:
            return files
    return []


def _find_files(path, patterns):
    files = _matching(path, patterns)
    if not files:
        raise _no_files(path, patterns)
    return files


def _no_files(path, patterns):
    names = " or ".join(map(repr, patterns))
    return FileNotFoundError(f"No file {names} in the folder {path}")


class Part(typing.NamedTuple):
    """The well-formed records of files, from `begin` up to `end`."""

    files: list[str]
    begin: int
    end: int


class TextFiles:
    """A data set in text files.

    How many records are malformed is reported on standard error.

    Args:
      path: string, the folder that holds the files.
      text_format: a Format.
      batch_size: int.
      seed: int, of the order in which training examples come.

    Attributes:
      schema: tf_ext.data.Schema.
      boundaries: dict from the names of numbers to rising lists of floats, by
        which they become ids.
      crosses: list of tuples of names.
      train_examples, test_examples: int.

    Raises:
      FileNotFoundError: the folder has no such files.
      ValueError: a part of the data has no record that can be read.
      tf.errors.OpError: more than a hundredth of the records are malformed.
    """

    def __init__(self, path, text_format, batch_size, seed):
        self.schema = text_format.schema
        self.crosses = text_format.crosses
        self._format = text_format
        self._batch_size = batch_size
        self._seed = seed
        self._errors = tf_ext.data.ReadErrors()
        files = _find_files(path, text_format.train_files)
        numbers, labels = self._scan(files)
        end = len(labels)
        if text_format.test_files is None:
            end -= int(end * HELD_OUT_FRACTION)
            self._test = Part(files, end, len(labels))
            self._test_labels = labels[end:]
        else:
            test_files = _find_files(path, text_format.test_files)
            _, self._test_labels = self._scan(test_files)
            self._test = Part(test_files, 0, len(self._test_labels))
        self._train = Part(files, 0, end)
        self.train_examples, self.test_examples = end, len(self._test_labels)
        self._report()
        self.boundaries = {
            name: quantile_boundaries(values[:end])
            for name, values in numbers.items()
        }

    def train(self):
        """A dataset of one epoch: (features, labels) in batches, shuffled."""
        windows = self._read(self._train, WINDOW_SIZE)
        return self._batches(shuffled(windows, self._seed), self.train_examples)

    def test(self):
        """A dataset of the test examples, in order."""
        batches = self._read(self._test, self._batch_size)
        return self._batches(batches, self.test_examples)

    def test_labels(self):
        """Labels of the test examples, float32 `[test_examples]`."""
        return self._test_labels

    def best_predictions(self):
        """None: nobody knows the best model of real data."""
        return None

    def _records(self, files, schema, batch_size):
        return tf_ext.data.read(
            files,
            schema,
            self._format.name,
            batch_size=batch_size,
            header=self._format.header,
            errors=self._errors,
        )

    def _scan(self, files):
        """The numbers of all records, by name, and their labels."""
        schema = dataclasses.replace(
            self.schema,
            fields=[
                Field(field.name, "unused")
                if field.dtype == "string"
                else field
                for field in self.schema.fields
            ],
        )
        labels, numbers = [], collections.defaultdict(list)
        for features, batch_labels in self._records(files, schema, WINDOW_SIZE):
            labels.append(batch_labels.numpy())
            for name, values in features.items():
                numbers[name].append(values.numpy())
        if not labels:
            raise ValueError(f"No record of {', '.join(files)} can be read.")
        return (
            {name: np.concatenate(values) for name, values in numbers.items()},
            np.concatenate(labels),
        )

    def _report(self):
        if self._errors.errors:
            reasons = self._errors.by_reason().items()
            print(
                f"Left out {self._errors.errors} of {self._errors.records} "
                "records: "
                + ", ".join(f"{reason}: {count}" for reason, count in reasons),
                file=sys.stderr,
            )

    def _read(self, part, size):
        """A dataset of a part, in order, in batches of at most `size`."""

        def cut(index, batch):
            first = index * size
            begin = tf.maximum(part.begin - first, 0)
            return tf.nest.map_structure(
                lambda values: values[begin : part.end - first], batch
            )

        # All batches that are read are full, but the last one.
        batches = self._records(part.files, self.schema, size).enumerate()
        before, until = part.begin // size, -(-part.end // size)
        return batches.skip(before).take(until - before).map(cut)

    def _batches(self, dataset, count):
        dataset = dataset.rebatch(self._batch_size).prefetch(tf.data.AUTOTUNE)
        batches = -(-count // self._batch_size)
        return dataset.apply(tf.data.experimental.assert_cardinality(batches))


def shuffled(batches, seed):
    """The same batches, the rows of each in another order in every epoch."""
    draws = tf.data.Dataset.random(seed, rerandomize_each_iteration=True)

    def shuffle(batch, draw):
        size = tf.shape(batch[1])[0]
        order = tf.random.experimental.stateless_shuffle(tf.range(size), draw)
        return tf.nest.map_structure(lambda v: tf.gather(v, order), batch)

    return tf.data.Dataset.zip(batches, draws.batch(2)).map(shuffle)


def quantile_boundaries(numbers, buckets=NUMERIC_BUCKETS):
    """Boundaries that put about equally many numbers between them.

    A number so common that it fills a bucket gets one of its own, and the
    others are divided without it.

    Args:
      numbers: float32 `[n]`; those that are not finite do not count.
      buckets: int, about how many buckets to make.

    Returns:
      A rising list of floats; no finite number is below the first.
    """
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return [0.0]
    distinct, counts = np.unique(numbers, return_counts=True)
    boundaries = [distinct[0]]
    most_common = counts.argmax()
    if counts[most_common] * buckets > len(numbers):
        # The bucket of the most common number ends at the next one.
        boundaries.extend(distinct[most_common : most_common + 2])
        numbers = numbers[numbers != distinct[most_common]]
    if numbers.size:
        inner = np.linspace(0.0, 1.0, buckets + 1)[1:-1]
        boundaries.extend(np.quantile(numbers, inner, method="nearest"))
    return np.unique(boundaries).astype(np.float32).tolist()
