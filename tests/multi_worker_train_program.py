"""A worker that trains a model with tables, alone or with others.

Without TF_CONFIG it trains as one process. It writes the rows that it owns,
the variables and the losses into a file.
"""

import argparse
import json
import os

import numpy as np
import tensorflow as tf
from model_building import id_column
from small_models import batch, inputs

import tf_ext
from tf_ext import distribute
from tf_ext._keras import keras

BATCH, STEPS, EPOCHS = 128, 50, 2

RULES = {
    "sgd": tf_ext.optimizers.SparseSGD,
    "adagrad": tf_ext.optimizers.SparseAdagrad,
    "adam": tf_ext.optimizers.SparseAdam,
    "ftrl": tf_ext.optimizers.SparseFtrl,
}


class Record(keras.callbacks.Callback):
    """Keeps the loss after each step."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))


def make_model(rule, clipnorm):
    """A wide and a deep table under a perceptron."""
    uniform = keras.initializers.RandomUniform
    ids = inputs()
    wide = tf_ext.SparseTable("wide", 1, RULES[rule](0.1), "zeros")
    deep = tf_ext.SparseTable("deep", 4, RULES[rule](0.1), "normal", seed=3)
    columns = [id_column("user"), id_column("items", "mean")]
    features = tf_ext.layers.EmbeddingFeatures(
        {wide: columns, deep: columns[:1]}
    )(ids)
    hidden = keras.layers.Dense(
        8, "tanh", kernel_initializer=uniform(-0.5, 0.5, seed=1)
    )(keras.layers.Concatenate()([features["wide"], features["deep"]]))
    output = keras.layers.Dense(
        1, "sigmoid", kernel_initializer=uniform(-0.5, 0.5, seed=2)
    )(hidden)
    model = tf_ext.Model(ids, output)
    dense = keras.optimizers.SGD(0.1, global_clipnorm=clipnorm)
    model.compile(
        tf_ext.optimizers.Optimizer(dense),
        "binary_crossentropy",
        metrics=["AUC"],
    )
    return model


def make_data(samples=STEPS * BATCH - 37):
    features, labels = batch(np.random.default_rng(0), samples, ids=300)
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(BATCH)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--rule", default="adagrad")
    parser.add_argument("--clipnorm", type=float)
    args = parser.parse_args()
    if "TF_CONFIG" in os.environ:
        strategy = distribute.multi_worker_strategy()
        rank = strategy.cluster_resolver.task_id
    else:
        strategy, rank = tf.distribute.get_strategy(), 0
    with strategy.scope():
        model = make_model(args.rule, args.clipnorm)
    record = Record()
    data = make_data()
    history = model.fit(data, epochs=EPOCHS, callbacks=[record], verbose=2)
    result = {
        "losses": record.losses,
        "history": history.history,
        "evaluate": model.evaluate(data, verbose=0),
        "predictions": model.predict(data, verbose=0)[:, 0].tolist(),
        "rows": {t.name: t.size() for t in model.tables},
    }
    arrays = {f"v{i}": v for i, v in enumerate(model.get_weights())}
    for table in model.tables:
        signs, fields = table.export_rows()
        arrays[f"{table.name}.signs"] = signs
        for name, values in fields.items():
            arrays[f"{table.name}.{name}"] = values
    np.savez(f"{args.output}.{rank}.npz", **arrays)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
