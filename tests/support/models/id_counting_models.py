# SPDX-License-Identifier: Apache-2.0
"""A model whose rows count how often each id was trained on."""

import numpy as np

import tf_ext
from models.model_building import id_column, rows_of
from tf_ext._keras import keras

SCHEMA = tf_ext.data.Schema(
    [
        tf_ext.data.Field("user", "int64"),
        tf_ext.data.Field("label", "float32"),
    ],
    label="label",
)
"""Of what it is trained on."""


def counting_model(of=tf_ext.Model, table=None, **options):
    """A compiled model, of a class, and its table, unless that is given."""
    inputs = {"user": keras.Input([], dtype="int64", name="user")}
    table = table or tf_ext.SparseTable("counts", dim=1, statistics=["show"])
    rows = tf_ext.layers.EmbeddingFeatures([id_column("user")], table)(inputs)
    model = of(inputs, rows)
    model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse", **options)
    return model, table


def counts(table):
    """`{id: how often it was trained on}` of the ids that a process owns."""
    rows = rows_of(table, "show")
    return {sign: float(np.ravel(row)[0]) for sign, row in rows.items()}
