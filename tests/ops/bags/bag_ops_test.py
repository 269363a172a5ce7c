# SPDX-License-Identifier: Apache-2.0
import itertools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from ops_util import INT64_MAX, INT64_MIN, MODES, named_cases

from tf_ext import ops
from tf_ext.ops.bags import bag_ops

pytestmark = pytest.mark.slow_tests(
    "CombineBagsTest::test_is_embedding_lookup_sparse_forward_and_backward_combiner_mean_weighted_True",
    "CombineBagsTest::test_is_embedding_lookup_sparse_forward_and_backward_combiner_sqrtn_weighted_True",
    "CombineBagsTest::test_is_embedding_lookup_sparse_forward_and_backward_combiner_sum_weighted_True",
)


COMBINERS = ("sum", "mean", "sqrtn", "max")
COLUMNS = [(c, [c]) for c in COMBINERS] + [
    ("of_columns", ["max", "sum", "mean", "max", "sqrtn"])
]


def _reference(rows, inverse, row_splits, weights, combiners):
    """`combine_bags` in NumPy, in float64."""
    batch_size = (len(row_splits) - 1) // len(combiners)
    dim = rows.shape[1]
    combined = np.zeros([batch_size, len(combiners) * dim])
    for (c, combiner), b in itertools.product(
        enumerate(combiners), range(batch_size)
    ):
        start, end = row_splits[c * batch_size + b :][:2]
        x = rows[inverse[start:end]].astype(np.float64)
        w = np.ones(end - start) if weights is None else weights[start:end]
        if start == end:
            continue
        bag = x.max(0) if combiner == "max" else w @ x
        if combiner == "mean":
            bag = bag / w.sum()
        elif combiner == "sqrtn":
            bag = bag / np.sqrt((w**2).sum())
        combined[b, c * dim : (c + 1) * dim] = bag
    return combined


class DimsTest(tf.test.TestCase, parameterized.TestCase):
    """Some dims have loops of their own, and others ends that fill no lane."""

    @parameterized.parameters(1, 7, 8, 9, 16, 32, 33, 64, 300)
    def test_are_as_in_float64(self, dim):
        generator = np.random.default_rng(dim)
        combiners = ["sum", "mean", "sqrtn"]
        sizes = generator.integers(0, 6, [len(combiners) * 9])
        sizes[3] = 40
        splits = np.concatenate([[0], np.cumsum(sizes)])
        inverse = generator.integers(0, 80, splits[-1]).astype(np.int32)
        # Few values, so that several are the largest.
        rows = generator.integers(-3, 4, [80, dim]).astype(np.float32)
        weights = generator.uniform(0.5, 2, splits[-1]).astype(np.float32)
        gradient = generator.normal(size=[9, 3 * dim]).astype(np.float32)
        for given, names in (
            (None, combiners),
            (weights, combiners),
            (None, ["max", "sum", "max"]),
        ):
            found = ops.combine_bags(
                rows, inverse, splits, given, combiners=names
            )
            wanted = _reference(rows, inverse, splits, given, names)
            self.assertAllClose(found, wanted, rtol=1e-5, atol=1e-5)
            found = bag_ops.combine_bags_grad(
                gradient, rows, inverse, splits, given, combiners=names
            )
            wanted = _reference_gradient(
                gradient, rows, inverse, splits, given, names
            )
            for one, other in zip(found, wanted, strict=True):
                self.assertAllClose(one, other, rtol=1e-4, atol=1e-4)


