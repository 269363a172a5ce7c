# SPDX-License-Identifier: Apache-2.0
"""Tables that count, as files of counters are tested with."""

import numpy as np

import tf_ext
from models.sharded_tables import shards_on
from tf_ext._keras import keras
from tf_ext.admission import Count

COUNT = Count(5, forget=4)
STEPS = 31  # the last one in the middle of a period


def make_table(policy=COUNT, shards=1):
    """A table of an admission policy."""
    with shards_on(["/device:CPU:0"] * shards):
        return tf_ext.SparseTable(
            "items",
            dim=2,
            optimizer=tf_ext.optimizers.SparseAdagrad(0.5),
            admission=policy,
        )


def train(table, first, last):
    """Pushes what depends on the step alone."""
    for step in range(first, last):
        random = np.random.default_rng(step)
        signs = random.integers(0, 2000, 300)
        gradients = random.normal(size=[300, 2]).astype(np.float32)
        table.push(signs, gradients, step=step)


def trained(policy=COUNT, shards=2):
    """A table that was trained for STEPS - 1 steps."""
    table = make_table(policy, shards)
    train(table, 1, STEPS)
    return table


def make_model(table):
    """A model, for files that need one."""
    inputs = {"id": keras.Input((), dtype="int64", name="id")}
    column = tf_ext.feature_column.category_column("id", hashing="identity")
    embedded = tf_ext.layers.EmbeddingFeatures([column], table)(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(embedded))
