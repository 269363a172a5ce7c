# SPDX-License-Identifier: Apache-2.0
"""Whole Keras models as models with tables, and back."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import keras_embeddings
from saving_util import TestCase

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.convert.slots import copy_slots

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "*RefusalsTest::*",
        "SlotsTest::*",
        "ModelsTest::test_names_that_inputs_have",
        "ModelsTest::test_one_call_of_sequential",
        "ModelsTest::test_layers_that_training_does_not_change_are_shared",
        "ModelsTest::test_what_normalization_has_learned",
        "ModelsTest::test_what_layers_of_nested_models_have_learned",
    ),
]

_LAYERS = keras.layers


def _ids(values=7, shape=(1,), dtype="int64", name="x"):
    """An input and an Embedding of its values."""
    inputs = keras.Input(shape, dtype=dtype, name=name)
    return inputs, _LAYERS.Embedding(values, 2, name=f"rows_of_{name}")


class SlotsTest(TestCase):
    def test_steps_go_along(self):
        """Adam's bias correction depends on them."""
        variable = keras.Variable if IS_KERAS_3 else tf.Variable
        optimizers, variables = [], []
        for value in (1.0, 5.0):
            variables.append(variable([value, value]))
            optimizers.append(keras.optimizers.Adam(0.1))
            optimizers[-1].build(variables[-1:])
        gradient = tf.ones([2])
        for _ in range(3):
            optimizers[0].apply_gradients([(gradient, variables[0])])
        copy_slots(*optimizers, [tuple(variables)])
        self.assertEqual(int(optimizers[1].iterations), 3)
        for optimizer, one in zip(optimizers, variables):
            before = np.array(one)
            optimizer.apply_gradients([(gradient, one)])
            moved = before - np.array(one)
            self.assertAllClose(moved, [0.1, 0.1], rtol=1e-4)

    def test_slots_of_scalars_stay_with_their_variables(self):
        variable = keras.Variable if IS_KERAS_3 else tf.Variable
        before, after = ([variable(0.0) for _ in range(2)] for _ in range(2))
        source, target = (keras.optimizers.SGD(1.0, 0.5) for _ in range(2))
        source.build(before)
        source.apply_gradients(zip([1.0, 10.0], before))
        # In another order, as other models may have them.
        target.build(after[::-1])
        copy_slots(source, target, list(zip(before, after)))
        target.apply_gradients(zip([0.0, 0.0], after))
        self.assertAllClose([float(one) for one in after], [-0.5, -5.0])


