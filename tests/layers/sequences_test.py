# SPDX-License-Identifier: Apache-2.0
"""Sequences through EmbeddingFeatures: outputs, masks, rows and gradients."""

import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import sequence_models as sequences
from models.model_building import id_column

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.feature_column import category_column, sequence_category_column
from tf_ext.layers import EmbeddingFeatures

pytestmark = pytest.mark.both_kerases(slow=True)

_HISTORY = [[5, 6, 0, 0], [7, 0, 9, 5], [0, 0, 0, 0]]
_MASK = [[1, 1, 0, 0], [1, 0, 1, 1], [0, 0, 0, 0]]


def _table(name="item", dim=2, **kwargs):
    rule = tf_ext.optimizers.SparseSGD(1.0)
    return tf_ext.SparseTable(name, dim, rule, "normal", **kwargs)


def _features():
    return {"h": tf.constant(_HISTORY), "u": tf.constant([9, 1, 2])}


def _layer(table, *others, weights=None, **kwargs):
    """A layer of the sequence "h", and of other columns."""
    column = id_column("h", missing=0, weights=weights)
    return EmbeddingFeatures(
        [sequence_category_column(column, **kwargs), *others],
        table,
        concatenate=False,
    )


def _mask(tensor):
    return tensor._keras_mask.numpy().astype(int).tolist()


class OutputsTest(tf.test.TestCase, parameterized.TestCase):
    def test_rows_at_their_positions(self):
        table = _table()
        outputs = _layer(table, id_column("u"))(_features())
        self.assertEqual(list(outputs), ["h", "u"])
        self.assertEqual(_mask(outputs["h"]), _MASK)
        rows = table.pull(np.ravel(_HISTORY)).numpy().reshape([3, 4, 2])
        expected = rows * np.array(_MASK)[..., np.newaxis]
        self.assertAllEqual(outputs["h"], expected)
        self.assertAllEqual(outputs["u"], table.pull([9, 1, 2]))
        self.assertIsNone(getattr(outputs["u"], "_keras_mask", None))

    @parameterized.parameters(None, 2, 6)
    def test_padded_equals_ragged_and_sparse(self, max_length):
        layer = _layer(_table(), max_length=max_length)
        ragged = tf.ragged.constant([[5, 6], [7, 0, 9, 5], []])
        expected = layer(_features())["h"]
        self.assertEqual(expected.shape, [3, max_length or 4, 2])
        for feature in (ragged, ragged.to_sparse()):
            output = layer({"h": feature})["h"]
            self.assertAllEqual(output, expected)
            self.assertEqual(_mask(output), _mask(expected))

    def test_ragged_on_request(self):
        output = _layer(_table(), ragged=True)(_features())["h"]
        padded = _layer(_table())(_features())["h"]
        self.assertIsInstance(output, tf.RaggedTensor)
        self.assertAllEqual(output.row_lengths(), [2, 3, 0])
        self.assertAllEqual(output.flat_values, padded[padded._keras_mask])
        self.assertIsNone(_layer(_table(), ragged=True).compute_mask({}))

    def test_tables_and_sequences_of_several_kinds(self):
        deep, wide = _table("deep"), _table("wide", 1)
        history = sequence_category_column(id_column("h", missing=0))
        others = [
            id_column("u"),
            sequence_category_column("tags", max_length=3, name="last_tags"),
        ]
        layer = EmbeddingFeatures(
            {deep: [history, *others], wide: [others[1], history]},
            concatenate=False,
        )
        features = _features() | {
            "tags": tf.ragged.constant([["a"], ["a", "b", "c", "d"], []])
        }
        outputs = layer(features)
        self.assertEqual(list(outputs["deep"]), ["h", "u", "last_tags"])
        self.assertEqual(outputs["wide"]["h"].shape, [3, 4, 1])
        tags = [[1, 0, 0], [1, 1, 1], [0, 0, 0]]
        for of_table in outputs.values():
            self.assertEqual(_mask(of_table["last_tags"]), tags)
            self.assertEqual(_mask(of_table["h"]), _MASK)
        alone = EmbeddingFeatures([others[1]], deep, concatenate=False)
        self.assertAllEqual(
            alone(features)["last_tags"], outputs["deep"]["last_tags"]
        )
        masks = layer.compute_mask(features)
        self.assertIsNone(masks["deep"]["u"])
        self.assertAllEqual(masks["wide"]["h"], _MASK)

    def test_the_mask_of_a_batch_that_does_not_fit(self):
        gap = tf.SparseTensor([[0, 0], [0, 2]], [5, 6], [1, 3])
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "'h', a sequence, must have no gaps"
        ):
            _layer(_table()).compute_mask({"h": gap})

    def test_masks_of_concatenated_sequences(self):
        """docs/sequences.md tells which positions they leave."""
        table = _table()
        other = sequence_category_column(id_column("o", missing=0))
        features = _features() | {"o": tf.constant([[1, 0, 0, 2]] * 3)}
        outputs = _layer(table, other)(features)
        both = [outputs["h"], outputs["o"]]
        unmasked = [outputs["h"], tf.ones([3, 4, 1])]
        some = [[1, 1, 0, 1], [1, 0, 1, 1], [1, 0, 0, 1]]
        each = [[1, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]]
        concatenate = keras.layers.Concatenate()
        for inputs, keras_3, tf_keras in (
            (both, some, each),
            (unmasked, [[1] * 4] * 3, _MASK),
        ):
            mask = concatenate.compute_mask(
                inputs, [getattr(x, "_keras_mask", None) for x in inputs]
            )
            self.assertAllEqual(mask, keras_3 if IS_KERAS_3 else tf_keras)

    def test_in_a_function_of_unknown_sizes(self):
        layer = _layer(_table())
        call = tf.function(
            lambda h: layer({"h": h}),
            input_signature=[tf.TensorSpec([None, None], tf.int32)],
            autograph=False,
        )
        for width in (4, 2, 1):
            history = tf.constant(_HISTORY)[:, :width]
            self.assertAllEqual(call(history)["h"], layer({"h": history})["h"])

    def test_the_type_is_the_compute_type(self):
        column = sequence_category_column("h")
        layer = EmbeddingFeatures(
            [column], _table(), concatenate=False, dtype="mixed_float16"
        )
        output = layer(_features())["h"]
        self.assertEqual(output.dtype, tf.float16)
        self.assertEqual(output._keras_mask.dtype, tf.bool)


class WeightsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        weights = np.arange(12.0, dtype=np.float32).reshape([3, 4]) - 3
        self.features = _features() | {"w": tf.constant(weights)}
        self.weights = (weights * _MASK)[..., np.newaxis]
        self.rows = _layer(_table())(self.features)["h"]

    def test_multiply(self):
        output = _layer(_table(), weights="w")(self.features)["h"]
        self.assertAllEqual(output, self.rows * self.weights)

    def test_are_appended(self):
        layer = _layer(
            _table(), id_column("u"), weights="w", append_weight=True
        )
        output = layer(self.features)["h"]
        self.assertAllEqual(output, tf.concat([self.rows, self.weights], 2))
        shapes = layer.compute_output_shape({"h": (3, 4), "u": (3,)})
        self.assertEqual(tuple(shapes["h"]), (3, None, 3))

    def test_are_appended_to_ragged_outputs(self):
        options = {"append_weight": True, "ragged": True}
        output = _layer(_table(), weights="w", **options)(self.features)["h"]
        self.assertAllEqual(output.row_lengths(), [2, 3, 0])
        kept = tf.concat([self.rows, self.weights], 2)[np.array(_MASK) > 0]
        self.assertAllEqual(output.flat_values, kept)


class TrainingTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("whole", {}, [5, 6, 7, 9]),
        ("last", {"max_length": 2}, [5, 6, 9]),
        ("first", {"max_length": 1, "truncating": "post"}, [5, 7]),
        ("ragged", {"max_length": 2, "ragged": True}, [5, 6, 9]),
    )
    def test_rows_of_what_is_in_the_output(self, kwargs, signs):
        table = _table()
        _layer(table, **kwargs)(_features(), training=True)
        self.assertCountEqual(table.export_rows()[0].tolist(), signs)

    def test_the_gradient_is_summed_by_id(self):
        table = _table()
        layer = _layer(table, id_column("u"))
        features = _features() | {"u": tf.constant([5, 5, 6])}
        before = {i: table.pull([i]).numpy()[0] for i in (5, 6, 7, 9)}
        factors = np.arange(24.0, dtype=np.float32).reshape([3, 4, 2])
        with tf.GradientTape() as tape:
            outputs = layer(features, training=True)
            loss = tf.reduce_sum(outputs["h"] * factors)
            loss += 100.0 * tf.reduce_sum(outputs["u"])
        [shadow] = layer.trainable_variables
        optimizer = tf_ext.optimizers.Optimizer(keras.optimizers.SGD(1.0))
        optimizer.apply_gradients([(tape.gradient(loss, shadow), shadow)])
        gradients = {
            5: factors[0, 0] + factors[1, 3] + 200.0,
            6: factors[0, 1] + 100.0,
            7: factors[1, 0],
            9: factors[1, 2],
        }
        self.assertCountEqual(table.export_rows()[0].tolist(), gradients)
        for sign, gradient in gradients.items():
            self.assertAllClose(
                table.pull([sign])[0], before[sign] - gradient, rtol=1e-6
            )

    def test_statistics_count_positions(self):
        table = _table(statistics=["show", "click"])
        layer = EmbeddingFeatures(
            [
                id_column("u"),
                sequence_category_column(id_column("h", missing=0)),
            ],
            table,
            concatenate=False,
            click="label",
        )
        features = {
            "h": tf.constant([[5, 5, 0], [6, 0, 5]]),
            "u": tf.constant([6, 7]),
            "label": tf.constant([1.0, 0.0]),
        }
        with tf.GradientTape() as tape:
            outputs = layer(features, training=True)
            loss = tf.reduce_sum(outputs["h"]) + tf.reduce_sum(outputs["u"])
        [shadow] = layer.trainable_variables
        optimizer = tf_ext.optimizers.Optimizer(keras.optimizers.SGD(1.0))
        optimizer.apply_gradients([(tape.gradient(loss, shadow), shadow)])
        signs, fields = table.export_rows()
        found = {
            sign: [float(fields[name][i][0]) for name in ("show", "click")]
            for i, sign in enumerate(signs.tolist())
        }
        self.assertEqual(found, {5: [3, 2], 6: [2, 1], 7: [1, 0]})


