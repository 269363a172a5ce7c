# SPDX-License-Identifier: Apache-2.0
import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from ops_util import (
    INT64_MAX,
    INT64_MIN,
    MODES,
    UNIFORM,
    export_all,
    named_cases,
    table_config,
)

from tf_ext import ops

SGD = [1.0, 0.0]  # learning_rate, weight_decay


def _signature(*shape, dtype=tf.int64):
    return tf.TensorSpec(shape, dtype)


class PullTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(*MODES)
    def test_training_decides_whether_absent_signs_are_inserted(self, mode):
        handle = ops.sparse_table_handle(table_config(UNIFORM))
        signs = tf.constant([0, -1, -2, INT64_MIN, INT64_MAX, 7, 7], tf.int64)

        @mode
        def pull(training):
            return ops.sparse_table_pull(
                handle, signs, training=training, dim=4
            )

        initial = pull(tf.constant(False)).numpy()
        self.assertEqual(ops.sparse_table_size(handle).numpy(), 0)
        self.assertAllEqual(initial[5], initial[6])
        self.assertLen(np.unique(initial[:6], axis=0), 6)
        self.assertTrue(np.all((initial >= -1) & (initial < 1)), initial)
        self.assertAllEqual(pull(tf.constant(True)), initial)
        self.assertEqual(ops.sparse_table_size(handle).numpy(), 6)
        self.assertAllEqual(pull(tf.constant(False)), initial)

    def test_no_signs_give_no_rows(self):
        handle = ops.sparse_table_handle(table_config())
        self.assertEqual(
            ops.sparse_table_pull(handle, [], training=True, dim=4).shape,
            [0, 4],
        )

    @parameterized.named_parameters(("unknown", None), ("known", 3))
    def test_static_shape_is_signs_by_dim(self, n):
        handle = ops.sparse_table_handle(table_config())
        pull = tf.function(lambda s: ops.sparse_table_pull(handle, s, dim=4))
        concrete = pull.get_concrete_function(_signature(n))
        self.assertEqual(concrete.output_shapes.as_list(), [n, 4])

    @parameterized.named_parameters(*MODES)
    def test_statistics_follow_weights(self, mode):
        handle = ops.sparse_table_handle(
            table_config(dim=2, statistics="show,click")
        )
        ops.sparse_table_push(
            handle,
            [7],
            [[1.0, 2.0]],
            [[3.0, 0.5]],
            hyperparameters=[1.0, 0.0],
        )

        @mode
        def pull():
            return ops.sparse_table_pull(handle, [7, 8], dim=2, statistics=2)

        self.assertAllEqual(pull(), [[-1, -2, 3, 0.5], [0, 0, 0, 0]])
        traced = tf.function(pull).get_concrete_function()
        self.assertEqual(traced.output_shapes.as_list(), [2, 4])

    def test_has_no_gradient(self):
        handle = ops.sparse_table_handle(table_config())
        signs = tf.constant([1], tf.int64)
        with tf.GradientTape() as tape:
            tape.watch(signs)
            rows = ops.sparse_table_pull(handle, signs, dim=4)
        self.assertIsNone(tape.gradient(rows, signs))


class PushTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(*MODES)
    def test_updates_rows_and_inserts_absent_ones(self, mode):
        handle = ops.sparse_table_handle(table_config(dim=2))
        ops.sparse_table_pull(handle, [1], training=True, dim=2)
        gradients = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        push = mode(
            lambda: ops.sparse_table_push(
                handle, [1, 2], gradients, hyperparameters=[0.5, 0.0], step=1
            )
        )
        self.assertEqual(push().numpy(), 2)
        signs, [weights] = export_all(handle)
        self.assertAllEqual(signs, [1, 2])
        self.assertAllEqual(weights, [[-0.5, -1.0], [-1.5, -2.0]])

    def test_a_sign_that_is_there_twice_is_updated_twice(self):
        handle = ops.sparse_table_handle(
            table_config(
                {
                    "optimizer": "adagrad",
                    "optimizer.initial_accumulator_value": 0,
                },
                dim=1,
            )
        )
        ops.sparse_table_push(
            handle, [1, 1], [[3.0], [4.0]], hyperparameters=[1.0, 0.0, 0.0]
        )
        # 3 / sqrt(9), then 4 / sqrt(9 + 16).
        self.assertAllClose(export_all(handle)[1][0], [[-1.8]], rtol=1e-6)

    @parameterized.named_parameters(
        ("some_a_sign", 2, 3), ("none_a_sign", 2, 0), ("of_no_sign", 0, 0)
    )
    def test_statistics_may_be_given(self, *shape):
        handle = ops.sparse_table_handle(table_config())
        updated = ops.sparse_table_push(
            handle,
            [1, 2],
            tf.ones([2, 4]),
            tf.zeros(shape),
            hyperparameters=SGD,
        )
        self.assertEqual(updated.numpy(), 2)

    def test_runs_in_a_function_that_does_not_use_its_output(self):
        handle = ops.sparse_table_handle(table_config())

        @tf.function
        def train():
            ops.sparse_table_push(
                handle, [1], tf.ones([1, 4]), hyperparameters=SGD
            )

        train()
        train()
        self.assertAllEqual(export_all(handle)[1][0], [[-2.0] * 4])

    def test_static_shape_is_a_scalar(self):
        handle = ops.sparse_table_handle(table_config())
        push = tf.function(
            lambda s, g: ops.sparse_table_push(
                handle, s, g, hyperparameters=SGD
            )
        ).get_concrete_function(
            _signature(None), _signature(None, None, dtype=tf.float32)
        )
        self.assertEqual(push.output_shapes.as_list(), [])


