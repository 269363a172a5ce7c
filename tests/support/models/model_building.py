# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests that train models."""

import functools

import numpy as np
import tensorflow as tf

import tf_ext
from tf_ext import feature_column
from tf_ext._keras import keras

INT64_MIN, INT64_MAX = np.iinfo(np.int64).min, np.iinfo(np.int64).max

# Signs that other tables reserve, among them.
EDGE_SIGNS = (0, -1, -2, INT64_MIN, INT64_MAX)


def generator(test, seed=17):
    """A NumPy random generator whose seed is printed if the test fails."""
    print(f"{test.id()}: seed {seed}")
    return np.random.default_rng(seed)


def id_column(key, combiner="sum", **kwargs):
    """A column whose int64 values are the signs."""
    return feature_column.category_column(
        key, hashing="identity", combiner=combiner, **kwargs
    )


def rows_of(table, field="weights"):
    """A field of all rows: `{sign: [count]}`."""
    signs, fields = table.export_rows()
    return dict(zip(signs.tolist(), fields[field]))


@functools.cache
def mirrored_strategy():
    """Two replicas on two logical CPU devices.

    Strategies in one process would use the same numbers for their collectives
    and interfere, so all tests share this one.
    """
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def number(variable):
    """The value of a scalar variable, mirrored or not."""
    return tf.convert_to_tensor(variable).numpy()


def step_of_ones(optimizer, *tables, variables=()):
    """One step on the sum of the row of sign 1 in each table: gradients 1."""
    layers = [
        tf_ext.layers.EmbeddingFeatures([id_column("ids")], table)
        for table in tables
    ]
    with tf.GradientTape() as tape:
        ids = {"ids": tf.constant([1], tf.int64)}
        outputs = [layer(ids, training=True) for layer in layers]
        loss = tf.add_n([tf.reduce_sum(output) for output in outputs])
        for variable in variables:
            loss += tf.reduce_sum(tf.convert_to_tensor(variable))
    trained = [table.shadow for table in tables] + list(variables)
    gradients = tape.gradient(loss, trained)
    optimizer.apply_gradients(zip(gradients, trained))


def counting_model(batch_size=1):
    """A model whose row of an id counts the steps that trained it.

    Args:
      batch_size: int, of each batch.

    Returns:
      `(model, table)`.
    """
    counts = tf_ext.SparseTable(
        "counts", 1, tf_ext.optimizers.SparseSGD(), "zeros"
    )
    inputs = {"id": keras.Input((), dtype="int64", name="id")}
    layer = tf_ext.layers.EmbeddingFeatures([id_column("id")], counts)
    model = tf_ext.Model(inputs, layer(inputs))
    # The gradient of the mean over a batch is -1 for each of its rows.
    model.compile(
        tf_ext.optimizers.Optimizer(keras.optimizers.SGD(1.0)),
        lambda labels, rows: -batch_size * rows + 0.0 * labels,
    )
    return model, counts


