# SPDX-License-Identifier: Apache-2.0
"""What is known of a tensor by its graph, and specs that can be cut."""

import gc
import weakref

import pytest
import tensorflow as tf
from absl.testing import absltest

import tf_ext
from tf_ext._compat import graphs, sparse_specs
from tf_ext.ops.bags import bag_ops

pytestmark = pytest.mark.both_kerases


class _Plan:
    pass


class GraphsTest(absltest.TestCase):
    def test_what_is_attached_is_the_graphs(self):
        plans = []

        @tf.function
        def step(x):
            one = graphs.attached_to_graph(x.graph, "test")
            one["plan"] = _Plan()
            plans.append(weakref.ref(one["plan"]))
            self.assertIs(graphs.attached_to_graph(x.graph, "test"), one)
            self.assertIsNot(graphs.attached_to_graph(x.graph, "other"), one)
            return x

        step(tf.constant(1))
        step(tf.constant(1.0))
        self.assertIsNot(plans[0](), plans[1]())
        del step
        gc.collect()
        self.assertIsNone(plans[0]())

    def test_identities_are_known_by_name(self):
        @tf.function
        def step(x):
            with tf.name_scope("scope"):
                named = tf.identity(x, name="compat")
            self.assertTrue(graphs.is_identity(named, "compat"))
            self.assertFalse(graphs.is_identity(named, "other"))
            self.assertFalse(graphs.is_identity(named + 1, "compat"))
            return named

        step(tf.constant(1))
        self.assertFalse(graphs.is_identity(tf.constant(1), "compat"))

    def test_the_tensor_behind_identities_is_found(self):
        @tf.function
        def step(x):
            found = graphs.source_of(tf.identity(tf.identity(x + 1)))
            self.assertEqual(found.op.type, "AddV2")
            self.assertIs(graphs.source_of(x), x)
            return x

        step(tf.constant([1, 2]))

    def test_functions_inside_of_a_function_are_known(self):
        found = []

        @tf.function(autograph=False)
        def outer(x):
            graph = tf.compat.v1.get_default_graph()

            def look():
                found.append(graphs.in_other_function(graph))
                return x

            look()
            tf.cond(x > 0, look, look)
            tf.while_loop(lambda _: x > 0, lambda _: [look()], [x])
            tf.function(look)()
            return x

        outer(tf.constant(1))
        self.assertEqual(found, [False, False, False, False, True])

    def test_gradients_of_pulls_are_known(self):
        # What the search for a gradient's pull rests on.
        table = tf_ext.SparseTable("compat", dim=2)
        layer = tf_ext.layers.EmbeddingFeatures(
            [tf_ext.feature_column.category_column("id")], table
        )
        known = []

        @tf.function
        def step(ids):
            with tf.GradientTape() as tape:
                outputs = tf.reduce_sum(layer({"id": ids}, training=True))
            gradient = tape.gradient(outputs, table.trainable_variables)[0]
            known.append(
                graphs.is_identity(gradient.indices, bag_ops.UNIQUE_SIGNS)
            )
            known.append(graphs.source_of(gradient.indices).op.type)
            return outputs

        step(tf.constant([1, 2], tf.int64))
        self.assertEqual(known, [True, "TfExt>UniqueByShardEach"])


class SparseSpecTest(absltest.TestCase):
    def _cut(self, spec_class):
        """Batches of 2 and of 0 samples, made of one of 2."""
        batch = tf.sparse.from_dense([[1, 0], [0, 2]])
        dataset = tf.data.Dataset.from_tensors(batch)
        spec = spec_class(tf.TensorShape([None, 2]), tf.int32)
        dataset = tf.data.experimental.from_variant(
            tf.data.experimental.to_variant(dataset), spec
        )
        return list(dataset.rebatch([2, 0]))

    def test_empty_batches_can_be_cut(self):
        whole, empty = self._cut(sparse_specs.CuttableSparseSpec)
        self.assertEqual(tf.sparse.to_dense(empty).shape, [0, 2])
        self.assertEqual(
            tf.sparse.to_dense(whole).numpy().tolist(), [[1, 0], [0, 2]]
        )

    def test_tensorflow_cannot_cut_its_own(self):
        with self.assertRaises(tf.errors.OpError):
            self._cut(tf.SparseTensorSpec)


if __name__ == "__main__":
    absltest.main()
