# SPDX-License-Identifier: Apache-2.0
"""Tables whose shards are on parameter servers, against one process."""

import gc
import time
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from clusters import parameter_server_util as util
from models import counted_rows
from models import small_models as small
from models.model_building import EDGE_SIGNS, generator
from saving_util import FORMATS, TestCase, contents

import tf_ext
from tf_ext._keras import keras
from tf_ext.regimes.parameter_servers import ServerPlacement
from tf_ext.regimes.table_interface import ShardDevices

pytestmark = [
    pytest.mark.process,
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "CustomLoopTest::test_one_step_at_a_time_equals_one_process[123]",
        "PlacementTest::test_export_*",
        "PlacementTest::test_only_pull_and_push_are_on_servers",
        "RowsTest::test_are_freed_with_the_table",
        "RowsTest::test_get_every_update_of_two_workers",
        "SavingTest::test_rows_move_between_servers_and_one_process_keras",
        "SavingTest::test_rows_move_between_servers_and_one_process_weights",
        "StatisticsTest::test_are_those_of_all_steps",
    ),
]

_SERVERS = 3
_CLUSTER = util.Cluster()


def setUpModule():
    _CLUSTER.start(workers=2, ps=_SERVERS)


def tearDownModule():
    _CLUSTER.stop()


def _schedule(function, times):
    """Runs a `tf.function` so many times, on whichever worker is free."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(
        _CLUSTER.strategy
    )
    for _ in range(times):
        coordinator.schedule(function)
    coordinator.join()


class _Test(TestCase):
    def table(self, *args, **kwargs):
        """A table on the servers."""
        with _CLUSTER.strategy.scope():
            return small.table(*args, **kwargs)

    def model(self, *args, **kwargs):
        """A model whose table is on the servers."""
        with _CLUSTER.strategy.scope():
            return small.compiled(
                small.functional(small.table(*args, **kwargs))
            )

    def trained(self, *args, **kwargs):
        """The same table here and on the servers, with rows and slots."""
        tables = small.table(*args, **kwargs), self.table(*args, **kwargs)
        rng = generator(self)
        signs = np.append(rng.integers(-50, 50, 200), EDGE_SIGNS)
        gradients = rng.normal(size=[len(signs), 4])
        for table in tables:
            for step in (1, 2):
                table.push(signs, gradients, step, learning_rate=0.1)
        return tables


class StatisticsTest(_Test):
    def test_are_those_of_all_steps(self):
        rng, counts = generator(self), counted_rows.Counts()
        batches = [counted_rows.batch(rng) for _ in range(4)]
        with _CLUSTER.strategy.scope():
            table = counted_rows.table()
            model = counted_rows.Model(table)
            model(batches[0])
            optimizer = tf_ext.optimizers.Optimizer("sgd")
            optimizer.build(model.trainable_variables)

        def train(features):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(features, training=True))
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            counted_rows.apply(optimizer, gradients, variables)

        def step_of(features):
            # Tensors of this process are none of the workers'.
            leaves = tf.nest.flatten(features, expand_composites=True)
            arrays = [leaf.numpy() for leaf in leaves]

            @tf.function
            def step():
                leaves = list(map(tf.constant, arrays))
                batch = tf.nest.pack_sequence_as(features, leaves, True)
                _CLUSTER.strategy.run(train, args=(batch,))

            return step

        for features in batches:
            counts.add_model(features)
            _schedule(step_of(features), times=1)
        self.assertEqual(counted_rows.rows(table), counts.rows)


class RowsTest(_Test):
    def test_are_on_all_servers(self):
        table = self.table()
        self.assertEqual(
            [shard.device for shard in table.rows.shards],
            [
                f"/job:ps/replica:0/task:{task}/device:CPU:0"
                for task in range(_SERVERS)
            ],
        )
        table.pull(tf.range(30_000, dtype=tf.int64), training=True)
        rows = [stats["rows"] for stats in table.shard_stats()]
        np.testing.assert_allclose(rows, 30_000 / _SERVERS, rtol=0.05)
        self.assertEqual(table.size(), 30_000)
        self.assertEqual(table.stats()["rows"], 30_000)

    @parameterized.parameters("sgd", "adagrad", "adam", "ftrl")
    def test_are_those_of_one_process(self, rule):
        here, there = self.trained(rule)
        self.assertEqual(contents(there), contents(here))
        signs = np.arange(-60, 60).reshape(3, 40)
        self.assertAllEqual(there.pull(signs), here.pull(signs))
        self.assertEqual(there.size(), here.size())

    def test_are_imported_erased_and_cleared(self):
        here, there = self.trained("adagrad")
        weights = np.arange(16.0, dtype=np.float32).reshape(4, 4)
        for table in (here, there):
            self.assertEqual(table.erase([*range(10), 1000]), 10)
            table.import_rows([5, 1000, 5, 1001], {"weights": weights})
        self.assertEqual(contents(there), contents(here))
        self.assertAllEqual(there.pull([5, 1000]), weights[[2, 1]])
        others = np.arange(10_000, 30_000)
        there.pull(others, training=True)
        there.erase(others)
        before = there.shard_stats()
        given_back = there.compact()
        after = there.shard_stats()
        self.assertEqual([shard["free_rows"] for shard in after], [0, 0, 0])
        self.assertEqual(
            given_back,
            sum(b["bytes"] - a["bytes"] for b, a in zip(before, after)),
        )
        self.assertEqual(contents(there), contents(here))
        self.assertEqual(there.clear(), here.clear())
        self.assertEqual(there.size(), 0)

    def test_are_freed_with_the_table(self):
        def resident_bytes():
            with tf.device("/job:ps/task:1/device:CPU:0"):
                status = tf.io.read_file("/proc/self/status")
                pages = tf.strings.regex_replace(
                    status, r"(?s).*VmRSS:\s*(\d+) kB.*", r"\1"
                )
            return int(pages.numpy()) * 1024

        with _CLUSTER.strategy.scope():
            table = tf_ext.SparseTable("big", 256, "sgd", "zeros")
        for begin in range(0, 300_000, 20_000):
            table.pull(
                tf.range(begin, begin + 20_000, dtype=tf.int64), training=True
            )
        full = resident_bytes()
        held = table.shard_stats()[1]["bytes"]
        self.assertGreater(held, 80 << 20)
        del table
        gc.collect()
        deadline = time.monotonic() + 30
        while resident_bytes() > full - held // 2:
            self.assertLess(time.monotonic(), deadline, "still held")
            time.sleep(0.1)

    def test_get_every_update_of_two_workers(self):
        pushes = 5
        table = self.table("sgd", trainable=True)
        signs = tf.range(-32, 32, dtype=tf.int64)
        start = table.pull(signs).numpy()

        @tf.function
        def push():
            return tf.add_n(
                [
                    table.push(signs, tf.ones([64, 4]), 1, 1.0)
                    for _ in range(pushes)
                ]
            )

        _schedule(push, 500 // pushes)
        # Halves are exact, so that none of 500 can hide in the rounding.
        self.assertAllClose(table.pull(signs), start - 500.0, rtol=0, atol=0.01)


class PlacementTest(_Test):
    def test_table_made_outside_of_the_scope_is_refused(self):
        table = small.table()
        with _CLUSTER.strategy.scope():
            layer = tf_ext.layers.EmbeddingFeatures(small.columns(), table)
        features, _ = small.batch(generator(self))

        @tf.function
        def step():
            return _CLUSTER.strategy.run(lambda: layer(features))

        with self.assertRaisesRegex(
            ValueError, "Table 'deep' was created outside of the scope"
        ):
            step.get_concrete_function()

    def test_only_pull_and_push_are_on_servers(self):
        model = self.model("adagrad")
        features, labels = small.batch(generator(self))
        model.optimizer.build(model.trainable_variables)

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                error = model(features, training=True) - labels
                loss = tf.reduce_mean(tf.square(error))
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply_gradients(
                zip(gradients, model.trainable_variables)
            )
            return loss

        graph = step.get_concrete_function().graph
        ours = [op for op in graph.get_operations() if "TfExt" in op.type]
        for op in ours:
            on_server = op.type.endswith(
                ("SparseTablesPull", "SparseTablesPush")
            )
            self.assertEqual("job:ps" in op.device, on_server, op)
        for suffix in ("Pull", "Push"):
            devices = [op.device for op in ours if op.type.endswith(suffix)]
            self.assertLen(devices, _SERVERS)
            self.assertLen(set(devices), _SERVERS)
        # The order of one pull's signs is not looked for twice.
        self.assertLen([o for o in ours if "UniqueByShard" in o.type], 1)

    def test_export_is_refused(self):
        model = self.model()
        features, _ = small.batch(generator(self))
        model(features)
        with self.assertRaisesRegex(ValueError, "parameter servers"):
            model.export(self.path("model"))

    def test_export_for_serving_needs_no_servers(self):
        model = self.model("adagrad")
        features, _ = small.batch(generator(self))
        model.tables[0].push(np.arange(10), np.ones([10, 4]), 1, 0.3)
        model.optimizer.iterations.assign(7)
        with _CLUSTER.strategy.scope():
            folder = tf_ext.serving.export(
                model, self.path("served"), warmup=features
            )
        loaded = tf.saved_model.load(folder)
        features = {k: tf.constant(v) for k, v in features.items()}
        expected = model(features, training=False)
        self.assertAllClose(loaded.serve(features), expected, 0, 1e-6)
        [(_, answers)] = tf_ext.serving.read_warmup(folder)
        self.assertAllClose(*answers.values(), expected, 0, 1e-6)
        manifest = tf_ext.serving.read_manifest(folder)
        self.assertEqual(manifest["step"], 7)
        self.assertEqual(manifest["tables"][0]["rows"], 10)


class SavingTest(_Test):
    @parameterized.named_parameters(*FORMATS)
    def test_rows_move_between_servers_and_one_process(self, name):
        write, read = self.format(name)
        features, labels = small.batch(generator(self))
        here = small.compiled(small.functional(small.table("adagrad")))
        here.train_on_batch(features, labels)
        write(here)
        there = self.model("adagrad")
        there.tables[0].pull([12345], training=True)
        with _CLUSTER.strategy.scope():
            read(there)
        self.assertEqual(contents(there.tables[0]), contents(here.tables[0]))
        self.assertAllClose(there(features), here(features), 1e-6, 1e-6)

        there.tables[0].push([7, -7], np.ones([2, 4]), learning_rate=1.0)
        write, read = self.format(name)
        with _CLUSTER.strategy.scope():
            write(there)
        here = small.compiled(small.functional(small.table("adagrad")))
        read(here)
        self.assertEqual(contents(here.tables[0]), contents(there.tables[0]))

    def test_checkpoint_of_other_shards(self):
        _, there = self.trained("adam")
        expected = contents(there)
        path = tf.train.Checkpoint(table=there).write(self.path("three"))
        for servers in (1, 2):
            devices = [shard.device for shard in there.rows.shards[:servers]]
            where = ShardDevices(devices)
            with mock.patch.object(
                ServerPlacement, "shards", return_value=where
            ):
                table = self.table("adam")
            self.assertLen(table.rows.shards, servers)
            table.pull([12345], training=True)
            restored = tf.train.Checkpoint(table=table).read(path)
            restored.assert_consumed()
            self.assertEqual(contents(table), expected)

    def test_another_table_is_refused(self):
        _, there = self.trained("adagrad")
        path = tf.train.Checkpoint(table=there).write(self.path("rows"))
        with _CLUSTER.strategy.scope():
            table = small.table("sgd")
        table.pull([1], training=True)
        with self.assertRaisesRegex(ValueError, "optimizer"):
            tf.train.Checkpoint(table=table).read(path)
        self.assertEqual(table.size(), 1)


class CustomLoopTest(_Test):
    @parameterized.parameters("sgd", "adagrad", "adam", "ftrl")
    def test_one_step_at_a_time_equals_one_process(self, rule):
        losses, tables = [], []
        for strategy in (tf.distribute.get_strategy(), _CLUSTER.strategy):
            with strategy.scope():
                model = small.functional(small.table(rule))
                optimizer = tf_ext.optimizers.Optimizer(
                    keras.optimizers.Adam(0.01)
                )
                optimizer.build(model.trainable_variables)
            losses.append(self._train(strategy, model, optimizer))
            tables.append(model.tables[0])
        self.assertAllClose(losses[1], losses[0], 1e-6, 1e-6)
        here, there = map(contents, tables)
        for field, rows in here.items():
            self.assertCountEqual(there[field], rows)
            for sign, values in rows.items():
                self.assertAllClose(there[field][sign], values, 1e-6, 1e-6)

    def _train(self, strategy, model, optimizer):
        @tf.function
        def step(features, labels):
            def replica():
                with tf.GradientTape() as tape:
                    error = model(features, training=True) - labels
                    loss = tf.reduce_mean(tf.square(error))
                variables = model.trainable_variables
                gradients = tape.gradient(loss, variables)
                optimizer.apply_gradients(zip(gradients, variables))
                return loss

            return strategy.run(replica)

        rng = generator(self)
        losses = []
        for _ in range(10):
            batch = tf.nest.map_structure(
                tf.convert_to_tensor, small.batch(rng)
            )
            if strategy is _CLUSTER.strategy:
                coordinator = tf.distribute.coordinator.ClusterCoordinator(
                    strategy
                )
                result = coordinator.schedule(step, args=batch)
                losses.append(result.fetch())
            else:
                losses.append(step(*batch).numpy())
        self.assertEqual(int(optimizer.iterations), 10)
        return losses


if __name__ == "__main__":
    tf.test.main()
