# SPDX-License-Identifier: Apache-2.0
"""`ops.hash_category` by stock ops, against the custom op."""

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
from tf_ext.ops._stock import hashing

pytestmark = pytest.mark.slow_except(
    "StockHashTest::*_dtype_string_how_eagerly",
    "StockHashTest::test_drawn_columns_seed_0_eagerly",
    "StockHashTest::test_drawn_columns_seed_4_eagerly",
    "StockHashTest::test_drawn_columns_seed_5_traced",
    "StockHashTest::test_drawn_columns_seed_8_eagerly",
    "StockHashTest::test_empty_part_of_a_huge_cross_how_*",
    "StockHashTest::test_empty_vectors_stand_for_none_how_*",
    "StockHashTest::test_inputs_that_do_not_fit_batch",
    "StockHashTest::test_inputs_that_do_not_fit_batch_of_like_columns",
    "StockHashTest::test_inputs_that_do_not_fit_end",
    "StockHashTest::test_inputs_that_do_not_fit_weights",
    "StockHashTest::test_integers_are_compared_with_boundaries_as_doubles_how_*",
    "StockHashTest::test_like_columns_side_by_side_dtype_int32_how_eagerly",
    "StockHashTest::test_like_columns_side_by_side_dtype_int64_how_eagerly",
    "StockHashTest::test_static_shapes",
    "StockHashTest::test_the_most_signs",
    "StockHashTest::test_too_many_signs_are_refused_two_parts",
)

TEXTS = [b"", b"a", b"5", b"-7", "günstig".encode(), b"a\0b", b"\0", b"x" * 99]
NUMBERS = [0, 5, -7, 16777217, -16777217, 2**31 - 1, -(2**31)]
LONG = [*NUMBERS, 2**53 + 1, INT64_MIN, INT64_MAX]
FLOATS = [0.0, -0.0, 18.0, 17.999998, np.nan, np.inf, -np.inf, 1e30, 2.5]
POOLS = {
    "string": np.array(TEXTS, object),
    "int32": np.array(NUMBERS, np.int32),
    "int64": np.array(LONG, np.int64),
    "float32": np.array(FLOATS, np.float32),
}
BOUNDARIES = [(18.0,), (-7.0, 0.0, 5.0, 16777216.0), (0.0, 2.5, 9.007199e15)]


def _draw_input(generator, batch_size, dtype, ragged, weighted):
    """`(values, row_splits, weights)`, row_splits and weights perhaps None."""
    splits = None
    if ragged:
        sizes = generator.integers(0, 4, batch_size)
        splits = np.concatenate([[0], np.cumsum(sizes)])
        shape = [splits[-1]]
    else:
        inner = [(), (1,), (3,), (2, 2), (0,)][generator.choice(5, p=_INNER)]
        shape = [batch_size, *inner]
    values = generator.choice(POOLS[dtype], shape)
    weights = None
    if weighted:
        weights = generator.normal(size=shape).astype(np.float32)
    return values, splits, weights


_TWO = (EAGERLY, UNKNOWN_BATCH)
_INNER = [0.3, 0.3, 0.2, 0.1, 0.1]


def _draw_part(generator, dtype, place, in_cross):
    """The attributes of a part, as a dict."""
    boundaries = ()
    if dtype != "string" and (dtype == "float32" or generator.random() < 0.3):
        boundaries = BOUNDARIES[generator.integers(len(BOUNDARIES))]
    missing = None
    if generator.random() < 0.4:
        value = generator.choice(POOLS[dtype])
        missing = value.decode() if dtype == "string" else str(value)
    buckets = [0, 1, 10, INT64_MAX] if in_cross else [0]
    return {
        "part_inputs": place,
        "part_bucket_sizes": int(generator.choice(buckets)),
        "part_has_missing": missing is not None,
        "part_missing": missing or "",
        "part_boundary_counts": len(boundaries),
        "part_boundaries": boundaries,
    }


def _draw_columns(generator, dtypes, number):
    """The op's attributes for columns and crosses of inputs of some types."""
    columns = {"namespaces": [], "bucket_sizes": [], "identity": []}
    columns |= {"part_counts": []}
    parts = []
    for column in range(number):
        size = int(generator.choice([1, 1, 1, 2, 3]))
        places = generator.integers(len(dtypes), size=size)
        drawn = [_draw_part(generator, dtypes[p], p, size > 1) for p in places]
        bucket_size = int(generator.choice([0, 0, 7, 2**63 - 1]))
        integers = size == 1 and dtypes[places[0]].startswith("int")
        identity = (
            integers
            and not drawn[0]["part_boundaries"]
            and generator.random() < 0.5
        )
        columns["namespaces"].append(f"column {column % 3}")
        columns["bucket_sizes"].append(0 if identity else bucket_size)
        columns["identity"].append(bool(identity))
        columns["part_counts"].append(size)
        parts += drawn
    for key in parts[0]:
        columns[key] = [part[key] for part in parts]
    columns["part_boundaries"] = sum(columns["part_boundaries"], ())
    return columns


