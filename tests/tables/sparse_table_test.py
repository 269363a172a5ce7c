# SPDX-License-Identifier: Apache-2.0
import gc
import math
import weakref

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from ops_util import INT64_MAX, INT64_MIN, MODES, resident_bytes

import tf_ext
from tf_ext import initializers, optimizers
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "LifeTest::test_is_freed_with_its_last_reference",
    ),
]

_EXTREME = np.array([0, -1, -2, INT64_MIN, INT64_MAX])
_DECAY = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)


def _table(optimizer="sgd", initializer="normal", dim=2, **kwargs):
    name = kwargs.pop("name", "items")
    return tf_ext.SparseTable(name, dim, optimizer, initializer, **kwargs)


def _rows(table):
    """Exported rows by sign: `{sign: {field: [count]}}`."""
    signs, fields = table.export_rows()
    return {
        sign: {name: values[i] for name, values in fields.items()}
        for i, sign in enumerate(signs.tolist())
    }


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("", "a b", "a/b", "ä", "x" * 201, None, 7)
    def test_name(self, name):
        with self.assertRaises(ValueError) as raised:
            tf_ext.SparseTable(name, 4, "sgd")
        self.assertEqual(
            str(raised.exception),
            "Argument `name` of SparseTable must be 1 to 200 letters, digits, "
            f"'_', '.' or '-'. Received: name={name!r}",
        )

    @parameterized.parameters(0, -1, 65537, 4.0, "4", True, None)
    def test_dim(self, dim):
        with self.assertRaises(ValueError) as raised:
            tf_ext.SparseTable("items", dim, "sgd")
        self.assertEqual(
            str(raised.exception),
            "Argument `dim` of SparseTable must be an integer from 1 to 65536. "
            f"Received: dim={dim!r}",
        )

    @parameterized.parameters(-1, 2**64, 0.5, "1", True)
    def test_seed(self, seed):
        with self.assertRaises(ValueError) as raised:
            _table(seed=seed)
        self.assertEqual(
            str(raised.exception),
            "Argument `seed` of SparseTable must be an integer from 0 to 2^64 "
            f"- 1, or None. Received: seed={seed!r}",
        )

    @parameterized.named_parameters(
        ("unknown_name", "sparse_adagrad"),
        ("model_optimizer", optimizers.Optimizer("sgd")),
        ("class", optimizers.SparseSGD),
        ("none", None),
    )
    def test_optimizer(self, optimizer):
        with self.assertRaisesRegex(
            ValueError,
            r"`optimizer` of SparseTable must be a tf_ext.optimizers."
            r"SparseOptimizer or one of \['adagrad', 'adam', 'ftrl', 'lion', "
            r"'rmsprop', 'row_wise_adagrad', 'sgd'\], or a Keras optimizer "
            "that has the formula of one. Received: optimizer=",
        ):
            _table(optimizer)

    def test_initializer(self):
        with self.assertRaisesRegex(
            ValueError, "`initializer` of SparseTable must be a tf_ext.init"
        ):
            _table(initializer="he_normal")

    @parameterized.named_parameters(
        ("limits", {"name": "x" * 200, "dim": 65536, "seed": 2**64 - 1}),
        ("numpy_integers", {"dim": np.int64(3), "seed": np.uint32(5)}),
        ("name", {"name": "Aa0_.-"}),
    )
    def test_allowed(self, kwargs):
        table = _table(**kwargs)
        self.assertEqual(table.pull([1]).shape, [1, kwargs.get("dim", 2)])

    @parameterized.parameters(
        ("name", "other"),
        ("dim", 4),
        ("optimizer", optimizers.SparseAdam()),
        ("initializer", "zeros"),
        ("seed", 7),
        ("eviction", tf_ext.eviction.Unseen(steps=10)),
        ("statistics", ["show"]),
        ("admission", tf_ext.admission.Count(3)),
        ("unknown", "zeros"),
        ("dtype", "float16"),
        ("slot_dtype", "bfloat16"),
    )
    def test_are_not_changed_afterwards(self, name, value):
        table = _table(seed=5)
        before = table.get_config()
        with self.assertRaisesRegex(
            AttributeError,
            f"`{name}` of table 'items' cannot be changed: .* Make another "
            f"table with `{name}=`, .* Received: {name}=",
        ):
            setattr(table, name, value)
        self.assertEqual(table.get_config(), before)

    def test_trainable_may_change(self):
        table = _table()
        table.trainable = False
        self.assertFalse(table.get_config()["trainable"])
        self.assertEmpty(table.trainable_weights)

    def test_is_not_trained_unless_trainable(self):
        table = _table(trainable=False)
        for training in (True, tf.constant(True)):
            table.pull([1], training=training)
        with self.assertRaisesRegex(ValueError, "'items' is frozen"):
            table.push([1], [[1.0] * table.dim])
        self.assertEqual(table.size(), 0)
        table.trainable = True
        table.pull([1], training=True)
        self.assertEqual(table.push([1, 2], [[1.0] * table.dim] * 2), 2)
        self.assertEqual(table.size(), 2)

    def test_seed_none_is_zero(self):
        self.assertAllEqual(_table().pull([1]), _table(seed=0).pull([1]))
        self.assertNotAllEqual(_table().pull([1]), _table(seed=1).pull([1]))


