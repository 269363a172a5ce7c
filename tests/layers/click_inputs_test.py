# SPDX-License-Identifier: Apache-2.0
"""What a layer counts as clicks is needed in training alone."""

import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import clicked_models as models
from models import small_models
from models.clicked_models import IDS
from models.model_building import generator, mirrored_strategy

import tf_ext
from tf_ext import serving
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.layers import click_inputs
from tf_ext.serving.signature import of_model
from tf_ext.tables.find import tables_of

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "ClickInputsTest::test_a_feature_that_something_else_*",
        "ClickInputsTest::test_a_model_that_cannot_be_traced",
        "ClickInputsTest::test_beside_a_layer_that_counts_nothing",
        "ClickInputsTest::test_needed_in_training_alone0",
        "ClickInputsTest::test_signatures_do_not_have_it*",
    ),
]


class ClickInputsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="tf_ext_clicks_")
        self.folder = self.enterContext(folder)
        self.features, self.all, self.labels = models.batch(generator(self))

    def trained(self, make):
        model = small_models.compiled(make())
        model.fit(self.all, self.labels, verbose=0)
        for table in tables_of(model):
            clicks = table.export_rows()[1]["click"]
            self.assertGreater(clicks.max(), 0)
            self.assertEqual(clicks.min(), 0)
        return model

    def assert_served(self, folder, expected, names=IDS):
        function = tf.saved_model.load(folder).signatures["serving_default"]
        found = sorted(function.structured_input_signature[1])
        self.assertEqual(found, sorted(names))
        [outputs] = function(
            **{key: tf.constant(self.all[key]) for key in names}
        ).values()
        self.assertAllClose(outputs, expected, rtol=1e-5, atol=1e-6)

    @parameterized.parameters(models.functional, models.Plain)
    def test_needed_in_training_alone(self, make):
        self.check_needed_in_training_alone(make)

    @parameterized.parameters(
        models.of_a_list, models.renamed, models.nested, models.sequential
    )
    @pytest.mark.slow
    def test_needed_in_training_alone_by_other_models(self, make):
        self.check_needed_in_training_alone(make)

    def check_needed_in_training_alone(self, make):
        model = self.trained(make)
        before = [table.export_rows()[1]["click"] for table in tables_of(model)]
        expected = model.predict(self.all, verbose=0)
        scores = model.evaluate(self.all, self.labels, verbose=0)
        again = model.predict(self.features, verbose=0)
        self.assertAllEqual(again, expected)
        self.assertAllEqual(
            model.evaluate(self.features, self.labels, verbose=0), scores
        )
        tensors = {k: tf.constant(v) for k, v in self.features.items()}
        for batch in (self.features, tensors):
            for options in ({}, {"training": False}):
                self.assertAllClose(model(batch, **options), expected)
        if make is models.of_a_list:
            values = [*self.features.values()]
            self.assertAllEqual(model.predict(values, verbose=0), expected)
        with self.assertRaisesRegex(
            Exception, r"the `click` of an EmbeddingFeatures, is missing"
        ):
            model.fit(self.features, self.labels, verbose=0)
        with self.assertRaisesRegex(
            Exception, "the `click` of an EmbeddingFeatures, is missing"
        ):
            model(self.features, training=True)
        after = [table.export_rows()[1]["click"] for table in tables_of(model)]
        self.assertAllEqual(after, before)

    @parameterized.parameters(models.functional, models.Asking)
    def test_exports_do_not_have_it(self, make):
        self.check_exports(make)

    @parameterized.parameters(
        models.of_a_list,
        models.renamed,
        models.nested,
        models.Plain,
        models.sequential,
    )
    @pytest.mark.slow
    def test_exports_of_other_models_do_not_have_it(self, make):
        self.check_exports(make)

    def check_exports(self, make):
        model = self.trained(make)
        expected = model.predict(self.all, verbose=0)
        warmup = self.features
        if make is models.of_a_list:
            warmup = [*self.features.values()]
        folder = serving.export(model, f"{self.folder}/stock", warmup=warmup)
        self.assert_served(folder, expected)
        [(sent, answer)] = serving.read_warmup(folder)
        self.assertCountEqual(sent, IDS)
        self.assertAllClose(*answer.values(), expected)

    @parameterized.parameters(models.functional, models.Plain)
    @pytest.mark.slow
    def test_a_signature_of_the_users_is_kept(self, make):
        model = self.trained(make)
        expected = model.predict(self.all, verbose=0)
        for names in (IDS, [*IDS, "bought"]):
            signature = {
                name: tf.TensorSpec(
                    [None, *self.all[name].shape[1:]], self.all[name].dtype
                )
                for name in names
            }
            folder = serving.export(
                model, f"{self.folder}/stock", signature=signature
            )
            self.assert_served(folder, expected, names)

    def test_exports_of_own_ops_do_not_have_it(self):
        self.check_own_ops(models.functional)

    @parameterized.parameters(models.nested, models.Plain)
    @pytest.mark.slow
    def test_own_ops_of_other_models_do_not_have_it(self, make):
        self.check_own_ops(make)

    def check_own_ops(self, make):
        if IS_KERAS_3 and make is models.Plain:
            self.skipTest("Keras 3 exports ids of such models as floats")
        model = self.trained(make)
        model.export(f"{self.folder}/own")
        expected = model.predict(self.all, verbose=0)
        self.assert_served(f"{self.folder}/own", expected)

    @pytest.mark.slow
    def test_own_ops_have_what_a_call_asks_for(self):
        if IS_KERAS_3:
            self.skipTest("Keras 3 exports ids of such models as floats")
        model = self.trained(models.Asking)
        model.export(f"{self.folder}/own")
        expected = model.predict(self.all, verbose=0)
        self.assert_served(f"{self.folder}/own", expected, [*IDS, "bought"])

    def test_of_a_loaded_model(self):
        model = self.trained(models.functional)
        expected = model.predict(self.features, verbose=0)
        path = os.path.join(self.folder, "model.keras")
        model.save(path)
        loaded = keras.models.load_model(path)
        self.assertAllEqual(loaded.predict(self.features, verbose=0), expected)
        loaded.fit(self.all, self.labels, verbose=0)

    def test_under_a_strategy(self):
        with mirrored_strategy().scope():
            model = self.trained(models.functional)
        expected = model.predict(self.all, verbose=0)
        found = model.predict(self.features, verbose=0)
        self.assertAllClose(found, expected)
        model.evaluate(self.features, self.labels, verbose=0)

    def test_of_hashed_features(self):
        model = self.trained(models.functional)
        expected = model.predict(self.features, verbose=0)
        data = tf.data.Dataset.from_tensor_slices(self.features).batch(16)
        hashed = tf_ext.data.hash_columns(data, small_models.columns())
        found = model.predict(hashed, verbose=0)
        self.assertAllClose(found, expected)

    def test_beside_a_layer_that_counts_nothing(self):
        """It gets the dict of all inputs, too."""
        model = small_models.compiled(models.beside_another())
        model.fit(self.all, self.labels, verbose=0)
        expected = model.predict(self.all, verbose=0)
        found = model.predict(self.features, verbose=0)
        self.assertAllEqual(found, expected)
        self.assert_served(serving.export(model, self.folder), expected)

    @parameterized.parameters(
        models.functional,
        models.beside_another,
        models.renamed,
        models.nested,
        models.Plain,
        models.Asking,
    )
    def test_signatures_do_not_have_it(self, make):
        model = make()
        model(self.all)
        self.assertCountEqual(of_model(model, None, None).tensors, IDS)

    def test_a_model_that_cannot_be_traced(self):
        """Whoever traces it next has the error."""

        class Failing(models.Plain):
            def call(self, features, training=None):
                raise KeyError("age")

        specs = {k: tf.TensorSpec([None, 1], tf.int64) for k in self.all}
        found = click_inputs.clicks_of(models.Plain(), specs)
        self.assertEqual(found.keys(), self.all.keys() - IDS)
        self.assertEqual(click_inputs.clicks_of(Failing(), specs), {})

    @parameterized.parameters("layer", "output", "column")
    def test_a_feature_that_something_else_needs(self, reader):
        ids = models.inputs()
        if reader == "column":
            ids["bought"] = keras.Input((1,), dtype="int64", name="bought")
            columns = [tf_ext.feature_column.category_column("bought")]
        else:
            columns = small_models.columns()
        table = small_models.table(statistics=["show", "click"])
        layer = tf_ext.layers.EmbeddingFeatures(columns, table, click="bought")
        output = small_models.head()(layer(ids))
        if reader == "layer":
            output = keras.layers.Add()([output, ids["bought"]])
        elif reader == "output":
            output = {"score": output, "bought": ids["bought"]}
        model = tf_ext.Model(ids, output)
        with self.assertRaisesRegex(Exception, "bought"):
            model.predict(self.features, verbose=0)
        batch = {**self.all, "bought": self.labels.astype(np.int64)}
        model.predict(batch if reader == "column" else self.all, verbose=0)
        signature = of_model(model, None, None)
        self.assertCountEqual(signature.tensors, [*IDS, "bought"])


if __name__ == "__main__":
    tf.test.main()