class ExportImportTest(tf.test.TestCase, parameterized.TestCase):
    FIELDS = ("weights", "m", "v", "step")
    DTYPES = (tf.float32, tf.float32, tf.float32, tf.int32)
    ADAM = (0.1, 0.0, 0.9, 0.999, 1e-7)

    def trained(self, n=100):
        handle = ops.sparse_table_handle(
            table_config(UNIFORM, optimizer="adam", dim=3)
        )
        generator = np.random.default_rng(7)
        for step in range(1, 4):
            ops.sparse_table_push(
                handle,
                np.arange(n)[:: step % 2 + 1],
                generator.normal(size=[len(range(0, n, step % 2 + 1)), 3]),
                hyperparameters=self.ADAM,
                step=step,
            )
        return handle

    @parameterized.named_parameters(*MODES)
    def test_rows_move_to_another_table(self, mode):
        source = self.trained()
        signs, values = export_all(source, self.FIELDS, self.DTYPES)
        self.assertAllEqual(signs, np.arange(100))
        self.assertAllEqual(np.unique(values[3]), [1, 3])

        target = ops.sparse_table_handle(
            table_config(UNIFORM, optimizer="adam", dim=3)
        )
        ops.sparse_table_pull(target, [1000], training=True, dim=3)

        @mode
        def copy(clear):
            exported, _, fields = ops.sparse_table_export(
                source, field_names=self.FIELDS, field_dtypes=self.DTYPES
            )
            return ops.sparse_table_import(
                target, exported, fields, field_names=self.FIELDS, clear=clear
            )

        self.assertEqual(copy(tf.constant(False)).numpy(), 100)
        self.assertEqual(ops.sparse_table_size(target).numpy(), 101)
        self.assertEqual(copy(tf.constant(True)).numpy(), 100)
        self.assertAllEqual(
            export_all(target, self.FIELDS, self.DTYPES)[0], signs
        )
        for expected, found in zip(
            values, export_all(target, self.FIELDS, self.DTYPES)[1]
        ):
            self.assertAllEqual(found, expected)

    @parameterized.named_parameters(
        *named_cases(limit=[1, 7, 100, 1000], mode=MODES)
    )
    def test_a_walk_sees_each_row_once(self, limit, mode):
        handle = self.trained()
        export = mode(
            lambda cursor: ops.sparse_table_export(
                handle,
                cursor,
                limit,
                field_names=["weights"],
                field_dtypes=[tf.float32],
            )
        )
        cursor, signs, weights = tf.constant(0, tf.int64), [], []
        while cursor != -1:
            page_signs, cursor, [page_weights] = export(cursor)
            self.assertLessEqual(len(page_signs), limit)
            self.assertLen(page_weights, len(page_signs))
            signs.extend(page_signs.numpy())
            weights.extend(page_weights.numpy())
        order = np.argsort(signs)
        all_signs, [all_weights] = export_all(handle)
        self.assertAllEqual(np.array(signs)[order], all_signs)
        self.assertAllEqual(np.array(weights)[order], all_weights)

    @parameterized.named_parameters(
        ("no_limit", -1),
        ("a_limit_of_all", 150_000),
        ("a_larger_limit", 150_001),
        ("a_smaller_limit", 149_999),
    )
    def test_many_rows_are_exported_with(self, limit):
        handle = ops.sparse_table_handle(table_config(dim=1))
        n = 150_000
        values = np.random.default_rng(3).normal(size=[n, 1])
        values = values.astype(np.float32)
        ops.sparse_table_import(
            handle, np.arange(n), [values], field_names=["weights"]
        )
        signs, cursor, [weights] = ops.sparse_table_export(
            handle, 0, limit, field_names=["weights"], field_dtypes=[tf.float32]
        )
        self.assertLen(np.unique(signs), len(signs))
        if limit == 149_999:
            # All stripes but the last, which does not fit.
            self.assertBetween(len(signs), 140_000, limit)
            self.assertGreater(int(cursor), 0)
        else:
            self.assertLen(signs, n)
            self.assertEqual(int(cursor), -1)
        self.assertAllEqual(weights, values[signs.numpy()])

    def test_limit_0_and_an_empty_table_give_no_rows(self):
        for handle, limit in (
            (self.trained(), 0),
            (ops.sparse_table_handle(table_config(dim=3)), -1),
        ):
            signs, _, [weights] = ops.sparse_table_export(
                handle,
                0,
                limit,
                field_names=["weights"],
                field_dtypes=[tf.float32],
            )
            self.assertEqual(signs.shape, [0])
            self.assertEqual(weights.shape, [0, 3])

    def test_fields_that_are_not_given_keep_or_start(self):
        handle = self.trained(n=2)
        before = export_all(handle, self.FIELDS, self.DTYPES)[1]
        self.assertEqual(
            ops.sparse_table_import(
                handle,
                [1, 5, 5],
                [np.float32([[1] * 3, [2] * 3, [3] * 3])],
                field_names=["m"],
            ).numpy(),
            3,
        )
        signs, after = export_all(handle, self.FIELDS, self.DTYPES)
        self.assertAllEqual(signs, [0, 1, 5])
        self.assertAllEqual(after[1][1:], [[1] * 3, [3] * 3])  # the last wins
        for field in (0, 2, 3):
            self.assertAllEqual(after[field][:2], before[field])
        self.assertAllEqual(
            after[0][2], ops.sparse_table_pull(handle, [5], dim=3)[0]
        )
        self.assertAllEqual(after[2][2], [0] * 3)

    def test_static_shapes(self):
        handle = self.trained()
        export = tf.function(
            lambda: tuple(
                ops.sparse_table_export(
                    handle,
                    field_names=["weights", "step"],
                    field_dtypes=[tf.float32, tf.int32],
                )
            )
        ).get_concrete_function()
        signs, cursor, fields = export.structured_outputs
        self.assertEqual(signs.shape.as_list(), [None])
        self.assertEqual(cursor.shape.as_list(), [])
        self.assertEqual([f.shape.rank for f in fields], [2, 2])
        self.assertEqual([f.dtype for f in fields], [tf.float32, tf.int32])


class MaintenanceTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(*MODES)
    def test_erase_and_clear_count_what_was_there(self, mode):
        handle = ops.sparse_table_handle(table_config())
        signs = tf.range(100, dtype=tf.int64)
        ops.sparse_table_pull(handle, signs, training=True, dim=4)
        erase = mode(lambda s: ops.sparse_table_erase(handle, s))
        self.assertEqual(erase(tf.constant([3, 3, 500, 4], tf.int64)), 2)
        self.assertEqual(erase(tf.constant([], tf.int64)), 0)
        self.assertEqual(mode(lambda: ops.sparse_table_size(handle))(), 98)
        self.assertEqual(mode(lambda: ops.sparse_table_clear(handle))(), 98)
        self.assertEqual(ops.sparse_table_size(handle).numpy(), 0)

    @parameterized.named_parameters(*MODES)
    def test_compact_gives_memory_back_and_leaves_rows(self, mode):
        handle = ops.sparse_table_handle(table_config(UNIFORM))
        signs = tf.range(20_000, dtype=tf.int64)
        rows = ops.sparse_table_pull(handle, signs, training=True, dim=4)

        def stats():
            values = ops.sparse_table_stats(handle).numpy().tolist()
            return dict(zip(ops.TABLE_STATS, values))

        compact = mode(lambda: ops.sparse_table_compact(handle))
        self.assertEqual(compact(), 0)
        ops.sparse_table_erase(handle, signs[:19_000])
        before = stats()
        given_back = int(compact())
        after = stats()
        self.assertEqual(after["rows"], 1000)
        self.assertEqual(after["free_rows"], 0)
        self.assertLess(after["index_bytes"], before["index_bytes"] / 8)
        self.assertEqual(
            given_back,
            sum(before[k] - after[k] for k in ("slab_bytes", "index_bytes")),
        )
        self.assertGreater(given_back, 19_000 * before["row_bytes"] / 2)
        self.assertAllEqual(ops.sparse_table_pull(handle, signs, dim=4), rows)

    def test_an_op_has_the_name_that_it_is_given(self):
        field = {"field_names": ["weights"]}
        calls = {
            "pull": lambda h, **name: ops.sparse_table_pull(
                h, [1], dim=4, **name
            ),
            "push": lambda h, **name: ops.sparse_table_push(
                h, [1], [[1.0] * 4], hyperparameters=SGD, **name
            ),
            "size": ops.sparse_table_size,
            "stats": ops.sparse_table_stats,
            "config": ops.sparse_table_config,
            "export": lambda h, **name: ops.sparse_table_export(
                h, field_dtypes=[tf.float32], **field, **name
            ),
            "import": lambda h, **name: ops.sparse_table_import(
                h, [1], [[[1.0] * 4]], **field, **name
            ),
            "erase": lambda h, **name: ops.sparse_table_erase(h, [1], **name),
            "clear": ops.sparse_table_clear,
            "compact": ops.sparse_table_compact,
            "decay": lambda h, **name: ops.sparse_table_decay(h, 0.5, **name),
            "evict": lambda h, **name: ops.sparse_table_evict(
                h, 1, unseen=1, **name
            ),
        }
        with tf.Graph().as_default() as graph:
            handle = ops.sparse_table_handle(table_config(), name="my_handle")
            for name, call in calls.items():
                call(handle, name=f"my_{name}")
            names = {operation.name for operation in graph.get_operations()}
        self.assertContainsSubset(
            {f"my_{name}" for name in ("handle", *calls)}, names
        )

    @parameterized.named_parameters(*MODES)
    def test_stats_are_named(self, mode):
        handle = ops.sparse_table_handle(table_config(dim=3))
        signs = tf.range(1000, dtype=tf.int64)
        ops.sparse_table_pull(handle, signs, training=True, dim=3)
        ops.sparse_table_erase(handle, [7])
        ops.sparse_table_push(
            handle, [1, 2], np.ones([2, 3]), hyperparameters=[0.1, 0.0]
        )
        values = mode(lambda: ops.sparse_table_stats(handle))().numpy()
        self.assertLen(values, len(ops.TABLE_STATS))
        stats = dict(zip(ops.TABLE_STATS, values.tolist()))
        self.assertEqual(stats["rows"], 999)
        self.assertEqual(stats["free_rows"], 1)
        self.assertEqual(stats["updated"], 2)
        self.assertEqual(stats["row_bytes"], 24)
        self.assertGreaterEqual(stats["slab_bytes"], 1000 * 24)
        self.assertGreater(stats["index_bytes"], 0)
        self.assertBetween(
            999 / stats["stripes"],
            stats["min_stripe_rows"],
            stats["max_stripe_rows"],
        )
        self.assertGreaterEqual(stats["max_probe_length"], 1)

    @parameterized.named_parameters(*MODES)
    def test_config_is_canonical(self, mode):
        handle = ops.sparse_table_handle(
            "optimizer=sgd\nseed=5\nname=items\ninitializer=zeros\ndim=2\n"
        )
        config = mode(lambda: ops.sparse_table_config(handle))()
        lines = config.numpy().decode().splitlines()
        self.assertEqual(lines, sorted(lines))
        self.assertContainsSubset(["dim=2", "name=items", "seed=5"], lines)
        again = ops.sparse_table_handle(config.numpy())
        self.assertEqual(ops.sparse_table_config(again), config)


if __name__ == "__main__":
    tf.test.main()
