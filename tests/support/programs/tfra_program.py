# SPDX-License-Identifier: Apache-2.0
"""Trains variables of TFRA, and saves them in all ways that TFRA has.

A program for an interpreter with tensorflow-recommenders-addons 0.8.1, without
tf_ext: `tfra_program.py DIRECTORY RULE KEYS VALUES ROWS`, where the rule is one
of RULES and the types are names. The directory gets `files`, `checkpoint` and,
of all keys and values, `exported.npz`.
"""

import os
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
import tensorflow_recommenders_addons as tfra
import tf_keras as keras

de = tfra.dynamic_embedding

_DIM = 16
_BATCH = 100_000
RULES = {
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "rmsprop": lambda: keras.optimizers.RMSprop(
        0.01, momentum=0.5, centered=True
    ),
    "legacy_adam": lambda: keras.optimizers.legacy.Adam(0.01),
    "legacy_rmsprop": lambda: keras.optimizers.legacy.RMSprop(
        0.01, momentum=0.5, centered=True
    ),
}


def _keys(kind, rows):
    keys = np.random.default_rng(0).permutation(rows) * 7919 - 5 * rows
    if kind == "string":
        # Some are longer than what TensorFlow's strings hold themselves.
        return tf.strings.join([tf.as_string(keys), "-" * 20])
    return tf.constant(keys, kind)


def _train(variable, optimizer, keys):
    for begin in range(0, len(keys), _BATCH):
        batch = keys[begin : begin + _BATCH]
        for _ in range(2):
            with tf.GradientTape() as tape:
                rows, trainable = de.embedding_lookup(
                    variable, batch, name="look", return_trainable=True
                )
                loss = tf.reduce_sum(rows**3)
            gradient = tape.gradient(loss, trainable)
            optimizer.apply_gradients([(gradient, trainable)])


def main(directory, rule, key_type, value_type, rows):
    variable = de.get_variable(
        "user",
        key_dtype=tf.as_dtype(key_type),
        value_dtype=tf.as_dtype(value_type),
        dim=_DIM,
        devices=["/CPU:0"] * 3,
        # No more than one row for each batch, which half cannot hold.
        initializer=keras.initializers.RandomNormal(0.5, 0.1, seed=1)
        if value_type == "float32"
        else 0.5,
    )
    optimizer = de.DynamicEmbeddingOptimizer(RULES[rule]())
    _train(variable, optimizer, _keys(key_type, int(rows)))
    arrays = {}
    try:
        slots = variable.get_slot_variables(optimizer)
    except TypeError:  # It does not know legacy optimizers.
        slots = []
    for one in [variable, *slots]:
        if key_type != "string":
            one.save_to_file_system(f"{directory}/files")
        keys, values = one.export()
        name = one.name.rpartition("/")[2]
        arrays[f"{name}_keys"] = keys.numpy()
        arrays[name] = values.numpy()
    tf.train.Checkpoint(model=variable, optimizer=optimizer).write(
        f"{directory}/checkpoint"
    )
    np.savez(f"{directory}/exported.npz", **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
