# SPDX-License-Identifier: Apache-2.0
"""Which inputs of a model are clicks and nothing else, by its graph alone."""

import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import clicked_models as models

import tf_ext
from tf_ext._keras import keras
from tf_ext.layers import click_inputs

pytestmark = pytest.mark.both_kerases(slow=True)


def _names(specs):
    return {key: (tuple(spec.shape), spec.dtype) for key, spec in specs.items()}


def _specs(keys=(*models.IDS, "bought")):
    shapes = {"items": [None, 4], "user": [None, 1], "bought": [None, 1]}
    return {
        key: tf.TensorSpec(
            shapes[key], tf.float32 if key == "bought" else tf.int64
        )
        for key in keys
    }


_BOUGHT = ((None, 1), tf.float32)


class ClicksTest(tf.test.TestCase, parameterized.TestCase):
    def test_functional_models(self):
        for make, found in (
            (models.functional, {"bought": _BOUGHT}),
            (models.nested, {"bought": _BOUGHT}),
            (models.renamed, {"bought": _BOUGHT}),
            (models.of_a_list, {2: _BOUGHT}),
        ):
            model = make()
            self.assertEqual(
                _names(click_inputs.clicks_of(model, None)), found, make
            )
            bought = click_inputs.inputs_by_key(model)["bought"]
            layers = click_inputs.layers_that_count(model, bought)
            self.assertLen(layers, 2 if make is models.renamed else 1)
            for key in models.IDS:
                symbolic = click_inputs.inputs_by_key(model)[key]
                self.assertEmpty(
                    click_inputs.layers_that_count(model, symbolic)
                )
            self.assertEqual(
                click_inputs.is_flat(model), make is models.of_a_list
            )

    def test_inputs_that_are_no_flat_list(self):
        ids = models.inputs()
        given = [{"ids": [ids[k] for k in models.IDS]}, ids["bought"]]
        model = tf_ext.Model(given, models.head()(models.layer()(ids)))
        self.assertFalse(click_inputs.is_flat(model))
        self.assertEqual(click_inputs.clicks_of(model, None), {})

    def test_what_something_else_needs(self):
        ids = models.inputs()
        unused = keras.Input((1,), name="unused")
        output = models.head()(models.layer()(ids))
        for outputs in (
            [output, ids["bought"]],
            [output, keras.layers.Dense(1)(ids["bought"])],
        ):
            model = tf_ext.Model({**ids, "unused": unused}, outputs)
            self.assertEqual(click_inputs.clicks_of(model, None), {})
        # A nested model that returns it.
        inner = tf_ext.Model(ids, [output, ids["bought"]])
        again = models.inputs()
        model = tf_ext.Model(again, inner(again)[0])
        self.assertEqual(click_inputs.clicks_of(model, None), {})

    @pytest.mark.slow
    def test_models_that_are_traced(self):
        class Reading(models.Plain):
            """Needs clicks, by an order of operations alone."""

            reads = False

            def call(self, inputs, training=None):
                found = super().call(inputs, training=training)
                if not self.reads:
                    return found
                with tf.control_dependencies([inputs["bought"] * 2]):
                    return tf.identity(found)

        specs = _specs()
        model = Reading()
        self.assertEqual(click_inputs.clicks_of(model, [*specs.values()]), {})
        ids = _specs(models.IDS)
        self.assertEqual(click_inputs.clicks_of(model, ids), {})
        model(
            {k: tf.zeros([1, *v.shape[1:]], v.dtype) for k, v in specs.items()}
        )
        found = click_inputs.clicks_of(model, specs)
        self.assertEqual(_names(found), {"bought": _BOUGHT})
        self.assertCountEqual(click_inputs.exported(model, specs), models.IDS)
        model.reads = True
        self.assertEqual(click_inputs.clicks_of(model, specs), {})
        self.assertIs(click_inputs.exported(model, specs), specs)

    def test_exports(self):
        specs = _specs()
        found = click_inputs.exported(models.functional(), specs)
        self.assertCountEqual(found, models.IDS)
        listed = [*specs.values()]
        found = click_inputs.exported(models.of_a_list(), listed)
        self.assertEqual(found, listed[:2])

    def test_without_and_completed(self):
        clicks = {"c": tf.TensorSpec([None, 2], tf.int32)}
        batch = {"a": tf.ones([3, 1])}
        full = click_inputs.completed(batch, clicks)
        self.assertCountEqual(full, ["a", "c"])
        self.assertEqual(full["c"].dtype, tf.int32)
        self.assertAllEqual(full["c"], [[0, 0]] * 3)
        self.assertEqual(click_inputs.without(full, clicks), batch)
        one, two = tf.ones([2]), tf.zeros([2])
        places = {0: tf.TensorSpec([None]), 2: tf.TensorSpec([None, None])}
        full = click_inputs.completed([one, two], places)
        self.assertEqual(
            [t.shape.as_list() for t in full[:3]], [[2], [2], [2, 0]]
        )
        self.assertIs(full[1], one)
        self.assertIs(full[3], two)
        for kind in (list, tuple):
            left = click_inputs.without(kind(full), places)
            self.assertIs(type(left), kind)
            self.assertEqual([*map(id, left)], [id(one), id(two)])
        self.assertIs(click_inputs.completed(batch, {}), batch)
        self.assertIs(click_inputs.without(batch, {}), batch)


if __name__ == "__main__":
    tf.test.main()
