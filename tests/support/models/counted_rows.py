# SPDX-License-Identifier: Apache-2.0
"""Tables whose rows count, and a count of what they must have."""

import numpy as np
import tensorflow as tf

import tf_ext
from models.model_building import id_column
from tf_ext._keras import IS_KERAS_3, keras

SPEC = {
    "user": tf.TensorSpec([None], tf.int64),
    "items": tf.RaggedTensorSpec([None, None], tf.int64),
    "weights": tf.RaggedTensorSpec([None, None], tf.float32),
    "bought": tf.TensorSpec([None, 1]),
}
"""Of `batch`."""


def table(name="counted", statistics=("show", "click"), **kwargs):
    """A table with statistics."""
    return tf_ext.SparseTable(
        name, 3, statistics=list(statistics), seed=1, **kwargs
    )


def columns():
    """Columns of single ids, of weighted bags, and of a cross of both."""
    user = id_column("user")
    items = tf_ext.feature_column.category_column(
        "items", hashing="identity", combiner="mean", weights="weights"
    )
    return [
        user,
        items,
        tf_ext.feature_column.crossed_column(["user", "items"]),
    ]


def batch(rng, size=40):
    """Features of `columns`: bags of no to four items, ids that repeat.

    And "bought", a number for each example, whose sums are exact.
    """
    lengths = rng.integers(0, 5, size)
    items = tf.RaggedTensor.from_row_lengths(
        rng.integers(-6, 6, lengths.sum()), lengths
    )
    weights = rng.uniform(0.5, 2.0, lengths.sum()).astype(np.float32)
    return {
        "user": tf.constant(rng.integers(-3, 9, size)),
        "items": items,
        "weights": items.with_flat_values(weights),
        "bought": tf.cast(rng.integers(0, 4, [size, 1]), tf.float32) / 4,
    }


class Counts:
    """What the rows must be, counted one by one.

    Attributes:
      rows: `{sign: [show, click]}`.
    """

    def __init__(self):
        self.rows = {}

    def add(self, signs, clicks=None):
        """Counts some signs, each with its click."""
        clicks = np.zeros(len(signs)) if clicks is None else clicks
        for sign, click in zip(signs, clicks, strict=True):
            show, total = self.rows.get(int(sign), (0.0, 0.0))
            self.rows[int(sign)] = (show + 1, total + float(click))

    def add_model(self, features):
        """Counts what `Model` reads of a batch."""
        users = features["user"].numpy()
        self.add_batch(features)
        self.add(users)
        self.add(users + 1)

    def add_batch(self, features, clicked=True):
        """Counts the signs of `columns` in a batch, with their clicks."""
        clicks = features["bought"].numpy()[:, 0] * clicked
        for user, items, click in zip(
            features["user"].numpy().tolist(),
            features["items"].to_list(),
            clicks.tolist(),
            strict=True,
        ):
            self.add([user], [click])
            self.add(items, [click] * len(items))
            if items:
                crossed = tf_ext.hashing.hash_cross(
                    [[user] * len(items), items], "user_X_items"
                )
                self.add(crossed, [click] * len(items))


class Model(tf_ext.Model):
    """Layers on one table, one of which is called twice, and one clicked."""

    def __init__(self, table):
        super().__init__(name="model")
        make = tf_ext.layers.EmbeddingFeatures
        click = "bought" if "click" in table.statistics else None
        self.all = make(columns(), table, click=click)
        self.user = make([id_column("user")], table)
        self.frozen = make([id_column("user")], table, trainable=False)
        self.top = keras.layers.Dense(1)

    def call(self, inputs, training=None):
        again = {"user": inputs["user"] + 1}
        parts = [
            self.all(inputs, training=training),
            self.user(inputs, training=training),
            self.user(again, training=training),
            self.frozen(inputs, training=training),
        ]
        return self.top(tf.concat(parts, 1))


def scaled(dense):
    """An optimizer for tables with dynamic loss scaling."""
    wrap = tf_ext.optimizers.Optimizer
    scaling = keras.mixed_precision.LossScaleOptimizer
    return wrap(scaling(dense)) if IS_KERAS_3 else scaling(wrap(dense))


def scaled_gradients(tape, optimizer, loss, variables):
    """What an optimizer of `scaled` applies."""
    with tape:
        if IS_KERAS_3:
            loss = optimizer.scale_loss(loss)
        else:
            loss = optimizer.get_scaled_loss(loss)
    gradients = tape.gradient(loss, variables)
    if IS_KERAS_3:
        return gradients
    return optimizer.get_unscaled_gradients(gradients)


def apply(optimizer, gradients, variables):
    """Applies gradients, in both Kerases."""
    if IS_KERAS_3:
        optimizer.apply(gradients, variables)
    else:
        optimizer.apply_gradients(zip(gradients, variables))


def rows(of_table):
    """The statistics in the rows: `{sign: (show, click)}`.

    Rows that were made by a pull, and not pushed, are left out.
    """
    signs, fields = of_table.export_rows()
    shows = fields["show"][:, 0].tolist()
    clicks = fields.get("click", np.zeros([len(signs), 1]))[:, 0].tolist()
    pairs = zip(signs.tolist(), shows, clicks, strict=True)
    return {sign: (s, c) for sign, s, c in pairs if s or c}
