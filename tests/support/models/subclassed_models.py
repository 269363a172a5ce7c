# SPDX-License-Identifier: Apache-2.0
"""Subclassed models of many kinds, for tests that save and load them.

Each of `CASES` is a function to a compiled model and its inputs, which the
methods of Keras take.
"""

import dataclasses
import typing

import numpy as np
import tensorflow as tf

import tf_ext
from models.model_building import mirrored_strategy
from tf_ext._keras import keras

layers = keras.layers
column = tf_ext.feature_column.category_column
SAMPLES = 13  # The last batch is smaller.
BATCH = 5

_rng = np.random.default_rng(5)
_USER = tf.constant(_rng.choice(list("abcdef"), SAMPLES).astype(object))
_ITEM = tf.constant(_rng.integers(0, 9, SAMPLES))
_NUMBERS = tf.constant(_rng.normal(size=(SAMPLES, 3)).astype(np.float32))
_LENGTHS = [i % 3 for i in range(SAMPLES)]
_TAGS = tf.RaggedTensor.from_row_lengths(
    tf.constant(_rng.choice(["x", "y"], sum(_LENGTHS)).astype(object)), _LENGTHS
)
_KINDS = tf.sparse.from_dense(tf.constant(_rng.integers(0, 3, (SAMPLES, 4))))
_HISTORY = tf.constant(_rng.integers(0, 4, (SAMPLES, 4)))
LABELS = tf.constant(_rng.integers(0, 2, (SAMPLES, 1)).astype(np.float32))

_registered = keras.utils.register_keras_serializable("subclassed_models")


def embed(*columns, name="table", **kwargs):
    table = tf_ext.SparseTable(name, 4)
    return tf_ext.layers.EmbeddingFeatures(list(columns), table, **kwargs)


@_registered
class EveryFeature(tf_ext.Model):
    """Dense, ragged, sparse, absent and numeric inputs; layers in lists."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embed = embed(
            column("user"),
            column("item"),
            column("tags", combiner="mean"),
            column("kinds", combiner="sum"),
            column("absent", optional=True),
        )
        self.hidden = [
            layers.Dense(4, "relu"),
            (layers.Dense(4), {"last": layers.Dense(3)}),
        ]
        self.norm = tf_ext.layers.BatchNormalization()
        self.top = layers.Dense(1)

    def call(self, inputs, training=None):
        embedded = self.embed(inputs, training=training)
        joined = tf.concat([embedded, inputs["numbers"]], 1)
        first, (second, third) = self.hidden
        hidden = self.norm(first(joined), training=training)
        return self.top(third["last"](second(hidden)))


@_registered
class Part(tf_ext.Model):
    """A part of other models, or one by itself."""

    def __init__(self, key="user", **kwargs):
        super().__init__(**kwargs)
        self.key = key
        self.embed = embed(column(key), name=f"of_{key}")
        self.top = layers.Dense(3)

    def get_config(self):
        return {**super().get_config(), "key": self.key}

    def call(self, inputs, training=None):
        return self.top(self.embed(inputs, training=training))


@_registered
class PlainPart(keras.Model):
    """A model of Keras alone, which nothing tells the types of its inputs."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embed = embed(column("user"), column("item"), name="of_plain")
        self.top = layers.Dense(1)

    def call(self, inputs, training=None):
        return self.top(self.embed(inputs, training=training))


