# SPDX-License-Identifier: Apache-2.0
"""Columns of classes that tf_ext does not know, through EmbeddingFeatures."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_ext
from tf_ext._keras import keras
from tf_ext.feature_column import (
    Column,
    Part,
    category_column,
    columns_to_bags,
    crossed_column,
    sequence_category_column,
)
from tf_ext.layers import EmbeddingFeatures

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "OutputsTest::test_in_a_function_of_unknown_batch_size",
    ),
]

_TAGS = [["a", "b", "c"], [], ["b"]]
_USERS = ["ann", "bob", "ann"]


@dataclasses.dataclass(frozen=True)
class _OwnColumn(Column):
    """A column of one feature whose rows are not combined."""

    key: str
    weights: str | None = None

    combiner = None

    @property
    def name(self):
        return self.key

    @property
    def parts(self):
        return (category_column(self.key, weights=self.weights),)

    @property
    def namespace(self):
        return self.key


@keras.utils.register_keras_serializable(package="own_column_test")
@dataclasses.dataclass(frozen=True)
class _First(_OwnColumn):
    """The first rows of each bag, then zeros: `[batch_size, length, dim]`."""

    length: int = 2

    def output_shape(self, dim):
        return (self.length, dim)

    def arrange(self, rows, row_splits, weights):
        if weights is not None:
            rows *= weights[:, tf.newaxis]
        ragged = tf.RaggedTensor.from_row_splits(rows, row_splits)
        return ragged[:, : self.length].to_tensor(
            shape=[None, self.length, rows.shape[1]]
        )


class _AllOf(_First):
    """As many rows as the longest bag has: `[batch_size, None, dim]`."""

    def output_shape(self, dim):
        return (None, dim)

    def arrange(self, rows, row_splits, weights):
        assert weights is None
        return tf.RaggedTensor.from_row_splits(rows, row_splits).to_tensor()


class _Ends(_OwnColumn):
    """The sum of a bag and its largest values: `[batch_size, 2 * dim]`."""

    def output_shape(self, dim):
        return (2 * dim,)

    def arrange(self, rows, row_splits, weights):
        ragged = tf.RaggedTensor.from_row_splits(rows, row_splits)
        is_empty = tf.equal(ragged.row_lengths(), 0)[:, tf.newaxis]
        largest = tf.where(is_empty, 0.0, tf.reduce_max(ragged, 1))
        return tf.concat([tf.reduce_sum(ragged, 1), largest], 1)


class _Other(_First):
    """One that does not keep to the shape that it promises."""

    def output_shape(self, dim):
        return (self.length + 1, dim)


class _Picky(_First):
    """One that needs more of a batch than its feature's type."""

    def check(self, inputs):
        super().check(inputs)
        if len(inputs[self.key].shape) != 2:
            raise ValueError(f"Column {self.name!r} needs bags.")


@dataclasses.dataclass(frozen=True)
class _LowerCase(Part):
    """Texts without regard to case."""

    key: str
    conversion = "lower case"

    def convert(self, values):
        return tf.strings.lower(super().convert(values))


@keras.utils.register_keras_serializable(package="own_column_test")
@dataclasses.dataclass(frozen=True)
class _Word(_OwnColumn):
    """A column whose values are converted."""

    combiner = "sum"

    @property
    def name(self):
        return f"{self.key}_word"

    @property
    def parts(self):
        return (_LowerCase(self.key),)


def _table(name="deep", dim=2):
    return tf_ext.SparseTable(
        name, dim, tf_ext.optimizers.SparseSGD(), "normal"
    )


def _features():
    return {"user": tf.constant(_USERS), "tags": tf.ragged.constant(_TAGS)}


def _pooled(table, features, **kwargs):
    """The sums of tags' rows and user's rows, and tags' largest values."""
    columns = [category_column("user"), category_column("tags", **kwargs)]
    layer = EmbeddingFeatures(columns, table, concatenate=False)
    return layer(features)


