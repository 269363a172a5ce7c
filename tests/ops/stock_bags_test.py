# SPDX-License-Identifier: Apache-2.0
"""Ops between signs and bags made of stock ops, against the custom ops."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from ops_util import INT64_MAX, INT64_MIN, named_cases
from stock_util import (
    EAGERLY,
    HOW,
    KNOWN_SHAPES,
    UNKNOWN_BATCH,
    in_stock_ops,
)

from tf_ext import ops
from tf_ext._batch_source import source_with
from tf_ext.ops._stock import singles
from tf_ext.ops.bags import bag_ops

pytestmark = pytest.mark.slow_tests(
    "CombineBagsTest::*_weighted_False_traced_of_any_batch",
    "CombineBagsTest::*_weighted_True_traced_of_any_batch",
    "CombineBagsTest::test_bags_max_sum_mean_max_max_sqrtn_weighted_False_eagerly",
    "CombineBagsTest::test_bags_sqrtn_weighted_False_eagerly",
    "CombineBagsTest::test_bags_sum_mean_sqrtn_mean_weighted_False_eagerly",
    "CombineBagsTest::test_dims_how_traced_dim_*",
    "CombineBagsTest::test_dims_how_traced_of_any_shape_dim_*",
    "CombineBagsTest::test_tensors_that_do_not_fit_more_weights",
    "CombineBagsTest::test_tensors_that_do_not_fit_negative_row",
    "CombineBagsTest::test_tensors_that_do_not_fit_splits_end_*",
    "HashedBagsTest::*_batch_size_5_shapes_one_each",
    "HashedBagsTest::*_batch_size_5_shapes_two_in_one",
    "HashedBagsTest::test_columns_how_traced_batch_size_0_shapes_*",
    "HashedBagsTest::test_columns_how_traced_of_any_batch_batch_size_0_shapes_*",
    "HashedBagsTest::test_columns_how_traced_of_any_batch_batch_size_5_shapes_alike",
)

_COMBINERS = [
    ("sum",),
    ("mean",),
    ("sqrtn",),
    ("sum", "mean", "sqrtn", "mean"),
    ("sum", "sum", "sqrtn"),
    ("max",),
    ("max", "sum", "mean", "max", "max", "sqrtn"),
]


def _draw(seed, columns, weighted, batch_size=40, dim=5):
    """The tensors that `combine_bags` takes."""
    generator = np.random.default_rng(seed)
    sizes = generator.choice([0, 1, 2, 30], size=columns * batch_size)
    splits = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    inverse = generator.integers(0, 20, splits[-1]).astype(np.int32)
    rows = generator.normal(size=[20, dim]).astype(np.float32)
    weights = np.zeros([0], np.float32)
    if weighted:
        weights = generator.normal(size=splits[-1]).astype(np.float32)
        # Bags whose divisor is zero, of some weights and of none.
        for bag in generator.choice(np.flatnonzero(sizes == 2), 5):
            weights[splits[bag]] = -weights[splits[bag] + 1]
        for bag in generator.choice(np.flatnonzero(sizes), 5):
            weights[splits[bag] : splits[bag + 1]] = 0
    return tuple(map(tf.constant, (rows, inverse, splits, weights)))


class CombineBagsTest(tf.test.TestCase, parameterized.TestCase):
    def _check(self, how, tensors, combiners):
        call = functools.partial(ops.combine_bags, combiners=list(combiners))
        wanted = call(*tensors)
        found = in_stock_ops(how, call)(*tensors)
        # The bits, for sums go in the same order; but zeros have no sign.
        self.assertAllEqual(found, wanted)
        return wanted

    @parameterized.named_parameters(
        (f"{'_'.join(combiners)}_weighted_{weighted}_{how}", *case)
        for combiners in _COMBINERS
        for weighted in (False, True)
        for how in (EAGERLY, UNKNOWN_BATCH)
        if not (weighted and "max" in combiners)
        for case in [(combiners, weighted, how)]
    )
    def test_bags(self, combiners, weighted, how):
        self._check(how, _draw(7, len(combiners), weighted), combiners)

    @parameterized.named_parameters(*named_cases(how=HOW, dim=[1, 16]))
    def test_dims(self, how, dim):
        combiners = ("mean", "sum")
        self._check(how, _draw(8, 2, weighted=True, dim=dim), combiners)
        self._check(how, _draw(9, 2, weighted=False, dim=dim), combiners)

    @parameterized.named_parameters(*named_cases(how=(EAGERLY, UNKNOWN_BATCH)))
    def test_nothing_to_combine(self, how):
        for batch_size in (0, 3):
            empty = (
                tf.zeros([0, 4]),
                tf.zeros([0], tf.int32),
                tf.zeros([2 * batch_size + 1], tf.int64),
            )
            for combiners in (("max", "sum"), ("mean", "sqrtn")):
                combined = self._check(how, empty, combiners)
                self.assertAllEqual(combined, np.zeros([batch_size, 8]))

    def test_rows_that_are_not_finite(self):
        # A bag of a divisor of zero is zeros whatever its rows are.
        rows = tf.constant([[np.inf], [np.nan], [1.0]])
        self._check(
            EAGERLY,
            (
                rows,
                tf.constant([0, 1, 2, 2]),
                tf.constant([0, 1, 2, 4], tf.int64),
                tf.constant([0.0, 0.0, 1.0, 2.0]),
            ),
            ["mean"],
        )

    def test_weights_of_max_are_refused(self):
        call = functools.partial(ops.combine_bags, combiners=["max", "sum"])
        one_each = (
            tf.ones([1, 3]),
            tf.constant([0]),
            tf.constant([0, 1, 1], tf.int64),
            tf.constant([2.0]),
        )
        for tensors in (_draw(7, 2, weighted=True), one_each):
            for how in (EAGERLY, UNKNOWN_BATCH):
                with self.assertRaisesRegex(
                    tf.errors.InvalidArgumentError, "`weights`.*empty for max"
                ):
                    in_stock_ops(how, call)(*tensors)

    @parameterized.named_parameters(
        ("row_out_of_range", [0, 20], [0, 1, 2], []),
        ("negative_row", [0, -1], [0, 1, 2], []),
        ("splits_end_early", [0, 1], [0, 1, 1], []),
        ("bags_of_one_end_early", [0, 1, 2, 3], [0, 1, 2], []),
        ("splits_end_late", [0, 1], [0, 1, 3], []),
        ("more_weights", [0, 1], [0, 1, 2], [1.0, 1.0, 1.0]),
        ("fewer_weights", [0, 1], [0, 1, 2], [1.0]),
        ("no_multiple_of_columns", [0, 1], [0, 2], []),
    )
    def test_tensors_that_do_not_fit(self, inverse, splits, weights):
        tensors = (
            tf.zeros([20, 3]),
            tf.constant(inverse),
            tf.constant(splits, tf.int64),
            tf.constant(weights, tf.float32),
        )
        call = functools.partial(ops.combine_bags, combiners=["sum", "mean"])
        for function in (
            call,
            in_stock_ops(EAGERLY, call),
            in_stock_ops(UNKNOWN_BATCH, call),
        ):
            with self.assertRaises(tf.errors.InvalidArgumentError):
                function(*tensors)

    def test_static_shapes(self):
        with tf.Graph().as_default():
            call = functools.partial(ops.combine_bags, combiners=["max", "sum"])
            shapes = [
                in_stock_ops(EAGERLY, call)(
                    tf.zeros([3, 4]),
                    tf.zeros([5], tf.int32),
                    tf.compat.v1.placeholder(tf.int64, splits),
                ).shape
                for splits in ([7], [None])
            ]
        self.assertEqual(shapes[0], [3, 8])
        self.assertEqual(shapes[1].as_list(), [None, 8])


class UniqueByShardTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(*named_cases(how=HOW))
    def test_one_shard(self, how):
        signs = [5, 0, -1, INT64_MIN, INT64_MAX, 0]
        for some in (signs, []):
            tensor = tf.constant(some, tf.int64)
            wanted = ops.unique_by_shard(tensor)
            found = in_stock_ops(how, ops.unique_by_shard)(tensor)
            for name in wanted._fields:
                one = getattr(found, name)
                self.assertEqual(one.dtype, getattr(wanted, name).dtype)
            # Those that repeat are looked up once more.
            self.assertAllEqual(tf.gather(found.unique, found.inverse), some)
            self.assertAllEqual(found.counts, np.ones_like(some))
            self.assertAllEqual(found.split_sizes, [len(some)])

    def test_more_shards_are_refused(self):
        with self.assertRaisesRegex(ValueError, "`num_shards`.*Received.*=2"):
            in_stock_ops(EAGERLY, ops.unique_by_shard)([1], num_shards=2)


class HashedBagsTest(tf.test.TestCase, parameterized.TestCase):
    """From values to combined bags, as layers do."""

    @parameterized.named_parameters(
        *named_cases(
            how=(KNOWN_SHAPES, UNKNOWN_BATCH),
            batch_size=[0, 5],
            shapes=[
                ("alike", [()] * 3),
                ("one_each", [(1,), (), (1,)]),
                ("two_in_one", [(), (2,), ()]),
                ("one_column", [()]),
            ],
        )
    )
    def test_columns(self, how, batch_size, shapes):
        generator = np.random.default_rng(3)
        values = [
            tf.constant(generator.integers(0, 9, [batch_size, *shape]))
            for shape in shapes
        ]
        combiners = ["mean", "max", "sqrtn"][: len(shapes)]
        rows = tf.constant(generator.normal(size=[64, 3]), tf.float32)

        def call(*values):
            hashed = ops.hash_category(
                list(values), namespaces=list("abc"[: len(values)])
            )
            unique = ops.unique_by_shard(hashed.signs)
            found = tf.gather(rows, tf.bitwise.bitwise_and(unique.unique, 63))
            combined = ops.combine_bags(
                found,
                unique.inverse,
                hashed.sign_splits,
                hashed.sign_weights,
                combiners=combiners,
            )
            # And of what the order of samples is not known of.
            batch = (tf.size(hashed.sign_splits) - 1) // len(values)
            splits = hashed.sign_splits[: batch + 1]
            first = ops.combine_bags(
                found,
                unique.inverse[: splits[-1]],
                splits,
                combiners=combiners[:1],
            )
            return combined, first

        wanted = call(*values)
        found = in_stock_ops(how, call)(*values)
        self.assertAllEqual(found[0], wanted[0])
        self.assertAllEqual(found[1], wanted[1])

    def test_one_value_a_sample_takes_neither_sums_nor_choices(self):
        graph = tf.Graph()
        with graph.as_default(), source_with(lookup=lambda *_: None):
            values = tf.compat.v1.placeholder(tf.string, [None])
            hashed = ops.hash_category([values] * 3, namespaces=list("abc"))
            unique = ops.unique_by_shard(hashed.signs)
            before = len(graph.get_operations())
            combined = ops.combine_bags(
                tf.zeros([tf.size(unique.unique), 4]),
                unique.inverse,
                hashed.sign_splits,
                combiners=["mean"] * 3,
            )
        self.assertEqual(combined.shape.as_list(), [None, 12])
        made = {op.type for op in graph.get_operations()[before:]}
        self.assertEmpty(made & {"StatelessIf", "UnsortedSegmentSum"})
        self.assertNotIn("GatherV2", made)


class CutBagsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*HOW)
    def test_same_as_the_op(self, how):
        def call(signs, row_splits, weights):
            return bag_ops.cut_bags(
                signs,
                row_splits,
                weights,
                columns=3,
                runs=[(1, 3), (0, 1), (1, 2)],
                weighted=[True, False, False],
            )

        tensors = (
            tf.constant([7, 8, 9, 10, 11], tf.int64),
            tf.constant([0, 1, 2, 2, 4, 5, 5], tf.int64),
            tf.constant([1.0, 2.0, 3.0, 4.0, 5.0]),
        )
        found = in_stock_ops(how, call)(*tensors)
        for stock, own in zip(found, call(*tensors), strict=True):
            for one, other in zip(stock, own, strict=True):
                self.assertAllEqual(one, other)

    def test_columns_of_one_value_stay_so(self):
        with tf.Graph().as_default(), source_with(lookup=lambda *_: None):
            values = tf.compat.v1.placeholder(tf.string, [None])
            hashed = ops.hash_category([values] * 3, namespaces=list("abc"))
            signs, splits, _ = bag_ops.cut_bags(
                *hashed[:3], columns=3, runs=[(0, 2)], weighted=[False]
            )
            for tensor in (*signs, *splits):
                self.assertEqual(singles.columns_of_singles(tensor), 2)


class RouteGradientTest(tf.test.TestCase):
    def test_rows_stay(self):
        rows = [[1.0, 2.0]]
        routed = in_stock_ops(UNKNOWN_BATCH, ops.route_gradient)(
            tf.constant(rows), tf.zeros([1, 2]), tf.constant([3], tf.int64)
        )
        self.assertAllEqual(routed, rows)


if __name__ == "__main__":
    tf.test.main()
