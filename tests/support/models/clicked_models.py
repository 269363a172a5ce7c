# SPDX-License-Identifier: Apache-2.0
"""Models with a feature that counts as clicks and is nothing else."""

import tf_ext
from models import small_models
from models.small_models import head
from tf_ext._keras import keras

IDS = ["items", "user"]


def layer(click="bought"):
    """A layer that counts clicks, and reads them."""
    table = small_models.table("adagrad", statistics=["show", "click"])
    return tf_ext.layers.EmbeddingFeatures(
        small_models.columns(), table, click=click, cvm=True
    )


def inputs():
    """Keras inputs: those of `small_models`, and clicks."""
    bought = keras.Input((1,), name="bought")
    return {**small_models.inputs(), "bought": bought}


def functional():
    """Inputs by name."""
    ids = inputs()
    return tf_ext.Model(ids, head()(layer()(ids)))


def beside_another():
    """A second layer, which gets all inputs and counts nothing."""
    ids = inputs()
    table = small_models.table("adagrad", name="wide")
    other = tf_ext.layers.EmbeddingFeatures(small_models.columns(), table)
    both = keras.layers.Concatenate()([layer()(ids), other(ids)])
    return tf_ext.Model(ids, head()(both))


def of_a_list():
    """Inputs by place."""
    ids = inputs()
    return tf_ext.Model([*ids.values()], head()(layer()(ids)))


def renamed():
    """Two layers, which have another name for the input."""
    ids = inputs()
    seen = {**{key: ids[key] for key in IDS}, "sold": ids["bought"]}
    both = keras.layers.Concatenate()(
        [layer("sold")(seen), layer("sold")(seen)]
    )
    return tf_ext.Model(ids, head()(both))


def nested():
    """A model in a model."""
    ids = inputs()
    return tf_ext.Model(ids, functional()(ids))


@keras.utils.register_keras_serializable("clicked_models")
class Plain(tf_ext.Model):
    """A `call` that passes its features on."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embed = layer()
        self.top = head()

    def call(self, inputs, training=None):
        return self.top(self.embed(inputs, training=training))


@keras.utils.register_keras_serializable("clicked_models")
class Asking(Plain):
    """A `call` that asks for a feature that its layer need not have."""

    def call(self, inputs, training=None):
        features = {key: inputs[key] for key in (*IDS, "bought")}
        return self.top(self.embed(features, training=training))


def sequential():
    """A plain model of Keras, whose first layer takes the features."""
    return keras.Sequential([layer(), head()])


def batch(rng, size=40):
    """`(features without clicks, features, labels)`."""
    features, labels = small_models.batch(rng, size)
    return features, {**features, "bought": labels}, labels
