# SPDX-License-Identifier: Apache-2.0
"""Saving tables as snapshots and loading them."""

import os
import shutil
import threading
import unittest.mock

import numpy as np
import pytest
import snapshot_util as util
import tensorflow as tf
from absl.testing import absltest, parameterized
from saving_util import TestCase, contents

import tf_ext
from tf_ext.ops.snapshot import snapshot_ops
from tf_ext.tables.shard import TableShard

pytestmark = pytest.mark.slow_tests(
    "SnapshotTest::test_several_files_a_shard",
)


_RULES = {
    "sgd": tf_ext.optimizers.SparseSGD(0.1),
    "momentum": tf_ext.optimizers.SparseSGD(0.1, momentum=0.9),
    "adagrad": tf_ext.optimizers.SparseAdagrad(0.1),
    "row_wise_adagrad": tf_ext.optimizers.SparseRowWiseAdagrad(0.1),
    "adam": tf_ext.optimizers.SparseAdam(0.1),
    "ftrl": tf_ext.optimizers.SparseFtrl(0.1),
    "lion": tf_ext.optimizers.SparseLion(0.1),
    "rmsprop": tf_ext.optimizers.SparseRMSprop(
        0.1, momentum=0.9, centered=True
    ),
}


class SnapshotTest(TestCase):
    def setUp(self):
        super().setUp()
        self.root = self.directory()

    def _path(self, name):
        return os.path.join(self.root, name)

    def test_an_empty_table_reads_files_once(self):
        table = util.table()
        util.push(table, range(9))
        table.save(self.root)
        actions = []
        restore = TableShard.restore

        def watched(shard, *args, **kwargs):
            actions.append(kwargs["action"])
            return restore(shard, *args, **kwargs)

        table = util.table(2)
        with unittest.mock.patch.object(TableShard, "restore", watched):
            table.load(self.root)
            self.assertEqual(actions, ["load"] * 2)
            table.load(self.root)
        self.assertEqual(actions, ["load"] * 2 + ["verify"] * 2 + ["load"] * 2)

    @parameterized.named_parameters(*((name, name) for name in _RULES))
    def test_trained_on_after_loading_equals_trained_on(self, rule):
        table = util.table(optimizer=_RULES[rule], seed=3)
        signs = [5, -1, 0, 2**63 - 1, -(2**63)]
        util.push(table, signs, 1)
        manifest = table.save(self._path("0"), step=7)
        self.assertEqual(manifest.rows, 5)
        self.assertEqual(manifest.step, 7)
        other = util.table(optimizer=_RULES[rule], seed=3, name="user")
        other.load(self._path("0"))
        for each in (table, other):
            util.push(each, [*signs, 77], 2)
        self.assertEqual(contents(other), contents(table))

    @parameterized.parameters(0, 1, 40_000)
    def test_rows_and_files(self, rows):
        table = util.table()
        util.push(table, range(rows))
        manifest = table.save(self._path("0"))
        self.assertEqual(manifest.rows, rows)
        self.assertEqual(
            [os.path.getsize(f) for f in util.data_files(self._path("0"))],
            [file.bytes for file in manifest.files],
        )
        self.assertEqual(util.loaded(self._path("0")), contents(table))

    def test_several_files_a_shard(self):
        # Two of 32 MiB, where there are two threads.
        table = util.table(dim=4096, optimizer="sgd")
        table.pull(range(4200), training=True)
        manifest = table.save(self._path("0"))
        threads = tf.config.threading.get_intra_op_parallelism_threads()
        threads = threads or len(os.sched_getaffinity(0))
        self.assertLen(manifest.files, min(threads, 2))
        self.assertLen(
            {file.tag for file in manifest.files}, len(manifest.files)
        )
        other = util.table(2, dim=4096, optimizer="sgd")
        other.load(self._path("0"))
        signs = np.arange(0, 4200, 100)
        self.assertAllEqual(other.pull(signs), table.pull(signs))
        self.assertEqual(other.size(), 4200)

    def test_into_other_numbers_of_shards(self):
        table = util.table(1)
        util.push(table, range(3000))
        wanted = contents(table)
        for index, shards in enumerate((3, 5, 2)):
            path = self._path(str(index))
            self.assertEqual(table.save(path).shards, table.rows.num_shards)
            table = util.table(shards)
            table.load(path)
            self.assertEqual(contents(table), wanted)
            for shard, stats in enumerate(table.shard_stats()):
                self.assertAllClose(
                    stats["rows"], 3000 / shards, rtol=0.2, msg=str(shard)
                )
        # Each row is where a pull looks for it.
        self.assertEqual(table.size(), 3000)
        table.pull(range(3000), training=True)
        self.assertEqual(table.size(), 3000)

    def test_replaces_the_snapshot_that_is_there(self):
        table = util.table()
        util.push(table, range(10))
        table.save(self._path("0"))
        with open(self._path("0/notes.txt"), "w") as file:
            file.write("mine")
        util.push(table, range(20))
        table.save(self._path("0"))
        self.assertLen(util.data_files(self._path("0")), 1)
        self.assertTrue(os.path.exists(self._path("0/notes.txt")))
        self.assertEqual(util.loaded(self._path("0")), contents(table))

    def test_replaces_the_rows_that_are_there(self):
        table = util.table()
        util.push(table, range(10))
        table.save(self._path("0"))
        other = util.table()
        util.push(other, range(5, 50))
        other.load(self._path("0"))
        self.assertEqual(contents(other), contents(table))

    def test_another_file_system(self):
        table = util.table()
        util.push(table, range(10))
        table.save("ram://deep/0", incremental=True)
        util.push(table, range(5, 15))
        table.save("ram://deep/1", base="ram://deep/0")
        self.assertEqual(util.loaded("ram://deep/1"), contents(table))

    def test_a_limited_rate(self):
        table = util.table()
        util.push(table, range(1000))
        path = self._path("0")
        manifest = table.save(path, max_bytes_per_second=1 << 20)
        self.assertEqual(util.loaded(path), contents(table))
        self.assertEqual(manifest.rows, 1000)

    @parameterized.parameters(
        *(
            ("max_bytes_per_second", value, "a positive integer or None")
            for value in (0, "x", 1e6, True, 2**63)
        ),
        *(
            ("step", value, "an integer from 0 to 2^63 - 1, or None")
            for value in (3.7, True, "3", -1, 2**63, np.float64(3.0))
        ),
    )
    def test_wrong_arguments(self, name, value, allowed):
        table = util.table()
        path = self._path("0")
        with self.assertRaises(ValueError) as raised:
            table.save(path, **{name: value})
        self.assertEqual(
            str(raised.exception),
            f"Argument `{name}` of SparseTable.save must be {allowed}. "
            f"Received: {name}={value!r}",
        )
        self.assertFalse(os.path.exists(path))

    def test_a_numpy_integer_as_the_step(self):
        manifest = util.table().save(self._path("0"), step=np.int32(3))
        self.assertEqual(manifest.step, 3)

    def test_while_others_push(self):
        table = util.table(
            2, initializer=tf_ext.initializers.Constant(1.0), dim=8
        )
        table.pull(range(5000), training=True)
        stop = threading.Event()

        def train():
            random = np.random.default_rng(0)
            while not stop.is_set():
                signs = random.integers(0, 6000, 500)
                table.push(
                    np.unique(signs),
                    np.ones([len(np.unique(signs)), 8], np.float32),
                )

        thread = threading.Thread(target=train)
        thread.start()
        try:
            for _ in range(4):
                table.save(self._path("0"))
                other = util.table(
                    3, initializer=tf_ext.initializers.Constant(1.0), dim=8
                )
                other.load(self._path("0"))
                signs, fields = other.export_rows()
                self.assertContainsSubset(range(5000), signs.tolist())
                for values in fields.values():
                    # Each row is constant-valued: a torn one would not be.
                    self.assertAllEqual(values, values[:, :1] + 0 * values)
                self.assertAllGreaterEqual(fields["accumulator"], 0.1)
        finally:
            stop.set()
            thread.join()

    def test_weights_only(self):
        table = util.table()
        util.push(table, range(10))
        table.save(self._path("0"))
        adam = util.table(optimizer=tf_ext.optimizers.SparseAdam(0.1))
        with self.assertRaisesRegex(
            ValueError, "its `optimizer` is 'adam', that .* is 'adagrad'"
        ):
            adam.load(self._path("0"))
        adam.load(self._path("0"), weights_only=True)
        self.assertAllEqual(adam.pull(range(10)), table.pull(range(10)))
        self.assertAllEqual(adam.export_rows()[1]["m"], np.zeros([10, 4]))
        adagrad = util.table()
        adagrad.load(self._path("0"), weights_only=True)
        self.assertAllEqual(
            adagrad.export_rows()[1]["accumulator"],
            np.full([10, 4], np.float32(0.1)),
        )

    @parameterized.parameters(1, 2)
    def test_weights_only_into_another_seed_and_initializer(self, shards):
        table = util.table(shards)
        util.push(table, range(10))
        table.save(self._path("0"))
        options = {
            "seed": 7,
            "initializer": tf_ext.initializers.Normal(stddev=0.5),
            "optimizer": tf_ext.optimizers.SparseAdam(0.1),
        }
        other, untouched = util.table(2, **options), util.table(**options)
        util.push(other, range(5, 100))  # It is replaced.
        other.load(self._path("0"), weights_only=True)
        self.assertCountEqual(other.export_rows()[0].tolist(), range(10))
        self.assertAllEqual(other.pull(range(10)), table.pull(range(10)))
        self.assertAllEqual(other.export_rows()[1]["step"], np.zeros([10, 1]))
        # New ids begin as those of any table of its configuration.
        self.assertAllEqual(other.pull([77]), untouched.pull([77]))
        self.assertNotAllEqual(other.pull([77]), table.pull([77]))
        util.push(other, range(20))
        other.save(self._path("1"))
        self.assertEqual(
            util.loaded(self._path("1"), **options), contents(other)
        )

    def test_weights_only_of_a_chain(self):
        table = util.table()
        util.push(table, range(10))
        table.save(self._path("0"), incremental=True)
        util.push(table, range(5, 15))
        table.erase([0])
        table.save(self._path("1"), base=self._path("0"))
        other = util.table(seed=3, initializer="zeros")
        with self.assertRaisesRegex(
            ValueError,
            "^Arguments `weights_only` and `incremental` cannot both be True: "
            ".*Start a new chain: pass `incremental=True` to the next save.$",
        ):
            other.load(self._path("1"), weights_only=True, incremental=True)
        other.load(self._path("1"), weights_only=True)
        self.assertEqual(contents(other)["weights"], contents(table)["weights"])

    @parameterized.named_parameters(
        ("dim", {"dim": 5}, "`dim` is '5', that of the saved rows is '4'"),
        ("dim_and_seed", {"dim": 3, "seed": 1}, "`dim` is '3', that of the "),
    )
    def test_weights_only_of_another_dim_is_refused(self, kwargs, message):
        table = util.table()
        util.push(table, range(10))
        table.save(self._path("0"))
        other = util.table(**kwargs)
        util.push(other, [1])
        before = contents(other)
        with self.assertRaisesRegex(
            ValueError, f"{message}.* Make the table as it was saved.$"
        ):
            other.load(self._path("0"), weights_only=True)
        self.assertEqual(contents(other), before)

    @parameterized.named_parameters(
        ("dim", {"dim": 5}, "`dim` is '5', that of the saved rows is '4'"),
        (
            "seed",
            {"seed": 1},
            "`seed` is '1', that of the saved rows is '0'. Make the table as "
            r"it was saved, or take the weights alone: save\(path\) of that "
            r"table, load\(path, weights_only=True\) of this one.$",
        ),
        (
            "initializer",
            {"initializer": "zeros"},
            "`initializer` is 'zeros', that of the saved rows is 'uniform'",
        ),
    )
    def test_another_identity_is_refused(self, kwargs, message):
        table = util.table()
        util.push(table, range(10))
        table.save(self._path("0"))
        other = util.table(**kwargs)
        util.push(other, [1])
        before = contents(other)
        with self.assertRaisesRegex(ValueError, message):
            other.load(self._path("0"))
        self.assertEqual(contents(other), before)

    def test_this_programs_hyperparameters_win_and_differences_are_logged(self):
        table = util.table()
        util.push(table, range(10))
        table.save(self._path("0"))
        other = util.table(
            name="other",
            optimizer=tf_ext.optimizers.SparseAdagrad(0.5, weight_decay=0.25),
        )
        with self.assertLogs("tf_ext", "WARNING") as logs:
            other.load(self._path("0"))
        self.assertRegex(
            "\n".join(logs.output), "'other' continues with weight_decay=0.25"
        )
        self.assertEqual(other.optimizer.learning_rate, 0.5)

    def test_no_snapshot(self):
        table = util.table()
        for path in (self._path("no"), self.root):
            with self.assertRaisesRegex(
                FileNotFoundError, "^There is no snapshot in '.*manifest.json"
            ):
                table.load(path)


