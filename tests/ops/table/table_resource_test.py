# SPDX-License-Identifier: Apache-2.0
import functools
import gc
import threading
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from ops_util import (
    MODES,
    UNIFORM,
    export_all,
    resident_bytes,
    run_python,
    table_config,
)

from tf_ext import ops
from tf_ext.ops import _library

pytestmark = pytest.mark.slow_tests(
    "SavedModelTest::test_a_module_with_ops_runs_after_a_reload",
    "ThreadsTest::test_a_walk_sees_lasting_rows_once_while_others_come_and_go",
    "ThreadsTest::test_one_and_many_intra_op_threads_give_the_same_bits",
)

SGD = [1.0, 0.0]  # learning_rate, weight_decay


class HandleTest(tf.test.TestCase, parameterized.TestCase):
    def test_every_execution_makes_a_new_table_without_a_name(self):
        make = tf.function(lambda: ops.sparse_table_handle(table_config()))
        handles = [make(), make(), ops.sparse_table_handle(table_config())]
        for i, handle in enumerate(handles):
            ops.sparse_table_pull(
                handle, np.arange(i + 1), training=True, dim=4
            )
        sizes = [ops.sparse_table_size(handle).numpy() for handle in handles]
        self.assertEqual(sizes, [1, 2, 3])

    def test_a_table_is_freed_with_its_last_reference(self):
        def fill(handle):
            for start in range(0, 400_000, 10_000):
                ops.sparse_table_pull(
                    handle,
                    tf.range(start, start + 10_000, dtype=tf.int64),
                    training=True,
                    dim=64,
                )

        config = table_config(dim=64)
        fill(ops.sparse_table_handle(config))  # scratch memory grows first
        gc.collect()
        before = resident_bytes()
        handle = ops.sparse_table_handle(config)
        fill(handle)
        captured = tf.function(functools.partial(ops.sparse_table_size, handle))
        self.assertEqual(captured().numpy(), 400_000)
        filled = resident_bytes() - before
        # Some of it may be what tests before gave back.
        self.assertGreater(filled, 400_000 * 64 * 2)
        del handle
        self.assertEqual(captured().numpy(), 400_000)
        del captured
        gc.collect()
        self.assertLess(resident_bytes() - before, filled / 4)

    @parameterized.named_parameters(*MODES)
    def test_a_named_table_is_shared(self, mode):
        def make(name, container=""):
            return mode(
                lambda: ops.sparse_table_handle(
                    table_config(), container, shared_name=name
                )
            )()

        name = self.id()
        handle = make(name)
        ops.sparse_table_pull(handle, [1, 2], training=True, dim=4)
        sizes = [
            ops.sparse_table_size(other).numpy()
            for other in (make(name), make(name + "2"), make(name, "apart"))
        ]
        self.assertEqual(sizes, [2, 0, 0])
        tf.raw_ops.DestroyResourceOp(resource=handle)
        self.assertEqual(ops.sparse_table_size(make(name)).numpy(), 0)

    @parameterized.named_parameters(
        ("dim", {"dim": 5}, "dim 4", "dim 5"),
        ("seed", {"seed": 99}, "seed", "seed 99"),
        ("fields", {"optimizer": "momentum"}, "fields", "momentum"),
        ("initializer", UNIFORM, "initializer zeros", "uniform"),
    )
    def test_a_named_table_of_another_identity_is_refused(
        self, entries, *texts
    ):
        name = self.id()
        first = ops.sparse_table_handle(table_config(), shared_name=name)
        with self.assertRaises(tf.errors.InvalidArgumentError) as raised:
            ops.sparse_table_handle(table_config(entries), shared_name=name)
        for text in (name, "exists and differs", *texts):
            self.assertIn(text, str(raised.exception))
        self.assertEqual(ops.sparse_table_size(first).numpy(), 0)


