"""The real data sets of the Wide & Deep example, read from text with tf.data.

Lines that cannot be read are left out and counted. A missing value reads as its
field's default: an id of its own.
"""

import collections
import dataclasses
import pathlib
import sys

import numpy as np
import tensorflow as tf

SCAN_BATCH_SIZE = 4096
SHUFFLE_BUFFER_SIZE = 100_000
NUMERIC_BUCKETS = 20
# Below every boundary, so that missing numbers are a bucket of their own.
MISSING_NUMBER = float("-inf")
MISSING_STRING = ""
NUMBER_PATTERN = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
HELD_OUT_FRACTION = 0.2
PROBLEMS = (
    "wrong number of fields",
    "unparsable number",
    "unknown label",
)
WRONG_WIDTH, UNPARSABLE_NUMBER, UNKNOWN_LABEL = range(len(PROBLEMS))
GOOD = -1


@dataclasses.dataclass(frozen=True)
class Field:
    """One feature of an example.

    Attributes:
      name: string.
      dtype: "string", "int64", "int32", or "float32" for a number that becomes
        an id by `boundaries`.
      boundaries: rising list of floats, for numbers.
      ragged: bool, whether an example has a bag of values.
    """

    name: str
    dtype: str
    boundaries: list[float] | None = None
    ragged: bool = False


@dataclasses.dataclass(frozen=True)
class Format:
    """How a data set is written down, and what to make of it.

    Attributes:
      fields: the fields of a line, in order: name and kind, which is "string",
        "float32", "label" or "unused".
      labels: dict of the label's texts to 0.0 or 1.0.
      missing: string, the text of a missing value.
      train_files: list of patterns of the names of the files to train on. Those
        of the first pattern that fits any count.
      test_files: the same of those to test on; None holds out the last fifth of
        the lines instead.
      crosses: list of tuples of names.
      separator: string, what is between two fields.
      header: bool, whether each file begins with a line of names.
    """

    fields: list[tuple[str, str]]
    labels: dict[str, float]
    missing: str
    train_files: list[str]
    test_files: list[str] | None
    crosses: list[tuple[str, ...]]
    separator: str = ","
    header: bool = False


ADULT = Format(
    fields=[
        ("age", "float32"),
        ("workclass", "string"),
        ("fnlwgt", "float32"),
        ("education", "string"),
        ("education_num", "float32"),
        ("marital_status", "string"),
        ("occupation", "string"),
        ("relationship", "string"),
        ("race", "string"),
        ("sex", "string"),
        ("capital_gain", "float32"),
        ("capital_loss", "float32"),
        ("hours_per_week", "float32"),
        ("native_country", "string"),
        ("income", "label"),
    ],
    labels={"<=50K": 0.0, "<=50K.": 0.0, ">50K": 1.0, ">50K.": 1.0},
    missing="?",
    train_files=["adult-train.csv"],
    test_files=["adult-test.csv"],
    crosses=[
        ("education", "occupation"),
        ("marital_status", "occupation"),
        ("native_country", "occupation"),
        ("age", "education", "occupation"),
    ],
)

_CRITEO_FIELDS = [
    ("Label", "label"),
    *((f"I{i}", "float32") for i in range(1, 14)),
    *((f"C{i}", "string") for i in range(1, 27)),
]

# As Criteo distributes them: the challenge, its sample, and the days of the
# terabyte. Ids are hexadecimal text.
CRITEO = Format(
    fields=_CRITEO_FIELDS,
    labels={"0": 0.0, "1": 1.0},
    missing="",
    train_files=["train.txt", "dac_sample.txt", "day_*[0-9]"],
    test_files=None,
    crosses=[],
    separator="\t",
)

CRITEO_CSV = dataclasses.replace(
    CRITEO,
    fields=[("Id", "unused"), *_CRITEO_FIELDS],
    train_files=["part_*.csv"],
    separator=",",
    header=True,
)

# What `--format` names: the first one whose files are there.
FORMATS = {"adult": [ADULT], "criteo": [CRITEO, CRITEO_CSV]}

Scan = collections.namedtuple("Scan", ["labels", "numbers"])


def find_format(path, name):
    """The Format of a data set of which a folder has the files.

    Args:
      path: string, the folder.
      name: string, in FORMATS.

    Raises:
      FileNotFoundError: the folder has no such files.
    """
    for text_format in FORMATS[name]:
        if _find_files(path, text_format.train_files):
            return text_format
    patterns = [p for one in FORMATS[name] for p in one.train_files]
    raise _no_files(path, patterns)


def _find_files(path, patterns):
    """Sorted names of the files of the first pattern that fits any."""
    for pattern in patterns:
        files = sorted(str(file) for file in pathlib.Path(path).glob(pattern))
        if files:
            return files
    return []


def _no_files(path, patterns):
    names = " or ".join(map(repr, patterns))
    return FileNotFoundError(f"No file {names} in the folder {path}")


