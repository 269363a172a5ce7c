# SPDX-License-Identifier: Apache-2.0
"""What served models take and give, as tensors by name."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from saving_util import TestCase

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.regimes.placement import Placement
from tf_ext.serving.signature import (
    Signature,
    infer,
    name_outputs,
    of_model,
)

pytestmark = pytest.mark.both_kerases(slow=True)

_BAGS = tf.ragged.constant([[[1, 2], []], [], [[3]]], ragged_rank=2)
_WORDS = tf.ragged.constant([["a"], [], ["b", "c"]], row_splits_dtype="int32")
_CLICKS = tf.SparseTensor([[0, 3], [2, 0]], [5, 7], [3, 4])


def _signature(batch):
    return Signature(infer(None, batch, None))


class NamesTest(parameterized.TestCase):
    def test_tensors_of_composites(self):
        batch = {
            "bags": _BAGS,
            "words": _WORDS,
            "deep": {"clicks": _CLICKS, "x": tf.zeros([3, 2])},
        }
        signature = _signature(batch)
        found = {
            name: (spec.dtype.name, spec.shape.as_list())
            for name, spec in signature.tensors.items()
        }
        self.assertEqual(
            found,
            {
                "bags/values": ("int32", [None]),
                "bags/row_splits_0": ("int64", [None]),
                "bags/row_splits_1": ("int64", [None]),
                "words/values": ("string", [None]),
                "words/row_splits": ("int32", [None]),
                "deep/clicks/indices": ("int64", [None, 2]),
                "deep/clicks/values": ("int32", [None]),
                "deep/clicks/dense_shape": ("int64", [2]),
                "deep/x": ("float32", [None, 2]),
            },
        )
        tensors = signature.unpack(batch)
        # The outermost first.
        np.testing.assert_array_equal(
            tensors["bags/row_splits_0"], [0, 2, 2, 3]
        )
        np.testing.assert_array_equal(
            tensors["bags/row_splits_1"], [0, 2, 2, 3]
        )
        np.testing.assert_array_equal(
            tensors["deep/clicks/dense_shape"], [3, 4]
        )
        packed = signature.pack(tensors)
        self.assertEqual(packed["bags"].to_list(), _BAGS.to_list())
        self.assertEqual(packed["words"].to_list(), _WORDS.to_list())
        np.testing.assert_array_equal(
            tf.sparse.to_dense(packed["deep"]["clicks"]),
            tf.sparse.to_dense(_CLICKS),
        )

    def test_two_ragged_dimensions_that_differ(self):
        bags = tf.ragged.constant([[[1], [2], [3]], [[4]]])
        tensors = _signature({"b": bags}).unpack({"b": bags})
        np.testing.assert_array_equal(tensors["b/row_splits_0"], [0, 3, 4])
        np.testing.assert_array_equal(
            tensors["b/row_splits_1"], [0, 1, 2, 3, 4]
        )

    def test_the_static_shape_of_sparse_tensors_stays(self):
        signature = _signature({"clicks": _CLICKS})

        @tf.function(input_signature=[signature.tensors])
        def shape(tensors):
            packed = signature.pack(tensors)["clicks"]
            self.assertEqual(packed.shape.as_list(), [None, 4])
            return packed.values

        shape.get_concrete_function()

    def test_row_splits_of_a_client_are_checked(self):
        signature = _signature({"words": _WORDS})
        tensors = signature.unpack({"words": _WORDS})
        tensors["words/row_splits"] = tf.constant([0, 5, 1, 3])
        with self.assertRaises(tf.errors.InvalidArgumentError):
            signature.pack(tensors)

    @parameterized.parameters(
        ("prix d'été", "prix_d__t_"),
        ("_user", "arg_user"),
        ("a-b.c/d", "a-b.c/d"),
    )
    def test_what_tensorflow_does_not_take_in_a_name(self, name, wanted):
        self.assertEqual(
            list(_signature({name: tf.zeros([1])}).tensors), [wanted]
        )

    @parameterized.parameters(
        ({"a b": tf.zeros([1]), "a_b": tf.zeros([1])},),
        ({"t": _WORDS, "t_values": tf.zeros([1])},),
        ({"a": {"b": tf.zeros([1])}, "a/b": tf.zeros([1])},),
    )
    def test_inputs_that_would_be_called_alike(self, batch):
        with self.assertRaisesRegex(ValueError, "would have the same name"):
            _signature(batch)

    def test_outputs(self):
        one = tf.zeros([1])
        for outputs, names in (
            (one, ["output_0"]),
            ([one, one], ["output_0", "output_1"]),
            (
                {"a": [one, {"b": one}], "c": _WORDS},
                ["a/output_0", "a/output_1/b", "c/row_splits", "c/values"],
            ),
        ):
            self.assertEqual(sorted(name_outputs(outputs)), names)


class InferTest(absltest.TestCase):
    def test_any_batch_size(self):
        [spec] = _signature({"x": tf.zeros([5, 2])}).tensors.values()
        self.assertEqual(spec.shape.as_list(), [None, 2])
        [spec] = _signature({"x": tf.zeros([])}).tensors.values()
        self.assertEqual(spec.shape.as_list(), [])

    def test_sequential_models_and_batches(self):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        spec = infer(model, None, None)
        self.assertEqual(spec.shape.as_list(), [None, 3])

        class Own(keras.Model):
            def call(self, inputs):
                return inputs["x"]

        own, batch = Own(), {"x": np.ones([4, 2], np.int32)}
        spec = infer(own, None, batch)["x"]
        self.assertEqual(
            (spec.shape.as_list(), spec.dtype), ([None, 2], "int32")
        )
        spec = infer(own, {"x": tf.TensorSpec([4, 9])}, batch)["x"]
        self.assertEqual(spec.shape.as_list(), [None, 9])
        with self.assertRaisesRegex(ValueError, "pass `signature`"):
            infer(own, None, None)

    @pytest.mark.skipif(IS_KERAS_3, reason="it saves no spec of a call")
    def test_what_a_subclassed_model_was_called_with(self):
        class Own(keras.Model):
            def call(self, inputs):
                return inputs["x"]

        own = Own()
        own({"x": np.ones([4, 2], np.int32)})
        spec = infer(own, None, None)["x"]
        self.assertEqual(
            (spec.shape.as_list(), spec.dtype), ([None, 2], "int32")
        )

    def test_a_model_that_was_not_called(self):
        class Own(tf_ext.Model):
            def call(self, inputs):
                return inputs["x"] + inputs["clicks"]

        own = Own()
        batch = {"x": np.ones([4, 2], np.float32), "clicks": [0.0, 1.0]}
        found = of_model(own, None, batch)
        shapes = {k: one.shape.as_list() for k, one in found.tensors.items()}
        self.assertEqual(shapes, {"x": [None, 2], "clicks": [None]})
        # What the user says counts more than a batch.
        given = {"x": tf.TensorSpec([4, 9])}
        self.assertEqual(list(of_model(own, given, batch).tensors), ["x"])
        with self.assertRaisesRegex(ValueError, "inputs are unknown"):
            of_model(own, None, None)

    def test_bags_of_a_model_that_is_built_under_a_strategy(self):
        """There Keras 3 builds it with dense tensors."""

        class Own(tf_ext.Model):
            def __init__(self):
                super().__init__()
                tags = tf_ext.feature_column.category_column("tags")
                table = tf_ext.SparseTable("tags", 2)
                self.rows = tf_ext.layers.EmbeddingFeatures([tags], table)

            def call(self, inputs):
                return self.rows(inputs)

        with tf.distribute.OneDeviceStrategy("cpu:0").scope():
            own = Own()
            own.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        tags = tf.ragged.constant([[1], [], [2, 3]], tf.int64)
        data = tf.data.Dataset.from_tensors(({"tags": tags}, np.ones([3, 2])))
        own.fit(data, verbose=0)
        [spec] = infer(own, None, None).values()
        self.assertIsInstance(spec, tf.RaggedTensorSpec)


class CopyTest(TestCase):
    def test_ragged_inputs_of_models_of_several_processes(self):
        """The first process exports a copy of such a model."""
        tags = tf_ext.feature_column.category_column("tags")
        table = tf_ext.SparseTable("tags", 2, initializer="normal")
        inputs = {"tags": keras.Input([None], dtype="int64", ragged=True)}
        layer = tf_ext.layers.EmbeddingFeatures([tags], table)
        model = tf_ext.Model(inputs, layer(inputs))
        batch = {"tags": tf.ragged.constant([[1], [], [2, 3]], tf.int64)}
        expected = model(batch)
        with mock.patch.object(Placement, "has_all", False):
            path = tf_ext.serving.export(model, self.directory())
        serve = tf.saved_model.load(path).signatures["serving_default"]
        [found] = serve(
            tags_values=batch["tags"].values,
            tags_row_splits=batch["tags"].row_splits,
        ).values()
        self.assertAllClose(found, expected)


class ConvertTest(absltest.TestCase):
    def _convert(self, spec, value):
        return Signature({"x": spec}).convert({"x": value, "more": 1})["x"]

    def test_to_what_the_model_takes(self):
        words = self._convert(
            tf.RaggedTensorSpec([None, None], tf.string, 1, tf.int64), _WORDS
        )
        self.assertEqual(words.row_splits.dtype, tf.int64)
        ragged = self._convert(
            tf.RaggedTensorSpec([None, None], tf.int64, 1),
            np.ones([2, 3], np.int64),
        )
        self.assertEqual(ragged.to_list(), [[1, 1, 1]] * 2)
        sparse = self._convert(
            tf.SparseTensorSpec([None, 2], tf.int64), np.array([[0, 4], [5, 0]])
        )
        self.assertEqual(sparse.values.numpy().tolist(), [4, 5])
        column = self._convert(tf.TensorSpec([None, 1]), np.arange(3))
        self.assertEqual((column.shape, column.dtype), ([3, 1], tf.float32))

    def test_lists_and_tuples_of_inputs(self):
        for kind in (list, tuple):
            specs = kind([tf.TensorSpec([None]), tf.TensorSpec([None, 1])])
            values = kind([np.arange(3), np.arange(3)])
            found = self._convert(specs, values)
            self.assertIsInstance(found, kind)
            self.assertEqual([list(one.shape) for one in found], [[3], [3, 1]])
            for wrong in (values[:1], values + values):
                with self.assertRaisesRegex(
                    ValueError, f"hold the 2 inputs .* Received: {len(wrong)}"
                ):
                    self._convert(specs, kind(wrong))
            with self.assertRaisesRegex(ValueError, "2 inputs .*: 1.5"):
                self._convert(specs, 1.5)

    def test_hashed_features_do_not_tell_the_inputs(self):
        class Subclassed(tf_ext.Model):
            def call(self, inputs):
                return inputs["x"]

        column = tf_ext.feature_column.category_column("id")
        raw = {"id": tf.constant(["a", "b"]), "x": tf.zeros([2])}
        data = tf.data.Dataset.from_tensors(raw)
        [hashed] = tf_ext.data.hash_columns(data, [column])
        self.assertEqual(list(infer(Subclassed(), None, raw)), ["id", "x"])
        with self.assertRaisesRegex(
            ValueError, "inputs are unknown. .* or `warmup`, raw features"
        ):
            infer(Subclassed(), None, hashed)

    def test_what_it_does_not_take(self):
        for spec, value in (
            (tf.TensorSpec([None], tf.int64), np.array(["a"])),
            (tf.TensorSpec([None], tf.int64), np.array([0.5])),
            (tf.TensorSpec([None], tf.string), np.array([1])),
            (tf.TensorSpec([None, 2]), np.ones([3, 4])),
            (tf.TensorSpec([None]), _WORDS),
        ):
            with self.assertRaisesRegex(
                ValueError, "`warmup` must be a batch that the model takes"
            ):
                self._convert(spec, value)
        with self.assertRaisesRegex(ValueError, "must hold the input 'x' of"):
            Signature({"x": tf.TensorSpec([None])}).convert({"y": [1.0]})


if __name__ == "__main__":
    absltest.main()
