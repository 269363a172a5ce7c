# SPDX-License-Identifier: Apache-2.0
"""Tables with l2 and l1 against dense matrices that shrink in each step."""

import contextlib
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.sharded_tables import bytes_of_rows, shards_on

import tf_ext
from tf_ext import _core, snapshot
from tf_ext.ops.table import clock_ops
from tf_ext.tables.saving import snapshot_save

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "BesideOthersTest::*",
        "DenseTest::test_a_push_is_one_step_for_all_*",
        "DenseTest::test_equals_a_matrix1[12]",
        "DenseTest::test_equals_a_matrix[01245689]",
        "DenseTest::test_equals_keras_with_decoupled_decay",
        "DenseTest::test_forgets_all_in_the_end",
        "DenseTest::test_reading_changes_nothing",
        "FilesTest::test_deltas",
        "FilesTest::test_training_goes_on_from_a_checkpoint",
        "FilesTest::test_training_goes_on_from_a_snapshot[12367]",
        "SmallRowsTest::test_equals_a_*",
    ),
]

_DIM, _IDS, _RATE = 5, 40, 0.25
_BOTH = (
    {"l2": 0.02},
    {"l1": 0.003},
    {"l2": 0.02, "l1": 0.003},
)


def _table(rule=None, shards=1, name="items", dim=_DIM, **arguments):
    rule = rule or tf_ext.optimizers.SparseSGD(_RATE)
    arguments = {"l2": 0.02, "l1": 0.003} | arguments
    with shards_on(["/device:CPU:0"] * shards):
        return tf_ext.SparseTable(
            name, dim, rule, "normal", seed=3, **arguments
        )


def _shrunk(weights, rate, l2=0.0, l1=0.0):
    """A step of regularization alone."""
    left = np.maximum((1 - rate * l2) * np.abs(weights) - rate * l1, 0)
    return np.copysign(left, weights)


