# SPDX-License-Identifier: Apache-2.0
"""The evaluator of a cluster: sidecar_evaluator_program.py DIRECTORY COUNT.

It evaluates COUNT points, and prints `{step: logs}` as JSON.
"""

import json
import sys

import numpy as np
import tensorflow as tf
from models import small_models as small

import tf_ext
from tf_ext._keras import keras

BATCH, STEPS = 16, 4  # of an epoch


def build():
    """The model that is trained and evaluated."""
    ids = small.inputs()
    layer = tf_ext.layers.EmbeddingFeatures(
        small.columns(), small.table("adam")
    )
    hidden = keras.layers.BatchNormalization()(layer(ids))
    model = tf_ext.Model(ids, small.head()(hidden))
    auc = keras.metrics.AUC(name="auc")
    return small.compiled(model, keras.optimizers.Adam(0.01), metrics=[auc])


def data():
    """Its dataset, of one epoch."""
    rng = np.random.default_rng(3)
    features, labels = small.batch(rng, BATCH * STEPS)
    flipped = rng.uniform(size=labels.shape) < 0.3
    labels = np.where(flipped, 1 - labels, labels)
    batches = tf.data.Dataset.from_tensor_slices((features, labels))
    return batches.batch(BATCH)


def main(directory, count):
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    assert resolver.task_type == "evaluator"
    evaluator = tf_ext.utils.SidecarEvaluator(
        build(), data(), directory, max_evaluations=int(count), every=0.01
    )
    print(json.dumps(evaluator.start()))


if __name__ == "__main__":
    main(*sys.argv[1:])
