# SPDX-License-Identifier: Apache-2.0
"""Which table a copied layer or model has."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models as small
from models.model_building import generator
from saving_util import TestCase, contents, trained

import tf_ext
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "SharingTest::test_layers_that_shared_share_one_new_table_clone",
        "SharingTest::test_layers_that_shared_share_one_new_table_load",
        "SharingTest::test_loads_in_threads",
        "SharingTest::test_subclassed_model_of_a_configuration",
    ),
]


def _sharing(cls=tf_ext.Model, names=("first", "second")):
    """A model with two layers on one table and a third on another."""
    ids = small.inputs()
    shared, other = small.table(name="shared"), small.table(name="other")
    embed = tf_ext.layers.EmbeddingFeatures
    vectors = [
        embed(small.columns(), shared, name=names[0])(ids),
        embed(small.columns()[:1], shared, name=names[1])(ids),
        embed({shared: small.columns()[1:]}, name="dict")(ids)["shared"],
        embed(small.columns(), other, name="third")(ids),
    ]
    return small.compiled(
        cls(ids, small.head()(keras.layers.Concatenate()(vectors)))
    )


def _tables_of_layers(model):
    return {
        layer.name: layer.tables[0]
        for layer in model.layers
        if isinstance(layer, tf_ext.layers.EmbeddingFeatures)
    }


@keras.utils.register_keras_serializable(package="cloning_test")
class Configured(tf_ext.Model):
    """A subclassed model that can be made from its configuration."""

    def __init__(self, embed, more, **kwargs):
        super().__init__(**kwargs)
        self.embed, self.more = embed, more
        self.top = small.head()

    def call(self, inputs, training=None):
        vectors = [
            layer(inputs, training=training)
            for layer in (self.embed, self.more)
        ]
        return self.top(tf.concat(vectors, 1))

    def build_from_config(self, config):
        # Keras would take the inputs for floats.
        self(
            {
                key: tf.zeros(shape, tf.int64)
                for key, shape in config["input_shape"].items()
            }
        )

    def get_config(self):
        serialize = keras.utils.serialize_keras_object
        return {
            "name": self.name,
            "embed": serialize(self.embed),
            "more": serialize(self.more),
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        deserialize = keras.utils.deserialize_keras_object
        embed, more = (deserialize(config.pop(k)) for k in ("embed", "more"))
        return cls(embed, more, **config)


def _copies():
    """Ways to copy a model: `(case, function of test and model)`."""

    def load(test, model):
        path = test.path("x.keras")
        model.save(path)
        return keras.models.load_model(path)

    def clone(_, model):
        return keras.models.clone_model(model)

    def from_config(_, model):
        return type(model).from_config(model.get_config())

    return (("load", load), ("clone", clone), ("from_config", from_config))


class SharingTest(TestCase):
    @parameterized.named_parameters(*_copies())
    def test_layers_that_shared_share_one_new_table(self, copy):
        model = _sharing()
        features, labels = small.batch(generator(self))
        model.train_on_batch(features, labels)
        new = _tables_of_layers(copy(self, model))
        self.assertIs(new["first"], new["second"])
        self.assertIs(new["first"], new["dict"])
        self.assertIsNot(new["first"], new["third"])
        self.assertEqual(new["first"].name, "shared")
        old = _tables_of_layers(model)
        for name, table in new.items():
            self.assertIsNot(table, old[name])
            self.assertNotEqual(table.uid, old[name].uid)

    def test_of_plain_keras_models_too(self):
        model = keras.models.clone_model(_plain())
        tables = _tables_of_layers(model)
        self.assertIs(tables["first"], tables["second"])

    @parameterized.named_parameters(*_copies())
    def test_two_copies_have_two_tables(self, copy):
        model = _sharing()
        first, second = (_tables_of_layers(copy(self, model)) for _ in "ab")
        for name in first:
            self.assertIsNot(first[name], second[name])

    def test_copy_of_a_copy(self):
        model = _sharing()
        copy = keras.models.clone_model(keras.models.clone_model(model))
        tables = _tables_of_layers(copy)
        self.assertIs(tables["first"], tables["second"])
        self.assertLen(copy.tables, 2)

    def test_clone_is_empty_and_its_own(self):
        model, features, labels = trained(self)
        before = contents(model.tables[0])
        clone = small.compiled(keras.models.clone_model(model))
        self.assertIsInstance(clone, tf_ext.Model)
        self.assertEqual(clone.tables[0].size(), 0)
        clone.train_on_batch(features, labels)
        self.assertGreater(clone.tables[0].size(), 0)
        self.assertEqual(contents(model.tables[0]), before)

    def test_loaded_model_has_its_own_rows(self):
        model, features, labels = trained(self)
        path = self.path("x.keras")
        model.save(path)
        before = contents(model.tables[0])
        first, second = (keras.models.load_model(path) for _ in "ab")
        self.assertEqual(contents(first.tables[0]), before)
        first.train_on_batch(features, labels)
        self.assertNotEqual(contents(first.tables[0]), before)
        self.assertEqual(contents(second.tables[0]), before)
        self.assertEqual(contents(model.tables[0]), before)

    def test_lone_from_config_does_not_share(self):
        layer = tf_ext.layers.EmbeddingFeatures(small.columns(), small.table())
        config = layer.get_config()
        copies = [
            tf_ext.layers.EmbeddingFeatures.from_config(config) for _ in "abc"
        ]
        tables = [layer.tables[0], *(copy.tables[0] for copy in copies)]
        self.assertLen({id(table) for table in tables}, 4)
        self.assertLen({table.uid for table in tables}, 4)
        self.assertEqual(copies[0].get_config()["columns"], config["columns"])

    def test_two_tables_of_one_label_stay_two(self):
        ids = small.inputs()
        tables = small.table(), small.table()
        vectors = [
            tf_ext.layers.EmbeddingFeatures(
                small.columns(), table, name=f"layer_{index}"
            )(ids)
            for index, table in enumerate(tables)
        ]
        model = small.compiled(
            tf_ext.Model(ids, small.head()(keras.layers.Concatenate()(vectors)))
        )
        features, labels = small.batch(generator(self))
        model.train_on_batch(features, labels)
        tables[1].push([10**15], np.ones((1, 4)), learning_rate=0.1)
        path = self.path("x.keras")
        model.save(path)
        loaded = keras.models.load_model(path)
        self.assertLen(loaded.tables, 2)
        for saved, table in zip(tables, loaded.tables):
            self.assertEqual(contents(table), contents(saved))
        self.assertIn(10**15, contents(loaded.tables[1])["weights"])
        self.assertNotIn(10**15, contents(loaded.tables[0])["weights"])

    def test_subclassed_model_of_a_configuration(self):
        table = small.table()
        model = small.compiled(
            Configured(
                tf_ext.layers.EmbeddingFeatures(
                    small.columns(), table, name="first"
                ),
                tf_ext.layers.EmbeddingFeatures(
                    small.columns()[:1], table, name="second"
                ),
            )
        )
        features, labels = small.batch(generator(self))
        model.train_on_batch(features, labels)
        path = self.path("x.keras")
        model.save(path)
        loaded = keras.models.load_model(path)
        self.assertIsInstance(loaded, Configured)
        self.assertIs(loaded.embed.tables[0], loaded.more.tables[0])
        self.assertIsNot(loaded.embed.tables[0], table)
        self.assertEqual(contents(loaded.embed.tables[0]), contents(table))
        self.assertAllEqual(
            model.predict(features, verbose=0),
            loaded.predict(features, verbose=0),
        )

    def test_layers_of_one_name_in_nested_models(self):
        table = small.table()

        def part():
            ids = small.inputs()
            layer = tf_ext.layers.EmbeddingFeatures(
                small.columns(), table, name="embed"
            )
            return tf_ext.Model(ids, layer(ids))

        ids = small.inputs()
        outputs = keras.layers.Concatenate()([part()(ids), part()(ids)])
        model = small.compiled(tf_ext.Model(ids, small.head()(outputs)))
        self.assertLen(model.tables, 1)
        path = self.path("x.keras")
        model.save(path)
        self.assertLen(keras.models.load_model(path).tables, 1)

    def test_loads_in_threads(self):
        model = _sharing()
        path = self.path("x.keras")
        model.save(path)
        loaded, errors = [], []

        def load():
            try:
                loaded.append(keras.models.load_model(path))
            except Exception as error:  # Shown by the assertion.
                errors.append(error)

        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEmpty(errors)
        tables = [_tables_of_layers(model) for model in loaded]
        for one in tables:
            self.assertIs(one["first"], one["second"])
        self.assertLen({id(one["first"]) for one in tables}, 4)


def _plain():
    ids = small.inputs()
    table = small.table()
    vectors = [
        tf_ext.layers.EmbeddingFeatures(small.columns(), table, name=name)(ids)
        for name in ("first", "second")
    ]
    return keras.Model(ids, keras.layers.Concatenate()(vectors))


if __name__ == "__main__":
    tf.test.main()