def _batches(steps, ids=_IDS, dim=_DIM, seed=1):
    """Signs and gradients of steps, most of whose rows are absent."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        signs = rng.choice(ids, rng.integers(0, 4), replace=False)
        yield signs, rng.normal(0, 0.1, [len(signs), dim]).astype(np.float32)


def _fill(table, ids=_IDS):
    """Sets a row for each id; returns the matrix of float64."""
    weights = np.random.default_rng(9).normal(0, 1, [ids, table.dim])
    weights = weights.astype(np.float32)
    table.import_rows(np.arange(ids), {"weights": weights})
    return weights.astype(np.float64)


def _train(table, matrix, steps=30, seed=1):
    """Trains a table and a matrix."""
    for step, (signs, gradients) in enumerate(_batches(steps, seed=seed), 1):
        table.push(signs, gradients, step=step)
        matrix[:] = _shrunk(matrix, _RATE, table.l2, table.l1)
        matrix[signs] -= _RATE * gradients


class DenseTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        *((each, 16, 1, 1000) for each in _BOTH),
        *((each, dim, 1, 100) for each in _BOTH for dim in (1, 5, 33)),
        (_BOTH[2], 8, 3, 200),
    )
    def test_equals_a_matrix(self, shrinkage, dim, shards, steps):
        table = _table(dim=dim, shards=shards, **{"l2": 0, "l1": 0} | shrinkage)
        matrix = _fill(table)
        rng = np.random.default_rng(4)
        for step, (signs, gradients) in enumerate(_batches(steps, dim=dim), 1):
            rate = _RATE * (0.5 + 0.5 * np.cos(step / 50))  # a schedule
            table.push(signs, gradients, step=step, learning_rate=rate)
            matrix = _shrunk(matrix, rate, **shrinkage)
            matrix[signs] -= rate * gradients
            if step % 100 == 0:
                some = rng.choice(_IDS, 10)
                self.assertAllClose(
                    table.pull(some), matrix[some], rtol=1e-6, atol=1e-6
                )
        self.assertAllClose(
            table.pull(range(_IDS)), matrix, rtol=1e-6, atol=1e-6
        )
        if "l1" in shrinkage and steps == 1000:
            self.assertGreater(np.sum(matrix == 0), 0)
            self.assertAllEqual(table.pull(range(_IDS)) == 0, matrix == 0)

    def test_equals_keras_with_decoupled_decay(self):
        # weight_decay of Keras, on all rows.
        dense = tf.keras.optimizers.SGD(_RATE, weight_decay=0.02)
        table = _table(l1=0)
        variable = tf.Variable(tf.cast(_fill(table), tf.float32))
        for signs, gradients in _batches(1000):
            whole = np.zeros([_IDS, _DIM], np.float32)
            whole[signs] = gradients
            dense.apply_gradients([(tf.constant(whole), variable)])
            table.push(signs, gradients)
        self.assertAllClose(
            table.pull(range(_IDS)), variable, rtol=1e-6, atol=1e-6
        )

    @parameterized.parameters(0, 1, 3)
    def test_a_push_is_one_step_for_all_others(self, pushed):
        table = _table()
        matrix = _fill(table)
        for _ in range(500):
            table.push(np.full([pushed], 77), np.zeros([pushed, _DIM]))
            matrix = _shrunk(matrix, _RATE, 0.02, 0.003)
        self.assertAllClose(table.pull(range(_IDS)), matrix, 1e-6, 1e-6)

    def test_reading_changes_nothing(self):
        table, other = _table(), _table()
        for each in (table, other):
            _fill(each)
        for signs, gradients in _batches(60):
            for each in (table, other):
                each.push(signs, gradients)
            table.pull(range(_IDS))
            table.export_rows()
        self.assertEqual(bytes_of_rows(table), bytes_of_rows(other))

    def test_new_rows_begin_at_their_initial_weights(self):
        table = _table()
        initial = table.pull([1, 2]).numpy()
        for _ in range(10):
            table.push([], np.zeros([0, _DIM]))
        self.assertAllEqual(table.pull([1, 2]), initial)
        table.pull([1], training=True)
        table.push([1, 2], np.zeros([2, _DIM]))
        self.assertAllEqual(table.pull([1, 2]), initial)
        table.push([], np.zeros([0, _DIM]))
        self.assertAllClose(
            table.pull([1, 2]), _shrunk(initial, _RATE, 0.02, 0.003)
        )

    def test_set_weights_are_those_of_now(self):
        table = _table()
        _fill(table)
        table.push([4], np.zeros([1, _DIM]))
        for _ in range(10):
            table.push([], np.zeros([0, _DIM]))
        ones = np.ones([1, _DIM], np.float32)
        table.import_rows([4], {"weights": ones})
        self.assertAllEqual(table.pull([4]), ones)
        signs, fields = table.export_rows()
        self.assertNotIn("shrunk", fields)
        self.assertAllEqual(fields["weights"], table.pull(signs))
        copy = _table()
        copy.import_rows(signs, fields)
        self.assertAllEqual(copy.pull(signs), table.pull(signs))

    def test_forgets_all_in_the_end(self):
        table = _table(l2=3.9, l1=0)
        _fill(table)
        for _ in range(300):
            table.push([], np.zeros([0, _DIM]))
        self.assertAllEqual(table.pull(range(_IDS)), np.zeros([_IDS, _DIM]))

    def test_rows_without_are_as_before(self):
        table = _table(l2=0, l1=0)
        self.assertEqual(table.stats()["row_bytes"], 32)
        self.assertEqual(_table().stats()["row_bytes"], 40)
        self.assertNotIn("l2", table.config)
        self.assertEqual(_table().config["l1"], "0.003")

    @parameterized.parameters(
        ({"l2": -1}, "`l2`.*Received: l2=-1"),
        ({"l1": float("nan")}, "`l1`.*Received: l1=nan"),
        ({"l2": "much"}, "`l2`.*finite number of at least 0"),
        ({"l1": True}, "`l1`.*Received: l1=True"),
        # The clock of l2 is too coarse for l1: 1 % of it, or all, was lost.
        (
            {"l2": 1e-10, "l1": 1e-3},
            "`l2`.* 0, or at least l1 / 10,000.*Received: l2=1e-10",
        ),
    )
    def test_refuses(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            _table(**arguments)

    def test_refuses_a_decay_of_all(self):
        table = _table(l2=4.0)
        matrix = _fill(table)
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "learning_rate of table .* l2 4"
        ):
            table.push([1], np.ones([1, _DIM]))
        self.assertAllClose(table.pull(range(_IDS)), matrix)

    def test_config(self):
        table = _table()
        config = table.get_config()
        self.assertEqual((config["l2"], config["l1"]), (0.02, 0.003))
        copy = tf_ext.SparseTable.from_config(config)
        self.assertEqual((copy.l2, copy.l1), (0.02, 0.003))


class SmallRowsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        dtype=("float16", "bfloat16"), slot_dtype=("float32", "bfloat16")
    )
    def test_equals_a_matrix(self, dtype, slot_dtype):
        rule = tf_ext.optimizers.SparseAdagrad(_RATE)
        small = _table(rule, dtype=dtype, slot_dtype=slot_dtype)
        large = _table(rule)
        weights = _fill(small).astype(np.float32)
        large.import_rows(range(_IDS), {"weights": small.pull(range(_IDS))})
        for step, (signs, gradients) in enumerate(_batches(300), 1):
            small.push(signs, gradients, step=step)
            large.push(signs, gradients)
        # A rounding in each of some 25 pushes of a row.
        unit = 2**-11 if dtype == "float16" else 2**-8
        found, expected = (t.pull(range(_IDS)).numpy() for t in (small, large))
        self.assertAllClose(found, expected, rtol=0, atol=40 * unit)
        self.assertLess(abs(np.mean(found - expected)), 2 * unit)
        self.assertLess(np.mean(abs(expected)), 0.8 * np.mean(abs(weights)))

    def test_reads_without_rounding(self):
        table = _table(dtype="bfloat16", l2=0.001, l1=0)
        matrix = _fill(table)
        stored = table.pull(range(_IDS)).numpy().astype(np.float64)
        for step in range(1, 4):
            table.push([], np.zeros([0, _DIM]), step=step)
            stored = _shrunk(stored, _RATE, 0.001, 0)
        self.assertAllClose(table.pull(range(_IDS)), stored, 1e-6, 1e-6)
        exported = table.export_rows()[1]["weights"]
        exact = tf.cast(tf.cast(exported, tf.bfloat16), tf.float32)
        self.assertAllEqual(exported, exact)
        self.assertAllClose(matrix, stored, 0.02, 0.02)


class FilesTest(tf.test.TestCase, parameterized.TestCase):
    @contextlib.contextmanager
    def _folder(self):
        with tempfile.TemporaryDirectory() as folder:
            yield folder

    @parameterized.product(
        dtype=("float32", "bfloat16"), shards=(1, 3), loaded=(1, 2)
    )
    def test_training_goes_on_from_a_snapshot(self, dtype, shards, loaded):
        table = _table(shards=shards, dtype=dtype)
        matrix = _fill(table)
        _train(table, matrix)
        copy = _table(shards=loaded, dtype=dtype)
        _train(copy, np.zeros([_IDS, _DIM]), steps=3)
        with self._folder() as folder:
            table.save(folder)
            read = {
                sign: weights
                for signs, fields in snapshot.open_snapshot(folder).chunks()
                for sign, weights in zip(signs.tolist(), fields["weights"])
            }
            copy.load(folder)
        signs, fields = table.export_rows()
        self.assertAllEqual([read[sign] for sign in signs], fields["weights"])
        self.assertEqual(bytes_of_rows(copy), bytes_of_rows(table))
        for each in (table, copy):
            _train(each, np.zeros([_IDS, _DIM]), seed=2)
        self.assertEqual(bytes_of_rows(copy), bytes_of_rows(table))

    def test_training_goes_on_from_a_checkpoint(self):
        table = _table(shards=2)
        _train(table, _fill(table))
        copy = _table()
        with self._folder() as folder:
            path = tf.train.Checkpoint(rows=table.rows).write(f"{folder}/rows")
            tf.train.Checkpoint(rows=copy.rows).read(path).assert_consumed()
        for each in (table, copy):
            _train(each, np.zeros([_IDS, _DIM]), seed=2)
        self.assertEqual(bytes_of_rows(copy), bytes_of_rows(table))

    @parameterized.parameters(
        (tf_ext.optimizers.SparseSGD(_RATE), {}),
        (tf_ext.optimizers.SparseAdam(_RATE, absent="decay"), {"l1": 0}),
    )
    def test_rows_that_are_pushed_during_a_save(self, rule, arguments):
        table = _table(rule, **arguments)
        _train(table, _fill(table), 10)
        write = snapshot_save.Save.write_own_rows

        def write_after_pushes(save):
            for step in range(11, 21):
                table.push([1, 9], np.full([2, _DIM], 0.5), step=step)
            write(save)

        copy = _table(rule, **arguments)
        with self._folder() as folder:
            with mock.patch.object(
                snapshot_save.Save, "write_own_rows", write_after_pushes
            ):
                table.save(folder)
            copy.load(folder)
        self.assertEqual(copy.rows.saved_state(), table.rows.saved_state())
        for step in range(21, 26):
            for each in (table, copy):
                each.push([9], np.full([1, _DIM], 0.1), step=step)
        self.assertEqual(bytes_of_rows(copy), bytes_of_rows(table))

    def test_deltas(self):
        table = _table()
        matrix = _fill(table)
        held = _table()
        with tf_ext.serving.weights_only():
            served = _table()
        with self._folder() as folder:
            _train(table, matrix, 10)
            table.save(f"{folder}/0", incremental=True)
            held.load(f"{folder}/0")
            served.load(f"{folder}/0", in_place=True)
            for delta in range(1, 4):
                _train(table, matrix, 5, seed=delta)
                base = f"{folder}/{delta - 1}"
                manifest = table.save(f"{folder}/{delta}", base=base)
                self.assertEqual(manifest.format, 3)
                # Rows that only shrink are not in it.
                self.assertLess(manifest.rows, _IDS // 2)
                expected = table.pull(range(_IDS)).numpy()
                self.assertAllClose(expected, matrix, 1e-5, 1e-5)
                for copy in (held, served):
                    copy.apply_delta(f"{folder}/{delta}")
                    self.assertAllEqual(copy.pull(range(_IDS)), expected)
                opened = snapshot.open_snapshot(f"{folder}/{delta}")
                for signs, fields in opened.chunks(["weights"]):
                    self.assertAllEqual(fields["weights"], expected[signs])
            snapshot.reshard(f"{folder}/3", f"{folder}/merged", 2)
            whole = _table()
            whole.load(f"{folder}/merged")
            self.assertEqual(bytes_of_rows(whole), bytes_of_rows(table))
        for each in (table, held, whole):
            _train(each, np.zeros([_IDS, _DIM]), seed=8)
        self.assertEqual(bytes_of_rows(held), bytes_of_rows(table))
        self.assertEqual(bytes_of_rows(whole), bytes_of_rows(table))

    def test_weights_alone(self):
        table = _table()
        _train(table, _fill(table))
        copy = _table(tf_ext.optimizers.SparseAdagrad(_RATE))
        with self._folder() as folder:
            table.save(folder)
            copy.load(folder, weights_only=True)
        for each in (table, copy):
            each.push([], np.zeros([0, _DIM]))
        self.assertAllEqual(copy.pull(range(_IDS)), table.pull(range(_IDS)))

    def test_other_values_are_refused(self):
        table = _table()
        _train(table, _fill(table))
        with self._folder() as folder:
            table.save(f"{folder}/with")
            for arguments in ({"l2": 0.5}, {"l2": 0, "l1": 0}):
                for weights_only in (False, True):
                    with self.assertRaisesRegex(ValueError, "its `l[12]` is"):
                        _table(**arguments).load(
                            f"{folder}/with", weights_only=weights_only
                        )
            plain = _table(l2=0, l1=0)
            _train(plain, _fill(plain))
            plain.save(f"{folder}/without")
            with self.assertRaisesRegex(ValueError, "weights_only=True"):
                table.load(f"{folder}/without")
            table.load(f"{folder}/without", weights_only=True)
        rows = table.pull(range(_IDS))
        self.assertAllEqual(rows, plain.pull(range(_IDS)))
        table.push([], np.zeros([0, _DIM]))
        self.assertAllClose(
            table.pull(range(_IDS)), _shrunk(rows, _RATE, 0.02, 0.003)
        )


class ClockTest(tf.test.TestCase):
    def test_ends_where_nothing_is_left(self):
        table = _table()
        matrix = _fill(table)
        handle, last = table.rows.resource_handle, 2**62
        clock = clock_ops.sparse_table_shrinkage_clock
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            f"from 0 to {last}, but .* {last + 1}",
        ):
            clock(handle, last + 1)
        for text in (str(last + 1), "9" * 19, "-1", "\u0665", ""):
            with self.assertRaisesRegex(ValueError, "shrinkage_clock is"):
                table.rows.check_state({"shrinkage_clock": text})
        table.rows.check_state({"shrinkage_clock": str(last)})
        self.assertAllClose(table.pull(range(_IDS)), matrix)
        self.assertEqual(int(clock(handle, last)), last)
        table.push([], np.zeros([0, _DIM]))
        self.assertEqual(int(clock(handle)), last)
        self.assertAllEqual(table.pull(range(_IDS)), np.zeros([_IDS, _DIM]))

    def test_readers_of_files_know_its_end(self):
        table = _table()
        _fill(table)
        rows = np.zeros([1, 8 + 4 * _DIM + 8], np.uint8)
        for clock in (-1, 2**62 + 1):
            with self.assertRaisesRegex(ValueError, "clock must be from 0"):
                _core.catch_up_rows(table.rows.config, rows, clock, b"")


class BesideOthersTest(tf.test.TestCase, parameterized.TestCase):
    def test_eviction_admission_and_statistics(self):
        arguments = {
            "eviction": tf_ext.eviction.Unseen(steps=5),
            "admission": tf_ext.admission.Count(2),
            "statistics": ["show", "click"],
        }
        table = _table(**arguments)
        plain = _table(l2=0, l1=0, **arguments)
        for step, (signs, gradients) in enumerate(_batches(60), 1):
            for each in (table, plain):
                each.push(signs, gradients, step=step)
                if step % 8 == 0:
                    each.evict(now=step)
                    each.decay_statistics(0.5)
        (signs, fields), (same, others) = (
            each.export_rows() for each in (table, plain)
        )
        self.assertAllEqual(np.sort(signs), np.sort(same))
        order, its_order = np.argsort(signs), np.argsort(same)
        for name in ("show", "click", "last_seen"):
            self.assertAllEqual(fields[name][order], others[name][its_order])
        self.assertNotAllClose(
            fields["weights"][order], others["weights"][its_order]
        )

    @parameterized.product(l2=(0.0, 0.1), loaded=(False, True))
    def test_rows_that_move_beside_eviction(self, l2, loaded):
        # Rows that are left are those of a table without eviction, absent ones
        # too; those that return begin anew.
        rule = tf_ext.optimizers.SparseAdam(0.05, absent="decay")
        arguments = {"l2": l2, "l1": 0.0}
        eviction = tf_ext.eviction.Unseen(steps=15)
        table = _table(rule, eviction=eviction, **arguments)
        plain = _table(rule, **arguments)
        fresh = _table(rule, **arguments).pull(range(_IDS), training=True)
        gone = set()
        for step, (signs, gradients) in enumerate(_batches(60), 1):
            returned = [i for i, s in enumerate(signs) if s in gone]
            # Only rows that stay are compared: others leave both tables.
            signs = np.delete(signs, returned)
            gradients = np.delete(gradients, returned, 0)
            for each in (table, plain):
                each.push(signs, gradients, step=step)
            if step % 8 == 0:
                before = set(table.export_rows()[0].tolist())
                table.evict(now=step)
                gone |= before - set(table.export_rows()[0].tolist())
            if loaded and step == 30:
                with tempfile.TemporaryDirectory() as folder:
                    table.save(folder)
                    table = _table(rule, eviction=eviction, **arguments)
                    table.load(folder)
        left = np.sort(table.export_rows()[0])
        self.assertNotEmpty(left)
        self.assertNotEmpty(gone)
        self.assertEmpty(gone.intersection(left.tolist()))
        self.assertAllEqual(table.pull(left), plain.pull(left))
        again = sorted(gone)
        self.assertAllEqual(table.pull(again), tf.gather(fresh, again))
        table.push(again, np.zeros([len(again), _DIM]), step=61)
        self.assertAllEqual(table.pull(again), tf.gather(fresh, again))


if __name__ == "__main__":
    tf.test.main()