class OutputsTest(tf.test.TestCase, parameterized.TestCase):
    def _check_first(self, first, sums):
        self.assertEqual(first.shape, [3, 2, 2])
        self.assertAllEqual(first[1], np.zeros([2, 2]))
        self.assertAllEqual(first[2], [sums[2], [0, 0]])
        self.assertAllEqual(first[0, 1], sums[2])  # "b" in both bags
        self.assertNotAllEqual(first[0, 0], first[0, 1])

    @parameterized.named_parameters(
        ("alone", []),
        ("last", ["user"]),
        ("between", ["user", "tags_after"]),
    )
    def test_not_pooled_beside_pooled(self, others):
        table = _table()
        features = _features() | {"tags_after": tf.constant([["x"]] * 3)}
        columns = [category_column(key) for key in others]
        columns.insert(1, _First("tags"))
        outputs = EmbeddingFeatures(columns, table, concatenate=False)(features)
        self.assertEqual(list(outputs), [column.name for column in columns])
        pooled = _pooled(table, features)
        self._check_first(outputs["tags"], pooled["tags"])
        if others:
            self.assertAllEqual(outputs["user"], pooled["user"])
        for key in others:
            self.assertEqual(outputs[key].shape, [3, 2])

    def test_another_width_is_concatenated(self):
        table, features = _table(), _features()
        columns = [_Ends("tags"), category_column("user")]
        output = EmbeddingFeatures(columns, table)(features)
        self.assertEqual(output.shape, [3, 6])
        sums = _pooled(table, features)
        largest = _pooled(table, features, combiner="max")
        self.assertAllClose(output[:, :2], sums["tags"])
        self.assertAllEqual(output[:, 2:4], largest["tags"])
        self.assertAllEqual(output[:, 4:], sums["user"])

    def test_in_a_function_of_unknown_batch_size(self):
        layer = EmbeddingFeatures([_AllOf("tags")], _table(), concatenate=False)
        tags = tf.ragged.constant(_TAGS)
        call = tf.function(
            lambda tags: layer({"tags": tags}),
            input_signature=[tf.RaggedTensorSpec([None, None], tf.string)],
        )
        self.assertEqual(call(tags)["tags"].shape, [3, 3, 2])
        self.assertEqual(call(tags[1:])["tags"].shape, [2, 1, 2])
        self.assertAllEqual(call(tags)["tags"], layer({"tags": tags})["tags"])

    def test_on_several_tables(self):
        deep, wide = _table(), _table("wide", 1)
        columns = [_First("tags"), category_column("user")]
        features = _features()
        layer = EmbeddingFeatures(
            {deep: columns, wide: columns[:1]}, concatenate=False
        )
        outputs = layer(features)
        self._check_first(
            outputs["deep"]["tags"], _pooled(deep, features)["tags"]
        )
        self.assertEqual(outputs["wide"]["tags"].shape, [3, 2, 1])

    def test_weights_are_handed_over(self):
        table, features = _table(), _features()
        features["w"] = tf.ragged.constant([[2.0, 3.0, 4.0], [], [5.0]])
        columns = [category_column("user"), _First("tags", "w")]
        layer = EmbeddingFeatures(columns, table, concatenate=False)
        plain = EmbeddingFeatures([_First("tags")], table, concatenate=False)
        weights = [[[2.0], [3.0]], [[0.0], [0.0]], [[5.0], [0.0]]]
        outputs = layer(features)
        self.assertAllEqual(outputs["tags"], plain(features)["tags"] * weights)
        self.assertAllEqual(outputs["user"], _pooled(table, features)["user"])

    def test_weights_of_others_are_not(self):
        features = _features() | {"w": tf.constant([1.0, 2.0, 3.0])}
        columns = [category_column("user", weights="w"), _AllOf("tags")]
        outputs = EmbeddingFeatures(columns, _table(), concatenate=False)(
            features
        )
        self.assertEqual(outputs["tags"].shape, [3, 3, 2])

    def test_rows_are_trained(self):
        features = {"tags": tf.ragged.constant(_TAGS)}
        rows = []
        for column in (_AllOf("tags"), category_column("tags")):
            table = _table()
            layer = EmbeddingFeatures([column], table, concatenate=False)
            optimizer = tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.5))
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(features, training=True)["tags"])
            variables = layer.trainable_variables
            optimizer.apply_gradients(
                zip(tape.gradient(loss, variables), variables)
            )
            self.assertEqual(int(table.size()), 3)
            rows.append(layer(features)["tags"])
        self.assertAllClose(tf.reduce_sum(rows[0], 1), rows[1])

    def test_symbolic_inputs(self):
        inputs = {
            "user": keras.Input((), name="user", dtype="string"),
            "tags": keras.Input((3,), name="tags", dtype="string"),
        }
        columns = [category_column("user"), _First("tags")]
        layer = EmbeddingFeatures(columns, _table(), concatenate=False)
        outputs = layer(inputs)
        self.assertEqual(tuple(outputs["user"].shape), (None, 2))
        self.assertEqual(tuple(outputs["tags"].shape), (None, 2, 2))
        shapes = layer.compute_output_shape(
            {"user": (None,), "tags": (None, 3)}
        )
        self.assertEqual(tuple(shapes["tags"]), (None, 2, 2))

    def test_the_type_is_the_compute_type(self):
        layer = EmbeddingFeatures(
            [_First("tags")], _table(), concatenate=False, dtype="mixed_float16"
        )
        self.assertEqual(layer(_features())["tags"].dtype, tf.float16)