@_registered
class LayerPart(layers.Layer):
    """A layer, some of whose layers its `build` makes."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embed = embed(column("item"), name="of_layer")
        self.hidden = [layers.Dense(3), layers.Dense(2)]

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(2,), initializer="normal", name="s")
        super().build(input_shape)

    def call(self, inputs, training=None):
        embedded = self.embed(inputs, training=training)
        return self.hidden[1](self.hidden[0](embedded)) * self.scale


@_registered
class Nested(tf_ext.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.user = Part()
        self.parts = {"plain": PlainPart(), "layer": LayerPart()}
        self.item = [Part("item")]
        self.top = keras.Sequential([layers.Dense(4), layers.Dense(1)])

    def call(self, inputs, training=None):
        parts = [self.user, *self.parts.values(), *self.item]
        return self.top(
            tf.concat([part(inputs, training=training) for part in parts], 1)
        )


@_registered
class Configured(tf_ext.Model):
    """Its layers are in its configuration."""

    def __init__(self, part, top, **kwargs):
        super().__init__(**kwargs)
        self.part, self.top = part, top

    def call(self, inputs, training=None):
        return self.top(self.part(inputs, training=training))

    def get_config(self):
        serialize = keras.utils.serialize_keras_object
        return {
            **super().get_config(),
            "part": serialize(self.part),
            "top": serialize(self.top),
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        deserialize = keras.utils.deserialize_keras_object
        parts = [deserialize(config.pop(name)) for name in ("part", "top")]
        return cls(*parts, **config)


@_registered
class OfSequence(tf_ext.Model):
    """Inputs are a list or tuple."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embed = embed(column("user"), column("item"))
        self.top = layers.Dense(1)

    def call(self, inputs):
        user, item, numbers = inputs
        embedded = self.embed({"user": user, "item": item}, training=True)
        return self.top(tf.concat([embedded, numbers], 1))


@_registered
class OfTensor(tf_ext.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embed = embed(column("ids", combiner="mean"))
        self.top = layers.Dense(1)

    def call(self, ids, training):
        return self.top(self.embed({"ids": ids}, training=training))


@_registered
class OfSequences(tf_ext.Model):
    """Two tables, outputs that are not concatenated, masks."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        history = tf_ext.feature_column.sequence_category_column(
            column("history", missing=0), max_length=4
        )
        self.embed = tf_ext.layers.EmbeddingFeatures(
            {
                tf_ext.SparseTable("a", 3): [column("user"), history],
                tf_ext.SparseTable("b", 3): [history],
            },
            concatenate=False,
        )
        self.recent = layers.GRU(3)
        self.places = layers.Embedding(4, 3)
        self.attend = layers.MultiHeadAttention(1, 3)
        self.top = layers.Dense(1)

    def call(self, inputs, training=None):
        embedded = self.embed(inputs, training=training)
        recent = self.recent(embedded["a"]["history"])
        queries = embedded["b"]["history"] + self.places(tf.range(4))
        attended = self.attend(queries, embedded["b"]["history"])
        joined = [embedded["a"]["user"], recent, tf.reduce_sum(attended, 1)]
        return self.top(tf.concat(joined, 1))


@_registered
class WithArguments(tf_ext.Model):
    """Two inputs and more arguments, which only its own steps give."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embed = embed(column("user"), column("item"))
        self.top, self.other = layers.Dense(1), layers.Dense(1)

    def call(self, user, item=None, both=False, training=None, mask=None):
        inputs = {"user": user, "item": item}
        embedded = self.embed(inputs, training=training)
        outputs = self.top(embedded)
        return outputs + self.other(embedded) if both else outputs

    def train_step(self, data):
        (user, item), labels = data
        with tf.GradientTape() as tape:
            outputs = self(user, item, both=True, training=True)
            loss = tf.reduce_mean(tf.square(outputs - labels))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables))
        return {"mse": loss}

    def predict_step(self, data):
        ((user, item),) = data
        return self(user, item, both=True)


@_registered
class WithTowers(tf_ext.Model):
    """Two of its layers are only called by `train_step`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.user, self.item = Part("user"), Part("item")
        self.bias = layers.Dense(1)

    def call(self, inputs, training=None):
        return self.user(inputs, training=training)

    def train_step(self, data):
        inputs, labels = data
        with tf.GradientTape() as tape:
            user = self(inputs, training=True)
            item = self.item(inputs, training=True)
            score = tf.reduce_sum(user * item, 1, True) + self.bias(user)
            loss = tf.reduce_mean(tf.square(score - labels))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables))
        return {"mse": loss}


@_registered
class Eager(tf_ext.Model):
    """A `call` that a graph cannot have."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embed, self.top = embed(column("user")), layers.Dense(1)

    def call(self, inputs, training=None):
        count = len(inputs["user"].numpy())
        return self.top(self.embed(inputs, training=training)) + 0.0 * count