def _reference_gradient(gradient, rows, inverse, splits, weights, combiners):
    """`combine_bags_grad` in NumPy, in float64."""
    batch = (len(splits) - 1) // len(combiners)
    dim = rows.shape[1]
    of_rows = np.zeros(rows.shape)
    of_weights = np.zeros(0 if weights is None else len(weights))
    for (c, combiner), b in itertools.product(
        enumerate(combiners), range(batch)
    ):
        start, end = splits[c * batch + b :][:2]
        if start == end:
            continue
        own = inverse[start:end]
        x = rows[own].astype(np.float64)
        g = gradient[b, c * dim : (c + 1) * dim].astype(np.float64)
        w = np.ones(end - start) if weights is None else weights[start:end]
        w = w.astype(np.float64)
        if combiner == "max":
            is_most = x == x.max(0)
            np.add.at(of_rows, own, is_most * g / is_most.sum(0))
            continue
        divisor = {
            "sum": 1.0,
            "mean": w.sum(),
            "sqrtn": np.sqrt((w**2).sum()),
        }[combiner]
        np.add.at(of_rows, own, np.outer(w / divisor, g))
        if weights is None:
            continue
        products = x @ g
        whole = w @ products / divisor
        less = {"sum": 0.0, "mean": 1.0, "sqrtn": w / divisor}[combiner]
        of_weights[start:end] = (products - whole * less) / divisor
    return of_rows, of_weights


class UniqueByShardTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(*MODES)
    def test_is_tf_unique_for_one_shard(self, mode):
        generator = np.random.default_rng(5)
        signs = np.concatenate(
            [
                generator.integers(-500, 500, size=10_000),
                generator.integers(INT64_MIN, INT64_MAX, size=1000),
                [0, -1, INT64_MIN, INT64_MAX, 0],
            ]
        )
        found = mode(ops.unique_by_shard)(tf.constant(signs))
        expected = tf.unique_with_counts(signs)
        self.assertAllEqual(found.unique, expected.y)
        self.assertAllEqual(found.counts, expected.count)
        self.assertAllEqual(found.inverse, expected.idx)
        self.assertAllEqual(found.split_sizes, [len(expected.y)])

    @parameterized.named_parameters(
        *named_cases(num_shards=[2, 3, 17], mode=MODES)
    )
    def test_signs_are_ordered_by_shard(self, num_shards, mode):
        signs = np.random.default_rng(6).integers(-9999, 9999, size=20_000)
        found = mode(
            lambda: ops.unique_by_shard(signs, num_shards=num_shards)
        )()
        unique = found.unique.numpy()
        self.assertLen(found.split_sizes, num_shards)
        self.assertAllEqual(unique[found.inverse], signs)
        self.assertAllEqual(
            found.counts, np.bincount(found.inverse, minlength=len(unique))
        )
        ends = np.cumsum(found.split_sizes)
        self.assertLen(np.unique(unique), ends[-1])
        again = ops.unique_by_shard(signs, num_shards=num_shards)
        self.assertAllEqual(again.unique, unique)
        for start, end in zip([0, *ends], ends):
            self.assertAllClose(end - start, ends[-1] / num_shards, rtol=0.25)

    def test_small_batches_after_a_large_one(self):
        """Memory that a large batch needed is given back after a small one."""
        large = np.random.default_rng(7).permutation(150_000)
        few = large[:100]
        for signs in (large, few, few[::-1], np.repeat(few, 3), large[50:200]):
            found = ops.unique_by_shard(signs)
            unique, *places = np.unique(signs, True, True, True)
            first, inverse, counts = places
            order = np.argsort(first)
            self.assertAllEqual(found.unique, unique[order])
            self.assertAllEqual(found.counts, counts[order])
            self.assertAllEqual(found.inverse, np.argsort(order)[inverse])

    def test_a_sign_has_one_shard_whatever_the_batch(self):
        def shard_of(signs):
            found = ops.unique_by_shard(signs, num_shards=5)
            shards = np.repeat(np.arange(5), found.split_sizes)
            return dict(zip(found.unique.numpy().tolist(), shards.tolist()))

        everything = shard_of(np.arange(1000))
        for sign in range(0, 1000, 50):
            self.assertEqual(shard_of([sign])[sign], everything[sign])

    def test_no_signs(self):
        found = ops.unique_by_shard([], num_shards=3)
        self.assertEqual([t.shape[0] for t in found], [0, 0, 0, 3])
        self.assertAllEqual(found.split_sizes, [0, 0, 0])

    def test_static_shapes(self):
        unique = tf.function(
            lambda signs: tuple(ops.unique_by_shard(signs, num_shards=3))
        )
        shapes = unique.get_concrete_function(
            tf.TensorSpec([7], tf.int64)
        ).output_shapes
        self.assertEqual(
            [shape.as_list() for shape in shapes], [[None], [None], [7], [3]]
        )


