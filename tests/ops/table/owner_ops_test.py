# SPDX-License-Identifier: Apache-2.0
"""Tables that are released, though somebody has their handle."""

import threading
import time

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from ops_util import (
    MODES,
    RefusalTestCase,
    resident_bytes,
    table_config,
)

from tf_ext import ops
from tf_ext.ops.snapshot import snapshot_ops
from tf_ext.ops.table import owner_ops

_SHARED_NAME = "owned"


def _table(rows=3, dim=4, **options):
    handle = ops.sparse_table_handle(table_config(dim=dim), **options)
    ops.sparse_table_pull(handle, tf.range(rows), training=True, dim=dim)
    return handle


def _bytes(handle):
    stats = dict(zip(ops.TABLE_STATS, ops.sparse_table_stats(handle).numpy()))
    return stats["slab_bytes"] + stats["index_bytes"]


class TableOwnerTest(RefusalTestCase):
    def owner(self):
        return self.id()  # of no other test

    def owned(self, run="first", **options):
        handle = _table(**options)
        owner_ops.sparse_table_set_owner(handle, self.owner(), run)
        return handle

    def assert_released(self, handle):
        with self.assertRaisesRegex(
            tf.errors.FailedPreconditionError,
            "handle is of a table that was released: a newer run was started "
            "at the address of the chief that created it",
        ):
            ops.sparse_table_size(handle)

    @parameterized.named_parameters(*MODES)
    def test_releases_the_tables_of_other_runs_of_the_owner(self, wrap):
        old = [self.owned("first"), self.owned("second", rows=1000)]
        size = sum(map(_bytes, old))
        kept = [self.owned("third"), _table()]
        other = _table()
        owner_ops.sparse_table_set_owner(other, self.owner() + "2", "first")
        release = wrap(
            lambda: owner_ops.release_sparse_tables(self.owner(), "third")
        )
        self.assertAllEqual(release(), [2, size])
        for handle in old:
            self.assert_released(handle)
        for handle in [*kept, other]:
            self.assertEqual(ops.sparse_table_size(handle), 3)
        self.assertAllEqual(release(), [0, 0])

    def test_the_owner_that_was_set_last_counts(self):
        handle = self.owned("first")
        owner_ops.sparse_table_set_owner(handle, self.owner(), "second")
        released = owner_ops.release_sparse_tables(self.owner(), "second")
        self.assertAllEqual(released, [0, 0])
        self.assertEqual(ops.sparse_table_size(handle), 3)

    def test_tables_that_are_gone_are_not_counted(self):
        for _ in range(3):
            self.owned()
        handle = self.owned()
        released = owner_ops.release_sparse_tables(self.owner(), "second")
        self.assertAllEqual(released, [1, released[1]])
        self.assert_released(handle)

    def test_a_released_table_cannot_be_found_by_its_name(self):
        handle = self.owned(shared_name=_SHARED_NAME)
        owner_ops.release_sparse_tables(self.owner(), "second")
        with self.assertRaisesRegex(
            tf.errors.FailedPreconditionError, "was released"
        ):
            _table(shared_name=_SHARED_NAME)
        tf.raw_ops.DestroyResourceOp(resource=handle)
        self.assertEqual(
            ops.sparse_table_size(_table(shared_name=_SHARED_NAME)), 3
        )

    def test_all_memory_is_given_back(self):
        rows, dim = 100_000, 128
        self.owned(rows=rows, dim=dim)  # scratch memory grows first
        before = resident_bytes()
        handle = self.owned(rows=rows, dim=dim)
        snapshot_ops.sparse_table_set_chain(
            handle, "a" * 32
        )  # marks of what changed
        ops.sparse_table_erase(handle, tf.range(1000))
        filled = resident_bytes() - before
        self.assertGreater(filled, rows * dim * 4)
        _, size = owner_ops.release_sparse_tables(
            self.owner(), "second"
        ).numpy()
        self.assertGreater(size, rows * dim * 4)
        self.assertLess(resident_bytes() - before, filled / 10)
        self.assert_released(handle)

    def test_ops_under_way_end_with_their_table_or_the_error(self):
        handle = self.owned()
        begun = threading.Semaphore(0)
        errors = []

        def train():
            rng = np.random.default_rng(0)
            deadline = time.monotonic() + 30.0
            while time.monotonic() < deadline:
                signs = rng.integers(0, 1 << 40, 2000)
                try:
                    ops.sparse_table_pull(handle, signs, training=True, dim=4)
                    ops.sparse_table_push(
                        handle,
                        signs,
                        tf.ones([2000, 4]),
                        hyperparameters=[0.5, 0.0],
                    )
                    ops.sparse_table_export(
                        handle,
                        field_names=["weights"],
                        field_dtypes=[tf.float32],
                    )
                except Exception as error:
                    errors.append(error)
                    return
                finally:
                    begun.release()

        threads = [threading.Thread(target=train) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            begun.acquire()
        released = owner_ops.release_sparse_tables(self.owner(), "second")
        for thread in threads:
            thread.join()
        self.assertEqual(released[0], 1)
        self.assertLen(errors, 4)
        for error in errors:
            self.assertIsInstance(error, tf.errors.FailedPreconditionError)

    @parameterized.named_parameters(
        ("owner_empty", ("", "run"), "owner must not be empty."),
        ("run_empty", ("owner", ""), "run must not be empty."),
        (
            "owner_of_rank_1",
            (["a"], "run"),
            "owner must be a scalar",
            "shape is [1]",
        ),
        (
            "run_of_rank_2",
            ("a", [["run"]]),
            "run must be a scalar",
            "shape is [1,1]",
        ),
        ("owner_of_ints", (5, "run"), "string"),
    )
    def test_refuses(self, arguments, *texts):
        handle = self.owned()

        def set_owner():
            owner_ops.sparse_table_set_owner(handle, *arguments)

        self.assert_refused(set_owner, *texts)
        self.assert_refused(
            lambda: owner_ops.release_sparse_tables(*arguments), *texts
        )
        # It still has the owner that it had.
        released = owner_ops.release_sparse_tables(self.owner(), "second")
        self.assertEqual(released[0], 1)


if __name__ == "__main__":
    tf.test.main()
