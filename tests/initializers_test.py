# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_ext
from tf_ext import initializers
from tf_ext._keras import keras

pytestmark = pytest.mark.both_kerases(slow=True)

_SEED = 20240917
_ROWS, _DIM = 8192, 8

_ALL = (
    ("zeros", initializers.Zeros()),
    ("constant", initializers.Constant(-0.25)),
    ("uniform", initializers.Uniform(-0.3, 0.5)),
    ("normal", initializers.Normal(0.1, 2.0)),
    ("truncated_normal", initializers.TruncatedNormal(-0.1, 0.5)),
)
_RANDOM = _ALL[2:]


def _draw(initializer, rows=_ROWS, seed=_SEED, first=0):
    """Initial weights of consecutive signs, float64 `[rows, _DIM]`."""
    print(f"seed={seed}")
    table = tf_ext.SparseTable("drawn", _DIM, "sgd", initializer, seed=seed)
    return np.float64(table.pull(np.arange(first, first + rows)))


def _largest_gap(values, distribution):
    """The Kolmogorov-Smirnov statistic times the root of the size.

    Below 1.63 in 99 of 100 samples of the distribution.
    """
    values = np.sort(values.ravel())
    expected = np.vectorize(distribution)(values)
    steps = np.arange(values.size + 1) / values.size
    gap = max(
        np.max(steps[1:] - expected),
        np.max(expected - steps[:-1]),
    )
    return gap * math.sqrt(values.size)


def _normal_distribution(x):
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("zeros", initializers.Zeros),
        ("constant", initializers.Constant),
        ("uniform", initializers.Uniform),
        ("normal", initializers.Normal),
        ("truncated_normal", initializers.TruncatedNormal),
    )
    def test_is_found_by_its_name(self, cls):
        self.assertIs(type(initializers.get(cls.kind)), cls)
        self.assertEqual(initializers.get(cls.kind), cls())
        self.assertEqual(cls().table_config()["initializer"], cls.kind)

    def test_keras_has_the_same_distributions(self):
        theirs = keras.initializers
        for one, mine in (
            (theirs.Zeros(), initializers.Zeros()),
            (theirs.Constant(-0.25), initializers.Constant(-0.25)),
            (theirs.RandomUniform(-1, 2), initializers.Uniform(-1.0, 2.0)),
            (theirs.RandomNormal(0.1, 2.0, 7), initializers.Normal(0.1, 2.0)),
            (
                theirs.TruncatedNormal(-0.1, 0.5),
                initializers.TruncatedNormal(-0.1, 0.5),
            ),
        ):
            self.assertEqual(initializers.get(one), mine)
            config = keras.utils.serialize_keras_object(one)
            self.assertEqual(initializers.get(config), mine)
            drawn = tf_ext.SparseTable("drawn", _DIM, initializer=one)
            self.assertEqual(drawn.initializer, mine)

    @parameterized.named_parameters(
        ("keras_name", "he_normal"),
        ("keras_initializer", keras.initializers.GlorotUniform()),
        ("keras_subclass", type("Own", (keras.initializers.Zeros,), {})()),
        ("keras_array", keras.initializers.Constant(np.zeros([2, 2]))),
        (
            "keras_config",
            keras.utils.serialize_keras_object(
                keras.initializers.GlorotUniform()
            ),
        ),
        ("class", initializers.Zeros),
        ("none", None),
        ("number", 0.0),
    )
    def test_others_are_refused(self, identifier):
        with self.assertRaisesRegex(
            ValueError,
            r"`initializer` of SparseTable must be a tf_ext.initializers."
            r"Initializer, one of \['constant', 'normal', "
            r"'truncated_normal', 'uniform', 'zeros'\], or one of Keras's .*"
            r"depend on the shape of a matrix. Received: initializer=",
        ):
            initializers.get(identifier)

    @parameterized.named_parameters(
        ("nan", math.nan),
        ("infinite", -math.inf),
        ("above_all_floats", 10**400),
        ("text", "0.1"),
        ("none", None),
        ("bool", True),
        ("list", [0.1]),
    )
    def test_parameters_are_finite_numbers(self, value):
        for cls, name in (
            (initializers.Constant, "value"),
            (initializers.Uniform, "minval"),
            (initializers.Uniform, "maxval"),
            (initializers.Normal, "mean"),
            (initializers.TruncatedNormal, "stddev"),
        ):
            with self.assertRaises(ValueError) as raised:
                cls(**{name: value})
            self.assertEqual(
                str(raised.exception),
                f"Argument `{name}` of {cls.__name__} must be a finite number. "
                f"Received: {name}={value!r}",
            )

    @parameterized.named_parameters(
        ("int", 1),
        ("float32", np.float32(1)),
        ("float64", np.float64(1)),
        ("int64", np.int64(1)),
    )
    def test_parameters_may_be_numbers_of_numpy(self, value):
        self.assertEqual(
            initializers.Constant(value), initializers.Constant(1.0)
        )

    @parameterized.parameters((0.5, 0.5), (0.5, -0.5))
    def test_uniform_needs_an_interval(self, minval, maxval):
        with self.assertRaisesRegex(
            ValueError,
            "`minval` of Uniform must be less than `maxval`. Received: "
            f"minval={minval}, maxval={maxval}",
        ):
            initializers.Uniform(minval, maxval)

    @parameterized.parameters(initializers.Normal, initializers.TruncatedNormal)
    def test_stddev_is_not_negative(self, cls):
        with self.assertRaisesRegex(
            ValueError,
            f"`stddev` of {cls.__name__} must be at least 0. "
            "Received: stddev=-0.1",
        ):
            cls(stddev=-0.1)

    @parameterized.named_parameters(*_ALL)
    def test_survives_its_configuration(self, initializer):
        again = type(initializer).from_config(initializer.get_config())
        self.assertEqual(again, initializer)
        self.assertEqual(hash(again), hash(initializer))
        self.assertEqual(repr(again), repr(initializer))
        config = keras.utils.serialize_keras_object(initializer)
        self.assertEqual(initializers.get(config), initializer)

    def test_equality_tells_classes_and_parameters_apart(self):
        different = [value for _, value in _ALL]
        different += [
            initializers.Constant(),
            initializers.Normal(),
            initializers.TruncatedNormal(),
        ]
        self.assertLen(set(different), len(different))