class KerasTest(tf.test.TestCase):
    def test_masks_reach_layers_of_a_custom_call(self):
        embed = _layer(_table(dim=3))
        gru, dense = keras.layers.GRU(2), keras.layers.Dense(2)
        masked_sum = sequences.MaskedSum()
        # The last positions of a longer history change nothing.
        outputs = [
            (gru(history), masked_sum(dense(history)))
            for history in (
                embed({"h": tf.constant([[5, 6, 0, 0]])})["h"],
                embed({"h": tf.constant([[5, 6]])})["h"],
            )
        ]
        self.assertAllClose(*outputs)

    def test_functional_models_in_files(self):
        inputs = {"h": keras.Input((4,), dtype="int64", name="h")}
        hidden = keras.layers.Dense(2)(_layer(_table())(inputs)["h"])
        model = tf_ext.Model(inputs, sequences.MaskedSum()(hidden))
        features = {"h": _features()["h"]}
        model(features, training=True)
        expected = model(features)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.keras")
            model.save(path)
            again = keras.models.load_model(path)
        self.assertEqual(int(again.tables[0].size()), 4)
        self.assertAllEqual(again(features), expected)
        copy = keras.models.clone_model(model)
        copy.layers[-2].set_weights(model.layers[-2].get_weights())
        # Rows that are absent read their initial weights, as these still are.
        self.assertAllClose(copy(features), expected)

    def test_symbolic_shapes(self):
        inputs = {"h": keras.Input((4,), dtype="int64", name="h")}
        output = _layer(_table(), max_length=3)(inputs)["h"]
        self.assertEqual(tuple(output.shape), (None, 3, 2))
        self.assertEqual(tuple(output._keras_mask.shape), (None, 3))
        output = _layer(_table())(inputs)["h"]
        self.assertEqual(tuple(output.shape), (None, 4, 2))
        one = {"h": keras.Input((), dtype="int64")}
        self.assertEqual(tuple(_layer(_table())(one)["h"].shape), (None, 1, 2))
        for options in ({"ragged": True}, {"sparse": True}):
            some = {"h": keras.Input((None,), dtype="int64", **options)}
            output = _layer(_table())(some)["h"]
            self.assertEqual(tuple(output.shape), (None, None, 2))
        if IS_KERAS_3:
            output = _layer(_table(), ragged=True)(inputs)["h"]
            self.assertTrue(output.ragged)
            self.assertIsNone(getattr(output, "_keras_mask", None))


class ErrorsTest(tf.test.TestCase):
    def test_what_cannot_be(self):
        column = sequence_category_column("h", max_length=3)
        with self.assertRaisesRegex(
            ValueError, r"`concatenate` .* 'h' of shape \[None, 3, 2\]"
        ):
            EmbeddingFeatures([column], _table())
        table = _table(statistics=["show", "click"])
        with self.assertRaisesRegex(ValueError, "`cvm` .* column 'h'"):
            EmbeddingFeatures([column], table, concatenate=False, cvm=True)
        with self.assertRaisesRegex(ValueError, "two columns 'h'"):
            EmbeddingFeatures(
                [column, category_column("h")], _table(), concatenate=False
            )


if __name__ == "__main__":
    tf.test.main()