class ConvertedTest(tf.test.TestCase):
    """A part of its own, through what takes columns."""

    def _signs(self, column, **features):
        tensors = {key: tf.constant(one) for key, one in features.items()}
        return columns_to_bags([column], tensors).signs

    def test_values_are_converted(self):
        found = self._signs(_Word("user"), user=["Ann", "ANN", "bob"])
        wanted = self._signs(
            category_column("user"), user=["ann", "ann", "bob"]
        )
        self.assertAllEqual(found, wanted)
        self.assertAllEqual(_Word("user").signs(["Ann", "ANN", "bob"]), wanted)

    def test_beside_a_column_of_the_same_values(self):
        columns = [category_column("user"), _Word("user"), _Word("tags")]
        features = {
            "user": tf.constant(["Ann", "ann"]),
            "tags": tf.ragged.constant([["B", "b"], []]),
        }
        table = _table()
        layer = EmbeddingFeatures(columns, table, concatenate=False)
        raw = layer(features)
        self.assertNotAllEqual(raw["user"][0], raw["user"][1])
        self.assertAllEqual(raw["user_word"][0], raw["user_word"][1])
        self.assertAllEqual(raw["user_word"][1], raw["user"][1])
        [hashed] = tf_ext.data.hash_columns(
            tf.data.Dataset.from_tensors(features), columns
        )
        for name, output in layer(hashed).items():
            self.assertAllEqual(output, raw[name])

    def test_in_a_cross(self):
        cross = crossed_column(["item", _Word("user")])
        plain = crossed_column(["item", "user"], namespace=cross.namespace)
        users = ["Ann", "bob"]
        found = self._signs(cross, item=[1, 2], user=users)
        wanted = self._signs(plain, item=[1, 2], user=["ann", "bob"])
        self.assertAllEqual(found, wanted)
        self.assertEqual(cross.name, "item_X_user_word")
        self.assertNotEqual(cross.hashing_identity, plain.hashing_identity)
        again = type(cross).from_config(cross.get_config())
        self.assertEqual(again, cross)
        with self.assertRaisesRegex(ValueError, "columns of category_column"):
            crossed_column(["item", _First("user")])

    def test_in_a_sequence(self):
        column = sequence_category_column(_Word("tags"), max_length=2)
        table = _table()
        layer = EmbeddingFeatures([column], table, concatenate=False)
        tags = tf.ragged.constant([["a", "B", "c"], []])
        found = layer({"tags": tags})["tags_word"]
        pooled = EmbeddingFeatures([category_column("tags")], table)
        self.assertAllEqual(found[0], pooled({"tags": tf.constant(["b", "c"])}))
        self.assertAllEqual(found[1], np.zeros([2, 2]))
        again = type(column).from_config(column.get_config())
        self.assertEqual(again, column)
        with self.assertRaisesRegex(ValueError, "column of category_column"):
            sequence_category_column(_First("user"))

    def test_is_not_converted_to_keras(self):
        with self.assertRaisesRegex(ValueError, "conversion=None.*lower case"):
            tf_ext.convert.to_keras(_table(), _Word("user"), ["ann"])


class ErrorsTest(tf.test.TestCase):
    def test_what_cannot_be_concatenated(self):
        for column, shape in (
            (_First("tags"), r"\[None, 2, 2\]"),
            (_AllOf("tags"), r"\[None, None, 2\]"),
        ):
            with self.assertRaisesRegex(
                ValueError,
                "Argument `concatenate` of EmbeddingFeatures must be False for "
                r"outputs of other shapes than \[batch_size, width\]. "
                "Received: "
                f"concatenate=True, and column 'tags' of shape {shape}",
            ):
                EmbeddingFeatures([category_column("user"), column], _table())

    def test_another_shape_than_promised(self):
        layer = EmbeddingFeatures([_Other("tags")], _table(), concatenate=False)
        with self.assertRaisesRegex(
            ValueError,
            r"`arrange` of column 'tags' must return a tensor of shape "
            r"\[None, 3, 2\], .*Received: a tensor of shape \(3, 2, 2\)",
        ):
            layer(_features())

    def test_nothing_arranged(self):
        layer = EmbeddingFeatures(
            [_OwnColumn("tags")], _table(), concatenate=False
        )
        with self.assertRaisesRegex(
            NotImplementedError, "'tags' has combiner=None, so _OwnColumn must"
        ):
            layer(_features())

    def test_needs_of_its_own(self):
        layer = EmbeddingFeatures([_Picky("tags")], _table(), concatenate=False)
        for inputs in (
            {"tags": tf.constant(["a", "b"])},
            {"tags": np.array(["a", "b"])},
            {"tags": keras.Input((), dtype="string")},
        ):
            with self.assertRaisesRegex(ValueError, "'tags' needs bags"):
                layer(inputs)
        self.assertEqual(layer(_features())["tags"].shape, [3, 2, 2])

    def test_an_interface_that_is_half_there(self):
        class Half(Column):
            name = "half"

        with self.assertRaisesRegex(TypeError, "abstract.*combiner"):
            Half()


class SavingTest(tf.test.TestCase):
    def test_survives_its_configuration(self):
        layer = EmbeddingFeatures(
            [_First("tags", length=3)], _table(), concatenate=False
        )
        again = EmbeddingFeatures.from_config(layer.get_config())
        self.assertEqual(again.columns, layer.columns)
        self.assertEqual(again(_features())["tags"].shape, [3, 3, 2])

    def test_is_in_the_tables_record(self):
        table = _table()
        EmbeddingFeatures([_First("tags")], table, concatenate=False)
        self.assertEqual(table.column_record.names, ["tags"])
        with self.assertNoLogs("tf_ext", "WARNING"):
            table.column_record.restore(
                '[["tags", "{\\"namespace\\": \\"tags\\"}"]]'
            )


if __name__ == "__main__":
    tf.test.main()
