# SPDX-License-Identifier: Apache-2.0
"""The hyperparameters of the rules of all tables of a step, in one tensor."""

from collections.abc import Sequence

import tensorflow as tf

from tf_ext.optimizers.adapter import Rates
from tf_ext.regimes import Hyperparameters
from tf_ext.tables.sparse_optimizers import SparseOptimizer


def current(rules: Sequence[SparseOptimizer], rates: Rates) -> Hyperparameters:
    """The hyperparameters of rules in a step.

    Args:
      rules: list of SparseOptimizer, not empty.
      rates: Rates of the step.
    """
    batches = tf.cast(rates.batches, tf.int64)
    # Made once, for all rules that follow the model's.
    model_rate = tf.cast(tf.convert_to_tensor(rates.learning_rate), tf.float64)
    bases, scaled = [], []
    for rule in rules:
        rate, is_scaled = rule.base_learning_rate(batches, model_rate)
        bases.append(rate)
        scaled.append(is_scaled)
    stacked = tf.stack(bases)
    if any(scaled):
        factor = tf.cast(rates.factor, tf.float64)
        if not all(scaled):
            # A factor of 1 changes no bit.
            factor = tf.where(tf.constant(scaled), factor, 1.0)
        stacked *= factor
    return pack(rules, stacked)


def pack(
    rules: Sequence[SparseOptimizer], learning_rates: tf.Tensor
) -> Hyperparameters:
    """The hyperparameters of rules with the learning rates given.

    Args:
      rules: list of SparseOptimizer, not empty.
      learning_rates: float64 `[len(rules)]`.
    """
    # Of the learning rates, followed by the numbers.
    places: list[int] = []
    numbers: list[float] = []
    counts = []
    for i, rule in enumerate(rules):
        values = rule.hyperparameter_values()
        counts.append(len(values))
        for value in values:
            if value is None:
                places.append(i)
            else:
                places.append(len(rules) + len(numbers))
                numbers.append(value)
    pieces = [learning_rates]
    if numbers:
        pieces.append(tf.constant(numbers, tf.float64))
    return Hyperparameters(tf.gather(tf.concat(pieces, 0), places), counts)
