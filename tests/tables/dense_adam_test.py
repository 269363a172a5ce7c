# SPDX-License-Identifier: Apache-2.0
"""Tables with SparseAdam(absent="decay") against matrices that Adam trains."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.sharded_tables import bytes_of_rows, shards_on

import tf_ext
from tf_ext import _core, snapshot
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.ops.table import clock_ops
from tf_ext.optimizers import SparseAdam

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "DenseTest::test_a_cleared_table_begins_anew",
        "DenseTest::test_counts_steps_as_told",
        "DenseTest::test_equals_a_matrix_for_some_steps",
        "DenseTest::test_moments_of_an_unknown_step_are_a_warning",
        "DenseTest::test_refuses*",
        "DenseTest::test_set_fields_are_those_of_now",
        "DenseTest::test_the_state_is_restored_in_all_shards",
        "FilesTest::test_a_damaged_checkpoint_changes_nothing",
        "FilesTest::test_deltas",
        "FilesTest::test_other_rules_are_refused",
    ),
]

_DIM, _IDS, _RATE = 5, 40, 0.05


def _table(rule=None, shards=1, dim=_DIM, name="items", **arguments):
    rule = rule or SparseAdam(_RATE, absent="decay")
    with shards_on(["/device:CPU:0"] * shards):
        return tf_ext.SparseTable(
            name, dim, rule, "normal", seed=3, **arguments
        )


def _rate(step):
    """A schedule that warms up, waves, and falls at once."""
    rate = _RATE * min(1, step / 30) * (1 + 0.5 * np.cos(step / 50))
    return rate if step % 400 < 300 else rate / 10


class Matrix:
    """A matrix that Adam trains in float64, with decoupled decay."""

    def __init__(self, weights, beta_2=0.999, epsilon=1e-7, l2=0.0):
        self.weights = np.array(weights, np.float64)
        self.m = np.zeros_like(self.weights)
        self.v = np.zeros_like(self.weights)
        self.step = 0
        self._of_step = (beta_2, epsilon, l2)

    def push(self, signs, gradients, rate=_RATE):
        beta_2, epsilon, l2 = self._of_step
        self.step += 1
        whole = np.zeros_like(self.weights)
        whole[signs] = gradients
        self.m += (whole - self.m) * (1 - 0.9)
        self.v += (whole**2 - self.v) * (1 - beta_2)
        alpha = rate * np.sqrt(1 - beta_2**self.step) / (1 - 0.9**self.step)
        self.weights *= 1 - rate * l2
        # 0 where tables move nothing, and Keras makes NaN.
        below = np.sqrt(self.v) + epsilon
        self.weights -= alpha * self.m / np.where(below > 0, below, 1)


def _pusher(table):
    """`table.push` as a compiled function of signs, gradients, step, rate."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None, table.dim], tf.float32),
            tf.TensorSpec([], tf.int64),
            tf.TensorSpec([], tf.float64),
        ]
    )
    def push(signs, gradients, step, rate):
        return table.push(signs, gradients, step=step, learning_rate=rate)

    return push