_DIGEST_SCRIPT = """
import hashlib, sys
import numpy as np
import tensorflow as tf
threads = int(sys.argv[1])
tf.config.threading.set_intra_op_parallelism_threads(threads)
tf.config.threading.set_inter_op_parallelism_threads(threads)
from tf_ext import ops
from tf_ext.ops.bags import bag_ops
handle = ops.sparse_table_handle(
    "dim=8\\ninitializer=normal\\ninitializer.mean=0\\n"
    "initializer.stddev=1\\nname=items\\noptimizer=adam")
generator = np.random.default_rng(11)
digest = hashlib.sha256()
for step in range(1, 4):
    ids = generator.zipf(1.2, size=60_000) % 1_000_003
    unique, counts, inverse, sizes = ops.unique_by_shard(ids, num_shards=3)
    rows = ops.sparse_table_pull(handle, unique, training=True, dim=8)
    splits = np.sort(generator.integers(0, 60_001, size=2 * 500 - 1))
    splits = np.concatenate([[0], splits, [60_000]])
    weights = generator.uniform(0.5, 2.0, size=60_000).astype(np.float32)
    bags = dict(rows=rows, inverse=inverse, row_splits=splits,
                weights=weights, combiners=["mean", "sqrtn"])
    combined = ops.combine_bags(**bags)
    gradients = bag_ops.combine_bags_grad(combined, **bags)
    ops.sparse_table_push(
        handle, unique, gradients.rows_gradient,
        hyperparameters=[0.01, 0.0, 0.9, 0.999, 1e-7], step=step)
    for tensor in (unique, counts, inverse, sizes, rows, combined, *gradients):
        digest.update(tensor.numpy().tobytes())
ops.sparse_table_erase(handle, unique[:5000])
signs, _, fields = ops.sparse_table_export(
    handle, field_names=["weights", "m", "v", "step"],
    field_dtypes=[tf.float32] * 3 + [tf.int32])
for tensor in (signs, *fields):
    digest.update(tensor.numpy().tobytes())
print(digest.hexdigest(), len(signs))
"""


class ThreadsTest(tf.test.TestCase):
    def test_one_and_many_intra_op_threads_give_the_same_bits(self):
        one, many = (run_python(_DIGEST_SCRIPT, n) for n in (1, 5))
        self.assertLen(one.split()[0], 64)
        self.assertEqual(one, many)

    def run_threads(self, *functions):
        errors = []

        def run(function):
            try:
                function()
            except Exception as error:  # shown by the main thread
                errors.append(error)

        threads = [threading.Thread(target=run, args=[f]) for f in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])

    def test_no_update_of_several_threads_is_lost_or_torn(self):
        handle = ops.sparse_table_handle(table_config(dim=16))
        signs = tf.range(5000, dtype=tf.int64)

        def push():
            for _ in range(25):
                ops.sparse_table_push(
                    handle, signs, tf.ones([5000, 16]), hyperparameters=SGD
                )

        def pull():
            for _ in range(25):
                rows = ops.sparse_table_pull(handle, signs, dim=16).numpy()
                self.assertAllEqual(rows, np.tile(rows[:, :1], 16))

        self.run_threads(push, push, push, pull)
        found, [weights] = export_all(handle)
        self.assertAllEqual(found, signs)
        self.assertAllEqual(weights, np.full([5000, 16], -75.0))

    def test_all_work_is_done_when_an_op_returns(self):
        handle = ops.sparse_table_handle(table_config(dim=1))
        signs = tf.range(500_000, dtype=tf.int64)
        for _ in range(15):
            ops.sparse_table_pull(handle, signs, training=True, dim=1)
            # The threads add to the count as they go.
            self.assertEqual(ops.sparse_table_erase(handle, signs), 500_000)

    def test_a_walk_sees_lasting_rows_once_while_others_come_and_go(self):
        handle = ops.sparse_table_handle(table_config(dim=1))
        n = 200_000
        lasting = np.arange(n)
        ops.sparse_table_import(
            handle,
            lasting,
            [lasting[:, np.newaxis].astype(np.float32)],
            field_names=["weights"],
        )
        done = threading.Event()

        def churn():
            start = n
            while not done.is_set():
                signs = tf.range(start, start + 50_000, dtype=tf.int64)
                ops.sparse_table_pull(handle, signs, training=True, dim=1)
                ops.sparse_table_erase(handle, signs[::2])
                start += 50_000

        def walk():
            try:
                # Without a limit the table outgrows what was reserved for it.
                for limit in (20_000, -1, -1, 70_000, -1, -1, -1, -1):
                    self.check_walk(handle, limit, lasting)
            finally:
                done.set()

        self.run_threads(churn, walk)

    def check_walk(self, handle, limit, lasting):
        cursor, seen, weights = 0, [], []
        while cursor != -1:
            signs, cursor, fields = ops.sparse_table_export(
                handle,
                cursor,
                limit,
                field_names=["weights"],
                field_dtypes=[tf.float32],
            )
            seen.append(signs.numpy())
            weights.append(fields[0].numpy()[:, 0])
        seen, weights = np.concatenate(seen), np.concatenate(weights)
        self.assertAllEqual(np.sort(seen[seen < len(lasting)]), lasting)
        self.assertAllEqual(weights, np.where(seen < len(lasting), seen, 0))

    def test_runs_inside_a_dataset_map(self):
        handle = ops.sparse_table_handle(table_config(UNIFORM, dim=2))
        signs = tf.range(200_000, dtype=tf.int64)
        expected = ops.sparse_table_pull(handle, signs, training=True, dim=2)
        dataset = (
            tf.data.Dataset.from_tensor_slices(signs)
            .batch(20_000)
            .map(
                lambda s: ops.sparse_table_pull(handle, s, dim=2),
                num_parallel_calls=8,
            )
        )
        self.assertAllEqual(np.concatenate(list(dataset)), expected)


