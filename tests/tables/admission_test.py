# SPDX-License-Identifier: Apache-2.0
import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.sharded_tables import bytes_of_rows, counters_of, shards_on

import tf_ext
from tf_ext import admission
from tf_ext._keras import keras
from tf_ext.tables.find import tables_of

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "AdmissionTest::test_a_load_replaces_counters[0367]",
    ),
]

_DIM = 2


def _table(policy=None, shards=1, **arguments):
    """A table with so many shards in this process."""
    with shards_on(["/device:CPU:0"] * shards):
        return tf_ext.SparseTable(
            "items",
            dim=_DIM,
            optimizer=tf_ext.optimizers.SparseAdagrad(0.5),
            seed=7,
            admission=policy,
            **arguments,
        )


def _push(table, signs, step=1):
    return table.push(signs, tf.ones([len(signs), _DIM]), step=step)


class AdmissionTest(tf.test.TestCase, parameterized.TestCase):
    def test_clear_frees_counters(self):
        table = _table(admission.Count(3), 2)
        _push(table, range(1000))
        stats = table.stats()
        self.assertEqual(stats["waiting"], 1000)
        self.assertGreater(stats["counter_bytes"], 0)
        table.clear()
        stats = table.stats()
        self.assertEqual((stats["waiting"], stats["counter_bytes"]), (0, 0))

    def test_many_signs_wait(self):
        """The memory of their counters grows again and again."""
        table = _table(admission.Count(3))
        for pushes in (1, 2):
            for ids in np.split(np.arange(20_000), 4):
                self.assertEqual(_push(table, ids), 0)
            self.assertEqual(table.stats()["waiting"], 20_000, pushes)
        self.assertEqual(_push(table, range(20_000)), 20_000)
        self.assertEqual(table.stats()["waiting"], 0)

    def test_chance_depends_on_seed_sign_and_step(self):
        signs = range(2000)

        def rows(step, shards):
            table = _table(admission.Probability(0.25), shards)
            _push(table, signs, step)
            return bytes_of_rows(table)

        self.assertEqual(rows(1, 1), rows(1, 3))
        self.assertNotEqual(rows(1, 1).keys(), rows(2, 1).keys())
        self.assertBetween(len(rows(1, 1)), 400, 600)  # 5 standard deviations

    def test_reads_unknown_until_admitted(self):
        for unknown in ("initial", "zeros"):
            table = _table(admission.Count(2), unknown=unknown)
            expected = (
                np.zeros([1, _DIM])
                if unknown == "zeros"
                else _table().pull([7]).numpy()
            )
            for training in (False, True):
                _push(table, [8])
                found = table.pull([7], training=training)
                self.assertAllEqual(found, expected)
            self.assertEqual(_push(table, [7]), 0)
            self.assertAllEqual(table.pull([7]), expected)
            self.assertEqual(_push(table, [7]), 1)
            self.assertNotAllEqual(table.pull([7]), expected)

    def test_statistics_of_a_push_are_counted(self):
        table = _table(admission.Count(5))
        self.assertEqual(table.statistics_width, 1)
        self.assertEqual(_table().statistics_width, 0)

        def push(statistics):
            hyperparameters = table.optimizer.hyperparameters(
                tf.constant(0.5, tf.float64)
            )
            return int(
                tf_ext.ops.sparse_table_push(
                    table.rows.resource_handle,
                    [1, 2],
                    tf.ones([2, _DIM]),
                    tf.constant(statistics, tf.float32),
                    hyperparameters=hyperparameters,
                )
            )

        for bad, says in (
            ([[1], [-1]], r"statistics\[1, 0\] of sign 2 is -1"),
            ([[np.nan], [1]], "must be finite"),
            ([[1, 1], [1, 1]], "has 2 columns; .* it must have 1"),
            ([[1]], r"must be of shape \[2,s\]"),
        ):
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, says):
                push(bad)
        self.assertEqual(table.stats()["waiting"], 0)
        self.assertEqual(push([[5], [4]]), 1)
        self.assertEqual(push([[0], [0]]), 1)
        self.assertEqual(push([[1], [1]]), 2)

    def test_files_hold_rows_of_any_admission(self):
        saved = _table(admission.Count(2), 2)
        _push(saved, [1, 2])
        _push(saved, [1])
        with tempfile.TemporaryDirectory() as directory:
            saved.save(directory)
            checkpoint = tf.train.Checkpoint(table=saved)
            path = checkpoint.save(os.path.join(directory, "checkpoint"))
            for loaded in (
                _table(admission.Probability(1), unknown="zeros"),
                _table(),
            ):
                loaded.load(directory)
                self.assertEqual(bytes_of_rows(loaded), bytes_of_rows(saved))
                loaded.clear()
                tf.train.Checkpoint(table=loaded).restore(path)
                self.assertEqual(bytes_of_rows(loaded), bytes_of_rows(saved))

    @parameterized.product(
        in_place=[False, True], shards=[1, 3], counted=[[], [1, 2]]
    )
    def test_a_load_replaces_counters(self, in_place, shards, counted):
        saved = _table(admission.Count(3, forget=2), 2)
        for ids in ([3, *counted], [3, *counted[1:]], [3]):
            _push(saved, ids, step=5)
        loaded = _table(admission.Count(3, forget=2), shards)
        _push(loaded, [2, 8, 9], step=9)
        with tempfile.TemporaryDirectory() as directory:
            saved.save(directory)
            loaded.load(directory, in_place=in_place)
        self.assertEqual(counters_of(loaded), counters_of(saved))
        self.assertEqual(loaded.stats()["waiting"], len(counted))
        self.assertEqual(list(bytes_of_rows(loaded)), [3])
        if counted:
            _push(loaded, [2], step=6)
            self.assertEqual(set(bytes_of_rows(loaded)), {2, 3})

    def test_a_load_without_counters_removes_them(self):
        saved = _table()
        _push(saved, [1, 2])
        for in_place in (False, True):
            loaded = _table(admission.Count(3), 2)
            _push(loaded, [2, 8, 9])
            with tempfile.TemporaryDirectory() as directory:
                saved.save(directory)
                loaded.load(directory, in_place=in_place)
            self.assertEqual(counters_of(loaded)[1], {})
            self.assertEqual(bytes_of_rows(loaded), bytes_of_rows(saved))

    def test_config_round_trip(self):
        for policy in (
            admission.Count(3),
            admission.Count(255, forget=10),
            admission.Probability(1e-5),
        ):
            table = _table(policy, unknown="zeros")
            copy = tf_ext.SparseTable.from_config(table.get_config())
            self.assertEqual(repr(copy.admission), repr(policy))
            self.assertEqual(copy.config, table.config)
            self.assertEqual(copy.config["unknown"], "zeros")
        table = _table()
        self.assertNoCommonElements(table.config, ["unknown", "admission"])
        older = table.get_config()
        del older["admission"], older["unknown"]
        self.assertEqual(
            tf_ext.SparseTable.from_config(older).config, table.config
        )

    def test_weights_only_tables_read_unknown(self):
        saved = _table(admission.Count(1), unknown="zeros")
        _push(saved, [1])
        with tf_ext.serving.weights_only():
            served = _table(admission.Count(1), unknown="zeros")
        with tempfile.TemporaryDirectory() as directory:
            saved.save(directory)
            served.load(directory)
        self.assertAllEqual(served.pull([1, 2]), saved.pull([1, 2]))
        self.assertAllEqual(served.pull([2]), np.zeros([1, _DIM]))
        self.assertEqual(served.statistics_width, 0)

    def test_limits(self):
        for forget in (1, 2**63 - 1):
            self.assertEqual(admission.Count(255, forget).forget, forget)

    @parameterized.named_parameters(
        ("n", lambda: admission.Count(0), "integer from 1 to 255"),
        ("large_n", lambda: admission.Count(256), "n=256"),
        ("float_n", lambda: admission.Count(2.0), "`n` of Count"),
        ("bool_n", lambda: admission.Count(True), "n=True"),
        ("forget", lambda: admission.Count(2, 0), "2\\^63 - 1, or None"),
        ("large_forget", lambda: admission.Count(2, 2**63), "`forget`"),
        ("p", lambda: admission.Probability(0), "above 0, at most 1"),
        ("large_p", lambda: admission.Probability(1.5), "p=1.5"),
        ("nan", lambda: admission.Probability(np.nan), "p=nan"),
        ("policy", lambda: _table(3), "Count or Probability, or None"),
        (
            "unknown",
            lambda: _table(unknown="ones"),
            "'initial', 'zeros', 'shared'",
        ),
    )
    def test_refuses(self, make, says):
        with self.assertRaisesRegex(ValueError, says):
            make()


