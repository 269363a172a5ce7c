# SPDX-License-Identifier: Apache-2.0
"""Trains on two local clusters in turn, and alone after each of them.

It prints a line after each cluster to stdout and stderr.
"""

import sys

import numpy as np
import tensorflow as tf

import tf_ext
from tf_ext._keras import keras


def _train(name):
    inputs = {"user": keras.Input((), dtype="int64", name="user")}
    table = tf_ext.SparseTable(name, dim=1)
    column = tf_ext.feature_column.category_column("user")
    layer = tf_ext.layers.EmbeddingFeatures([column], table)
    model = tf_ext.Model(inputs, layer(inputs))
    model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    return model


def _fit(model):
    model.fit({"user": np.arange(8)}, np.ones((8, 1)), verbose=0)
    return model.tables[0].size()


def main():
    kept = variable = None
    for name in ("first", "second"):
        with tf_ext.distribute.local_cluster(workers=1, ps=1) as cluster:
            with cluster.strategy().scope():
                model = _train(name)
            size = _fit(model)
        print("after", name, file=sys.stderr, flush=True)
        if kept is None:
            kept = _train("kept")
            variable = tf.Variable([1.0, 2.0])
        kept.tables[0].push([100], [[1.0]], learning_rate=0.1)
        new = _fit(_train(f"after_{name}"))
        total = float(tf.function(tf.reduce_sum)(variable))
        print(size, new, _fit(kept), total, flush=True)
        print("end of", name, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