class RowsTest(tf.test.TestCase, parameterized.TestCase):
    def test_zeros(self):
        self.assertAllEqual(
            _draw(initializers.Zeros(), rows=100), np.zeros([100, _DIM])
        )

    def test_constant(self):
        self.assertAllEqual(
            _draw(initializers.Constant(0.1), rows=100),
            np.full([100, _DIM], np.float32(0.1)),
        )

    def test_a_normal_without_spread_is_its_mean(self):
        self.assertAllEqual(
            _draw(initializers.Normal(0.5, 0.0), rows=100),
            np.full([100, _DIM], 0.5),
        )

    def test_uniform(self):
        values = _draw(initializers.Uniform(-0.3, 0.5))
        self.assertGreaterEqual(values.min(), np.float32(-0.3))
        self.assertLess(values.max(), np.float32(0.5))
        gap = _largest_gap(values, lambda x: (x + 0.3) / 0.8)
        self.assertLess(gap, 1.63)

    def test_normal(self):
        values = (_draw(initializers.Normal(0.1, 2.0)) - 0.1) / 2
        self.assertLess(_largest_gap(values, _normal_distribution), 1.63)
        # 5 times the standard error of a kurtosis.
        error = 5 * math.sqrt(24 / values.size)
        self.assertAllClose(np.mean(values**4), 3.0, rtol=0, atol=error)
        self.assertGreater(np.abs(values).max(), 3.5)

    def test_truncated_normal(self):
        values = (_draw(initializers.TruncatedNormal(-0.1, 0.5)) + 0.1) / 0.5
        # The weights are rounded to float32.
        self.assertLessEqual(np.abs(values).max(), 2 + 1e-6)
        self.assertGreater(np.abs(values).max(), 1.99)
        below = _normal_distribution(-2)
        gap = _largest_gap(
            values,
            lambda x: (_normal_distribution(x) - below) / (1 - 2 * below),
        )
        self.assertLess(gap, 1.63)

    @parameterized.named_parameters(*_RANDOM)
    def test_weights_are_independent(self, initializer):
        values = _draw(initializer)
        # Positions of a row, and of rows of consecutive signs.
        side_by_side = np.hstack([values[:-2], values[1:-1], values[2:]])
        correlations = np.corrcoef(side_by_side, rowvar=False)
        np.fill_diagonal(correlations, 0)
        self.assertLess(np.abs(correlations).max(), 5 / math.sqrt(_ROWS))

    @parameterized.named_parameters(*_RANDOM)
    def test_seeds_give_other_weights(self, initializer):
        first, second = (
            _draw(initializer, rows=1000, seed=seed) for seed in (1, 2)
        )
        self.assertAllEqual(first == second, np.zeros_like(first, bool))


if __name__ == "__main__":
    tf.test.main()