class InitialRowsTest(tf.test.TestCase, parameterized.TestCase):
    def test_depend_on_name_seed_and_sign_alone(self):
        signs = np.concatenate([np.arange(-50, 50), _EXTREME[3:]])
        first = _table(seed=3)
        # Untrained, and in one batch.
        expected = first.pull(signs).numpy()
        second = _table("adam", seed=3)
        for sign in signs[::-1]:
            second.pull([sign], training=True)
        self.assertAllEqual(second.pull(signs), expected)
        self.assertAllEqual(first.pull(signs, training=True), expected)
        for other in (_table(seed=4), _table(seed=3, name="users")):
            self.assertAllEqual(
                np.any(other.pull(signs) == expected, axis=1),
                np.zeros(len(signs), bool),
            )

    def test_distinct_signs_have_distinct_rows(self):
        signs = np.unique(
            np.concatenate(
                [
                    np.arange(-5000, 5000),
                    _EXTREME,
                    1 << np.arange(63, dtype=np.int64),
                ]
            )
        )
        table = _table(dim=4)
        # Halves, so that position in a batch would show.
        halves = [
            table.pull(half, training=True).numpy()
            for half in np.array_split(signs, 2)
        ]
        rows = np.concatenate(halves)
        self.assertLen(np.unique(rows, axis=0), len(signs))

    def test_wider_rows_of_one_seed_begin_alike(self):
        narrow, wide = _table(dim=2), _table(dim=5)
        self.assertAllEqual(narrow.pull([9]), wide.pull([9])[:, :2])


class PullTest(tf.test.TestCase, parameterized.TestCase):
    def test_only_training_inserts(self):
        table = _table()
        before = table.pull([1, 2, 1])
        self.assertEqual(table.size(), 0)
        self.assertAllEqual(table.pull([1, 2, 1], training=True), before)
        self.assertEqual(table.size(), 2)
        self.assertAllEqual(table.pull([1, 2, 1]), before)

    @parameterized.named_parameters(*MODES)
    def test_any_shape(self, mode):
        table = _table()
        pull = mode(table.pull)
        for shape in ([], [0], [3], [2, 3], [2, 0, 1]):
            signs = tf.zeros(shape, tf.int64) + 7
            rows = pull(signs)
            self.assertEqual(rows.shape, shape + [2])
            self.assertAllEqual(
                rows, tf.broadcast_to(table.pull(7), rows.shape)
            )

    def test_training_may_be_a_tensor(self):
        table = _table()
        pull = tf.function(table.pull)
        pull(tf.constant([1], tf.int64), training=tf.constant(False))
        self.assertEqual(table.size(), 0)
        pull(tf.constant([1], tf.int64), training=tf.constant(True))
        self.assertEqual(table.size(), 1)

    def test_calling_the_table_does_not_insert(self):
        table = _table()
        self.assertAllEqual(table(tf.constant([4], tf.int64)), table.pull([4]))
        self.assertEqual(table.size(), 0)