class ModelTest(tf.test.TestCase):
    def test_fit_and_files_of_a_model(self):
        def model_of(policy, unknown):
            table = _table(policy, unknown=unknown)
            inputs = {"id": keras.Input((), dtype="int64", name="id")}
            column = tf_ext.feature_column.category_column("id")
            embedded = tf_ext.layers.EmbeddingFeatures([column], table)(inputs)
            dense = keras.layers.Dense(1, kernel_initializer="ones")
            model = tf_ext.Model(inputs, dense(embedded))
            model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
            return model, table

        model, table = model_of(admission.Count(2), "zeros")
        # Batches of 4: 1 occurs in both, 2 twice in one.
        ids = np.array([1, 2, 2, 4, 1, 5, 6, 7])
        data = tf.data.Dataset.from_tensor_slices(
            ({"id": ids}, np.ones([8, 1], np.float32))
        ).batch(4)
        model.fit(data, epochs=1, verbose=0)
        model.evaluate(data, verbose=0)
        model.predict(data, verbose=0)
        self.assertEqual(table.size(), 2)
        self.assertEqual(table.stats()["waiting"], 4)
        unknown = {"id": tf.constant([77, 1], tf.int64)}
        expected = model(unknown).numpy()
        bias = model.layers[-1].get_weights()[1]
        self.assertAllEqual(expected[0], bias)
        self.assertNotAllEqual(expected[1], bias)
        with tempfile.TemporaryDirectory() as directory:
            folder = tf_ext.serving.export(model, directory)
            served = tf.saved_model.load(folder)
            self.assertAllClose(served.serve(unknown), expected)
            path = os.path.join(directory, "model.keras")
            model.save(path)
            loaded = keras.models.load_model(path)
            self.assertAllClose(loaded(unknown), expected)
            [again] = tables_of(loaded)
            self.assertEqual(bytes_of_rows(again), bytes_of_rows(table))
            self.assertEqual(repr(again.admission), "Count(n=2, forget=None)")
            exported = os.path.join(directory, "exported")
            model.export(exported)
            served = tf.saved_model.load(exported)
            self.assertAllClose(served.serve(unknown), expected)


if __name__ == "__main__":
    tf.test.main()