class ModelsTest(TestCase):
    def _check(self, before, features, vocabularies, **options):
        """Predictions are the same in a model with tables, and back."""
        done = tf_ext.convert.model_from_keras(before, **options)
        expected = before.predict(features, verbose=0)
        found = done.model.predict(features, verbose=0)
        self.assertAllClose(found, expected, 1e-6, 1e-6)
        back = tf_ext.convert.model_to_keras(done.model, vocabularies)
        found = back.model.predict(features, verbose=0)
        self.assertAllClose(found, expected, 1e-6, 1e-6)
        self.assertNotIsInstance(back.model, tf_ext.Model)
        self.assertEqual(set(back.left.values()), {0})
        return done, back

    @parameterized.named_parameters(
        ("sgd", "SGD", 1e-5),
        # Keras 3 squares the gradients of an id that occurs twice one by one.
        ("adagrad", "Adagrad", np.inf if IS_KERAS_3 else 1e-5),
    )
    def test_trains_on(self, rule, limit):
        before = keras_embeddings.model()
        before.compile(
            getattr(keras.optimizers, rule)(0.1),
            "binary_crossentropy",
            metrics=["AUC"],
        )
        batches = keras_embeddings.batches(20, 32)
        for features, labels in batches[:5]:
            before.train_on_batch(features, labels)
        done, back = self._check(
            before, batches[0][0], keras_embeddings.vocabularies()
        )
        self.assertEqual(int(done.model.optimizer.iterations), 5)
        self.assertEqual(int(back.model.optimizer.iterations), 5)
        self.assertIs(type(back.model.optimizer), type(before.optimizer))
        [first, *_] = done.rows.values()
        self.assertEqual(
            first.slots, ("accumulator",) if rule == "Adagrad" else ()
        )
        models = [before, done.model, back.model]
        for features, labels in batches[5:]:
            losses = [
                one.train_on_batch(features, labels, return_dict=True)["loss"]
                for one in models
            ]
            self.assertAllClose(losses[2], losses[0], 1e-5, 1e-5)
            self.assertLess(abs(losses[1] - losses[0]), limit)
        left = tf_ext.convert.model_to_keras(
            done.model, keras_embeddings.vocabularies()
        )
        found = left.model.predict(features, verbose=0)
        expected = done.model.predict(features, verbose=0)
        self.assertAllClose(found, expected, 1e-6, 1e-6)

    def test_the_keras_model_stays(self):
        inputs, rows = _ids()
        before = keras.Model(
            inputs, _LAYERS.Dense(1)(_LAYERS.Flatten()(rows(inputs)))
        )
        before.compile("sgd", "mse")
        values = [v.numpy() for v in before.trainable_variables]
        done = tf_ext.convert.model_from_keras(before)
        done.model.fit(np.array([[1]]), np.array([[1.0]]), verbose=0)
        for one, value in zip(before.trainable_variables, values):
            self.assertAllEqual(one, value)

    def test_layers_that_training_does_not_change_are_shared(self):
        class Scaled(keras.layers.Layer):
            """Cannot be made from its configuration, and has no variables."""

            def __init__(self, factor):
                super().__init__()
                self.factor = factor

            def call(self, inputs):
                return inputs * self.factor

            def get_config(self):
                raise NotImplementedError

        inputs, rows = _ids()
        price = keras.Input((1,), name="price")
        bins = _LAYERS.Discretization([1.0, 2.0], output_mode="one_hot")
        scaled, dense = Scaled(0.5), _LAYERS.Dense(1)
        x = [_LAYERS.Flatten()(rows(inputs)), scaled(bins(price))]
        before = keras.Model(
            {"x": inputs, "price": price}, dense(_LAYERS.Concatenate()(x))
        )
        features = {
            "x": np.arange(3)[:, np.newaxis],
            "price": np.float32([[0.5], [1.5], [9.0]]),
        }
        done, _ = self._check(before, features, {"x": np.arange(7)})
        layers = done.model.layers
        for one, is_shared in (bins, True), (scaled, True), (dense, False):
            self.assertEqual(any(one is each for each in layers), is_shared)

    def _converted_beside_rows(self, layer):
        """A model of rows and of a layer of prices, converted and compared."""
        inputs, rows = _ids()
        price = keras.Input((1,), name="price")
        x = [_LAYERS.Flatten()(rows(inputs)), layer(price)]
        before = keras.Model(
            {"x": inputs, "price": price},
            _LAYERS.Dense(1)(_LAYERS.Concatenate()(x)),
        )
        features = {
            "x": np.arange(3)[:, np.newaxis],
            "price": np.float32([[4.0], [6.0], [9.0]]),
        }
        done, _ = self._check(before, features, {"x": np.arange(7)})
        return done

    def test_what_normalization_has_learned(self):
        norm = _LAYERS.Normalization()
        norm.adapt(np.float32([[4.0], [8.0]]))
        done = self._converted_beside_rows(norm)
        self.assertFalse(any(norm is each for each in done.model.layers))

    def test_what_layers_of_nested_models_have_learned(self):
        norm = _LAYERS.Normalization()
        norm.adapt(np.float32([[4.0], [8.0]]))
        lookup = _LAYERS.IntegerLookup(output_mode="one_hot")
        lookup.adapt(np.array([[4], [6]]))
        bins = _LAYERS.Discretization(num_bins=2, output_mode="one_hot")
        bins.adapt(np.arange(9.0).reshape(-1, 1))
        price = keras.Input((1,))
        parts = [norm(price), lookup(price), bins(price)]
        outputs = _LAYERS.Dense(2)(_LAYERS.Concatenate()(parts))
        inner = keras.Model(price, outputs, name="inner")
        done = self._converted_beside_rows(inner)
        self.assertIsNot(done.model.get_layer("inner"), inner)

    def test_one_call_of_sequential(self):
        before = keras.Sequential(
            [
                keras.Input((4,), dtype="int64", name="x"),
                _LAYERS.Embedding(7, 3),
                _LAYERS.GlobalAveragePooling1D(),
                _LAYERS.Dropout(0.5),
                _LAYERS.Dense(2),
            ]
        )
        features = np.array([[1, 2, 3, 4], [6, 6, 0, 0]])
        done, _ = self._check(before, features, {"x": np.arange(7)})
        self.assertIsInstance(done.model, tf_ext.Model)
        # The table's layer takes the mean.
        names = {type(layer).__name__ for layer in done.model.layers}
        self.assertNotIn("GlobalAveragePooling1D", names)
        [table] = done.model.tables
        self.assertEqual(type(table.optimizer).__name__, "SparseRowWiseAdagrad")

    def test_embedding_that_several_inputs_share(self):
        inputs = [
            keras.Input(shape, dtype="string", name=name)
            for shape, name in (((1,), "item"), ((5,), "history"))
        ]
        lookup = _LAYERS.StringLookup(vocabulary=["a", "b"], mask_token="")
        rows = _LAYERS.Embedding(4, 2, mask_zero=True, name="items")
        item, history = (rows(lookup(one)) for one in inputs)
        outputs = _LAYERS.Concatenate()(
            [_LAYERS.Flatten()(item), _LAYERS.LSTM(3)(history)]
        )
        before = keras.Model(inputs, outputs)
        done = tf_ext.convert.model_from_keras(before)
        features = [
            tf.constant([["a"], [""]]),
            tf.constant([["a", "b", "", "a", ""], ["b", "", "", "", ""]]),
        ]
        self.assertAllClose(done.model(features), before(features), 1e-6, 1e-6)
        item, history = sorted(
            done.columns["items"], key=lambda one: one.combiner is None
        )
        self.assertEqual(item.namespace, history.namespace)
        self.assertEqual((done.rows["items"].taken, item.missing), (3, None))
        self.assertEqual(history.column.missing, "")

    def test_one_input_of_two_embeddings(self):
        inputs = keras.Input((1,), dtype="int64", name="x")
        parts = [
            _LAYERS.Flatten()(_LAYERS.Embedding(5, dim, name=name)(inputs))
            for dim, name in ((2, "first"), (2, "second"), (1, "wide"))
        ]
        before = keras.Model(inputs, _LAYERS.Concatenate()(parts))
        ids = np.arange(5)
        names = {"x": ids, "x_first": ids, "x_second": ids}
        done, _ = self._check(before, ids[:, np.newaxis], names)
        [first], [second] = done.columns["first"], done.columns["second"]
        self.assertNotEqual(first.namespace, second.namespace)
        names = {table.name: table.size() for table in done.model.tables}
        self.assertEqual(names, {"embeddings_2": 10, "embeddings_1": 5})

    def test_names_that_inputs_have(self):
        # The second column of x would be x_second, which is another's.
        inputs = [
            keras.Input((1,), dtype="int64", name=name)
            for name in ("x_second", "x")
        ]
        other, x = inputs
        rows = [
            _LAYERS.Embedding(5, 2, name=name)(of)
            for name, of in (("third", other), ("first", x), ("second", x))
        ]
        before = keras.Model(inputs, _LAYERS.Concatenate()(rows))
        done = tf_ext.convert.model_from_keras(before)
        features = [np.array([[4], [0]]), np.array([[1], [3]])]
        self.assertAllClose(done.model(features), before(features), 1e-6, 1e-6)
        names = [one.name for [one] in done.columns.values()]
        self.assertCountEqual(names, ["x_second", "x", "x_2"])

    def test_masked_mean(self):
        inputs, _ = _ids(shape=(3,))
        rows = _LAYERS.Embedding(5, 2, mask_zero=True)(inputs)
        before = keras.Model(inputs, _LAYERS.GlobalAveragePooling1D()(rows))
        features = np.array([[0, 1, 2], [3, 0, 0], [4, 4, 2]])
        done, back = self._check(before, features, {"x": np.arange(1, 5)})
        for model in (done.model, back.model):
            empty = model.predict(np.zeros([1, 3], np.int64), verbose=0)
            self.assertAllEqual(empty, [[0.0, 0.0]])

        # Training would change the row of masked ids, which nothing reads.
        [rows] = [
            one
            for one in back.model.layers
            if isinstance(one, _LAYERS.Embedding)
        ]
        expected = back.model.predict(features, verbose=0)
        weights = rows.get_weights()[0]
        weights[0] = 5.0
        rows.set_weights([weights])
        found = back.model.predict(features, verbose=0)
        self.assertAllClose(found, expected, 1e-6, 1e-6)

    def test_sequences_that_are_joined_with_others(self):
        ids, rows = _ids(shape=(3,))
        target, numbers = keras.Input((1,), dtype="int64"), keras.Input((3, 2))
        # As everything here, it has no mask in Keras.
        parts = [rows(ids), numbers, rows(target)]
        hidden = _LAYERS.Concatenate(axis=1)(parts)
        before = keras.Model([ids, numbers, target], _LAYERS.Flatten()(hidden))
        features = [
            np.array([[0, 1, 2], [3, 0, 6]]),
            np.ones([2, 3, 2], np.float32),
            np.array([[0], [5]]),
        ]
        names = [target.name, "x"]
        done, _ = self._check(
            before, features, dict.fromkeys(names, np.arange(7))
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Keras's, about masks.
            done.model(features)

    def test_frozen_and_initialized_otherwise(self):
        inputs, rows = _ids()
        frozen = _LAYERS.Embedding(
            7,
            2,
            trainable=False,
            embeddings_initializer="glorot_uniform",
            name="frozen",
        )
        parts = [_LAYERS.Flatten()(one(inputs)) for one in (rows, frozen)]
        before = keras.Model(inputs, _LAYERS.Add()(parts))
        before.compile("sgd", "mse")
        done = tf_ext.convert.model_from_keras(before)
        fixed, trained = sorted(
            done.model.tables, key=lambda table: table.trainable
        )
        self.assertEqual((trained.trainable, fixed.trainable), (True, False))
        self.assertEqual(fixed.initializer, tf_ext.initializers.Uniform())
        self.assertIn("GlorotUniform", done.notes[0])
        weights = fixed.export_rows()[1]["weights"]
        done.model.fit(np.array([[1]]), np.array([[1.0, 0.0]]), verbose=0)
        self.assertAllEqual(fixed.export_rows()[1]["weights"], weights)

    def test_another_rule(self):
        inputs, rows = _ids()
        outputs = _LAYERS.Dense(1)(_LAYERS.Flatten()(rows(inputs)))
        before = keras.Model(inputs, outputs)
        before.compile(
            keras.optimizers.Nadam(clipnorm=1.0),
            keras.losses.MeanSquaredError(),
            metrics=[keras.metrics.MeanAbsoluteError(name="error")],
        )
        done = tf_ext.convert.model_from_keras(before, "adam", "zeros")
        [table] = done.model.tables
        self.assertEqual(type(table.optimizer).__name__, "SparseAdam")
        self.assertEqual(table.unknown, "zeros")
        self.assertIn("the model's Nadam", done.notes[0])
        logs = done.model.fit(np.array([[1]]), np.array([[1.0]]), verbose=0)
        self.assertIn("error", logs.history)
        back = tf_ext.convert.model_to_keras(done.model, {"x": np.arange(7)})
        self.assertEqual(back.model.optimizer.clipnorm, 1.0)
        self.assertIn("start from their initial values in Keras", back.notes[0])

    @parameterized.parameters(1, 3)
    def test_unknown_values_predict_as_in_keras(self, unknown):
        names = keras.Input((1,), dtype="string", name="names")
        numbers = keras.Input((2,), dtype="int64", name="numbers")
        bins = keras.Input((1,), dtype="int64", name="bins")
        rows = [
            _LAYERS.Embedding(4, 2)(
                _LAYERS.StringLookup(vocabulary=["a", "b"])(names)
            ),
            _LAYERS.Embedding(2 + unknown, 2)(
                _LAYERS.IntegerLookup(
                    vocabulary=[7, -9], num_oov_indices=unknown
                )(numbers)
            ),
            _LAYERS.Embedding(5, 2, name="hashed")(_LAYERS.Hashing(5)(bins)),
        ]
        outputs = _LAYERS.Dense(1)(
            _LAYERS.Concatenate()(
                [
                    _LAYERS.Flatten()(rows[0]),
                    _LAYERS.GlobalAveragePooling1D()(rows[1]),
                    _LAYERS.Flatten()(rows[2]),
                ]
            )
        )
        before = keras.Model([names, numbers, bins], outputs)
        before.compile(keras.optimizers.Adagrad(0.1), "mse")
        features = {
            "names": tf.constant([["a"], ["c"], ["[UNK]"], ["b"]]),
            "numbers": tf.constant([[7, 8], [1, 2], [-3, -9], [-4, 2**40]]),
            "bins": tf.constant([[1], [2], [3], [400]]),
        }
        labels = tf.constant([[1.0], [0.0], [1.0], [2.0]])
        before.train_on_batch(features, labels)
        done, _ = self._check(
            before,
            features,
            {"names": ["a", "b"], "numbers": [7, -9], "hashed": range(5)},
            unknown="shared",
        )
        self.assertLen(done.model.tables, 3)
        self.assertEqual(
            sorted(table.shared_rows for table in done.model.tables),
            sorted([0, 1, unknown]),
        )
        self.assertEqual(done.notes, ())

    def test_rows_of_no_vocabulary_are_counted(self):
        inputs, rows = _ids()
        before = keras.Model(inputs, _LAYERS.Flatten()(rows(inputs)))
        done = tf_ext.convert.model_from_keras(before)
        back = tf_ext.convert.model_to_keras(done.model, {"x": [0, 1, 99]})
        self.assertEqual(back.left, {"embeddings": 5})
        self.assertIn("5 rows of table 'embeddings' are of", back.notes[0])

    @parameterized.parameters("sum", "mean", "sqrtn")
    def test_combiners_of_tables(self, combiner):
        for missing in (None, "-"):
            column = tf_ext.feature_column.category_column(
                "x", combiner=combiner, missing=missing
            )
            other = tf_ext.feature_column.category_column("y")
            table = tf_ext.SparseTable("rows", 2)
            inputs = {
                "x": keras.Input((3,), dtype="string", name="x"),
                "y": keras.Input((), dtype="int64", name="y"),
            }
            layer = tf_ext.layers.EmbeddingFeatures([column, other], table)
            model = tf_ext.Model(inputs, layer(inputs))
            features = {
                "x": tf.constant([["a", "b", "b"], ["a", "c", "a"]]),
                "y": tf.constant([1, 2], tf.int64),
            }
            model(features, training=True)
            if missing:
                features["x"] = tf.constant([["a", "-", "b"], ["-"] * 3])
            back = tf_ext.convert.model_to_keras(
                model, {"x": ["a", "b", "c"], "y": [1, 2]}
            )
            self.assertAllClose(
                back.model(features), model(features), 1e-6, 1e-6
            )


class RefusalsTest(TestCase):
    def _refuses(self, words, *model, **options):
        if len(model) == 2:
            model = [keras.Model(*model)]
        with self.assertRaisesRegex(ValueError, words):
            tf_ext.convert.model_from_keras(*model, **options)

    def test_other_models(self):
        self._refuses("`model` of model_from_keras must be a functional", 5)
        self._refuses("Received: Sequential 's'", keras.Sequential(name="s"))
        inputs = keras.Input((3,))
        dense = _LAYERS.Dense(1)
        self._refuses("must have a layer keras.layers", inputs, dense(inputs))
        ids, rows = _ids()
        inner = keras.Model(ids, rows(ids), name="inner")
        outer = inner(ids) + rows(ids)
        self._refuses("'rows_of_x' inside of model 'inner'", ids, outer)

    def test_other_embeddings(self):
        class Own(_LAYERS.Embedding):
            pass

        def refuses(layer, words, shape=(1,), lookup=None, **options):
            inputs = keras.Input(shape, dtype="int64", name="x")
            ids = inputs if lookup is None else lookup(inputs)
            self._refuses(words, inputs, layer(ids), **options)

        embedding = _LAYERS.Embedding
        refuses(Own(3, 2, name="own"), "Own 'own' must be one that is an Emb")
        regular = embedding(3, 2, embeddings_regularizer="l2", name="r")
        refuses(regular, "Embedding 'r' must be .* embeddings_regularizer=None")
        refuses(embedding(3, 2), r"\[batch_size\] or \[batch_size, n\]", (2, 2))
        masked = embedding(3, 2, mask_zero=True, name="m")
        refuses(masked, "'m' must be one that has mask_zero=False, or is read")
        refuses(masked, "has mask_zero=False where it reads", ())
        wide = embedding(3, 2, name="wide", dtype="float64")
        refuses(wide, "'wide' must be one that has variables of float32")
        integers = _LAYERS.IntegerLookup(vocabulary=[1])
        refuses(masked, "with mask_token=None", lookup=integers)
        refuses(
            embedding(1, 2, name="e"),
            "whose largest is 1. Received: layer 'e' with input_dim=1",
            lookup=integers,
        )

    def test_ids_that_embeddings_make(self):
        inputs, rows = _ids(shape=())
        ids = _LAYERS.Dense(1)(rows(inputs))
        outputs = _LAYERS.Embedding(3, 2)(ids)
        self._refuses("'rows_of_x' .* not make ids of others", inputs, outputs)

    def test_rows_of_two_vocabularies(self):
        inputs, rows = _ids(shape=())
        lookups = [_LAYERS.IntegerLookup(vocabulary=[i]) for i in (1, 2)]
        outputs = _LAYERS.Add()([rows(one(inputs)) for one in lookups])
        self._refuses("is called behind one lookup layer", inputs, outputs)

    def test_layers_that_cannot_be_copied(self):
        class Own(_LAYERS.Layer):
            def __init__(self, size):
                super().__init__(name="own")
                self.inner = _LAYERS.Dense(size)

            def build(self, shape):
                self.inner.build(shape)
                super().build(shape)

            def call(self, inputs):
                return self.inner(inputs)

            def compute_output_shape(self, shape):
                return (*shape[:-1], 2)

            def get_config(self):
                return {}

        inputs, rows = _ids(shape=())
        outputs = Own(2)(rows(inputs))
        self._refuses("get_config and from_config. .*'own'", inputs, outputs)

    def test_layers_that_are_called_with_variables(self):
        inputs, rows = _ids(shape=())
        outputs = rows(inputs)
        variable = _LAYERS.Dense(2)
        variable.build((None, 2))
        variable = variable.bias
        scaled = outputs * variable if IS_KERAS_3 else outputs + variable
        self._refuses("are called with variables of others", inputs, scaled)

    def test_losses_that_cannot_be_copied(self):
        inputs, rows = _ids(shape=())
        model = keras.Model(inputs, rows(inputs))
        model.compile("sgd", lambda y, p: tf.reduce_mean(y - p))
        self._refuses("register_keras_serializable. .* loss=", model)

    def test_other_optimizers(self):
        inputs, rows = _ids(shape=())
        model = keras.Model(inputs, rows(inputs), name="nadam")
        model.compile("nadam", "mse")
        words = "`optimizer` of model_from_keras must be a rule .* with Nadam"
        self._refuses(words, model)
        words = "`unknown` of SparseTable"
        self._refuses(words, model, optimizer="adam", unknown="no")


if __name__ == "__main__":
    tf.test.main()