class PushTest(tf.test.TestCase, parameterized.TestCase):
    def test_gradients_of_a_repeated_sign_are_summed_first(self):
        table = _table(optimizers.SparseAdagrad(0.5, 0.25, epsilon=0.0))
        start = table.pull([1, 2]).numpy()
        updated = table.push([1, 2, 1], [[1.0, 2], [5, 5], [3, -2.0]])
        self.assertEqual(updated, 2)
        sums = np.array([[4.0, 0], [5, 5]])
        accumulators = 0.25 + sums**2
        self.assertAllClose(
            table.pull([1, 2]),
            start - 0.5 * sums / np.sqrt(accumulators),
            rtol=1e-6,
            atol=0,
        )
        self.assertAllEqual(_rows(table)[1]["accumulator"], accumulators[0])

    def test_an_absent_sign_starts_with_its_initial_weights(self):
        table = _table(optimizers.SparseSGD(0.5))
        start = table.pull(_EXTREME).numpy()
        table.push(_EXTREME, np.full([5, 2], 2.0))
        self.assertAllClose(table.pull(_EXTREME), start - 1.0, rtol=1e-6)

    @parameterized.named_parameters(*MODES)
    def test_the_rate_of_who_pushes(self, mode):
        table = _table("sgd", "zeros")
        push = mode(lambda: table.push([1], [[1.0, 2.0]], learning_rate=0.25))
        push()
        self.assertAllEqual(table.pull([1]), [[-0.25, -0.5]])

    def test_the_rate_of_who_pushes_is_needed(self):
        with self.assertRaisesRegex(
            ValueError,
            "'items' follows the model optimizer's learning rate, and `push` "
            "is called without one: pass `learning_rate=`",
        ):
            _table(optimizers.SparseSGD()).push([1], [[1.0, 2.0]])

    @parameterized.named_parameters(
        ("following", optimizers.SparseSGD()),
        ("own", optimizers.SparseSGD(0.5)),
        ("schedule", optimizers.SparseSGD(_DECAY)),
    )
    def test_a_rate_that_is_given_is_that_of_one_push(self, rule):
        table = _table(rule, "zeros")
        table.push([1], [[1.0, 2.0]], learning_rate=0.25)
        self.assertAllEqual(table.pull([1]), [[-0.25, -0.5]])
        if rule.learning_rate is not None:
            table.push([2], [[1.0, 2.0]])
            self.assertAllEqual(table.pull([2]), [[-0.5, -1.0]])

    @parameterized.parameters(3.7, np.float64(3.0), True, "3")
    def test_step(self, step):
        table = _table(optimizers.SparseSGD(0.1))
        with self.assertRaises(ValueError) as raised:
            table.push([1], [[1.0, 1.0]], step=step)
        self.assertEqual(
            str(raised.exception),
            "Argument `step` of SparseTable.push must be an integer. Received: "
            f"step={step!r}",
        )
        self.assertEqual(table.size(), 0)

    def test_a_schedule_is_evaluated_before_the_step(self):
        table = _table(optimizers.SparseSGD(_DECAY), "zeros")
        table.push([1], [[1.0, 1.0]], step=1)
        table.push([2], [[1.0, 1.0]], step=3)
        self.assertAllEqual(
            table.pull([1, 2]), [[-0.5, -0.5], [-0.125, -0.125]]
        )

    def test_an_assigned_rate_reaches_compiled_functions(self):
        table = _table(optimizers.SparseSGD(0.5), "zeros")
        push = tf.function(lambda: table.push([1], [[1.0, 2.0]]))
        push()
        table.optimizer.learning_rate = 4
        self.assertEqual(table.optimizer.learning_rate, 4.0)
        push()
        self.assertAllEqual(table.pull([1]), [[-4.5, -9.0]])

    @parameterized.named_parameters(
        ("following", None, "follows the model optimizer's"),
        ("schedule", _DECAY, "is a schedule"),
    )
    def test_a_rate_that_is_no_number_cannot_be_assigned(self, rate, reason):
        rule = optimizers.SparseSGD(rate)
        with self.assertRaisesRegex(
            TypeError, f"cannot be assigned: it {reason}"
        ):
            rule.learning_rate = 0.1
        self.assertIs(rule.learning_rate, rate)

    @parameterized.parameters(-0.1, math.nan, "0.1", True)
    def test_a_wrong_rate_cannot_be_assigned(self, rate):
        rule = optimizers.SparseAdagrad(0.5)
        with self.assertRaisesRegex(
            ValueError, "`learning_rate` of SparseAdagrad must be a finite"
        ):
            rule.learning_rate = rate
        self.assertEqual(rule.learning_rate, 0.5)

    @parameterized.named_parameters(
        ("nan", [1, 2], [[1.0, 1], [math.nan, 1]], "finite"),
        ("infinite", [1, 2], [[1.0, 1], [1, -math.inf]], "finite"),
        ("width", [1, 2], [[1.0, 1, 1], [1, 1, 1]], "3"),
        ("length", [1, 2], [[1.0, 1]], ""),
        ("rank", [[1]], [[[1.0, 1]]], ""),
    )
    def test_wrong_gradients_change_nothing(self, signs, gradients, text):
        table = _table(optimizers.SparseSGD(0.5))
        table.push([1], [[1.0, 1.0]])
        before = table.pull([1, 2])
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, text):
            table.push(signs, gradients)
        self.assertAllEqual(table.pull([1, 2]), before)
        self.assertEqual(table.size(), 1)