def _batches(steps, dim=_DIM, seed=1, ids=_IDS):
    """Signs and gradients of steps, in most of which a row is absent.

    Some rows are pushed often and some never again, or not for hundreds of
    steps.
    """
    rng = np.random.default_rng(seed)
    for step in range(steps):
        often = rng.choice(ids // 2, rng.integers(0, 4), replace=False)
        seldom = [ids // 2 + step // 23] if step % 23 == 5 else []
        signs = np.array([*often, *(s for s in seldom if s < ids)], np.int64)
        scale = 10.0 ** rng.integers(-8, 0)
        gradients = rng.normal(0, scale, [len(signs), dim])
        yield signs, gradients.astype(np.float32)


def _fill(table, ids=_IDS):
    """Sets a row for each id; returns the matrix of weights."""
    weights = np.random.default_rng(9).normal(0, 1, [ids, table.dim])
    weights = weights.astype(np.float32)
    table.import_rows(np.arange(ids), {"weights": weights})
    return weights


def _train(table, steps=30, seed=1, first=1):
    push = _pusher(table)
    for step, (signs, gradients) in enumerate(_batches(steps, seed=seed)):
        push(signs, gradients, first + step, _rate(step + 1))


class DenseTest(tf.test.TestCase, parameterized.TestCase):
    def test_equals_a_matrix_for_some_steps(self):
        self._check_equals_a_matrix(0.999, 1e-3, 0.02, steps=300)

    @parameterized.product(
        beta_2=(0.999, 0.98), epsilon=(1e-7, 0.0, 1e-3), l2=(0.0, 0.02)
    )
    def test_equals_a_matrix(self, beta_2, epsilon, l2):
        self._check_equals_a_matrix(beta_2, epsilon, l2, steps=1000)

    def _check_equals_a_matrix(self, beta_2, epsilon, l2, steps):
        rule = SparseAdam(_RATE, 0.9, beta_2, epsilon, absent="decay")
        table = _table(rule, shards=3 if l2 else 1, dim=8, l2=l2)
        matrix = Matrix(_fill(table), beta_2, epsilon, l2)
        rng = np.random.default_rng(4)
        push = _pusher(table)
        for step, (signs, gradients) in enumerate(_batches(steps, 8), 1):
            push(signs, gradients, step, _rate(step))
            matrix.push(signs, gradients, _rate(step))
            if step % 100 == 0:
                some = rng.choice(_IDS, 10)
                self.assertAllClose(
                    table.pull(some), matrix.weights[some], 1e-6, 1e-6
                )
        signs, fields = table.export_rows()
        self.assertCountEqual(fields, ["weights", "m", "v"])
        for name, values in fields.items():
            self.assertAllClose(
                values, getattr(matrix, name)[signs], 2e-6, 1e-6, name
            )
        if epsilon or l2:
            return
        # It was no test of lazy Adam.
        lazy = _table(SparseAdam(_RATE, 0.9, beta_2, epsilon), dim=8)
        _fill(lazy)
        push = _pusher(lazy)
        for step, (signs, gradients) in enumerate(_batches(1000, 8), 1):
            push(signs, gradients, step, _rate(step))
        difference = lazy.pull(range(_IDS)) - matrix.weights
        self.assertGreater(np.max(np.abs(difference)), 0.05)

    @parameterized.parameters(0.0, 0.03)
    def test_equals_keras(self, l2):
        schedule = keras.optimizers.schedules.PiecewiseConstantDecay(
            [300, 700], [0.01, 0.003, 0.02]
        )
        if l2:
            dense = keras.optimizers.AdamW(schedule, weight_decay=l2)
        else:
            dense = keras.optimizers.Adam(schedule)
        table = _table(SparseAdam(schedule, absent="decay"), l2=l2)
        variable = _variable(_fill(table))
        if IS_KERAS_3:
            dense.build([variable])
        push = _pusher(table)
        apply = tf.function(
            lambda gradients: dense.apply_gradients([(gradients, variable)])
        )
        for step, (signs, gradients) in enumerate(_batches(1000)):
            whole = np.zeros([_IDS, _DIM], np.float32)
            whole[signs] = gradients
            apply(tf.constant(whole))
            push(signs, gradients, step + 1, float(schedule(step)))
        # Keras rounds weights in each step, and powers of betas to float32.
        self.assertAllClose(
            table.pull(range(_IDS)), tf.convert_to_tensor(variable), 1e-6, 8e-6
        )

    @parameterized.parameters(1, 16, 33)
    def test_dims(self, dim):
        table = _table(dim=dim)
        matrix = Matrix(_fill(table))
        push = _pusher(table)
        for step, (signs, gradients) in enumerate(_batches(200, dim), 1):
            push(signs, gradients, step, _RATE)
            matrix.push(signs, gradients)
        self.assertAllClose(table.pull(range(_IDS)), matrix.weights, 1e-6, 1e-6)

    def test_counts_steps_as_told(self):
        table = _table()
        other = _table(
            SparseAdam(_RATE, bias_correction="global", absent="decay")
        )
        for each in (table, other):
            _fill(each)
        for step, (signs, gradients) in enumerate(_batches(20), 1):
            table.push(signs, gradients)
            other.push(signs, gradients, step=step)
        self.assertEqual(bytes_of_rows(table), bytes_of_rows(other))
        for each in (table, other):
            each.push([1], np.ones([1, _DIM]), step=1)
        self.assertNotEqual(bytes_of_rows(table), bytes_of_rows(other))

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

    def test_shards_agree(self):
        tables = [_table(shards=shards) for shards in (1, 2, 3)]
        for table in tables:
            _train(table, 300)
        for table in tables[1:]:
            self.assertEqual(bytes_of_rows(table), bytes_of_rows(tables[0]))

    def test_new_rows_begin_at_their_initial_weights(self):
        table = _table()
        initial = table.pull([1, 2]).numpy()
        _train(table, 20)
        table.erase([1, 2])
        self.assertAllEqual(table.pull([1, 2], training=True), initial)
        table.push([2], np.zeros([1, _DIM]))
        self.assertAllEqual(table.pull([1, 2]), initial)

    def test_a_cleared_table_begins_anew(self):
        for arguments in ({}, {"l2": 0.5, "shards": 2}):
            with self.subTest(**arguments):
                used, new = _table(**arguments), _table(**arguments)
                _train(used, 50)
                self.assertGreater(used.clear(), 0)
                for each in (used, new):
                    _train(each, 50)
                self.assertEqual(bytes_of_rows(used), bytes_of_rows(new))

    def test_set_fields_are_those_of_now(self):
        table = _table()
        _fill(table)
        _train(table)
        signs, fields = table.export_rows()
        self.assertAllEqual(fields["weights"], table.pull(signs))
        copy = _table()
        state = clock_ops.sparse_table_absent_state(table.rows.resource_handle)
        clock_ops.sparse_table_absent_state(copy.rows.resource_handle, state)
        copy.import_rows(signs, fields)
        self.assertEqual(bytes_of_rows(copy), bytes_of_rows(table))
        for each in (table, copy):
            _train(each, seed=2, first=31)
        self.assertAllClose(table.pull(signs), copy.pull(signs), 1e-6, 1e-6)
        # One field leaves the others as they are read.
        before = table.export_rows()
        for name in ("weights", "m", "v"):
            value = np.full([1, _DIM], 0.5, np.float32)
            table.import_rows([3], {name: value})
            after = table.export_rows()
            self.assertAllEqual(before[0], after[0])
            changed = before[0] == 3
            for field, values in after[1].items():
                expected = np.array(before[1][field])
                if field == name:
                    expected[changed] = value
                self.assertAllClose(values, expected, 1e-6, 1e-7)
            before = after

    def test_moments_of_an_unknown_step_are_a_warning(self):
        table = _table()
        _fill(table)
        _train(table)
        signs, fields = table.export_rows()
        zeros = {name: np.zeros_like(one) for name, one in fields.items()}
        told = SparseAdam(_RATE, absent="decay", bias_correction="global")
        for other, values in (
            (table, fields),
            (_table(), {"weights": fields["weights"]}),
            (_table(), zeros),
            (_table(told), fields),
        ):
            with self.assertNoLogs("tf_ext", "WARNING"):
                other.import_rows(signs, values)
        for name in ("m", "v"):
            with self.assertLogs("tf_ext", "WARNING") as log:
                _table(shards=2).import_rows(signs, {name: fields[name]})
            self.assertRegex(log.output[0], "made no step itself.*`save` and")

    def test_the_state_is_restored_in_all_shards(self):
        table, copy = _table(shards=2), _table(shards=3)
        _fill(table)
        _train(table)
        state = table.rows.saved_state()
        copy.rows.restore_state(state)
        self.assertEqual(copy.rows.saved_state(), state)
        copy.import_rows(*table.export_rows())
        for each in (table, copy):
            _train(each, seed=2, first=31)
        ids = range(_IDS)
        self.assertAllClose(table.pull(ids), copy.pull(ids), 1e-6, 1e-6)

    def test_rows_of_lazy_adam_are_as_before(self):
        lazy, dense = _table(SparseAdam(_RATE), dim=16), _table(dim=16)
        self.assertEqual(lazy.stats()["row_bytes"], 208)
        self.assertEqual(dense.stats()["row_bytes"], 208)
        self.assertNotIn("optimizer.beta_1", lazy.config)

    def test_config(self):
        rule = SparseAdam(0.1, 0.8, 0.99, 1e-6, absent="decay")
        copy = SparseAdam.from_config(rule.get_config())
        self.assertEqual(copy.get_config(), rule.get_config())
        config = _table(rule).config
        self.assertEqual(config["optimizer"], "dense_adam")
        self.assertEqual(config["optimizer.beta_2"], "0.99")
        table = tf_ext.SparseTable.from_config(_table(rule).get_config())
        self.assertEqual(table.optimizer.get_config(), rule.get_config())

    @parameterized.parameters(
        ({"absent": "stay"}, "`absent`.*'keep' or 'decay'.*'stay'"),
        ({"weight_decay": 0.1}, "`weight_decay`.*SparseTable\\(l2=\\)"),
        ({"beta_1": 0.999}, "`beta_1`.*at most 0.9957 sqrt"),
        ({"beta_2": 0.9}, "`beta_2`.*closer to 1"),
        ({"beta_2": 1.0}, "`beta_2`|beta_2=1.0"),
    )
    def test_refuses(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            SparseAdam(**{"absent": "decay"} | arguments)

    def test_begins_after_any_number_of_steps(self):
        table = _table()
        self.assertEqual(table.rows.take_adam_step(2**62), {})
        self.assertEqual(table.rows.adam_step, 2**30)
        table.push([1], np.ones([1, _DIM], np.float32))
        self.assertEqual(table.rows.adam_step, 2**30 + 1)
        # Rows have moments by now.
        self.assertEqual(list(table.rows.take_adam_step(7)), ["m", "v"])
        self.assertEqual(table.rows.adam_step, 2**30 + 1)
        config = str(table.rows.config)
        last = 2**31 - 2
        for steps in (0, last):
            state = _core.new_absent_state(config, steps)
            self.assertEqual(_core.absent_steps(state), steps)
        for steps in (-1, last + 1):
            with self.assertRaisesRegex(
                ValueError, f"steps must be from 0 to {last}, but are {steps}"
            ):
                _core.new_absent_state(config, steps)

    def test_refuses_a_state_with_any_bad_number(self):
        table = _table()
        for step in range(200):
            table.push([step % 3], np.ones([1, _DIM], np.float32))
        handle = table.rows.resource_handle
        state = clock_ops.sparse_table_absent_state(handle).numpy()
        config = str(table.rows.config)
        _core.check_absent_state(config, state)
        # Integers, sums of three kinds, and pairs of each of the last steps.
        recent, terms = np.frombuffer(state, np.int64)[1:3]
        steps = 56 + 3 * 8 * int(terms)
        last = steps + 16 * (int(recent) - 1)
        for at, bad in (
            *((at, np.int64([-2, 2**62])) for at in range(0, 56, 8)),
            *((at, [np.nan, np.inf]) for at in range(56, steps, 8)),
            *((at, [-1.0, np.nan, 1e300]) for at in (steps, last)),
            *((at + 8, [0.5, 2.0, np.nan]) for at in (steps, last)),
        ):
            for value in np.asarray(bad):
                damaged = state[:at] + value.tobytes() + state[at + 8 :]
                with self.assertRaisesRegex(ValueError, "absent"):
                    _core.check_absent_state(config, damaged)
        self.assertGreater(len(state), last + 16)

    def test_refuses_other_shrinkage(self):
        with self.assertRaisesRegex(ValueError, "`l1`.*l2 may be more"):
            _table(l1=0.1)
        table = _table(l2=4.0)
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "l2 4.*moves absent rows"
        ):
            table.push([1], np.ones([1, _DIM]))


class SmallRowsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        dtype=("float16", "bfloat16"), slot_dtype=("float32", "bfloat16")
    )
    def test_equals_a_matrix(self, dtype, slot_dtype):
        small = _table(dtype=dtype, slot_dtype=slot_dtype)
        _fill(small)
        matrix = Matrix(small.pull(range(_IDS)))
        for step, (signs, gradients) in enumerate(_batches(300), 1):
            small.push(signs, gradients, step=step)
            matrix.push(signs, gradients)
        unit = 2**-11 if dtype == "float16" else 2**-8
        if slot_dtype == "bfloat16":
            unit += 2**-9
        found = small.pull(range(_IDS)).numpy()
        self.assertAllClose(found, matrix.weights, rtol=0, atol=50 * unit)
        error = np.mean(found - matrix.weights)
        self.assertLess(abs(error), 3 * unit)

    def test_reads_without_rounding(self):
        table = _table(dtype="bfloat16")
        _fill(table)
        before = table.pull([1]).numpy()
        table.push([1], np.ones([1, _DIM]), step=1)
        stored = table.pull([1]).numpy()
        self.assertNotAllEqual(before, stored)
        table.push([], np.zeros([0, _DIM]), step=2)
        moved = table.pull([1]).numpy()
        exact = tf.cast(tf.cast(moved, tf.bfloat16), tf.float32)
        self.assertNotAllEqual(moved, exact)
        exported = table.export_rows()[1]["weights"]
        self.assertAllEqual(
            exported, tf.cast(tf.cast(exported, tf.bfloat16), tf.float32)
        )


class FilesTest(tf.test.TestCase, parameterized.TestCase):
    def _folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name

    @parameterized.product(
        dtype=("float32", "bfloat16"), shards=(1, 3), loaded=(1, 2), l2=(0, 0.1)
    )
    def test_training_goes_on_from_a_snapshot(self, dtype, shards, loaded, l2):
        table = _table(shards=shards, dtype=dtype, l2=l2)
        _fill(table)
        _train(table, 250)
        copy = _table(shards=loaded, dtype=dtype, l2=l2)
        _train(copy, steps=3)
        folder = self._folder()
        self.assertEqual(table.save(folder).format, 3)
        read = {}
        for signs, fields in snapshot.open_snapshot(folder).chunks():
            self.assertCountEqual(fields, ["weights", "m", "v"])
            for i, sign in enumerate(signs.tolist()):
                read[sign] = {name: fields[name][i] for name in fields}
        copy.load(folder)
        signs, fields = table.export_rows()
        for name, values in fields.items():
            found = [read[sign][name] for sign in signs.tolist()]
            self.assertAllEqual(np.array(found, np.float32), values)
        self.assertEqual(bytes_of_rows(copy), bytes_of_rows(table))
        for each in (table, copy):
            _train(each, 300, seed=2, first=251)
        self.assertEqual(bytes_of_rows(copy), bytes_of_rows(table))

    def test_training_goes_on_from_a_checkpoint(self):
        table = _table(shards=2)
        _fill(table)
        _train(table)
        copy = _table()
        folder = self._folder()
        path = tf.train.Checkpoint(rows=table.rows).write(f"{folder}/rows")
        tf.train.Checkpoint(rows=copy.rows).read(path).assert_consumed()
        self.assertEqual(bytes_of_rows(copy), bytes_of_rows(table))
        for each in (table, copy):
            _train(each, seed=2, first=31)
        self.assertEqual(bytes_of_rows(copy), bytes_of_rows(table))

    def test_a_damaged_checkpoint_changes_nothing(self):
        table = _table(l2=0.1)
        _fill(table)
        table.push([1], np.ones([1, _DIM]))
        folder = self._folder()
        path = tf.train.Checkpoint(rows=table.rows).write(f"{folder}/rows")
        table.push([1], np.ones([1, _DIM]))
        table.optimizer.learning_rate = _RATE / 2
        rows, state = bytes_of_rows(table), table.rows.saved_state()
        weights = tf.train.load_checkpoint(path).get_tensor(
            "rows/.ATTRIBUTES/field_weights"
        )
        data = f"{path}.data-00000-of-00001"
        with open(data, "rb+") as file:
            file.seek(file.read().index(weights.tobytes()))
            file.write(b"\xff")
        with self.assertRaises(tf.errors.DataLossError):
            tf.train.Checkpoint(rows=table.rows).read(path)
        self.assertEqual(table.rows.saved_state(), state)
        self.assertEqual(bytes_of_rows(table), rows)

    def test_deltas(self):
        table, held, served = _table(), _table(), _table()
        _fill(table)
        folder = self._folder()
        _train(table, 10)
        table.save(f"{folder}/0", incremental=True)
        held.load(f"{folder}/0")
        served.load(f"{folder}/0", in_place=True)
        for delta in range(1, 4):
            _train(table, 5, seed=delta, first=10 + 5 * delta)
            base = f"{folder}/{delta - 1}"
            manifest = table.save(f"{folder}/{delta}", base=base)
            # Rows that only move are not in it.
            self.assertLess(manifest.rows, _IDS // 2)
            expected = table.pull(range(_IDS)).numpy()
            for copy in (held, served):
                copy.apply_delta(f"{folder}/{delta}")
                self.assertAllEqual(copy.pull(range(_IDS)), expected)
            opened = snapshot.open_snapshot(f"{folder}/{delta}")
            for signs, fields in opened.chunks(["weights"]):
                self.assertAllEqual(fields["weights"], expected[signs])
        snapshot.reshard(f"{folder}/3", f"{folder}/merged", 2)
        whole = _table()
        whole.load(f"{folder}/merged")
        for each in (table, held, whole):
            _train(each, seed=8, first=26)
        self.assertEqual(bytes_of_rows(held), bytes_of_rows(table))
        self.assertEqual(bytes_of_rows(whole), bytes_of_rows(table))

    def test_conversion(self):
        table, small = _table(), _table(dtype="float16", slot_dtype="bfloat16")
        _fill(table)
        _train(table)
        folder = self._folder()
        table.save(folder)
        small.load(folder, convert=True)
        self.assertAllClose(
            small.pull(range(_IDS)), table.pull(range(_IDS)), 0.01, 0.01
        )

    def test_other_rules_are_refused(self):
        table = _table()
        _fill(table)
        _train(table)
        folder = self._folder()
        table.save(folder)
        with tf_ext.serving.weights_only():
            served = _table()
        for other, options in (
            (_table(SparseAdam(_RATE)), {"weights_only": True}),
            (served, {}),
            (_table(), {"weights_only": True}),
        ):
            with self.assertRaisesRegex(ValueError, "without their slots"):
                other.load(folder, **options)
        other = _table(SparseAdam(_RATE, beta_1=0.8, absent="decay"))
        with self.assertRaisesRegex(
            ValueError, "its `optimizer.beta_1` is .*saved, or export the rows"
        ):
            other.load(folder)
        lazy = _table(SparseAdam(_RATE))
        _fill(lazy)
        lazy.save(f"{folder}/lazy")
        table.load(f"{folder}/lazy", weights_only=True)
        self.assertAllEqual(table.pull(range(_IDS)), lazy.pull(range(_IDS)))

    def test_damaged_states(self):
        table = _table()
        _train(table)
        state = table.rows.saved_state()
        table.rows.check_state(state)
        for text in ("", "AAAA", "\u0665", state["absent_state"][:-4]):
            with self.assertRaisesRegex(ValueError, "absent"):
                table.rows.check_state({**state, "absent_state": text})
        with self.assertRaisesRegex(ValueError, "absent"):
            _core.catch_up_rows(
                str(table.rows.config), np.zeros([1, 72], np.uint8), 0, b""
            )
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "absent is damaged|were absent"
        ):
            clock_ops.sparse_table_absent_state(
                table.rows.resource_handle, "damaged"
            )


def _variable(value):
    return keras.Variable(value) if IS_KERAS_3 else tf.Variable(value)


if __name__ == "__main__":
    tf.test.main()
