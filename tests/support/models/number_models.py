# SPDX-License-Identifier: Apache-2.0
"""A model of one feature, which writes down the samples of its steps."""

import tensorflow as tf

import tf_ext
from tf_ext._keras import keras

COLUMN = tf_ext.feature_column.category_column("number")


def logging_model(log):
    """A compiled model that appends each step's numbers to a file.

    Args:
      log: path of the file.
    """

    class Logging(tf_ext.Model):
        def train_step(self, data):
            tf.print(
                data[0]["number"],
                summarize=-1,
                output_stream=f"file://{log}",
            )
            return super().train_step(data)

    inputs = {"number": keras.Input([], dtype="int64", name="number")}
    table = tf_ext.SparseTable("number", dim=1)
    rows = tf_ext.layers.EmbeddingFeatures([COLUMN], table)(inputs)
    model = Logging(inputs, rows)
    model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    return model
