# SPDX-License-Identifier: Apache-2.0
"""SparseTable(dtype=, slot_dtype=): arguments, Keras, export and import."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.counter_tables import make_model
from models.small_rows import DTYPES, make_table, stored_bytes, train

import tf_ext
from tf_ext import ops
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "KerasTest::test_training_and_clones",
    ),
]

_BOTH = ("float16", "bfloat16")


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("dtype", "float64", "'float32' or 'float16' or 'bfloat16'"),
        ("dtype", "mixed_float16", "'float32' or 'float16' or 'bfloat16'"),
        ("dtype", None, "'float32' or 'float16' or 'bfloat16'"),
        ("dtype", tf.float16, "'float32' or 'float16' or 'bfloat16'"),
        ("slot_dtype", "float16", "'float32' or 'bfloat16'"),
        ("slot_dtype", ["bfloat16"], "'float32' or 'bfloat16'"),
    )
    def test_refuses(self, name, value, allowed):
        with self.assertRaisesRegex(
            ValueError,
            f"^Argument `{name}` of SparseTable must be {allowed}, the type of "
            "stored values: tables compute in float32 under any policy. "
            f"Received: {name}=",
        ):
            tf_ext.SparseTable("user", dim=2, **{name: value})

    def test_initial_weights_must_be_in_range(self):
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "from -65504 to 65504, as dtype is"
        ):
            tf_ext.SparseTable(
                "user",
                2,
                initializer=tf_ext.initializers.Constant(1e5),
                dtype="float16",
            )

    @parameterized.parameters(("float16", "float32"), ("float32", "bfloat16"))
    def test_push_needs_the_step(self, dtype, slot_dtype):
        table = tf_ext.SparseTable(
            "user", 2, "adagrad", dtype=dtype, slot_dtype=slot_dtype
        )
        with self.assertRaisesRegex(
            ValueError, "needs the argument `step`: table 'user' is rounded"
        ):
            table.push([1], [[1.0, 1.0]], learning_rate=0.1)
        self.assertEqual(table.size(), 0)

    def test_small_updates_are_not_lost(self):
        ones = tf_ext.initializers.Constant(1.0)
        table = tf_ext.SparseTable("user", 2, "sgd", ones, dtype="float16")
        # A fifth of the distance between values below 1, in each step.
        for step in range(1, 201):
            table.push(
                range(200), tf.ones([200, 2]), step=step, learning_rate=1e-4
            )
        # Five standard deviations of the mean of 400 sums of roundings.
        self.assertAllClose(
            tf.reduce_mean(table.pull(range(200))), 1 - 200 * 1e-4, atol=8e-4
        )

    @parameterized.parameters(*DTYPES)
    def test_rows_have_these_types(self, dtype, slot_dtype):
        table = make_table((dtype, slot_dtype))
        self.assertEqual((table.dtype, table.slot_dtype), (dtype, slot_dtype))
        sizes = {"float32": 4, "float16": 2, "bfloat16": 2}
        # Weights, two slots; and the step, last_seen, show and click.
        expected = 8 + 3 * sizes[dtype] + 6 * sizes[slot_dtype] + 16
        self.assertEqual(table.rows.bytes_per_row, expected)
        self.assertEqual(table.stats()["row_bytes"], (expected + 7) // 8 * 8)
        train(table, [5])
        [row] = stored_bytes(table).values()
        self.assertEqual(8 + sum(map(len, row.values())), expected)
        types = {f.name: f.dtype.name for f in table.rows.fields}
        self.assertEqual(
            types,
            {
                "weights": dtype,
                "m": slot_dtype,
                "v": slot_dtype,
                "step": "int32",
                "last_seen": "int32",
                "show": "float32",
                "click": "float32",
            },
        )


def _neighbours(values, dtype):
    """What is stored next below and above in magnitude, as float32."""
    magnitudes = np.abs(values)
    if dtype == "bfloat16":
        bits = magnitudes.view(np.uint32)
        below = (bits & 0xFFFF0000).view(np.float32)
        above = (bits + 0xFFFF & 0xFFFF0000).view(np.float32)
    else:
        half = magnitudes.astype(np.float16)
        is_above = half.astype(np.float32) > magnitudes
        half = np.where(is_above, np.nextafter(half, np.float16(0)), half)
        below = half.astype(np.float32)
        up = np.nextafter(half, np.float16(np.inf)).astype(np.float32)
        above = np.where(below < magnitudes, up, below)
    return np.copysign(below, values), np.copysign(above, values)


class RoundingTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*_BOTH)
    def test_what_is_stored_is_a_neighbour(self, dtype):
        """In loops of all lengths, and below the normal numbers, too."""
        generator = np.random.default_rng(1)
        for dim in (1, 3, 8, 9, 16, 23, 64):
            table = tf_ext.SparseTable(
                "t",
                dim,
                tf_ext.optimizers.SparseSGD(1.0),
                tf_ext.initializers.Zeros(),
                seed=1,
                dtype=dtype,
            )
            values = 10 ** generator.uniform(-9, 4.8, [200, dim])
            values *= generator.choice([-1, 1], values.shape)
            values = values.astype(np.float32)
            table.push(range(200), -values, step=1)
            found = table.pull(range(200)).numpy()
            below, above = _neighbours(values, dtype)
            is_below, is_above = found == below, found == above
            self.assertTrue(np.all(is_below | is_above))
            self.assertAllEqual(np.signbit(found), np.signbit(values))
            # Whichever is nearer is more likely, and neither is always taken.
            share = np.mean((is_above & ~is_below)[below != above])
            self.assertBetween(share, 0.3, 0.7)


class KerasTest(tf.test.TestCase):
    def test_the_layer_computes_in_float32_under_any_policy(self):
        self.addCleanup(
            keras.mixed_precision.set_global_policy,
            keras.mixed_precision.global_policy(),
        )
        for policy in ("float32", "mixed_float16", "mixed_bfloat16"):
            keras.mixed_precision.set_global_policy(policy)
            for dtypes in (*DTYPES, ("float32", "float32")):
                table = make_table(dtypes)
                self.assertEqual(table.compute_dtype, "float32")
                self.assertEqual(table.dtype, dtypes[0])
                self.assertEqual(table.shadow.dtype, "float32")
                self.assertEqual(table(tf.constant([1, 2])).dtype, tf.float32)
                self.assertEqual(table.pull([1, 2]).dtype, tf.float32)

    def test_configurations(self):
        table = make_table(_BOTH)
        config = table.get_config()
        self.assertEqual((config["dtype"], config["slot_dtype"]), _BOTH)
        other = tf_ext.SparseTable.from_config(config)
        self.assertEqual(other.rows.config, table.rows.config)
        self.assertEqual(other.rows.fields, table.rows.fields)
        # Of a version without small rows.
        del config["dtype"], config["slot_dtype"]
        old = tf_ext.SparseTable.from_config(config)
        self.assertEqual((old.dtype, old.slot_dtype), ("float32", "float32"))
        self.assertEqual(old.config["dtype"], "float32")
        self.assertNotIn("slot_dtype", old.config)

    def test_training_and_clones(self):
        table = make_table(_BOTH, optimizer="adagrad", eviction=None)
        model = make_model(table)
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        ids = {"id": np.arange(64) % 20}
        model.fit(ids, np.ones([64, 1]), batch_size=8, verbose=0)
        self.assertEqual(table.size(), 20)
        self.assertEqual(model.predict(ids, verbose=0).dtype, np.float32)
        copy = keras.models.clone_model(model)
        [layer] = [x for x in copy.layers if hasattr(x, "tables")]
        [cloned] = layer.tables
        self.assertEqual((cloned.dtype, cloned.slot_dtype), _BOTH)


class ExportTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*DTYPES)
    def test_exports_float32_and_imports_it_exactly(self, dtype, slot_dtype):
        table = make_table((dtype, slot_dtype), 2)
        train(table, range(50))
        signs, fields = table.export_rows()
        for name in ("weights", "m", "v"):
            self.assertEqual(fields[name].dtype, np.float32)
        order = np.argsort(signs)
        self.assertAllEqual(fields["weights"][order], table.pull(signs[order]))
        other = make_table((dtype, slot_dtype))
        other.import_rows(signs, fields)
        self.assertEqual(stored_bytes(other), stored_bytes(table))
        self.assertEqual(other.stats()["saturated"], 0)

    @parameterized.parameters(
        tf_ext.optimizers.SparseAdagrad, tf_ext.optimizers.SparseFtrl
    )
    def test_slots_start_with_the_nearest_value(self, rule):
        """All of a row, and what follows them starts as it should, too."""
        optimizer = rule(0.1, initial_accumulator_value=0.1)
        table = make_table(("float32", "bfloat16"), optimizer=optimizer)
        table.pull([1, 2], training=True)
        _, fields = table.export_rows()
        # Of the values of bfloat16, the nearest to 0.1.
        accumulators = np.full([2, 3], 0.10009765625, np.float32)
        self.assertAllEqual(fields["accumulator"], accumulators)
        if "linear" in fields:
            self.assertAllEqual(fields["linear"], np.zeros([2, 3]))
        self.assertAllEqual(fields["show"], np.zeros([2, 1]))

    def test_values_as_they_are_stored(self):
        table = make_table(_BOTH)
        train(table, range(9))
        config = table.rows.config
        names = ["weights", "v", "step"]
        handle = table.rows.shards[0].resource_handle
        signs, _, stored = ops.sparse_table_export(
            handle,
            field_names=names,
            field_dtypes=[tf.float16, tf.bfloat16, tf.int32],
        )
        _, _, wide = ops.sparse_table_export(
            handle,
            field_names=names,
            field_dtypes=[tf.float32, tf.float32, tf.int32],
        )
        for one, other in zip(stored, wide):
            self.assertAllEqual(tf.cast(one, other.dtype), other)
        into = ops.sparse_table_handle(config)
        ops.sparse_table_import(into, signs, stored, field_names=names)
        self.assertAllEqual(ops.sparse_table_pull(into, signs, dim=3), wide[0])
        for dtype, name in (
            (tf.bfloat16, "weights"),
            (tf.float16, "v"),
            (tf.float32, "step"),
            (tf.float16, "show"),
        ):
            with self.assertRaisesRegex(
                tf.errors.InvalidArgumentError,
                f"There is no field '{name}' of type .* Its fields are: "
                r"weights half\[3\], m bfloat16\[3\], v bfloat16\[3\], ",
            ):
                ops.sparse_table_export(
                    handle, field_names=[name], field_dtypes=[dtype]
                )

    @parameterized.parameters(
        ("float16", [1e9, -np.inf, 65519.9], 65504.0),
        ("bfloat16", [3.4e38, -np.inf, 3.392e38], 2.0**128 - 2.0**120),
    )
    def test_imports_are_limited_and_counted(self, dtype, values, largest):
        table = make_table((dtype, "float32"), optimizer="sgd")
        table.import_rows([3], {"weights": [values]})
        self.assertAllEqual(table.pull([3]), [[largest, -largest, largest]])
        self.assertEqual(table.stats()["saturated"], 3)
        [shard] = table.shard_stats()
        self.assertEqual(shard["saturated"], 3)


if __name__ == "__main__":
    tf.test.main()
