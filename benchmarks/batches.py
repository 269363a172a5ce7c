# SPDX-License-Identifier: Apache-2.0
"""Keys, which are the same in every process, and a step on them."""

import itertools

import numpy as np
import tensorflow as tf

SAMPLES = 4096
IDS = 26
ZIPF_EXPONENT = 1.05
BATCHES = 8  # of pull and push, used in turn
_SEED = 1


def zipf(rng, exponent, universe, size):
    """Ids 0 .. universe - 1 with probability about (id + 1) ** -exponent.

    Args:
      rng: numpy.random.Generator.
      exponent: float, above 1.
      universe: int, number of ids.
      size: int or tuple.

    Returns:
      int64 array.
    """
    power = 1 - exponent
    uniform = rng.random(size)
    # The inverse of the continuous distribution on [1, universe + 1).
    ids = ((universe + 1) ** power - 1) * uniform + 1
    return np.minimum(ids ** (1 / power), universe).astype(np.int64) - 1


def pull_keys(distribution, rows, count):
    """Batches of existing keys to read.

    Args:
      distribution: "uniform" or "zipf".
      rows: int, keys are below.
      count: int, keys in a batch.

    Returns:
      int64 `[BATCHES, count]`.
    """
    rng = np.random.default_rng(_SEED)
    if distribution == "uniform":
        return rng.integers(0, rows, (BATCHES, count))
    return zipf(rng, ZIPF_EXPONENT, rows, (BATCHES, count))


def pushes(args):
    """Batches of distinct keys, and gradients for any of them."""
    rng = np.random.default_rng(_SEED)
    count = min(args.batch, args.rows)
    keys = [
        tf.constant(rng.choice(args.rows, count, replace=False))
        for _ in range(BATCHES)
    ]
    gradients = rng.normal(size=(count, args.dim)).astype(np.float32)
    return keys, tf.constant(gradients)


def in_turn(run, inputs):
    """Returns a function that calls `run` with the next of the inputs.

    With a single batch, its rows would still be in the processor's caches from
    the previous repetition.
    """
    endless = itertools.cycle(inputs)
    return lambda: run(next(endless))


def training_batch(rows):
    """Ids below `rows`, int64 `[SAMPLES, IDS]`, and labels of 0 and 1."""
    rng = np.random.default_rng(_SEED)
    ids = zipf(rng, ZIPF_EXPONENT, rows, (SAMPLES, IDS))
    labels = rng.integers(0, 2, (SAMPLES, 1)).astype(np.float32)
    return ids, labels


def probability(bags):
    """Sums what the model looked up: `[batch, n]` to `[batch, 1]`."""
    return tf.sigmoid(tf.reduce_sum(bags, axis=1, keepdims=True))


def summed_probability(rows):
    """The same from rows that are not summed: `[batch, ids, dim]`."""
    return probability(tf.reduce_sum(rows, axis=1))


def stepper(model, features, labels):
    """One step of a compiled model's train function on ready tensors."""
    model.make_train_function()
    data = tf.data.Dataset.from_tensors((features, labels)).repeat()
    iterator = iter(data)

    def step():
        logs = model.train_function(iterator)
        tf.nest.map_structure(lambda value: value.numpy(), logs)

    return step