class TextFiles:
    """A data set in text files.

    Bad lines are reported on standard error.

    Args:
      path: string, the folder that holds the files.
      text_format: a Format.
      batch_size: int.
      seed: int, of the order in which training examples come.

    Raises:
      FileNotFoundError: the folder has no such files.
      ValueError: a part of the data has no line that can be read.
    """

    def __init__(self, path, text_format, batch_size, seed):
        self.crosses = text_format.crosses
        self._format = text_format
        self._batch_size = batch_size
        self._seed = seed
        self._train_lines, self._test_lines = self._split(path)
        train = self._scan(self._train_lines, "training")
        self._test_labels = self._scan(self._test_lines, "test").labels
        self.train_examples = len(train.labels)
        self.test_examples = len(self._test_labels)
        self.fields = [
            Field(name, kind, quantile_boundaries(train.numbers[name]))
            if kind == "float32"
            else Field(name, kind)
            for name, kind in text_format.fields
            if kind in ("float32", "string")
        ]

    def train(self):
        """A dataset of one epoch: (features, labels) in batches, shuffled."""
        lines = self._train_lines.shuffle(SHUFFLE_BUFFER_SIZE, self._seed)
        return self._read(lines, self.train_examples)

    def test(self):
        """A dataset of the test examples, in order."""
        return self._read(self._test_lines, self.test_examples)

    def test_labels(self):
        """Labels of the test examples, float32 `[test_examples]`."""
        return self._test_labels

    def best_predictions(self):
        """None: nobody knows the best model of real data."""
        return None

    def _split(self, path):
        train = self._lines(path, self._format.train_files)
        if self._format.test_files is not None:
            return train, self._lines(path, self._format.test_files)
        count = train.reduce(np.int64(0), lambda count, _: count + 1).numpy()
        held_out = int(count * HELD_OUT_FRACTION)
        return train.take(count - held_out), train.skip(count - held_out)

    def _lines(self, path, patterns):
        files = _find_files(path, patterns)
        if not files:
            raise _no_files(path, patterns)
        header_lines = 1 if self._format.header else 0
        lines = tf.data.Dataset.from_tensor_slices(files).flat_map(
            lambda file: tf.data.TextLineDataset(file).skip(header_lines)
        )
        return lines.filter(
            lambda line: tf.strings.length(tf.strings.strip(line)) > 0
        )

    def _parse(self, lines):
        return parse_lines(lines, self._format)

    def _scan(self, lines, part):
        labels, problems = [], collections.Counter()
        numbers = collections.defaultdict(list)
        for batch in lines.batch(SCAN_BATCH_SIZE).map(self._parse):
            features, batch_labels, batch_problems = batch
            problems.update(batch_problems.numpy().tolist())
            good = batch_problems.numpy() == GOOD
            labels.append(batch_labels.numpy()[good])
            for name, values in features.items():
                if values.dtype == tf.float32:
                    numbers[name].append(values.numpy()[good])
        report_problems(problems, part)
        if not problems[GOOD]:
            raise ValueError(f"The {part} part has no line that can be read.")
        return Scan(
            np.concatenate(labels),
            {name: np.concatenate(values) for name, values in numbers.items()},
        )

    def _read(self, lines, count):
        def parse(lines):
            features, labels, problems = self._parse(lines)
            good = tf.where(problems == GOOD)[:, 0]
            return tf.nest.map_structure(
                lambda values: tf.gather(values, good), (features, labels)
            )

        dataset = lines.batch(self._batch_size).map(
            parse, num_parallel_calls=tf.data.AUTOTUNE
        )
        # Batches that lost bad lines are filled up from the next ones.
        dataset = dataset.rebatch(self._batch_size).prefetch(tf.data.AUTOTUNE)
        batches = -(-count // self._batch_size)
        return dataset.apply(tf.data.experimental.assert_cardinality(batches))


def parse_lines(lines, text_format):
    """Takes lines of text apart.

    Args:
      lines: string tensor `[n]`.
      text_format: a Format.

    Returns:
      `(features, labels, problems)`: a dict of tensors `[n]`, float32 `[n]` and
      int32 `[n]`. A line's problem is GOOD or an index into PROBLEMS; what is
      read of a bad line means nothing.
    """
    columns = tf.strings.split(lines, text_format.separator)
    width = len(text_format.fields)
    texts = tf.strings.strip(columns.to_tensor("", shape=[None, width]))
    texts = tf.strings.regex_replace(texts, '"', "")
    missing = texts == text_format.missing
    strings = tf.where(missing, MISSING_STRING, texts)
    numbers, is_number = to_numbers(texts)
    numbers = tf.where(missing, MISSING_NUMBER, numbers)

    features, numbers_parse = {}, tf.ones_like(missing[:, 0])
    for place, (name, kind) in enumerate(text_format.fields):
        if kind == "string":
            features[name] = strings[:, place]
        elif kind == "float32":
            features[name] = numbers[:, place]
            numbers_parse &= is_number[:, place] | missing[:, place]
        elif kind == "label":
            labels, label_known = look_up(texts[:, place], text_format.labels)
    problems = tf.where(label_known, GOOD, UNKNOWN_LABEL)
    problems = tf.where(numbers_parse, problems, UNPARSABLE_NUMBER)
    problems = tf.where(columns.row_lengths() == width, problems, WRONG_WIDTH)
    return features, labels, problems


def to_numbers(texts):
    """The numbers that texts spell, and whether they spell finite ones."""
    is_number = tf.strings.regex_full_match(texts, NUMBER_PATTERN)
    numbers = tf.strings.to_number(tf.where(is_number, texts, "0"))
    return numbers, is_number & tf.math.is_finite(numbers)


def look_up(texts, table):
    """The numbers of texts in a dict, and whether they are in it."""
    matches = tf.stack([texts == text for text in table], axis=1)
    numbers = tf.constant(list(table.values()))
    return (
        tf.reduce_sum(tf.cast(matches, tf.float32) * numbers, axis=1),
        tf.reduce_any(matches, axis=1),
    )


def report_problems(problems, part):
    """Says on standard error how many lines of a part were left out, and why.

    Args:
      problems: dict of GOOD or an index into PROBLEMS to a number of lines.
      part: string, the name of the part.
    """
    total = sum(problems.values())
    bad = total - problems.get(GOOD, 0)
    if bad:
        reasons = ", ".join(
            f"{name}: {problems[i]}"
            for i, name in enumerate(PROBLEMS)
            if problems.get(i, 0)
        )
        print(
            f"Skipped {bad} of {total} lines of the {part} part: {reasons}",
            file=sys.stderr,
        )


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
