# SPDX-License-Identifier: Apache-2.0
"""Rows that ids share, with eviction, shrinkage, small rows and dense Adam."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models as small
from models.sharded_tables import bytes_of_rows

import tf_ext
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "DictTest::test_equals_a_dict[468]",
        "WarmStartTest::test_shared_rows_are_taken",
    ),
]

_DIM, _RATE, _BUCKETS, _N = 3, 0.5, 3, 2


def _table(**arguments):
    arguments = {
        "optimizer": tf_ext.optimizers.SparseSGD(_RATE),
        "admission": tf_ext.admission.Count(_N),
    } | arguments
    return tf_ext.SparseTable(
        "items",
        _DIM,
        initializer="normal",
        unknown="shared",
        unknown_buckets=_BUCKETS,
        seed=3,
        **arguments,
    )


class _Dict:
    """What a table with shared rows does in steps, in NumPy.

    Args:
      table: SparseTable of SparseSGD.
      l2: float.
      unseen: int, the steps after which a row is evicted; None if never.
    """

    def __init__(self, table, l2=0.0, unseen=None):
        self.shared = table.pull(table.unknown_ids).numpy().astype(np.float64)
        self._left, self._unseen = 1 - _RATE * l2, unseen
        self._there = np.zeros(_BUCKETS, bool)
        self.rows, self.waiting, self._seen = {}, {}, {}

    def read(self, sign):
        return self.rows.get(sign, self.shared[sign % _BUCKETS])

    def push(self, signs, gradients, step):
        before, known = self.shared.copy(), set(self.rows)
        # Rows that are there: a new one begins as it was read.
        self.shared[self._there] *= self._left
        self.rows = {s: self._left * row for s, row in self.rows.items()}
        for sign, gradient in zip(signs.tolist(), gradients):
            if sign in known:
                self.rows[sign] = self.rows[sign] - _RATE * gradient
                self._seen[sign] = step
            else:
                self.shared[sign % _BUCKETS] -= _RATE * gradient
                self._there[sign % _BUCKETS] = True
                self.waiting[sign] = self.waiting.get(sign, 0) + 1
        for sign, count in list(self.waiting.items()):
            if count >= _N:
                # It has read the row, and has no update of its own.
                self.rows[sign] = before[sign % _BUCKETS].copy()
                self._seen[sign] = step
                del self.waiting[sign]

    def evict(self, now):
        for sign, step in list(self._seen.items()):
            if now - step >= self._unseen:
                del self._seen[sign], self.rows[sign]


class DictTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.product(
        l2=[0.0, 0.1],
        dtype=["float32", "float16", "bfloat16"],
        evicted=[False, True],
    )
    def test_equals_a_dict(self, l2, dtype, evicted):
        unseen = 3 if evicted else None
        eviction = tf_ext.eviction.Unseen(steps=3) if evicted else None
        table = _table(l2=l2, dtype=dtype, eviction=eviction)
        expected = _Dict(table, l2, unseen)
        rng = np.random.default_rng(2)
        again = gone = 0
        tolerance = {"float32": 1e-5, "float16": 0.02, "bfloat16": 0.1}[dtype]
        for step in range(1, 31):
            signs = rng.integers(-15, 15, rng.integers(0, 7))
            gradients = rng.normal(size=[len(signs), _DIM]).astype(np.float32)
            held = set(expected.rows)
            table.push(signs, gradients, step=step)
            expected.push(signs, gradients, step)
            again += gone and len(set(expected.rows) - held)
            if evicted:
                expected.evict(step)
                found = table.evict(now=step)
                gone += found.evicted
            ids = np.arange(-15, 15)
            rows = np.stack([expected.read(sign) for sign in ids.tolist()])
            self.assertAllClose(table.pull(ids), rows, tolerance, tolerance)
            self.assertEqual(
                set(table.export_rows()[0].tolist())
                - set(table.unknown_ids.tolist()),
                set(expected.rows),
            )
        self.assertEqual(table.stats()["waiting"], len(expected.waiting))
        if evicted:
            self.assertGreater(gone, 5)
            self.assertGreater(again, 5)


class DenseAdamTest(tf.test.TestCase):
    def test_equals_keras_with_oov_indices(self):
        # Shared rows that nobody reads in a step decay as all others.
        keras.utils.set_random_seed(1)
        rng = np.random.default_rng(2)
        rule = tf_ext.optimizers.SparseAdam(0.05, absent="decay")
        table = small.table(
            rule,
            admission=tf_ext.admission.Count(255),
            unknown="shared",
            unknown_buckets=7,
        )
        weights = rng.normal(size=[3, 4])
        table.import_rows([0, 1, -4], {"weights": weights})
        model = small.compiled(
            small.functional(table), keras.optimizers.Adam(0.05)
        )
        features, labels = small.batch(rng, 100)
        place = {0: 7, 1: 8, -4: 9}
        rows = np.concatenate(
            [table.pull(table.unknown_ids), table.pull([0, 1, -4])]
        )
        # Keras 3 squares gradients of an Embedding one by one.
        embedding = keras.layers.Dense(4, use_bias=False)
        inputs = {key: keras.Input([10], name=key) for key in ("user", "items")}
        embedded = [embedding(inputs[key]) for key in ("user", "items")]
        outputs = small.head()(keras.layers.Concatenate()(embedded))
        twin = keras.Model(inputs, outputs)
        embedding.set_weights([rows])
        twin.compile(keras.optimizers.Adam(0.05), "binary_crossentropy")
        index = np.vectorize(lambda i: place.get(i, i % 7))
        hot = {
            key: np.eye(10, dtype=np.float32)[index(ids)]
            for key, ids in features.items()
        }
        hot["items"] = hot["items"].mean(1)
        # Of small batches many shared rows are absent; the last is smaller.
        options = {"batch_size": 3, "epochs": 3}
        options.update(shuffle=False, verbose=0)
        found = model.fit(features, labels, **options)
        expected = twin.fit(hot, labels, **options)
        self.assertAllClose(
            found.history["loss"], expected.history["loss"], 1e-4, 1e-5
        )
        self.assertEqual(table.size(), 10)


class WarmStartTest(tf.test.TestCase):
    def test_shared_rows_are_taken(self):
        def model(**arguments):
            return small.compiled(
                small.functional(
                    small.table(
                        "adagrad",
                        unknown="shared",
                        admission=tf_ext.admission.Count(20),
                        **arguments,
                    )
                )
            )

        old = model(unknown_buckets=2)
        features, labels = small.batch(np.random.default_rng(1), 60)
        ids = np.arange(-30, 30)
        with tempfile.TemporaryDirectory() as points:
            snapshot = tf_ext.callbacks.TableSnapshot(points)
            old.fit(features, labels, verbose=0, callbacks=[snapshot])
            new = model(unknown_buckets=2)
            self.assertNotAllClose(new.tables[0].pull(ids), [[0.0] * 4] * 60)
            tf_ext.callbacks.warm_start(new, points)
            of_new, of_old = new.tables[0], old.tables[0]
            self.assertEqual(bytes_of_rows(of_new), bytes_of_rows(of_old))
            self.assertAllEqual(of_new.pull(ids), of_old.pull(ids))
            # As many occurrences have been counted.
            self.assertEqual(
                of_new.stats()["waiting"], of_old.stats()["waiting"]
            )


if __name__ == "__main__":
    tf.test.main()