class BagsOfSigns:
    """Random bags of signs: some empty, many with repeated signs.

    Args:
      rng: NumPy random generator.
      keys: list of strings, the features; all draw from the same signs.
      size: int, the number of examples.
      vocabulary: int, the number of different signs, of which there are edge
        cases.

    Attributes:
      signs: int64 `[vocabulary]`.
      labels: float32 `[size, 1]`, 0 or 1, which depend on the signs.
    """

    _LONGEST = 4
    _PADDING = 10**15 + 1

    def __init__(self, rng, keys, size, vocabulary=30):
        others = rng.integers(-(10**12), 10**12, vocabulary - len(EDGE_SIGNS))
        self.signs = np.concatenate([EDGE_SIGNS, others])
        self._places = {}
        teacher, scores = rng.normal(size=[vocabulary + 1]), 0.0
        teacher[-1] = 0.0
        for key in keys:
            places = rng.integers(0, vocabulary, [size, self._LONGEST])
            lengths = rng.integers(0, self._LONGEST + 1, [size, 1])
            beyond = np.arange(self._LONGEST) >= lengths
            places[beyond] = -1
            self._places[key] = places
            scores += teacher[places].sum(axis=1, keepdims=True)
            assert (lengths == 0).any()
            assert (places[:, 0] == places[:, 1])[lengths[:, 0] > 1].any()
        self.labels = (scores > 0).astype(np.float32)

    def columns(self, combiners):
        """Columns for each of `{key: combiner}`."""
        return [
            id_column(key, combiner, missing=self._PADDING)
            for key, combiner in combiners.items()
        ]

    def dataset(self, batch_size, ragged):
        """Batches of `(features, labels)`.

        Features are the signs of each key, padded or `ragged`, and for
        `StaticFeatures` their places in `signs`, padded by -1.
        """
        features = {}
        for key, places in self._places.items():
            signs = np.where(places < 0, self._PADDING, self.signs[places])
            features[key] = tf.constant(signs)
            if ragged:
                features[key] = tf.RaggedTensor.from_row_lengths(
                    signs[places >= 0], np.sum(places >= 0, axis=1)
                )
            features[f"{key}_places"] = places
        return tf.data.Dataset.from_tensor_slices(
            (features, self.labels)
        ).batch(batch_size)


class StaticFeatures(keras.layers.Layer):
    """The computation of `EmbeddingFeatures`, with a variable for the rows.

    Its gradients are dense, because Keras 3's sparse Adagrad does not sum
    gradients of equal rows.

    Args:
      embedding: a built `keras.layers.Embedding`.
      combiners: `{key: combiner}`.
    """

    def __init__(self, embedding, combiners):
        super().__init__(autocast=False)
        self.embedding = embedding
        self.combiners = combiners

    def call(self, inputs):
        return tf.concat(
            [
                self._combine(inputs[f"{key}_places"], combiner)
                for key, combiner in self.combiners.items()
            ],
            axis=1,
        )

    def _combine(self, places, combiner):
        rows = tf.convert_to_tensor(self.embedding.embeddings)
        # -1 becomes zeros, and the gradient of a product is dense.
        one_hot = tf.one_hot(places, rows.shape[0])
        total = tf.reduce_sum(one_hot, 1) @ rows
        count = tf.reduce_sum(one_hot, [1, 2])[:, tf.newaxis]
        divisor = {
            "sum": tf.ones_like(count),
            "mean": count,
            "sqrtn": tf.sqrt(count),
        }[combiner]
        return tf.math.divide_no_nan(total, divisor)


class _Network:
    """Features, then a small perceptron; the wide part is added.

    Args:
      calls: list of `(layer, {feature: feature that takes its place})`. The
        layers give tensors, or `{"wide": tensor, "deep": tensor}`.
    """

    def __init__(self, calls):
        super().__init__()
        initializer = keras.initializers.GlorotUniform
        self.features = [layer for layer, _ in calls]
        self._names = tuple(tuple(names.items()) for _, names in calls)
        self.hidden = keras.layers.Dense(
            6, "tanh", kernel_initializer=initializer(seed=1)
        )
        self.logits = keras.layers.Dense(
            1, kernel_initializer=initializer(seed=2)
        )

    def call(self, inputs, training=None):
        deep, wide = [], 0.0
        for layer, names in zip(self.features, self._names):
            renamed = inputs | {
                new + suffix: inputs[old + suffix]
                for new, old in names
                for suffix in ("", "_places")
            }
            output = layer(renamed, training=training)
            if isinstance(output, dict):
                wide += tf.reduce_sum(output["wide"], 1, keepdims=True)
                output = output["deep"]
            deep.append(output)
        return self.logits(self.hidden(tf.concat(deep, 1))) + wide


class TableNetwork(_Network, tf_ext.Model):
    """The network on tables."""


class StaticNetwork(_Network, keras.Model):
    """The network on variables."""


class BatchLosses(keras.callbacks.Callback):
    """Keeps the loss of each batch, where Keras reports means so far."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_begin(self, batch, logs=None):
        self.model.reset_metrics()

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))