class RowsTest(tf.test.TestCase, parameterized.TestCase):
    def test_extreme_signs_are_like_any_other(self):
        table = _table(optimizers.SparseAdagrad(0.5), seed=1)
        start = table.pull(_EXTREME, training=True).numpy()
        self.assertEqual(table.size(), 5)
        for i, sign in enumerate(_EXTREME):
            table.push([sign], np.full([1, 2], i + 1.0))
        self.assertAllEqual(sorted(_rows(table)), sorted(_EXTREME))
        self.assertAllClose(
            [_rows(table)[sign]["accumulator"][0] for sign in _EXTREME],
            0.1 + np.arange(1.0, 6) ** 2,
            rtol=1e-6,
        )
        copy = _table("adagrad", seed=1)
        copy.import_rows(*table.export_rows())
        self.assertAllEqual(copy.pull(_EXTREME), table.pull(_EXTREME))
        for left, sign in zip((4, 3, 2, 1, 0), _EXTREME):
            self.assertEqual(table.erase([sign]), 1)
            self.assertEqual(table.size(), left)
        self.assertAllEqual(table.pull(_EXTREME), start)

    def test_erase_and_clear_count_what_was_there(self):
        table = _table()
        self.assertEqual(table.clear(), 0)
        table.pull(np.arange(10), training=True)
        self.assertEqual(table.erase([3, 4, 3, 77]), 2)
        self.assertEqual(table.erase([]), 0)
        self.assertEqual(table.size(), 8)
        self.assertEqual(table.clear(), 8)
        self.assertEqual(table.size(), 0)
        self.assertEqual(len(table.export_rows()[0]), 0)

    def test_clear_forgets_the_places_of_erased_rows(self):
        # Several hundred rows for each of the 64 stripes of a table.
        table = _table()
        signs = np.arange(20_000)
        start = table.pull(signs, training=True)
        table.erase(signs[::3])
        table.clear()
        table.pull(signs, training=True)
        others = signs[-500:]
        self.assertEqual(table.erase(others), 500)
        table.pull(others + 500, training=True)
        self.assertEqual(table.size(), 20_000)
        left = signs[:-500]
        table.import_rows(left, {"weights": -start[:-500]})
        self.assertAllEqual(table.pull(left), -start[:-500])
        exported, _ = table.export_rows()
        wanted = np.concatenate([left, others + 500])
        self.assertAllEqual(np.sort(exported), wanted)

    def test_compact_gives_memory_back_and_leaves_rows(self):
        table = _table("adagrad")
        signs = np.arange(50_000)
        table.pull(signs, training=True)
        table.push(signs, np.tile(np.float32([1, -2]), [50_000, 1]))
        self.assertEqual(table.compact(), 0)
        table.erase(signs[:45_000])
        rows = _rows(table)
        by_sign = str(dict(sorted(rows.items())))
        pulled = table.pull(signs)
        before = table.stats()["bytes"]
        given_back = table.compact()
        self.assertEqual(before - table.stats()["bytes"], given_back)
        self.assertGreater(given_back, before * 3 / 4)
        self.assertEqual(table.stats()["free_rows"], 0)
        after = _rows(table)
        self.assertLen(after, 5000)
        for sign in (45_000, 49_999):
            self.assertAllEqual(after[sign]["weights"], rows[sign]["weights"])
        # Not in the same order.
        self.assertTrue(str(dict(sorted(after.items()))) == by_sign)
        # All are found, and nothing of those that were erased.
        self.assertAllEqual(table.pull(signs), pulled)

    def test_an_erased_row_starts_anew(self):
        table = _table(optimizers.SparseAdagrad(0.5))
        start = table.pull([1], training=True).numpy()
        table.push([1], [[1.0, 1.0]])
        table.erase([1])
        self.assertAllEqual(table.pull([1], training=True), start)
        self.assertAllEqual(
            _rows(table)[1]["accumulator"], np.float32([0.1, 0.1])
        )

    def test_stats(self):
        table = _table("adagrad")
        empty = table.stats()
        self.assertEqual(set(tf_ext.ops.TABLE_STATS) | {"bytes"}, set(empty))
        self.assertEqual(empty["rows"], 0)
        self.assertLess(empty["bytes"], 1 << 20)
        table.pull(np.arange(50_000), training=True)
        table.erase(np.arange(1000))
        stats = table.stats()
        self.assertEqual(stats["rows"], 49_000)
        self.assertEqual(stats["free_rows"], 1000)
        self.assertEqual(
            stats["bytes"], stats["slab_bytes"] + stats["index_bytes"]
        )
        self.assertGreaterEqual(
            stats["slab_bytes"], 50_000 * stats["row_bytes"]
        )

    def test_export_has_all_fields(self):
        table = _table(optimizers.SparseAdam(0.1), dim=3)
        self.assertEqual(
            {k: v.shape for k, v in table.export_rows()[1].items()},
            {"weights": (0, 3), "m": (0, 3), "v": (0, 3), "step": (0, 1)},
        )
        table.push([5], [[1.0, 2.0, 3.0]])
        table.push([5], [[1.0, 2.0, 3.0]])
        row = _rows(table)[5]
        self.assertAllEqual(row["step"], [2])
        self.assertEqual(row["step"].dtype, np.int32)
        self.assertAllClose(row["m"], 0.19 * np.array([1, 2, 3]), rtol=1e-5)

    def test_import_keeps_or_starts_fields_that_are_left_out(self):
        table = _table(optimizers.SparseAdagrad(0.5, 0.25))
        table.push([1], [[1.0, 2.0]])
        weights = [[7.0, 8.0], [9.0, 10.0]]
        self.assertEqual(table.import_rows([1, 2], {"weights": weights}), 2)
        rows = _rows(table)
        self.assertAllEqual(table.pull([1, 2]), weights)
        self.assertAllEqual(rows[1]["accumulator"], [1.25, 4.25])
        self.assertAllEqual(rows[2]["accumulator"], [0.25, 0.25])

    def test_imported_fields_are_checked(self):
        table = _table("adagrad")
        table.pull([1], training=True)
        before = _rows(table)[1]
        for fields, text in (
            ({"momentum": [[1.0, 1.0]]}, "momentum"),
            ({"weights": [[1.0, 1.0, 1.0]]}, "3"),
            ({"weights": [[1.0, 1.0], [2.0, 2.0]]}, "weights"),
        ):
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, text):
                table.import_rows([1], fields)
        self.assertEqual(table.size(), 1)
        for name, value in _rows(table)[1].items():
            self.assertAllEqual(value, before[name])


