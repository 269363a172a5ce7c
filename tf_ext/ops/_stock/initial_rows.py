# SPDX-License-Identifier: Apache-2.0
"""The initial weights of absent signs, with stock ops.

The steps are those of cc/core/initializers/initializer_loops.inc, in the same
order: 64-bit integer operations and float +, -, *, sqrt and comparisons, whose
results are exactly specified.
"""

import typing
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_ext import hashing
from tf_ext.ops._stock.rounded import round_rows

_BITS = 2**64
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDING_SALT = 0x2545F4914F6CDD1D
_MIX = (
    (30, 0xBF58476D1CE4E5B9),
    (27, 0x94D049BB133111EB),
    (31, None),
)


def initial_rows(config: str, signs: tf.Tensor, dim: int) -> tf.Tensor:
    """The initial weights of signs.

    Args:
      config: string, the table's canonical configuration.
      signs: int64 `[n]`.
      dim: int, the table's dim.

    Returns:
      float32 `[n, dim]`, rounded like the table's rows.

    Raises:
      ValueError: if the configuration's initializer is unknown.

    Example:
      >>> from tf_ext.ops._stock.initial_rows import initial_rows
      >>> table = tf_ext.SparseTable("items", 2, "sgd", "normal", seed=5)
      >>> rows = initial_rows(
      ...     table.rows.config, tf.constant([7, -7], tf.int64), 2)
      >>> bool(tf.reduce_all(rows == table.pull([7, -7])))
      True
    """
    # Not splitlines(), because names may contain Unicode line separators.
    entries = dict(line.split("=", 1) for line in config.split("\n") if line)
    rows = _exact_rows(entries, signs, dim)
    dtype = entries.get("dtype", "float32")
    if dtype == "float32" or entries["initializer"] == "zeros":
        return rows
    keys = _rounding_keys(int(entries["seed"]), entries["name"], signs)
    rounded = round_rows(rows, dtype, keys, _multipliers(dim))
    return _shaped(rounded, signs, dim)


def _exact_rows(
    entries: dict[str, str], signs: tf.Tensor, dim: int
) -> tf.Tensor:
    """The initial weights before they are rounded, float32 `[n, dim]`."""
    kind = entries["initializer"]

    def number(key: str) -> np.float32:
        return np.float32(entries[f"initializer.{key}"])

    shape = tf.stack([tf.size(signs), dim])
    if kind == "zeros":
        return _shaped(tf.zeros(shape, tf.float32), signs, dim)
    if kind == "constant":
        return _shaped(tf.fill(shape, number("value")), signs, dim)
    if kind not in _DISTRIBUTIONS:
        raise ValueError(
            "Argument `config` of initial_rows must name an initializer of "
            f"{['constant', 'zeros', *_DISTRIBUTIONS]}. Received: {kind!r}"
        )
    names, distribution = _DISTRIBUTIONS[kind]
    state = _row_state(_stream(int(entries["seed"]), entries["name"]), signs)
    odd = _odd24(state, dim)
    return _shaped(distribution(odd, *map(number, names)), signs, dim)


def _shaped(rows: tf.Tensor, signs: tf.Tensor, dim: int) -> tf.Tensor:
    rows.set_shape([signs.shape[0], dim])
    return rows


def _stream(seed: int, name: str) -> int:
    mixed = _mix_int((seed + _GOLDEN) % _BITS)
    return _mix_int(mixed ^ int(hashing.fingerprint64(name)))


def _rounding_keys(seed: int, name: str, signs: tf.Tensor) -> tf.Tensor:
    """The keys of the random bits of each sign, uint64 `[n]`."""
    mixed = _mix_int(seed ^ _ROUNDING_SALT)
    # Step 0 comes before all pushes.
    key = _mix_int(_mix_int(mixed ^ int(hashing.fingerprint64(name))))
    product = tf.bitcast(signs, tf.uint64) * _uint64(_GOLDEN)
    return _mix(tf.bitwise.bitwise_xor(product, _uint64(key)))


def _multipliers(dim: int) -> tf.Tensor:
    """The factors of the positions' random bits, uint64 `[dim]`."""
    numbers = tf.bitcast(tf.range(1, dim + 1, dtype=tf.int64), tf.uint64)
    return tf.bitwise.bitwise_and(_mix(numbers), _uint64(2**16 - 1))


def _mix_int(x: int) -> int:
    for shift, factor in _MIX:
        x ^= x >> shift
        x = x * (factor or 1) % _BITS
    return x


def _uint64(value: int) -> tf.Tensor:
    # TensorFlow would convert a Python integer to uint64 by way of float64.
    return tf.constant(np.array(value, np.uint64))


