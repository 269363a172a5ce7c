# SPDX-License-Identifier: Apache-2.0
"""What ids without a row read: vectors, and rows that they share and train."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models
from models.sharded_tables import bytes_of_rows, shards_on

import tf_ext
from tf_ext import hashing
from tf_ext._keras import keras
from tf_ext.ops.table import step_ops
from tf_ext.regimes.plan import shared_signs

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ModelTest::test_equals_keras_with_oov_indices0",
        "ProgramTest::test_equals_a_dict[23]",
    ),
]

_DIM, _RATE = 3, 0.5
_EXTREMES = [0, 1, -1, 2**63 - 1, -(2**63), 1 - 2**63]


def _table(buckets=1, shards=1, **arguments):
    arguments = {
        "optimizer": tf_ext.optimizers.SparseSGD(_RATE),
        "initializer": "normal",
        "admission": tf_ext.admission.Count(2),
    } | arguments
    with shards_on(["/device:CPU:0"] * shards):
        return tf_ext.SparseTable(
            "items",
            _DIM,
            unknown="shared",
            unknown_buckets=buckets,
            seed=3,
            **arguments,
        )


class _Dict:
    """What a table with shared rows is said to do, in NumPy.

    Args:
      table: SparseTable of SparseSGD, with `Count(n)`.
    """

    def __init__(self, table, n=2):
        self._buckets, self._n = table.unknown_buckets, n
        self.shared = table.pull(table.unknown_ids).numpy().astype(np.float64)
        self.rows = {}
        self.waiting = {}

    def read(self, sign):
        return self.rows.get(sign, self.shared[sign % self._buckets])

    def push(self, signs, gradients):
        known, before = set(self.rows), self.shared.copy()
        for sign, gradient in zip(signs.tolist(), gradients):
            if sign in known:
                self.rows[sign] = self.rows[sign] - _RATE * gradient
            else:
                self.shared[sign % self._buckets] -= _RATE * gradient
                self.waiting[sign] = self.waiting.get(sign, 0) + 1
        for sign, count in list(self.waiting.items()):
            if count >= self._n:
                self.rows[sign] = before[sign % self._buckets].copy()
                del self.waiting[sign]

    def erase(self, signs):
        for sign in signs.tolist():
            self.rows.pop(sign, None)
            self.waiting.pop(sign, None)


class ProgramTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.product(buckets=[1, 3], shards=[1, 4])
    def test_equals_a_dict(self, buckets, shards):
        rng = np.random.default_rng(buckets)
        table = _table(buckets, shards)
        expected = _Dict(table)
        ids = np.concatenate([_EXTREMES, rng.integers(-(2**62), 2**62, 60)])
        for step in range(1, 41):
            signs = rng.choice(ids, rng.integers(0, 12))
            gradients = rng.normal(size=[len(signs), _DIM]).astype(np.float32)
            table.push(signs, gradients, step=step)
            expected.push(signs, gradients)
            if step % 10 == 0:
                gone = rng.choice(ids, 5)
                table.erase(gone)
                expected.erase(gone)
            rows = np.stack([expected.read(sign) for sign in ids.tolist()])
            self.assertAllClose(table.pull(ids), rows, 1e-5, 1e-5)
        self.assertBetween(len(expected.rows), 10, len(ids) - 5)
        self.assertEqual(table.stats()["waiting"], len(expected.waiting))
        held = set(table.export_rows()[0].tolist())
        self.assertEqual(
            held - set(table.unknown_ids.tolist()), set(expected.rows)
        )

    def test_signs_of_shared_rows_are_the_same_everywhere(self):
        for buckets in (1, 2, 7, 1 << 20):
            table = _table(buckets)
            own = table.unknown_ids
            signs = np.concatenate([_EXTREMES, [own[0] - 1, own[-1] + 1]])
            expected = own[[sign % buckets for sign in signs.tolist()]]
            for given, wanted in ((signs, expected), (own[-2:], own[-2:])):
                self.assertAllEqual(
                    hashing.shared_signs(table.rows.config, given), wanted
                )
                self.assertAllEqual(
                    shared_signs(tf.constant(given), buckets), wanted
                )
        plain = tf_ext.SparseTable("plain", _DIM)
        self.assertAllEqual(
            hashing.shared_signs(plain.rows.config, _EXTREMES), _EXTREMES
        )
        self.assertEqual(plain.unknown_ids.shape, (0,))


class PushTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters("adagrad", "adam", "ftrl", "row_wise_adagrad")
    def test_is_the_push_of_one_row(self, rule):
        # Of the sum of all gradients, once.
        table, plain = _table(optimizer=rule), _table(optimizer=rule)
        rng = np.random.default_rng(0)
        for step in range(1, 4):
            # Of these, no row is made.
            signs = 10 * step + np.arange(6)
            gradients = rng.normal(size=[6, _DIM]).astype(np.float32)
            table.push(signs, gradients, step=step, learning_rate=0.1)
            own = np.repeat(plain.unknown_ids, 6)
            plain.push(own, gradients, step=step, learning_rate=0.1)
        signs, fields = table.export_rows()
        self.assertAllEqual(signs, table.unknown_ids)
        for name, values in plain.export_rows()[1].items():
            self.assertAllClose(fields[name], values, 1e-5, 1e-6)

    def test_rows_that_nobody_reads_are_not_updated(self):
        table = _table(2, optimizer="adam", admission=None)
        table.push([4, 5], np.ones([2, _DIM]), step=1)
        before = bytes_of_rows(table)
        self.assertLen(before, 4)
        # Both have rows now.
        table.push([4, 5], np.ones([2, _DIM]), step=2)
        after = bytes_of_rows(table)
        for sign in table.unknown_ids.tolist():
            self.assertEqual(after[sign], before[sign])
        self.assertNotEqual(after[4], before[4])

    def test_statistics_are_those_of_readers(self):
        table = _table(2, statistics=["show", "click"])
        table.push(
            [2, 4, 3, 2],
            np.ones([4, _DIM]),
            statistics=[[1, 0.5], [1, 0.25], [1, 0], [1, 0]],
        )
        signs, fields = table.export_rows()
        found = dict(zip(signs.tolist(), zip(fields["show"], fields["click"])))
        even, odd = table.unknown_ids.tolist()
        self.assertAllEqual(found[even], [[3], [0.75]])
        self.assertAllEqual(found[odd], [[1], [0]])
        self.assertAllEqual(found[2], [[2], [0.5]])  # admitted
        self.assertLen(found, 3)
        # 2 has a row now, and reads no shared one.
        table.push([2, 6], np.ones([2, _DIM]), statistics=[[4, 3], [1, 0]])
        signs, fields = table.export_rows()
        show = dict(zip(signs.tolist(), fields["show"][:, 0].tolist()))
        self.assertEqual(show, {even: 4, odd: 1, 2: 6})

    def test_infinite_gradients_are_refused(self):
        table = _table()
        for value in (np.nan, np.inf):
            gradients = np.zeros([2, _DIM], np.float32)
            gradients[1] = value
            with self.assertRaisesRegex(
                tf.errors.OpError, "not finite|must be"
            ):
                table.push([1, 2], gradients)
        self.assertEqual(table.size(), 0)
        self.assertEqual(table.stats()["waiting"], 0)

    def test_pulls_make_no_row(self):
        table = _table(admission=None)
        rows = table.pull([1, 2], training=True)
        self.assertAllEqual(rows[0], rows[1])
        self.assertAllEqual(rows[:1], table.pull(table.unknown_ids))
        self.assertNotAllEqual(rows[0], np.zeros([_DIM]))
        self.assertEqual(table.size(), 0)

    def test_rows_of_other_tables_start_from_nothing(self):
        plain = tf_ext.ops.sparse_table_handle(
            "dim=1\ninitializer=zeros\nname=p\noptimizer=sgd"
        )
        shared = tf_ext.ops.sparse_table_handle(
            "dim=1\ninitializer=zeros\nname=s\noptimizer=sgd\nunknown=shared"
        )

        def push(starts, **more):
            return step_ops.sparse_tables_push(
                [plain, shared],
                [[1], [1]],
                [[[1.0]], [[1.0]]],
                [None, None],
                [0.5, 0.0, 0.5, 0.0],
                [2, 2],
                step=1,
                starts=starts,
                **more,
            )

        first = tf.constant([_table().unknown_ids[0]])
        for starts, message in (
            ([(first, [[2.0]]), None], "'p' has no shared rows"),
            ([None, (first, [[2.0], [3.0]])], "start_rows.0. must be of shape"),
            ([None, (first, [[2.0, 3.0]])], "start_rows.0. must be of shape"),
            ([None, (first, [[np.inf]])], "start_rows.0, 0. is inf"),
        ):
            with self.assertRaisesRegex(
                tf.errors.InvalidArgumentError, message
            ):
                push(starts)
        self.assertAllEqual(push([None, (first, [[2.0]])]), [1, 1])
        pull = tf_ext.ops.sparse_table_pull
        self.assertAllEqual(pull(plain, [1], dim=1), [[-0.5]])
        self.assertAllEqual(pull(shared, [1], dim=1), [[2.0]])
        # An id of another shared row than those that were sent.
        self.assertAllEqual(push([None, (first - 1, [[2.0]])]), [1, 1])


class EvictionTest(tf.test.TestCase):
    def test_shared_rows_stay(self):
        table = _table(
            2, admission=None, eviction=tf_ext.eviction.Unseen(steps=1)
        )
        table.push([4, 5], np.ones([2, _DIM]), step=1)
        before = table.pull([6, 7])
        evicted = table.evict(now=9)
        self.assertEqual((evicted.examined, evicted.evicted), (2, 2))
        self.assertAllEqual(table.pull([4, 5]), before)
        self.assertEqual(table.size(), 2)

    def test_capacity_is_that_of_other_rows(self):
        table = _table(2, admission=None, statistics=["show"])
        table.push(np.arange(20), np.ones([20, _DIM]))
        evicted = table.evict(policy=tf_ext.eviction.Capacity(8, by="show"))
        self.assertEqual((evicted.examined, evicted.evicted), (20, 12))
        self.assertEqual(table.size(), 8 + 2)


class ModelTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(False, True)
    def test_equals_keras_with_oov_indices(self, eagerly):
        # No id gets a row: as ids out of a vocabulary in Keras.
        keras.utils.set_random_seed(1)
        rng = np.random.default_rng(2)
        table = small_models.table(
            admission=tf_ext.admission.Count(255),
            unknown="shared",
            unknown_buckets=3,
        )
        table.import_rows([0, 1, -4], {"weights": rng.normal(size=[3, 4])})
        model = small_models.compiled(
            small_models.functional(table), run_eagerly=eagerly
        )
        features, labels = small_models.batch(rng, 100)
        rows = np.concatenate(
            [table.pull(table.unknown_ids), table.pull([0, 1, -4])]
        )
        place = {0: 3, 1: 4, -4: 5}

        def indices(ids):
            return np.vectorize(lambda i: place.get(i, i % 3))(ids)

        inputs = small_models.inputs()
        embedding = keras.layers.Embedding(6, 4)
        outputs = keras.layers.Concatenate()(
            [
                embedding(inputs["user"]),
                keras.layers.GlobalAveragePooling1D()(
                    embedding(inputs["items"])
                ),
            ]
        )
        twin = keras.Model(inputs, small_models.head()(outputs))
        embedding.set_weights([rows])
        twin.compile(keras.optimizers.SGD(0.5), "binary_crossentropy")
        options = {"batch_size": 32, "epochs": 3, "shuffle": False}
        losses = model.fit(features, labels, verbose=0, **options).history
        of_twin = twin.fit(
            {k: indices(v) for k, v in features.items()},
            labels,
            verbose=0,
            **options,
        ).history
        self.assertAllClose(losses["loss"], of_twin["loss"], 1e-5, 1e-6)
        self.assertAllClose(
            np.concatenate(
                [table.pull(table.unknown_ids), table.pull([0, 1, -4])]
            ),
            embedding.get_weights()[0],
            1e-5,
            1e-6,
        )
        self.assertEqual(table.size(), 6)

    def test_frozen_tables_and_layers_train_nothing(self):
        for frozen in ("table", "layer"):
            table = small_models.table(unknown="shared")
            model = small_models.functional(table)
            if frozen == "table":
                table.trainable = False
            else:
                [layer] = [
                    layer
                    for layer in model.layers
                    if isinstance(layer, tf_ext.layers.EmbeddingFeatures)
                ]
                layer.trainable = False
            # tf_keras looks at what is trainable only here.
            small_models.compiled(model)
            features, labels = small_models.batch(np.random.default_rng(2))
            model.fit(features, labels, verbose=0)
            self.assertEqual(table.size(), 0)


class SavingTest(parameterized.TestCase, tf.test.TestCase):
    def _trained(self, **arguments):
        table = _table(3, **arguments)
        rng = np.random.default_rng(1)
        for step in range(1, 6):
            table.push(
                rng.integers(0, 50, 20), rng.normal(size=[20, _DIM]), step=step
            )
        return table

    @parameterized.parameters(1, 3)
    def test_snapshots_and_deltas(self, shards):
        ids = np.arange(60)
        table = self._trained(shards=2)
        with tempfile.TemporaryDirectory() as path:
            table.save(f"{path}/0", incremental=True)
            table.push([70, 71, 72], np.ones([3, _DIM]), step=6)
            table.save(f"{path}/1", base=f"{path}/0")
            other = _table(3, shards=shards)
            other.load(f"{path}/1")
            self.assertEqual(bytes_of_rows(other), bytes_of_rows(table))
            self.assertAllEqual(other.pull(ids), table.pull(ids))
            with tf_ext.serving.weights_only():
                served = _table(3)
            served.load(f"{path}/1", weights_only=True)
            self.assertAllEqual(served.pull(ids), table.pull(ids))
            # A reader without TensorFlow.
            opened = tf_ext.snapshot.open_snapshot(f"{path}/1")
            rows = {}
            for signs, fields in opened.chunks(["weights"]):
                rows.update(zip(signs.tolist(), fields["weights"]))
            shared = hashing.shared_signs(opened.manifest.config, ids)
            self.assertAllEqual(
                [rows.get(i, rows[s]) for i, s in zip(ids, shared.tolist())],
                table.pull(ids),
            )

    def test_other_ways_to_read_unknown_ids(self):
        table = self._trained()
        with tempfile.TemporaryDirectory() as path:
            table.save(path)
            other = tf_ext.SparseTable(
                "items",
                _DIM,
                tf_ext.optimizers.SparseSGD(_RATE),
                "normal",
                seed=3,
                unknown=[1.0, 2.0, 3.0],
            )
            other.load(path)
        self.assertAllEqual(other.pull([99]), [[1, 2, 3]])
        self.assertEqual(bytes_of_rows(other), bytes_of_rows(table))


class VectorTest(parameterized.TestCase, tf.test.TestCase):
    def test_is_read(self):
        vector = np.array([0.1, -3e-7, 2e30], np.float32)
        for given in (vector, vector.tolist(), tuple(vector)):
            table = tf_ext.SparseTable("items", _DIM, unknown=given)
            self.assertAllEqual(table.pull([7, 8]), [vector, vector])
        copy = tf_ext.SparseTable.from_config(table.get_config())
        self.assertAllEqual(copy.pull([7]), [vector])
        self.assertAllEqual(
            hashing.initial_rows(table.rows.config, [7]), [vector]
        )
        # A row starts from its own initial weights.
        self.assertNotAllEqual(table.pull([7], training=True), [vector])

    def test_wide(self):
        vector = np.random.default_rng(0).normal(size=65_536)
        table = tf_ext.SparseTable("wide", 65_536, unknown=vector)
        with tempfile.TemporaryDirectory() as path:
            table.save(path)
            table.load(path)
        self.assertAllEqual(table.pull([1])[0], vector.astype(np.float32))


class ArgumentsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"unknown": "ones"}, "unknown=.ones"),
        ({"unknown": [1.0, 2.0]}, "here 3"),
        ({"unknown": [1.0, 2.0, np.nan]}, "here 3"),
        ({"unknown": [1.0, 2.0, 1e39]}, "here 3"),
        ({"unknown": ["a", "b", "c"]}, "here 3"),
        ({"unknown": 3}, "unknown=3"),
        ({"unknown": None}, "unknown=None"),
        ({"unknown_buckets": 2}, 'unless unknown="shared"'),
        ({"unknown": "shared", "unknown_buckets": 0}, "1,048,576"),
        ({"unknown": "shared", "unknown_buckets": 2**20 + 1}, "1,048,576"),
        ({"unknown": "shared", "unknown_buckets": 1.5}, "1,048,576"),
        ({"unknown": "shared", "unknown_buckets": True}, "1,048,576"),
    )
    def test_are_refused(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            tf_ext.SparseTable("items", _DIM, **arguments)

    def test_configuration(self):
        table = _table(7)
        self.assertEqual(table.config["unknown"], "shared")
        self.assertEqual(table.config["unknown.buckets"], "7")
        copy = tf_ext.SparseTable.from_config(table.get_config())
        self.assertEqual(copy.rows.config, table.rows.config)
        self.assertNotIn("unknown.buckets", _table(1).config)
        for text, message in (
            ("unknown=shared\nunknown.buckets=0", "from 1 to 1048576"),
            ("unknown=shared\nunknown.buckets=x", "from 1 to 1048576"),
            ("unknown=vector", "unknown.vector is missing"),
            ("unknown=vector\nunknown.vector=1,2", "has 2 values"),
            ("unknown=vector\nunknown.vector=1,,2", "separated by commas"),
            ("unknown=vector\nunknown.vector=1,2,inf", "finite"),
            ("unknown=zeros\nunknown.vector=1,2,3", "unknown key"),
        ):
            config = "dim=3\ninitializer=zeros\nname=n\noptimizer=sgd\n"
            with self.assertRaisesRegex(ValueError, message):
                hashing.initial_rows(config + text, [1])


if __name__ == "__main__":
    tf.test.main()