class _Bags(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def __call__(self, signs):
        handle = ops.sparse_table_handle(
            table_config(UNIFORM), shared_name="tests/bags"
        )
        unique, _, inverse, _ = ops.unique_by_shard(signs)
        rows = ops.sparse_table_pull(handle, unique, dim=4)
        splits = tf.stack([0, tf.size(signs, tf.int64)])
        return ops.combine_bags(rows, inverse, splits, combiners=["mean"])


_LOAD_SCRIPT = """
import sys
import tensorflow as tf
import tf_ext
loaded = tf.saved_model.load(sys.argv[1])
print(loaded(tf.constant([3, 3, -4], tf.int64)).numpy().tobytes().hex())
"""


class SavedModelTest(tf.test.TestCase):
    def test_a_module_with_ops_runs_after_a_reload(self):
        module = _Bags()
        expected = module(tf.constant([3, 3, -4], tf.int64)).numpy()
        path = self.get_temp_dir()
        tf.saved_model.save(module, path)
        loaded = tf.saved_model.load(path)
        self.assertAllEqual(loaded(tf.constant([3, 3, -4], tf.int64)), expected)
        other_process = run_python(_LOAD_SCRIPT, path)
        self.assertEqual(other_process.strip(), expected.tobytes().hex())


class LibraryTest(tf.test.TestCase, parameterized.TestCase):
    def test_is_loaded_once(self):
        modules = []
        threads = [
            threading.Thread(target=lambda: modules.append(ops.library()))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertLen(modules, 4)
        self.assertLen(set(map(id, modules)), 1)

    @parameterized.parameters("2.21.0", "2.21.9", "2.21.0-rc1")
    def test_patch_versions_may_differ(self, running):
        _library.check_tensorflow_version("2.21.1", running)

    @parameterized.parameters("2.20.0", "2.22.0-rc0", "3.21.0", "2.2.1")
    def test_another_minor_version_is_refused(self, running):
        with self.assertRaisesRegex(
            ImportError,
            rf"built for TensorFlow 2\.21\.1, but TensorFlow {running} is "
            r"installed: install TensorFlow 2\.21, or build tf_ext again",
        ):
            _library.check_tensorflow_version("2.21.1", running)

    def test_a_missing_library_is_told(self):
        with mock.patch.object(_library, "PATH", "/nowhere/_tf_ext_ops.so"):
            with self.assertRaisesRegex(
                ImportError,
                r"not compiled for .*: /nowhere/_tf_ext_ops.so is missing",
            ):
                _library._load()


if __name__ == "__main__":
    tf.test.main()