def _mix(x: tf.Tensor) -> tf.Tensor:
    for shift, factor in _MIX:
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _uint64(shift)))
        if factor is not None:
            x = x * _uint64(factor)
    return x


def _row_state(stream: int, signs: tf.Tensor) -> tf.Tensor:
    """The state of the generator for each sign, uint64 `[n]`."""
    mixed = _mix(tf.bitcast(signs, tf.uint64) + _uint64(_GOLDEN))
    return _mix(tf.bitwise.bitwise_xor(mixed, _uint64(stream)))


def _odd24(state: tf.Tensor, dim: int) -> tf.Tensor:
    """Pseudorandom odd numbers below 2^24, int32 `[n, dim]`."""
    numbers = tf.bitcast(tf.range(1, dim + 1, dtype=tf.int64), tf.uint64)
    steps = numbers * _uint64(_GOLDEN)
    bits = _mix(state[:, tf.newaxis] + steps[tf.newaxis])
    top = tf.cast(tf.bitwise.right_shift(bits, _uint64(40)), tf.int32)
    return tf.bitwise.bitwise_or(top, tf.constant(1, tf.int32))


def _uniform(
    odd: tf.Tensor, minval: np.float32, maxval: np.float32
) -> tf.Tensor:
    greatest = max(minval, np.nextafter(maxval, minval))
    share = tf.cast(odd, tf.float32) * 2**-24
    return tf.minimum(share * (maxval - minval) + minval, greatest)


def _normal(odd: tf.Tensor, mean: np.float32, stddev: np.float32) -> tf.Tensor:
    return _normal_quantile(_centred(odd)) * stddev + mean


def _truncated_normal(
    odd: tf.Tensor, mean: np.float32, stddev: np.float32
) -> tf.Tensor:
    within_two = 0.9544997  # Phi(2) - Phi(-2)
    z = _normal_quantile(_centred(odd) * within_two)
    return tf.maximum(tf.minimum(z, 2.0), -2.0) * stddev + mean


_Distribution: typing.TypeAlias = typing.Callable[..., tf.Tensor]
_DISTRIBUTIONS: dict[str, tuple[tuple[str, str], _Distribution]] = {
    "uniform": (("minval", "maxval"), _uniform),
    "normal": (("mean", "stddev"), _normal),
    "truncated_normal": (("mean", "stddev"), _truncated_normal),
}


def _centred(odd: tf.Tensor) -> tf.Tensor:
    return tf.cast(odd - (1 << 23), tf.float32) * 2**-23


def _polynomial(x: tf.Tensor, coefficients: Sequence[float]) -> tf.Tensor:
    """Evaluates a polynomial by Horner's rule, the highest power first."""
    value = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        value = value * x + coefficient
    return value


# Minimax fits; see initializer_loops.inc.
_MINUS_LOG = (
    0.10034615,
    -0.16335641,
    0.17325994,
    -0.19888277,
    0.24961466,
    -0.33335263,
    0.50000584,
)
_MIDDLE = (
    4.0354383e-08,
    4.8610417e-07,
    -4.9905625e-06,
    -6.2179947e-06,
    0.0003091502,
    -0.0017730101,
    -0.005908171,
    0.34880266,
    2.1233137,
)
_TAIL = (
    0.0014064173,
    -0.0050089955,
    0.008400025,
    -0.010843248,
    0.013296181,
    1.4165857,
    4.006436,
)


def _log(y: tf.Tensor) -> tf.Tensor:
    bits = tf.bitcast(y, tf.int32)
    sqrt_half = tf.constant(0x3F3504F3, tf.int32)
    exponent = tf.bitwise.right_shift(bits - sqrt_half, 23)
    f = tf.bitcast(bits - exponent * (1 << 23), tf.float32) - 1.0
    # A difference, because TensorFlow may reorder the additions of a graph.
    near_one = f - f * f * _polynomial(f, _MINUS_LOG)
    return tf.cast(exponent, tf.float32) * 0.6931472 + near_one


def _normal_quantile(x: tf.Tensor) -> tf.Tensor:
    w = -_log((1.0 - x) * (1.0 + x))
    middle = _polynomial(w - 2.5, _MIDDLE)
    tail = _polynomial(tf.sqrt(w) - 3.0, _TAIL)
    # The products are inside tf.where, because TensorFlow reorders chains of
    # products to multiply constants first, which changes the rounding; the
    # factor by which the caller multiplies would become part of the chain.
    return tf.where(w < 5.0, x * middle, x * tail)
