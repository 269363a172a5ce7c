# SPDX-License-Identifier: Apache-2.0
"""Which regime there is, and the plan that goes from a pull to its push."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import id_column, mirrored_strategy

import tf_ext
from tf_ext import regimes
from tf_ext.ops.bags import bag_ops
from tf_ext.regimes.local import LocalPlacement
from tf_ext.regimes.plan import plan_of, plan_pull

pytestmark = pytest.mark.both_kerases(slow=True)


class ChoiceTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(
        ("mirrored", mirrored_strategy),
        ("one_device", lambda: tf.distribute.OneDeviceStrategy("/cpu:0")),
        ("one_worker", tf_ext.distribute.multi_worker_strategy),
    )
    def test_replicas_of_one_process_are_local(self, make):
        strategy = make()
        with strategy.scope():
            table = tf_ext.SparseTable("here", dim=1)
            regime = regimes.regime_in_scope()
        self.assertIsInstance(regime.placement, LocalPlacement)
        self.assertEqual(regime.num_replicas, strategy.num_replicas_in_sync)
        self.assertIs(table.rows.regime.strategy, strategy)
        self.assertLen(table.rows.shards, 1)

    def test_without_a_strategy(self):
        regime = regimes.regime_in_scope()
        self.assertIsInstance(regime.placement, LocalPlacement)
        self.assertEqual((regime.num_replicas, regime.processes.count), (1, 1))

    def test_another_strategy_is_refused_by_tables_alone(self):
        strategy = tf.distribute.experimental.CentralStorageStrategy()
        self.assertIsInstance(
            regimes.regime_of(strategy).placement, LocalPlacement
        )
        with strategy.scope():
            with self.assertRaisesRegex(
                NotImplementedError, "do not work under CentralStorageStrategy"
            ):
                tf_ext.SparseTable("nowhere", dim=1)


class PlanTest(tf.test.TestCase):
    def test_is_found_by_the_signs_of_a_gradient(self):
        found = []

        @tf.function
        def step(signs):
            plan = plan_pull(signs, 2)
            other = plan_pull(signs + 1, 2)
            gradient = tf.identity(plan.signs, name=bag_ops.UNIQUE_SIGNS)
            found.append(plan_of(gradient) is plan)
            found.append(plan_of(plan.signs) is None)
            found.append(plan_of(tf.identity(gradient)) is None)
            return plan.split_sizes, other.split_sizes

        step(tf.range(9, dtype=tf.int64))
        self.assertEqual(found, [True, True, True])

    def test_of_another_graph_says_only_that_signs_are_distinct(self):
        found = []

        @tf.function
        def outer(signs):
            plan = plan_pull(signs, 2)

            @tf.function
            def inner(signs):
                found.append(
                    plan_of(tf.identity(signs, name=bag_ops.UNIQUE_SIGNS))
                )
                return signs

            return inner(plan.signs)

        outer(tf.range(9, dtype=tf.int64))
        self.assertIsNone(found[0].split_sizes)

    def test_goes_from_merge_to_push(self):
        table = tf_ext.SparseTable("plans", dim=1, optimizer="sgd")
        layer = tf_ext.layers.EmbeddingFeatures([id_column("a")], table)
        merged = []

        @tf.function
        def step(signs):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer({"a": signs}, training=True))
            gradient = tape.gradient(loss, layer.trainable_variables)[0]
            parts = [(table, [(gradient.indices, gradient.values)])]
            merged.extend(
                regimes.regime_of_tables([table]).exchange.merge(parts)
            )
            return gradient.values

        step(tf.constant([[5], [7], [5]], tf.int64))
        self.assertEqual(merged[0].plan.num_shards, 1)
        graph = merged[0].signs.graph
        uniques = [o for o in graph.get_operations() if "Unique" in o.type]
        self.assertLen(uniques, 1)
        self.assertIs(merged[0].plan.signs.op, uniques[0])

    def test_sixteen_tables_take_one_op_of_each_kind(self):
        tables = [tf_ext.SparseTable(f"many{i}", dim=i + 1) for i in range(16)]
        layer = tf_ext.layers.EmbeddingFeatures(
            {table: [id_column(f"c{i}")] for i, table in enumerate(tables)}
        )
        optimizer = tf_ext.optimizers.Optimizer("sgd")
        optimizer.build(layer.trainable_variables)

        @tf.function
        def step(features):
            with tf.GradientTape() as tape:
                outputs = layer(features, training=True)
                loss = tf.add_n([tf.reduce_sum(o) for o in outputs.values()])
            variables = layer.trainable_variables
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables))

        features = {
            f"c{i}": tf.constant([[i], [i + 1]], tf.int64) for i in range(16)
        }
        graph = step.get_concrete_function(features).graph
        kinds = collections.Counter(o.type for o in graph.get_operations())
        for name in (
            *("HashCategory", "CutBags", "UniqueByShardEach"),
            *("SparseTablesPull", "SparseTablesPush"),
        ):
            self.assertEqual(kinds[f"TfExt>{name}"], 1, name)
        step(features)
        self.assertEqual([table.size() for table in tables], [2] * 16)

    def test_eager_gradients_are_put_in_order_once(self):
        table = tf_ext.SparseTable("eager", dim=1, optimizer="sgd")
        signs = tf.constant([3, 4, 3], tf.int64)
        [gradient] = regimes.regime_of_tables([table]).exchange.merge(
            [(table, [(signs, tf.ones([3, 1]))])]
        )
        np.testing.assert_array_equal(gradient.signs, [3, 4])
        np.testing.assert_array_equal(gradient.plan.split_sizes, [2])


if __name__ == "__main__":
    tf.test.main()
