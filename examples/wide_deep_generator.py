# SPDX-License-Identifier: Apache-2.0
"""A stream of made-up advertising impressions with a known best model.

Ids are Zipf-distributed over vocabularies that grow while the stream runs: new
users, items and campaigns keep turning up, as they do in production. Every id
has an effect that is a fixed function of the id, the effects add up to a logit,
and the label is drawn from it. Nothing can predict the labels better than that
logit, so its AUC is the best that a model could reach.
"""

import atexit
import dataclasses
import pathlib
import shutil
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf
from pyarrow import csv

import tf_ext
from tf_ext.data import Field

TEST_FRACTION = 0.1
PRICE_BOUNDARIES = np.geomspace(0.25, 64.0, 33).astype(np.float32).tolist()
BIAS = -1.2
MAX_TAGS = 5
SEPARATOR = "|"  # Of tags.
NUM_DEVICES = 6


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Ids of one feature.

    Attributes:
      salt: sets the ids apart from those of other features.
      first_size, last_size: how many ids there are when the stream begins and
        when it ends, for a stream of a million examples; in proportion to the
        stream's length for others.
      exponent: of the Zipf distribution, not 1.
      effect: standard deviation of the ids' effects on the logit.
    """

    salt: int
    first_size: int
    last_size: int
    exponent: float
    effect: float

    def draw(self, random, count, growth, scale):
        """Draws ids, int64 `[count]`, at a time in [0, 1] of the stream."""
        size = self.first_size + growth * (self.last_size - self.first_size)
        power = 1.0 - self.exponent
        # Inverse of the distribution function of a continuous Zipf law.
        span = (1.0 + size * scale) ** power - 1.0
        ranks = (1.0 + random.random(count) * span) ** (1.0 / power)
        return hash_ids(ranks.astype(np.int64), self.salt)

    def effects(self, ids):
        """The effect of each id, float64 of the shape of `ids`."""
        return effects_of(ids, self.salt, self.effect)


USERS = Vocabulary(1, 300_000, 1_500_000, 0.7, 0.2)
ITEMS = Vocabulary(2, 3_000, 8_000, 0.7, 1.0)
CAMPAIGNS = Vocabulary(3, 2_000, 4_000, 0.6, 0.8)
TAGS = Vocabulary(4, 2_000, 4_000, 0.7, 1.0)


SCHEMA = tf_ext.data.Schema(
    [
        Field("user"),
        Field("item", "int64"),
        Field("campaign", "int64"),
        Field("tags", "int64", separator=SEPARATOR),
        Field("device"),
        Field("hour", "int32"),
        Field("price", "float32"),
        Field("label", "float32"),
    ],
    label="label",
)
CROSSES = [("device", "hour")]


class GeneratedStream:
    """Examples for training, then examples of the stream's end for testing.

    They are written into a folder when they are first read, and removed when
    the process ends. A batch is a function of the seed and its number alone, so
    that all processes write the same files.

    Args:
      examples: int, how many there are to train on.
      batch_size: int.
      seed: int.

    Attributes:
      schema: tf_ext.data.Schema.
      boundaries: dict from the names of numbers to rising lists of floats, by
        which they become ids.
      crosses: list of tuples of names.
      train_examples, test_examples: int.
    """

    def __init__(self, examples, batch_size, seed):
        self.schema = SCHEMA
        self.boundaries = {"price": PRICE_BOUNDARIES}
        self.crosses = CROSSES
        self.train_examples = examples
        self.test_examples = max(1, int(examples * TEST_FRACTION))
        self._batch_size = batch_size
        self._seed = seed
        self._train_batches = -(-self.train_examples // batch_size)
        self._test_batches = -(-self.test_examples // batch_size)
        self._folder = None

    def train(self):
        """A dataset of one epoch: (features, labels) in batches."""
        return self._read("train.tsv", range(self._train_batches))

    def test(self):
        """A dataset of the test examples."""
        begin = self._train_batches
        return self._read("test.tsv", range(begin, begin + self._test_batches))

    def test_labels(self):
        """Labels of the test examples, in order."""
        return np.concatenate([b["label"] for b in self._test()])

    def best_predictions(self):
        """What the labels of the test examples were drawn from, in order."""
        return np.concatenate([b["probability"] for b in self._test()])

    def _test(self):
        for index in range(self._test_batches):
            yield self.batch(self._train_batches + index)

    def batch(self, index):
        """Draws a batch, a dict of NumPy arrays with one entry an example.

        `tags` is the exception: it holds the bags of all examples, one after
        the other, of the lengths `tag_counts`.
        """
        if index < self._train_batches:
            begin, end = index * self._batch_size, self.train_examples
            growth = begin / end
        else:
            begin = (index - self._train_batches) * self._batch_size
            end, growth = self.test_examples, 1.0
        count = min(self._batch_size, end - begin)
        scale = self.train_examples / 1e6
        random = np.random.default_rng((self._seed, index))
        tag_counts = random.integers(0, MAX_TAGS, count, endpoint=True)
        batch = {
            "user": USERS.draw(random, count, growth, scale),
            "item": ITEMS.draw(random, count, growth, scale),
            "campaign": CAMPAIGNS.draw(random, count, growth, scale),
            "tags": TAGS.draw(random, tag_counts.sum(), growth, scale),
            "tag_counts": tag_counts,
            "device": random.integers(0, NUM_DEVICES, count),
            "hour": random.integers(0, 24, count).astype(np.int32),
            "price": random.lognormal(1.0, 1.0, count).astype(np.float32),
        }
        batch["probability"] = 1.0 / (1.0 + np.exp(-logits(batch)))
        batch["label"] = random.random(count) < batch["probability"]
        return batch

    def _read(self, name, indices):
        """A dataset of the batches of some numbers, from a file of them."""
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="wide_deep_")
            # Datasets may be read until then.
            atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        path = pathlib.Path(self._folder, name)
        if not path.exists():
            self._write(path, indices)
        dataset = tf_ext.data.read(
            path, SCHEMA, "tsv", batch_size=self._batch_size, max_errors=0
        )
        cardinality = tf.data.experimental.assert_cardinality(len(indices))
        return dataset.apply(cardinality)

    def _write(self, path, indices):
        options = csv.WriteOptions(
            include_header=False, delimiter="\t", quoting_style="none"
        )
        columns = pa.schema(
            [(field.name, pa.string()) for field in SCHEMA.fields]
        )
        with csv.CSVWriter(path, columns, write_options=options) as writer:
            for index in indices:
                batch = to_texts(self.batch(index))
                writer.write_table(pa.table(batch, columns))


def to_texts(batch):
    """A batch as columns of texts: a dict of arrays of Arrow."""
    columns = {
        **{name: pa.array(values) for name, values in batch.items()},
        "label": pa.array(batch["label"].astype(np.int8)),
    }
    texts = {name: values.cast(pa.string()) for name, values in columns.items()}
    ends = np.cumsum([0, *batch["tag_counts"]]).astype(np.int32)
    bags = pa.ListArray.from_arrays(ends, texts["tags"])
    texts["tags"] = pc.binary_join(bags, SEPARATOR)
    return {field.name: texts[field.name] for field in SCHEMA.fields}


def hash_ids(ids, salt):
    """Mixes int64 ids into int64 ids that fill the whole range.

    The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable
    pseudorandom number generators", 2014).
    """
    with np.errstate(over="ignore"):
        bits = ids.astype(np.uint64)
        bits += np.uint64(salt & 0xFFFFFFFF) * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (bits ^ (bits >> np.uint64(31))).view(np.int64)


def effects_of(ids, salt, deviation):
    """Uniformly distributed effects that depend on the ids and the salt."""
    uniform = hash_ids(ids, ~salt).view(np.uint64) / 2.0**64
    return deviation * np.sqrt(12.0) * (uniform - 0.5)


def logits(batch):
    """The teacher: the sum of all effects, float64 `[batch]`."""
    users = USERS.effects(batch["user"])
    items = ITEMS.effects(batch["item"])
    campaigns = CAMPAIGNS.effects(batch["campaign"])
    device_hours = effects_of(batch["device"] * 24 + batch["hour"], 5, 0.4)
    prices = 0.5 * np.sin(2.0 * np.log(batch["price"]))
    total = BIAS + users + items + campaigns + device_hours + prices
    return total + mean_of_bags(
        TAGS.effects(batch["tags"]), batch["tag_counts"]
    )


def mean_of_bags(values, counts):
    """The mean of each bag, 0 for an empty one, float64 `[batch]`."""
    bags = np.repeat(np.arange(len(counts)), counts)
    sums = np.bincount(bags, weights=values, minlength=len(counts))
    return sums / np.maximum(counts, 1)