@_registered
class WithVocabulary(tf_ext.Model):
    """Something else than tables takes strings, too."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embed = embed(column("user"))
        self.look_up = layers.StringLookup(vocabulary=list("abc"))
        self.dense = layers.Embedding(5, 2)
        self.top = layers.Dense(1)

    def call(self, inputs, training=None):
        embedded = self.embed(inputs, training=training)
        dense = self.dense(self.look_up(inputs["user"]))
        is_a = tf.cast(inputs["user"] == "a", tf.float32)[:, tf.newaxis]
        return self.top(tf.concat([embedded, dense, is_a], 1))


def _functional():
    inputs = {
        "user": keras.Input((), dtype="string", name="user"),
        "item": keras.Input((), dtype="int64", name="item"),
    }
    parts = [Part()(inputs), PlainPart()(inputs), LayerPart()(inputs)]
    return tf_ext.Model(inputs, layers.Dense(1)(layers.Concatenate()(parts)))


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and what it is trained on.

    Attributes:
      make: function to the model, not compiled.
      inputs: structure of tensors.
      build: function that calls a model on the inputs so that it is built.
      compile_options: dict, of `compile`.
      strategy: function to the strategy in whose scope it is made.
    """

    make: typing.Callable[[], keras.Model]
    inputs: typing.Any
    build: typing.Callable = lambda model, inputs: model(inputs)
    compile_options: typing.Any = dataclasses.field(default_factory=dict)
    strategy: typing.Callable = tf.distribute.get_strategy

    def compiled(self):
        with self.strategy().scope():
            model = self.make()
            adam = tf_ext.optimizers.Optimizer("adam")
            model.compile(adam, "mse", **self.compile_options)
        return model

    def batches(self):
        data = tf.data.Dataset.from_tensor_slices((self.inputs, LABELS))
        return data.batch(BATCH)

    def predict(self, model):
        data = tf.data.Dataset.from_tensors((self.inputs,))
        return model.predict(data, verbose=0)


_BOTH = {"user": _USER, "item": _ITEM}
_ALL = {**_BOTH, "numbers": _NUMBERS, "tags": _TAGS, "kinds": _KINDS}


def _build_towers(model, inputs):
    model.item(inputs)
    model.bias(model(inputs))


CASES = {
    "every_feature": Case(EveryFeature, _ALL),
    "nested": Case(Nested, _BOTH),
    "with_arguments": Case(
        WithArguments, (_USER, _ITEM), lambda m, x: m(*x, both=True)
    ),
    "with_towers": Case(WithTowers, _BOTH, _build_towers),
}
SLOW_CASES = {
    "of_sequences": Case(OfSequences, {"user": _USER, "history": _HISTORY}),
    "of_tuple": Case(OfSequence, (_USER, _ITEM, _NUMBERS)),
    "with_vocabulary": Case(WithVocabulary, _BOTH),
    "functional": Case(_functional, _BOTH),
    "configured": Case(
        lambda: Configured(Part(), keras.Sequential([layers.Dense(1)])), _BOTH
    ),
    "configured_of_plain": Case(
        lambda: Configured(PlainPart(), layers.Dense(1)), _BOTH
    ),
    "configured_of_layer": Case(
        lambda: Configured(LayerPart(), layers.Dense(1)), _BOTH
    ),
    "of_integers": Case(OfTensor, _HISTORY, lambda m, x: m(x, training=False)),
    "of_strings": Case(OfTensor, _USER, lambda m, x: m(x, training=False)),
    "of_ragged": Case(OfTensor, _TAGS, lambda m, x: m(x, training=False)),
    "eager": Case(Eager, _BOTH, compile_options={"run_eagerly": True}),
    "mirrored": Case(EveryFeature, _ALL, strategy=mirrored_strategy),
    "synchronous": Case(
        EveryFeature, _ALL, strategy=tf_ext.distribute.multi_worker_strategy
    ),
}
