# SPDX-License-Identifier: Apache-2.0
"""Softmax losses over more logits than are in memory at a time."""

import gc
import weakref
from unittest import mock

import numpy as np
import processes
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import generator

import tf_ext
from tf_ext.layers import InBatchSoftmax, SampledSoftmax, softmax_blocks

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "SoftmaxBlocksTest::test_in_batch_softmax_in_blocks0",
    ),
]

_DIM = 5
# In little more memory than the vectors take; logits would take 17 GB.
_LARGE = """
import resource
import sys

import tensorflow as tf

import tf_ext

softmax = tf_ext.layers.InBatchSoftmax()
vectors = tf.random.stateless_normal([65_536, 4], [1, 2])
ids = tf.range(65_536)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with tf.GradientTape() as tape:
    tape.watch(vectors)
    losses = softmax(vectors, vectors, ids)
gradient = tape.gradient(losses, vectors)
more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert more < 2 << 20, f"{more} KiB"
some = tf.range(0, 65_536, 8_192)
logits = tf.matmul(tf.gather(vectors, some), vectors, transpose_b=True)
expected = tf.nn.sparse_softmax_cross_entropy_with_logits(some, logits)
tf.debugging.assert_near(tf.gather(losses, some), expected, 1e-4, 1e-4)
assert tf.reduce_all(tf.math.is_finite(gradient))
"""


def _small_blocks(size=50):
    """Blocks of few logits; of a new function, which has not been traced."""
    softmax_blocks._function.cache_clear()
    return mock.patch.object(softmax_blocks, "_BLOCK", size)


class SoftmaxBlocksTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.rng = generator(self)
        self.addCleanup(softmax_blocks._function.cache_clear)

    def vectors(self, count):
        return tf.constant(self.rng.normal(size=(count, _DIM)), tf.float32)

    def losses_and_gradients(self, layer, vectors, *arguments, **options):
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            losses = layer(*vectors, *arguments, **options)
            weighted = losses * tf.range(1.0, len(losses) + 1.0)
        return [losses, *tape.gradient(weighted, vectors)]

    @parameterized.parameters(
        (True, True, 50), (False, False, 1), (False, True, 400)
    )
    def test_in_batch_softmax_in_blocks(self, ids, probability, block):
        vectors = [self.vectors(23), self.vectors(23)]
        arguments = (
            tf.constant(self.rng.integers(0, 9, 23)) if ids else None,
            self.rng.uniform(0.1, 1.0, 23) if probability else None,
        )
        layer = InBatchSoftmax(0.5)
        expected = self.losses_and_gradients(layer, vectors, *arguments)
        with _small_blocks(block):
            for call in (layer, tf.function(layer)):
                found = self.losses_and_gradients(call, vectors, *arguments)
                for one, wanted in zip(found, expected, strict=True):
                    self.assertAllClose(one, wanted, 1e-5, 1e-5)

    def test_sampled_softmax_in_blocks(self):
        vectors = [self.vectors(23), self.vectors(23), self.vectors(31)]
        mask = self.rng.uniform(size=(23, 31)) < 0.5
        mask[3] = False
        options = {
            "log_expected_counts": self.rng.normal(size=31),
            "negatives_mask": mask,
            "ids": tf.constant(self.rng.integers(0, 9, 23)),
            "negative_ids": tf.constant(self.rng.integers(0, 9, 31)),
        }
        layer = SampledSoftmax(0.5)
        expected = self.losses_and_gradients(layer, vectors, **options)
        with _small_blocks():
            found = self.losses_and_gradients(layer, vectors, **options)
        for one, wanted in zip(found, expected, strict=True):
            self.assertAllClose(one, wanted, 1e-5, 1e-5)

    def test_full_softmax(self):
        # Of sequences, over all items of a table, with padding.
        items, hidden = self.vectors(29), self.vectors(4 * 6)
        hidden = tf.reshape(hidden, [4, 6, _DIM])
        labels = self.rng.integers(0, 29, (4, 6))
        kept = self.rng.uniform(size=(4, 6)) < 0.7
        ids = np.array([f"item {i}" for i in range(29)])
        layer = SampledSoftmax()

        def full_softmax(hidden, items):
            return layer(
                hidden,
                tf.gather(items, labels),
                items,
                sample_mask=kept,
                ids=tf.constant(ids[labels]),
                negative_ids=tf.constant(ids),
            )

        def reference(hidden, items):
            logits = tf.einsum("bld,nd->bln", hidden, items)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels, logits
            )
            return losses * kept

        def results(function, *vectors):
            with tf.GradientTape() as tape:
                tape.watch(vectors)
                losses = function(*vectors)
            return losses, *tape.gradient(losses, vectors)

        vectors = tf.cast(hidden, tf.float64), tf.cast(items, tf.float64)
        expected = results(reference, *vectors)
        for size in (50, 1 << 20):
            with _small_blocks(size):
                found = results(full_softmax, hidden, items)
            for one, wanted in zip(found, expected, strict=True):
                self.assertAllClose(one, wanted, 1e-5, 1e-5)

    def test_estimate_of_the_full_softmax(self):
        items, queries = self.vectors(50), self.vectors(3)
        chosen = tf.constant([4, 7, 9])
        layer = SampledSoftmax()
        sampler = tf_ext.layers.NegativeSampler(50, 200_000, True, 0.5)
        sampler.index(range(50), np.arange(50) + 1)
        ids, log_counts, mask = sampler(chosen, training=True)
        positives = tf.gather(items, chosen)
        found = layer(
            queries, positives, tf.gather(items, ids), log_counts, mask
        )
        logits = tf.matmul(queries, items, transpose_b=True)
        expected = tf.nn.sparse_softmax_cross_entropy_with_logits(
            chosen, logits
        )
        self.assertAllClose(found, expected, 0.02, 0.02)

    def test_graphs_are_freed(self):
        # TensorFlow keeps the graph of a custom gradient.
        layer = InBatchSoftmax()
        with _small_blocks():

            def graph_of_a_step():
                @tf.function
                def step(vectors):
                    with tf.GradientTape() as tape:
                        tape.watch(vectors)
                        losses = layer(vectors, vectors)
                    return tape.gradient(losses, vectors)

                concrete = step.get_concrete_function(self.vectors(23))
                return weakref.ref(concrete.graph)

            graph = graph_of_a_step()
            gc.collect()
            self.assertIsNone(graph())

    @pytest.mark.slow
    def test_65536_samples(self):
        folder = self.get_temp_dir()
        processes.run_program(_LARGE, folder, timeout_seconds=900)


if __name__ == "__main__":
    tf.test.main()