def _draw(seed):
    """Inputs `[(values, row_splits, weights)]` and attributes."""
    generator = np.random.default_rng(seed)
    batch_size = int(generator.choice([0, 1, 2, 7, 50]))
    dtypes = list(generator.choice(list(POOLS), size=6))
    weighted = generator.random() < 0.5
    inputs = [
        _draw_input(
            generator,
            batch_size,
            dtype,
            ragged=generator.random() < 0.4,
            weighted=weighted and generator.random() < 0.4,
        )
        for dtype in dtypes
    ]
    return inputs, _draw_columns(generator, dtypes, number=8)


class StockHashTest(tf.test.TestCase, parameterized.TestCase):
    def _check(self, how, inputs, **attributes):
        """Compares both ways to hash.

        Args:
          how: one of HOW.
          inputs: list of `(values, row_splits or None, weights or None)`.
          **attributes: of the op.
        """
        inputs = [_tensors(*one) for one in inputs]
        call = functools.partial(_hash, attributes)
        wanted = call(inputs)
        found = in_stock_ops(how, call)(inputs)
        self.assertAllEqual(found.signs, wanted.signs)
        self.assertAllEqual(found.sign_splits, wanted.sign_splits)
        self.assertAllEqual(found.error, "")
        if wanted.sign_weights.shape != [0]:
            self.assertAllEqual(found.sign_weights, wanted.sign_weights)
        else:
            # Where a graph cannot tell that weights are absent there are ones.
            self.assertAllEqual(
                found.sign_weights, np.ones(found.sign_weights.shape)
            )
        return wanted

    @parameterized.named_parameters(
        (f"seed_{seed}_{how}", seed, how)
        for seed, how in zip(range(16), HOW * 4)
    )
    def test_drawn_columns(self, seed, how):
        inputs, attributes = _draw(seed)
        self._check(how, inputs, **attributes)

    @parameterized.named_parameters(
        *named_cases(dtype=["string", "int32", "int64"], how=_TWO)
    )
    def test_like_columns_side_by_side(self, dtype, how):
        # They are hashed in one go, and crosses read them as well.
        generator = np.random.default_rng(3)
        inputs = [
            (generator.choice(POOLS[dtype], [5, 2]), None, None)
            for _ in range(4)
        ]
        self._check(
            how,
            inputs,
            namespaces=["a", "b", "a", "c", "d", "d", "x"],
            bucket_sizes=[0, 0, 0, 100, 100, 0, 0],
            part_counts=[1, 1, 1, 1, 1, 1, 2],
            part_inputs=[0, 1, 2, 3, 0, 1, 1, 2],
        )

    @parameterized.named_parameters(*named_cases(how=_TWO))
    def test_integers_are_compared_with_boundaries_as_doubles(self, how):
        # As float32 16777219 is 16777220, as float64 2^54 - 1 is 2^54.
        values = np.array([16777219, 16777220, 2**54 - 2, 2**54 - 1, 2**54])
        wanted = self._check(
            how,
            [(values, None, None)],
            namespaces=["n"],
            part_boundary_counts=[2],
            part_boundaries=[16777220.0, float(2**54)],
        )
        below, middle, above = wanted.signs.numpy()[[0, 1, 4]]
        self.assertAllEqual(wanted.signs, [below, middle, middle, above, above])

    @parameterized.named_parameters(
        *named_cases(dtype=list(POOLS), how=(EAGERLY, UNKNOWN_BATCH))
    )
    def test_like_columns_that_leave_values_out(self, dtype, how):
        generator = np.random.default_rng(6)
        boundaries = BOUNDARIES if dtype != "string" else [()] * 3
        for shape in ([4], [4, 2], [4, 3], [0, 3], [4, 0]):
            inputs = [
                (generator.choice(POOLS[dtype], shape), None, None)
                for _ in range(3)
            ]
            self._check(
                how,
                inputs,
                namespaces=["a", "b", "c", "d", "e"],
                part_inputs=[0, 1, 2, 0, 1],
                part_has_missing=[True, True, True, True, False],
                part_missing=["5", "5", "5", "0", ""],
                part_boundary_counts=[len(b) for b in boundaries[:3]]
                + [len(boundaries[0])] * 2,
                part_boundaries=sum((*boundaries, *boundaries[:1] * 2), ()),
            )

    def test_cross_of_most_parts(self):
        generator = np.random.default_rng(4)
        sizes = generator.choice([0, 1, 2], size=[64, 6], p=[0.0, 0.9, 0.1])
        sizes[5, 2] = 0
        inputs = []
        for size in sizes:
            splits = np.concatenate([[0], np.cumsum(size)])
            values = generator.choice(POOLS["string"], splits[-1])
            weights = generator.uniform(0.5, 2, size=splits[-1])
            inputs.append((values, splits, weights.astype(np.float32)))
        wanted = self._check(
            UNKNOWN_BATCH,
            inputs,
            namespaces=["x"],
            part_counts=[64],
            bucket_sizes=[99],
        )
        self.assertGreater(wanted.signs.shape[0], 64)

    @parameterized.named_parameters(
        ("two_parts", 2, 65536), ("product_beyond_int64", 64, 2)
    )
    def test_too_many_signs_are_refused(self, parts, bag):
        values = [tf.zeros([1, bag], tf.int64)] * parts
        call = functools.partial(
            ops.hash_category, namespaces=["x"], part_counts=[parts]
        )
        for how in (EAGERLY, KNOWN_SHAPES, UNKNOWN_BATCH):
            with self.assertRaisesRegex(
                tf.errors.InvalidArgumentError, "more than 2147483647 signs"
            ):
                in_stock_ops(how, call)(values)

    @parameterized.named_parameters(*named_cases(how=_TWO))
    def test_empty_part_of_a_huge_cross(self, how):
        values = np.zeros([1, 65536], np.int64)
        self._check(
            how,
            [(values, None, None)] * 2 + [(values[:0, 0], [0, 0], None)],
            namespaces=["x"],
            part_counts=[3],
        )

    @parameterized.named_parameters(*named_cases(how=HOW[:2]))
    def test_empty_vectors_stand_for_none(self, how):
        values = np.array([[5, 7], [7, 9]])
        ragged = (values[0], [0, 0, 2], [0.5, 2.0])
        self._check(how, [(values, [], []), ragged], namespaces=["a", "b"])

    @parameterized.named_parameters(
        ("batch", [["a", "b"], [1]], None, None, "have the same batch size"),
        ("batch_of_like_columns", [["a"], ["b", "c"]], None, None, "Shapes of"),
        ("start", [["a", "b"]], [[1, 2]], None, "row_splits must start at 0"),
        ("fall", [["a"]], [[0, 2, 1]], None, "not decrease"),
        ("end", [["a", "b"]], [[0, 1]], None, "end at the number of values"),
        ("negative", [["a"]], [[0, -1, 1]], None, "not decrease"),
        ("weights", [["a", "b"]], None, [[1.0]], "one weight for each value"),
    )
    def test_inputs_that_do_not_fit(self, values, splits, weights, message):
        tensors = (
            [tf.constant(one) for one in values],
            splits and [tf.constant(one, tf.int64) for one in splits],
            weights and [tf.constant(one) for one in weights],
        )
        call = functools.partial(
            ops.hash_category, namespaces=["n"] * len(values)
        )
        for how in _TWO:
            with self.assertRaisesRegex(
                tf.errors.InvalidArgumentError, message
            ):
                in_stock_ops(how, call)(*tensors)

    def test_the_most_signs(self):
        """By their numbers alone: they would take 16 GB."""
        most = 2**31 - 1
        for sizes, fits in (
            ([[most], [1]], True),
            ([[most - 1, 1], [1, 1]], True),
            ([[2**16, 0], [2**15 - 1, most]], True),
            ([[most + 1], [1]], False),
            ([[2**16], [2**15]], False),
            ([[most, 1], [1, 1]], False),
            ([[most] * 3, [most] * 3, [most] * 3], False),
        ):
            tensors = [tf.constant(one, tf.int64) for one in sizes]
            if fits:
                found = hashing._products(tensors)
                self.assertAllEqual(found, np.prod(sizes, 0))
                continue
            with self.assertRaisesRegex(
                tf.errors.InvalidArgumentError, "more than 2147483647 signs"
            ):
                hashing._products(tensors)

    def test_static_shapes(self):
        with tf.Graph().as_default():
            found = in_stock_ops(HOW[0], ops.hash_category)(
                [tf.zeros([5, 2], tf.int64), tf.zeros([5], tf.int32)],
                namespaces=["a", "b"],
            )
        self.assertEqual(found.sign_splits.shape, [11])
        self.assertEqual(found.signs.shape.rank, 1)
        self.assertEqual(found.sign_weights.shape, [0])


def _hash(attributes, inputs):
    values, splits, weights = zip(*inputs)
    return ops.hash_category(
        list(values), list(splits), list(weights), **attributes
    )


def _tensors(values, splits, weights):
    if values.dtype == object:
        values = tf.constant(values, tf.string)
    return (
        tf.constant(values),
        None if splits is None else tf.constant(splits, tf.int64),
        None if weights is None else tf.constant(weights, tf.float32),
    )


if __name__ == "__main__":
    tf.test.main()