class IncrementalTest(TestCase):
    def setUp(self):
        super().setUp()
        self.root = self.directory()

    def _path(self, number):
        return os.path.join(self.root, str(number))

    def _chain(self, shards=2, deltas=3):
        table = util.table(shards)
        util.push(table, range(1000))
        table.save(self._path(0), incremental=True)
        for number in range(1, deltas + 1):
            util.push(table, range(50 * number, 50 * number + 80), number)
            table.erase([number, 100 + number, 999])
            table.pull([5000 + number, 100 + number], training=True)
            delta = table.save(self._path(number), base=self._path(number - 1))
            self.assertEqual(delta.kind, "delta")
            self.assertEqual(delta.sequence, number)
            self.assertLess(delta.rows, 100)
        return table

    @parameterized.parameters(1, 2)
    def test_a_chain_loads_as_the_table_was(self, shards):
        table = self._chain(shards)
        self.assertEqual(util.loaded(self._path(3), shards=3), contents(table))
        table.save(self._path("all"))
        self.assertEqual(util.loaded(self._path("all")), contents(table))

    def test_a_delta_erases_all_rows_that_were_cleared(self):
        """Those beside a free place, and those beside another row."""
        table = util.table()
        util.push(table, range(5000))
        table.erase(range(0, 5000, 3))
        table.save(self._path(0), incremental=True)
        self.assertEqual(table.clear(), 3333)
        util.push(table, [3, 4, 6000])
        table.save(self._path(1), base=self._path(0))
        self.assertEqual(util.loaded(self._path(1)), contents(table))

    def test_a_loaded_table_continues_the_chain(self):
        table = self._chain()
        other = util.table(3)
        other.load(self._path(3), incremental=True)
        for each in (table, other):
            util.push(each, [1, 2, 3], 9)
        delta = other.save(self._path(4), base=self._path(3))
        self.assertEqual(delta.rows, 3)
        self.assertEqual(util.loaded(self._path(4)), contents(table))

    def test_a_chain_can_be_moved(self):
        table = self._chain()
        moved = self.path("moved")
        shutil.move(self.root, moved)
        self.assertEqual(util.loaded(os.path.join(moved, "3")), contents(table))

    def test_a_chain_through_links(self):
        self._chain()
        link = self.path("latest")
        os.symlink(self._path(3), link)
        table = util.table()
        table.load(link, incremental=True)
        util.push(table, [1, 2, 3], 9)
        table.save(self._path(4), base=link)
        os.remove(link)
        os.symlink(self._path(4), link)
        self.assertEqual(util.loaded(link), contents(table))

    def test_a_second_chain_is_refused_by_name(self):
        table = self._chain()
        with self.assertRaisesRegex(
            ValueError, "Table 'user' has a chain .* '.*/3' is the last"
        ):
            table.save(self._path("x"), incremental=True)
        with self.assertRaisesRegex(
            ValueError, "`base` must be the last .* 'user', which is '.*/3'"
        ):
            table.save(self._path("x"), base=self._path(2))
        with self.assertRaisesRegex(ValueError, "part of its chain"):
            table.save(self._path(2))
        table.end_incremental()
        with self.assertRaisesRegex(ValueError, "which does not exist"):
            table.save(self._path("x"), base=self._path(3))
        table.save(self._path("x"), incremental=True)
        self.assertEqual(util.loaded(self._path("x")), contents(table))

    def test_a_base_that_was_replaced_is_refused(self):
        self._chain()
        other = util.table()
        other.save(self._path(1))
        with self.assertRaisesRegex(
            ValueError, "/2 continues the snapshot .* has been replaced by"
        ):
            util.table().load(self._path(3))

    @parameterized.parameters(1, 2)
    def test_a_failed_delta_loses_no_change(self, shards):
        table = self._chain(shards)
        util.push(table, range(300), 8)
        table.erase([17])
        with unittest.mock.patch.object(
            snapshot_ops,
            "write_file_atomically",
            side_effect=tf.errors.ResourceExhaustedError(None, None, "full"),
        ):
            with self.assertRaisesRegex(tf.errors.OpError, "full"):
                table.save(self._path(4), base=self._path(3))
        self.assertEmpty(os.listdir(self._path(4)))
        util.push(table, [5], 9)
        table.save(self._path(4), base=self._path(3))
        self.assertEqual(util.loaded(self._path(4)), contents(table))


if __name__ == "__main__":
    absltest.main()