class CombineBagsTest(tf.test.TestCase, parameterized.TestCase):
    def bags(self, combiners, batch_size=40, dim=5, unique=30, seed=1):
        """Bags with empty ones, and rows in several bags and twice in one."""
        generator = np.random.default_rng(seed)
        sizes = generator.integers(0, 7, size=len(combiners) * batch_size)
        n = sizes.sum()
        return {
            "rows": generator.normal(size=[unique, dim]).astype(np.float32),
            "inverse": generator.integers(0, unique, size=n).astype(np.int32),
            "row_splits": np.concatenate([[0], np.cumsum(sizes)]),
            "weights": generator.uniform(0.5, 2, size=n).astype(np.float32),
            "combiners": list(combiners),
        }

    @parameterized.named_parameters(
        *named_cases(combiners=COLUMNS, weighted=[False, True], mode=MODES)
    )
    def test_forward_is_the_reference(self, combiners, weighted, mode):
        if weighted:
            combiners = [c for c in combiners if c != "max"] or ["sum", "mean"]
        bags = self.bags(combiners)
        if not weighted:
            bags["weights"] = None
        combined = mode(lambda: ops.combine_bags(**bags))()
        self.assertAllClose(combined, _reference(**bags), rtol=1e-5, atol=1e-6)

    @parameterized.named_parameters(
        *named_cases(combiner=["sum", "mean", "sqrtn"], weighted=[False, True])
    )
    def test_is_embedding_lookup_sparse_forward_and_backward(
        self, combiner, weighted
    ):
        bags = self.bags([combiner])
        splits = bags["row_splits"]
        lookup = tf.RaggedTensor.from_row_splits(
            bags["inverse"], splits
        ).to_sparse()
        indices, shape = lookup.indices, lookup.dense_shape
        rows, weights = tf.constant(bags["rows"]), tf.constant(bags["weights"])
        upstream = tf.random.stateless_normal([40, 5], seed=[1, 2])
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([rows, weights])
            bags.update(rows=rows, weights=weights if weighted else None)
            found = ops.combine_bags(**bags)
            # The safe one gives zeros for an empty bag.
            expected = tf.nn.safe_embedding_lookup_sparse(
                rows,
                tf.SparseTensor(indices, bags["inverse"], shape),
                tf.SparseTensor(indices, weights, shape) if weighted else None,
                combiner=combiner,
            )
        self.assertAllClose(found, expected, rtol=1e-5, atol=1e-6)
        sources = [rows, weights] if weighted else [rows]
        found_gradients = tape.gradient(found, sources, upstream)
        expected_gradients = tape.gradient(expected, sources, upstream)
        for found_one, expected_one in zip(found_gradients, expected_gradients):
            self.assertAllClose(
                found_one,
                tf.convert_to_tensor(expected_one),
                rtol=1e-5,
                atol=1e-5,
            )

    @parameterized.named_parameters(
        *named_cases(combiners=COLUMNS, weighted=[False, True])
    )
    def test_gradient_is_the_numeric_one(self, combiners, weighted):
        if weighted:
            combiners = [c for c in combiners if c != "max"] or ["mean"]
        bags = self.bags(combiners, batch_size=4, dim=3, unique=6)
        rows, weights = bags.pop("rows"), bags.pop("weights")
        if weighted:
            theoretical, numeric = tf.test.compute_gradient(
                lambda r, w: ops.combine_bags(rows=r, weights=w, **bags),
                [rows, weights],
                delta=1e-2,
            )
        else:
            theoretical, numeric = tf.test.compute_gradient(
                lambda r: ops.combine_bags(rows=r, **bags),
                [rows],
                delta=1e-3,
            )
        for one, other in zip(theoretical, numeric):
            self.assertAllClose(one, other, rtol=2e-3, atol=2e-3)

    def test_a_column_of_single_values_and_an_empty_one(self):
        """They have as many values together as one column has bags."""
        rows = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
        inverse = np.array([3, 1, 0, 2], np.int32)
        for splits in ([0, 1, 2, 3, 4, 4, 4, 4, 4], [0] * 5 + [1, 2, 3, 4]):
            splits = np.array(splits)
            for combiners in (["sum", "sum"], ["max", "mean"]):
                self.assertAllEqual(
                    ops.combine_bags(
                        rows, inverse, splits, combiners=combiners
                    ),
                    _reference(rows, inverse, splits, None, combiners),
                )

    def test_the_gradient_of_max_is_shared_by_equals(self):
        rows = tf.constant([[1.0, 5.0], [1.0, 2.0], [0.0, 5.0]])
        with tf.GradientTape() as tape:
            tape.watch(rows)
            combined = ops.combine_bags(
                rows, [0, 1, 2, 1], [0, 4, 4], combiners=["max"]
            )
        self.assertAllEqual(combined, [[1, 5], [0, 0]])
        # Dimension 0: values 0, 1 and 3 (row 1 twice); dimension 1: 0 and 2.
        self.assertAllClose(
            tape.gradient(
                combined, rows, tf.constant([[6.0, 4.0], [9.0, 9.0]])
            ),
            [[2, 2], [4, 0], [0, 2]],
            rtol=1e-6,
        )

    def test_the_gradient_of_what_several_threads_share(self):
        bags = self.bags(["sum", "mean"], batch_size=8000, dim=16, unique=9000)
        rows, _ = tf.constant(bags.pop("rows")), bags.pop("weights")
        gradient = np.random.default_rng(2).normal(size=[8000, 32])
        sizes = np.diff(bags["row_splits"])
        # As of bags: those of one column after those of the other.
        of_bags = np.concatenate(np.split(gradient, 2, 1))
        of_bags[8000:] /= np.maximum(sizes[8000:, np.newaxis], 1)
        expected = np.zeros(rows.shape)
        np.add.at(expected, bags["inverse"], np.repeat(of_bags, sizes, 0))
        with tf.GradientTape() as tape:
            tape.watch(rows)
            combined = ops.combine_bags(rows, **bags)
        self.assertAllClose(
            tape.gradient(combined, rows, gradient.astype(np.float32)),
            expected,
            rtol=1e-5,
            atol=1e-5,
        )

    @parameterized.parameters(1, 5, 9000)
    def test_the_gradient_of_single_values_that_threads_share(self, unique):
        batch, dim, combiners = 8001, 32, ["sum", "max", "mean"]
        generator = np.random.default_rng(unique)
        inverse = generator.integers(0, unique, 3 * batch).astype(np.int32)
        gradient = generator.normal(size=[batch, 3 * dim]).astype(np.float32)
        found, _ = bag_ops.combine_bags_grad(
            *(gradient, np.zeros([unique, dim], np.float32), inverse),
            *(np.arange(3 * batch + 1), None),
            combiners=combiners,
        )
        # In the order of the values: the same to the bit.
        expected = np.zeros([unique, dim], np.float32)
        np.add.at(expected, inverse, np.concatenate(np.split(gradient, 3, 1)))
        self.assertAllEqual(found, expected)

    @parameterized.parameters(3, 64, 65, 130)
    def test_the_gradient_of_max_of_columns(self, dim):
        # Few different values: many reach a maximum together.
        rng = np.random.default_rng(dim)
        rows = rng.integers(0, 3, [5, dim]).astype(np.float32)
        inverse = rng.integers(0, 5, 24)
        splits = np.array([0, 1, 5, 5, 12, 18, 24])
        gradient = rng.normal(size=[3, 2 * dim]).astype(np.float32)
        expected = np.zeros_like(rows)
        for bag, (begin, end) in enumerate(itertools.pairwise(splits)):
            if begin == end:
                continue
            column, sample = divmod(bag, 3)
            values = rows[inverse[begin:end]]
            reached = values == values.max(0)
            of_bag = gradient[sample, column * dim :][:dim]
            shares = reached * of_bag / reached.sum(0)
            np.add.at(expected, inverse[begin:end], shares)
        tensor = tf.constant(rows)
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            combined = ops.combine_bags(
                tensor, inverse, splits, combiners=["max", "max"]
            )
        self.assertAllClose(
            tape.gradient(combined, tensor, gradient), expected, rtol=1e-5
        )

    @parameterized.named_parameters(
        *named_cases(combiner=COMBINERS, mode=MODES)
    )
    def test_empty_bags_are_zeros_forward_and_backward(self, combiner, mode):
        @mode
        def run(rows, inverse, splits):
            with tf.GradientTape() as tape:
                tape.watch(rows)
                combined = ops.combine_bags(
                    rows, inverse, splits, combiners=[combiner]
                )
            return combined, tape.gradient(combined, rows)

        no_values = tf.zeros([0], tf.int32)
        combined, gradient = run(
            tf.ones([2, 3]), no_values, tf.constant([0, 0, 0], tf.int64)
        )
        self.assertAllEqual(combined, np.zeros([2, 3]))
        self.assertAllEqual(gradient, np.zeros([2, 3]))
        combined, gradient = run(
            tf.ones([0, 3]), no_values, tf.constant([0], tf.int64)
        )
        self.assertEqual(combined.shape, [0, 3])
        self.assertEqual(gradient.shape, [0, 3])

    @parameterized.named_parameters(*named_cases(combiner=["mean", "sqrtn"]))
    def test_a_zero_divisor_gives_zeros(self, combiner):
        rows, weights = tf.constant([[1.0], [2.0]]), tf.constant([0.0, 0.0])
        with tf.GradientTape() as tape:
            tape.watch([rows, weights])
            combined = ops.combine_bags(
                rows, [0, 1], [0, 2], weights, combiners=[combiner]
            )
        self.assertAllEqual(combined, [[0]])
        for gradient in tape.gradient(combined, [rows, weights]):
            self.assertAllEqual(tf.reshape(gradient, [-1]), [0, 0])

    def test_integers_and_absent_weights_have_no_gradient(self):
        rows, inverse = tf.ones([1, 2]), tf.constant([0])
        splits, weights = tf.constant([0, 1], tf.int64), tf.zeros([0])
        with tf.GradientTape() as tape:
            tape.watch([rows, inverse, splits, weights])
            combined = ops.combine_bags(
                rows, inverse, splits, weights, combiners=["sum"]
            )
        gradients = tape.gradient(combined, [rows, inverse, splits, weights])
        self.assertAllEqual(gradients[0], [[1, 1]])
        self.assertIsNone(gradients[1])
        self.assertIsNone(gradients[2])
        self.assertEqual(gradients[3].shape, [0])

    def test_a_second_derivative_is_refused(self):
        rows = tf.ones([1, 2])
        with tf.GradientTape() as outer, tf.GradientTape() as inner:
            outer.watch(rows)
            inner.watch(rows)
            combined = ops.combine_bags(rows, [0], [0, 1], combiners=["mean"])
            gradient = inner.gradient(combined, rows)
        with self.assertRaisesRegex(LookupError, "TfExt>CombineBagsGrad"):
            outer.gradient(gradient, rows)

    @parameterized.named_parameters(
        ("unknown", [None, 8], [None], [None, 24]),
        ("known", [10, 8], [13], [4, 24]),
        ("of_no_bags", [10, None], [1], [0, None]),
    )
    def test_static_shapes(self, rows, row_splits, expected):
        @tf.function
        def combine(rows, inverse, row_splits, weights):
            combined = ops.combine_bags(
                rows, inverse, row_splits, weights, combiners=["sum"] * 3
            )
            return combined, *bag_ops.combine_bags_grad(
                combined,
                rows,
                inverse,
                row_splits,
                weights,
                combiners=["sum"] * 3,
            )

        shapes = combine.get_concrete_function(
            tf.TensorSpec(rows),
            tf.TensorSpec([7], tf.int32),
            tf.TensorSpec(row_splits, tf.int64),
            tf.TensorSpec([7]),
        ).output_shapes
        self.assertEqual(
            [shape.as_list() for shape in shapes], [expected, rows, [7]]
        )


if __name__ == "__main__":
    tf.test.main()
