# SPDX-License-Identifier: Apache-2.0
"""A Keras model with tables on all workers or servers."""

import tempfile

import numpy as np
import tensorflow as tf
from models import small_models as small
from oracles import tensornet_files, tfra_files

import tf_ext
from tf_ext._keras import keras

TOKENS = [f"token {value}" for value in range(20)]
_IDS = 15


def keras_model():
    """The same trained model in every process."""
    keras.utils.set_random_seed(2)
    layers = keras.layers
    token = keras.Input((1,), dtype="string", name="token")
    ids = keras.Input((3,), dtype="int64", name="ids")
    rows = layers.Embedding(21, 4)(
        layers.StringLookup(vocabulary=TOKENS)(token)
    )
    mean = layers.GlobalAveragePooling1D()(layers.Embedding(_IDS, 2)(ids))
    numbers = keras.Input((2,), name="numbers")
    normalization = layers.Normalization()
    normalization.adapt(data()[0]["numbers"])
    hot = layers.IntegerLookup(output_mode="multi_hot")
    hot.adapt(data()[0]["ids"])
    parts = [layers.Flatten()(rows), mean, normalization(numbers), hot(ids)]
    hidden = layers.Concatenate()(parts)
    outputs = layers.Dense(1, activation="sigmoid")(hidden)
    inputs = {"token": token, "ids": ids, "numbers": numbers}
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adagrad(0.1), "binary_crossentropy")
    features, labels = data()
    model.fit(
        tensors(features),
        labels,
        batch_size=16,
        epochs=2,
        shuffle=False,
        verbose=0,
    )
    return model


def data():
    """Features and labels of 64 examples."""
    rng = np.random.default_rng(6)
    features = {
        "token": rng.choice(TOKENS, (64, 1)).astype(object),
        "ids": rng.integers(0, _IDS, (64, 3)),
        "numbers": rng.normal(3.0, 2.0, (64, 2)).astype(np.float32),
    }
    return features, rng.integers(0, 2, (64, 1)).astype(np.float32)


def tensors(features):
    """Features as Keras takes them."""
    return {key: tf.constant(one.tolist()) for key, one in features.items()}


def converted(worker):
    """Rows of Keras and of tables, which all workers read together.

    Args:
      worker: `case_workers.Worker`.

    Returns:
      `(expected, found, numbers of rows)`.
    """
    before = keras_model()
    with worker.strategy.scope():
        done = tf_ext.convert.model_from_keras(before)
    tables = {table.dim: table for table in done.model.tables}
    expected, found = [], []
    for name, columns in sorted(done.columns.items()):
        embedding = before.get_layer(name)
        [column] = columns
        is_text = column.key == "token"
        first = int(is_text)  # Without that of unknown tokens.
        expected.append(embedding.get_weights()[0][first:])
        values = TOKENS if is_text else list(range(_IDS))
        table = tables[embedding.output_dim]
        found.append(tf_ext.convert.to_matrix(table, column, values))
    return expected, found, {dim: one.size() for dim, one in tables.items()}


_FILE_IDS = np.arange(-20, 20)


def taken_from_files(worker, **fit_options):
    """Models that train on from rows of TFRA's and of TensorNet's files.

    Args:
      worker: `case_workers.Worker`.
      **fit_options: of `fit`.

    Returns:
      For each kind of files `(taken, rows before and after, predictions)`.
    """
    values = np.random.default_rng(1).uniform(0.1, 1, [2, 40, 4])
    weights, slots = values.astype(np.float32)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name, one in (("user", weights), ("user/l/accumulator", slots)):
            tfra_files.save_to_file_system(
                folder, name, _FILE_IDS, one, shards=2, ranks=2
            )
        fields = {
            "weights": weights,
            "accumulator": slots[:, 0],
            "show": np.arange(40, dtype=np.float32),
            "days": np.zeros(40, np.int32),
        }
        rows = _FILE_IDS.astype(np.uint64), fields
        tensornet_files.save(folder, "deep", rows, mode="bin", ranks=2)
        for rule, statistics, take in (
            ("adagrad", None, _from_tfra),
            ("row_wise_adagrad", ["show"], _from_tensornet),
        ):
            with worker.strategy.scope():
                table = small.table(rule, statistics=statistics)
                model = small.compiled(small.functional(table))
            taken = take(folder, table)
            before = table.pull(_FILE_IDS).numpy()
            # The last batch is smaller.
            features, labels = small.batch(np.random.default_rng(2), 61)
            data = tf.data.Dataset.from_tensor_slices((features, labels))
            model.fit(data.batch(16), verbose=0, **fit_options)
            after = table.pull(_FILE_IDS).numpy()
            predicted = model.predict(data.batch(16), verbose=0)
            results.append((taken, before, after, predicted))
    return weights, results


def _from_tfra(folder, table):
    column = small.columns()[0]
    done = tf_ext.convert.from_tfra(folder, table, column, "user")
    return done.taken, done.slots, table.size()


def _from_tensornet(folder, table):
    done = tf_ext.convert.from_tensornet(folder, {"deep": table})["deep"]
    return done.taken, done.slots, table.size()


def assert_as_alone(test, found, expected):
    """Checks results of `taken_from_files` against those of one process."""
    weights, results = expected
    test.assertAllEqual(found[0], weights)
    for one, wanted, slots in zip(
        found[1], results, [("accumulator",), ("accumulator", "show")]
    ):
        test.assertEqual(one[0], (40, slots, 40))
        test.assertAllEqual(one[1], weights)
        for mine, theirs in zip(one[2:], wanted[2:], strict=True):
            test.assertAllClose(mine, theirs, 1e-5, 1e-5)
        test.assertNotAllClose(one[2], weights, 1e-2, 1e-2)
