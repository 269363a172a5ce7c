# SPDX-License-Identifier: Apache-2.0
"""What a model of columns goes through, whatever the columns are."""

import os
import tempfile

import tensorflow as tf

import tf_ext
from tf_ext._keras import keras


class ColumnModelCases:
    """Tests of a `tf.test.TestCase` that says what the model reads."""

    def columns(self):
        """The columns of the model."""
        raise NotImplementedError

    def data(self):
        """A dataset of batches, from which it can learn."""
        raise NotImplementedError

    def model(self):
        keras.utils.set_random_seed(1)
        features, _ = self.data().element_spec
        inputs = {
            name: keras.Input((), name=name, dtype=spec.dtype.name)
            for name, spec in features.items()
        }
        table = tf_ext.SparseTable("rows", 2, "adagrad", seed=7)
        embed = tf_ext.layers.EmbeddingFeatures(self.columns(), table)
        output = keras.layers.Dense(1, "sigmoid")(embed(inputs))
        model = tf_ext.Model(inputs, output)
        model.compile(
            tf_ext.optimizers.Optimizer("adam"), "binary_crossentropy"
        )
        return model

    def test_trains_saves_and_serves(self):
        data, model = self.data(), self.model()
        before = model.evaluate(data, verbose=0)
        model.fit(data, epochs=20, verbose=0)
        self.assertLess(model.evaluate(data, verbose=0), before)
        wanted = model.predict(data, verbose=0)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "model.keras")
            model.save(path)
            again = keras.models.load_model(path)
            self.assertAllEqual(again.predict(data, verbose=0), wanted)
            served = os.path.join(directory, "served")
            served = tf_ext.serving.export(model, served)
            call = tf.saved_model.load(served).signatures["serving_default"]
            found = [next(iter(call(**x).values())) for x, _ in data]
            self.assertAllClose(tf.concat(found, 0), wanted)

    def test_hashed_before(self):
        data, model, other = self.data(), self.model(), self.model()
        hashed = tf_ext.data.hash_columns(data, self.columns())
        self.assertEqual(list(hashed.element_spec[0]), ["tf_ext_hashed"])
        model.fit(data, epochs=2, shuffle=False, verbose=0)
        other.fit(hashed, epochs=2, shuffle=False, verbose=0)
        self.assertAllEqual(
            model.predict(data, verbose=0), other.predict(data, verbose=0)
        )
        self.assertAllEqual(
            model.predict(data, verbose=0), model.predict(hashed, verbose=0)
        )
