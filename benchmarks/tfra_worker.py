# SPDX-License-Identifier: Apache-2.0
"""Training steps of TensorFlow Recommenders Addons, in a Python that has it.

`step_benchmarks.py` starts it and calls methods of `_Worker`.
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import batches
import tensorflow as tf
import tensorflow_recommenders_addons as tfra
import tf_keras
from harness import Case, Worker, serve

_dynamic = tfra.dynamic_embedding


class _Worker(Worker):
    def train_step(self, case, rule, rows, dim, batch):
        """A model whose table, and those of its slots, have all rows."""
        inputs = tf_keras.Input([batches.IDS], dtype="int64")
        embedding = _dynamic.keras.layers.Embedding(
            dim,
            initializer=tf_keras.initializers.RandomNormal(0.0, 0.05),
            name=f"{case}_{rule}",
        )
        outputs = tf_keras.layers.Lambda(batches.summed_probability)(
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
        step = batches.stepper(model, tf.constant(ids), labels)
        step()  # Makes the tables of slots.
        (rows_read,) = embedding.params.trainable_store.values()
        slots = model.optimizer.get_slot_names()
        tables = [model.optimizer.get_slot(rows_read, s).params for s in slots]
        for table in [embedding.params, *tables]:
            _fill(table, rows, batch)
        self._cases[case] = Case(case, step, batches.SAMPLES)


def _fill(table, rows, batch):
    for first in range(0, rows, batch):
        _upsert(table, first, min(first + batch, rows))


def _upsert(table, first, end):
    keys = tf.range(first, end, dtype=tf.int64)
    table.upsert(keys, tf.random.normal([end - first, table.dim]))


if __name__ == "__main__":
    serve(_Worker())