class LifeTest(tf.test.TestCase):
    def test_tables_of_one_name_are_not_shared(self):
        first, second = _table(), _table()
        first.pull([1, 2], training=True)
        self.assertEqual((first.size(), second.size()), (2, 0))

    def test_is_freed_with_its_last_reference(self):
        def fill():
            table = _table("adagrad", "zeros", dim=64)
            pull = tf.function(lambda s: table.pull(s, training=True))
            for start in range(0, 200_000, 10_000):
                pull(tf.range(start, start + 10_000, dtype=tf.int64))
            return table

        fill()  # Scratch memory grows first.
        gc.collect()
        before = resident_bytes()
        table = fill()
        alive = weakref.ref(table)
        self.assertEqual(table.size(), 200_000)
        filled = resident_bytes() - before
        self.assertGreater(filled, 200_000 * 64 * 4)
        del table
        gc.collect()
        self.assertIsNone(alive())
        self.assertLess(resident_bytes() - before, filled / 4)

    def test_survives_its_configuration(self):
        table = tf_ext.SparseTable(
            "items",
            3,
            optimizers.SparseFtrl(0.5, l1_regularization_strength=0.25),
            initializers.TruncatedNormal(stddev=0.5),
            seed=2**64 - 1,
            trainable=False,
        )
        again = tf_ext.SparseTable.from_config(table.get_config())
        through_keras = keras.utils.deserialize_keras_object(
            keras.utils.serialize_keras_object(table)
        )
        table.pull([1], training=True)
        for copy in (again, through_keras):
            self.assertEqual(copy.config, table.config)
            self.assertEqual(copy.size(), 0)
            self.assertFalse(copy.trainable)
            self.assertEqual(
                copy.optimizer.get_config(), table.optimizer.get_config()
            )
            self.assertAllEqual(copy.pull([1, -1]), table.pull([1, -1]))
            self.assertNotEqual(copy.uid, table.uid)

    def test_its_variable_refuses_to_be_assigned(self):
        table = _table()
        for assign in (table.shadow.assign, table.shadow.assign_add):
            with self.assertRaisesRegex(
                RuntimeError,
                r"rows of table 'items' are not in a variable.*Compile the "
                r"model with .*tf_ext.optimizers.Optimizer\(your_optimizer\)",
            ):
                assign([[1.0, 1.0]])


if __name__ == "__main__":
    tf.test.main()
