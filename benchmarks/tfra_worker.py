"""Runs TensorFlow Recommenders Addons on request, in a Python that has it.

`tfra.py` starts it and calls methods of `_Worker`.
"""

import glob
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import batches
import remote
import tensorflow as tf
import tensorflow_recommenders_addons as tfra
import tf_keras
import training
from harness import Case, forget, growth

_dynamic = tfra.dynamic_embedding


class _Worker:
    """Holds cases between requests."""

    def __init__(self):
        self._cases = {}
        self._tables = 0
        self._filled = None

    def start(self, threads):
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)

    def time(self, case):
        """Wall and CPU milliseconds of one repetition."""
        return self._cases[case].time()

    def run(self, case):
        self._cases[case].run()

    def fill(self, rows, dim, batch):
        """Makes the table that `pull` reads, weights only."""
        self._filled = self._table(dim)
        _fill(self._filled, rows, batch)

    def pull(self, case, distribution, rows, batch):
        keys = batches.pull_keys(distribution, rows, batch)
        lookup = tf.function(self._filled.lookup)
        run = batches.in_turn(lookup, [tf.constant(k) for k in keys])
        self._cases[case] = Case(case, run, batch)

    def insert(self, case, rows, dim, batch):
        def before():
            self._filled = None
            self._filled = self._table(dim)

        def run():
            _fill(self._filled, rows, batch)

        self._cases[case] = Case(case, run, rows, before=before)

    def save(self, case, rows, dim, batch, path):
        """A checkpoint of a table of weights and one of a slot."""
        self._saved = [self._table(dim), self._table(dim)]
        for table in self._saved:
            _fill(table, rows, batch)
        weights, slots = self._saved
        self._checkpoint = tf.train.Checkpoint(weights=weights, slots=slots)
        write = self._checkpoint.write
        self._cases[case] = Case(case, lambda: write(path), rows)

    def load(self, case, rows, path):
        """Restores what `save` wrote from disk, into the emptied tables."""

        def before():
            for table in self._saved:
                table.clear()
            forget(glob.glob(f"{path}*"))

        read = self._checkpoint.read
        self._cases[case] = Case(
            case, lambda: read(path).assert_consumed(), rows, before=before
        )

    def train_step(self, case, rule, rows, dim, batch):
        """A model whose table, and those of its slots, have all rows."""
        inputs = tf_keras.Input([batches.IDS], dtype="int64")
        embedding = _dynamic.keras.layers.Embedding(
            dim,
            initializer=tf_keras.initializers.RandomNormal(0.0, 0.05),
            name=f"{case}_{rule}",
        )
        outputs = tf_keras.layers.Lambda(training.summed_probability)(
            embedding(inputs)
        )
        optimizer = {
            "adagrad": tf_keras.optimizers.legacy.Adagrad,
            "adam": tf_keras.optimizers.legacy.Adam,
            "ftrl": tf_keras.optimizers.legacy.Ftrl,
            "sgd": tf_keras.optimizers.legacy.SGD,
        }[rule](0.01)
        model = tf_keras.Model(inputs, outputs)
        model.compile(
            _dynamic.DynamicEmbeddingOptimizer(optimizer), "binary_crossentropy"
        )
        ids, labels = batches.training_batch(rows)
        step = training.stepper(model, tf.constant(ids), labels)
        step()  # Makes the tables of slots.
        (rows_read,) = embedding.params.trainable_store.values()
        slots = model.optimizer.get_slot_names()
        tables = [model.optimizer.get_slot(rows_read, s).params for s in slots]
        for table in [embedding.params, *tables]:
            _fill(table, rows, batch)
        self._cases[case] = Case(case, step, batches.SAMPLES)

    def memory(self, rows, dim, batch):
        """A table of weights and one of a slot, as Adagrad has them."""
        tables = [self._table(dim), self._table(dim)]
        warm = self._table(dim)
        _upsert(warm, 0, min(batch, 1000))  # Loads everything.

        def insert(first, end):
            for table in tables:
                _upsert(table, first, end)

        return growth(insert, rows, batch)

    def _table(self, dim):
        self._tables += 1
        return _dynamic.get_variable(
            f"table_{self._tables}",
            key_dtype=tf.int64,
            value_dtype=tf.float32,
            dim=dim,
            # Another one would make weights for present keys too.
            initializer=0.0,
        )


def _fill(table, rows, batch):
    for first in range(0, rows, batch):
        _upsert(table, first, min(first + batch, rows))


def _upsert(table, first, end):
    keys = tf.range(first, end, dtype=tf.int64)
    table.upsert(keys, tf.random.normal([end - first, table.dim]))


if __name__ == "__main__":
    remote.serve(_Worker())
