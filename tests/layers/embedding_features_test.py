# SPDX-License-Identifier: Apache-2.0
import collections

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import generator, id_column, rows_of

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.feature_column import category_column, crossed_column
from tf_ext.layers import EmbeddingFeatures

pytestmark = [
    pytest.mark.both_kerases,
    pytest.mark.slow_tests(
        "FunctionalTest::test_inputs_of_keras_sparse",
        "InputsTest::test_a_batch_without_weights0",
    ),
]

_IDS = np.array([[3, 7], [3, 3], [-1, 5]])


def _table(name="deep", dim=2, initializer="normal", optimizer=None, **kwargs):
    rule = optimizer or tf_ext.optimizers.SparseSGD()  # at the model's rate
    return tf_ext.SparseTable(name, dim, rule, initializer, **kwargs)


def _layer(*columns, table=None, **kwargs):
    return EmbeddingFeatures(list(columns), table or _table(), **kwargs)


def _user_and_tags(**kwargs):
    return _layer(category_column("user"), category_column("tags"), **kwargs)


def _traced_ops(layer, features):
    """The operations of a layer's call by type."""
    features = tf.nest.map_structure(tf.convert_to_tensor, features)
    graph = tf.function(layer).get_concrete_function(features).graph
    found = collections.defaultdict(list)
    for operation in graph.get_operations():
        found[operation.type].append(operation)
    return found


class InputsTest(tf.test.TestCase, parameterized.TestCase):
    def test_dense_sparse_and_ragged_agree(self):
        table = _table()
        layer = _layer(id_column("ids", "mean"), table=table)
        expected = np.mean(table.pull(_IDS), axis=1)
        sparse = tf.sparse.from_dense(_IDS)
        for ids in (
            _IDS,
            _IDS.astype(np.int32),
            tf.constant(_IDS),
            tf.constant(_IDS[:, np.newaxis]),
            sparse,
            tf.RaggedTensor.from_tensor(_IDS),
            tf.RaggedTensor.from_sparse(sparse),
        ):
            self.assertAllClose(layer({"ids": ids}), expected, rtol=1e-6)
        self.assertAllEqual(layer({"ids": _IDS[:, 0]}), table.pull(_IDS[:, 0]))

    def test_strings_and_integers_of_one_text_agree(self):
        layer = _layer(category_column("ids"))
        self.assertAllEqual(
            layer({"ids": _IDS}), layer({"ids": _IDS.astype(str)})
        )

    def test_ids_of_other_columns_are_other_ids(self):
        user, item = category_column("user"), category_column("item")
        same = category_column("item", namespace="user")
        features = {"user": np.array([5]), "item": np.array([5])}
        left, right = np.split(_layer(user, item)(features)[0], 2)
        self.assertNotAllEqual(left, right)
        left, right = np.split(_layer(user, same)(features)[0], 2)
        self.assertAllEqual(left, right)

    def test_bags_are_combined(self):
        table = _table()
        bags = tf.ragged.constant([[1, 2, 2], [], [4]], dtype=tf.int64)
        one, two, four = table.pull([1, 2, 4]).numpy()
        zeros = np.zeros(2)
        for combiner, expected in (
            ("sum", one + two + two),
            ("mean", (one + two + two) / 3),
            ("sqrtn", (one + two + two) / np.sqrt(3)),
            ("max", np.maximum(one, two)),
        ):
            layer = _layer(id_column("ids", combiner), table=table)
            self.assertAllClose(
                layer({"ids": bags}), [expected, zeros, four], rtol=1e-6
            )

    def test_weights_beside_a_max_column(self):
        table = _table()
        layer = _layer(
            id_column("a", "mean", weights="w"),
            id_column("b", "max"),
            id_column("c", "sum"),
            table=table,
        )
        ids = tf.ragged.constant([[1, 2], [], [4]], dtype=tf.int64)
        weights = tf.ragged.constant([[1.0, 3.0], [], [2.0]])
        features = {"a": ids, "b": ids, "c": ids, "w": weights}
        one, two, four = table.pull([1, 2, 4]).numpy()
        self.assertAllClose(
            layer(features),
            [
                [*((one + 3 * two) / 4), *np.maximum(one, two), *(one + two)],
                [0.0] * 6,
                [*four, *four, *four],
            ],
            rtol=1e-6,
        )

    def test_weights_beside_a_max_column_of_another_table(self):
        tables = _table("deep"), _table("wide")
        largest = category_column("tags", combiner="max")
        weighted = category_column("user", weights="w")
        inputs = {
            "tags": tf.constant([["a", "b"]]),
            "user": tf.constant(["ann"]),
            "w": tf.constant([2.0]),
        }
        outputs = EmbeddingFeatures(dict(zip(tables, ([largest], [weighted]))))(
            inputs
        )
        self.assertAllEqual(
            outputs["deep"], _layer(largest, table=tables[0])(inputs)
        )
        self.assertAllEqual(
            outputs["wide"], _layer(weighted, table=tables[1])(inputs)
        )

    @pytest.mark.both_kerases(slow=True)
    def test_symbolic_outputs_have_the_shapes_of_eager_ones(self):
        columns = id_column("user"), id_column("tags", "mean")
        for concatenate in (True, False):
            layer = EmbeddingFeatures(
                {_table("deep"): columns, _table("wide"): columns[:1]},
                concatenate=concatenate,
            )
            sizes = {"user": (), "tags": (3,)}
            made = layer(
                {
                    name: keras.Input(shape, dtype="int64", name=name)
                    for name, shape in sizes.items()
                }
            )
            found = layer(
                {
                    name: tf.ones([2, *shape], tf.int64)
                    for name, shape in sizes.items()
                }
            )
            tf.nest.assert_same_structure(made, found)
            for one, other in zip(
                tf.nest.flatten(made), tf.nest.flatten(found)
            ):
                self.assertEqual(tuple(one.shape), (None, *other.shape[1:]))
                self.assertEqual(one.dtype, other.dtype.name)

    @parameterized.parameters(1, 2)
    def test_a_batch_without_weights(self, number_of_tables):
        """Others have some, but all weighted bags of this one are empty."""
        tables = [_table("deep"), _table("wide")][:number_of_tables]
        columns = id_column("user"), id_column("tags", "mean", weights="w")
        by_table = {tables[0]: [], tables[-1]: []}
        by_table[tables[0]].append(columns[0])
        by_table[tables[-1]].append(columns[1])
        layer = EmbeddingFeatures(by_table, concatenate=False)
        empty = tf.ragged.constant([[], []], tf.int64, ragged_rank=1)
        features = {
            "user": tf.constant([1, 2], tf.int64),
            "tags": empty,
            "w": tf.cast(empty, tf.float32),
        }
        data = tf.data.Dataset.from_tensors(features)
        [hashed] = tf_ext.data.hash_columns(data, layer.columns)
        for inputs in (features, hashed):
            with tf.GradientTape() as tape:
                outputs = tf.function(layer)(inputs, training=True)
                total = tf.add_n(
                    [tf.reduce_sum(x) for x in tf.nest.flatten(outputs)]
                )
            tape.gradient(total, layer.trainable_variables)
            self.assertAllEqual(
                outputs["deep"]["user"], tables[0].pull(features["user"])
            )
            name = tables[-1].name
            self.assertAllEqual(outputs[name]["tags"], tf.zeros([2, 2]))

    def test_a_cross_reads_the_features_of_its_parts(self):
        layer = _layer(crossed_column([category_column("u"), "v"]))
        out = layer({"u": np.array([1, 1, 2]), "v": np.array([5, 6, 5])})
        self.assertLen(np.unique(out, axis=0), 3)

    def test_keys_that_no_column_names_are_ignored(self):
        layer = _layer(id_column("ids"))
        self.assertAllEqual(
            layer({"ids": _IDS, "label": np.zeros([7, 3])}),
            layer({"ids": _IDS}),
        )

    def test_an_empty_batch(self):
        table = _table()
        layer = _layer(id_column("a"), id_column("b"), table=table)
        for empty in (
            np.zeros([0], np.int64),
            np.zeros([0, 3], np.int64),
            tf.RaggedTensor.from_row_lengths(tf.zeros([0], tf.int64), []),
        ):
            out = layer({"a": empty, "b": empty}, training=True)
            self.assertEqual(out.shape, [0, 4])
        self.assertEqual(table.size(), 0)

    def test_an_optional_column_may_be_missing(self):
        layer = _layer(id_column("a"), id_column("b", optional=True))
        out = layer({"a": _IDS})
        self.assertAllEqual(out[:, 2:], np.zeros([3, 2]))
        both = layer({"a": _IDS, "b": _IDS})
        self.assertAllEqual(both, tf.concat([out[:, :2]] * 2, 1))

    def test_a_missing_feature_is_told(self):
        with self.assertRaisesRegex(
            ValueError,
            "The feature 'tags' of column 'tags' is missing from the inputs. "
            "Present are: 'tag', 'user'. .*optional=True",
        ):
            _user_and_tags()({"user": _IDS, "tag": _IDS})

    def test_batch_sizes_that_differ_are_told(self):
        table = _table()
        layer = _layer(id_column("a"), id_column("b"), table=table)
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "batch(.|\n)*(2(.|\n)*3|3(.|\n)*2)"
        ):
            layer({"a": _IDS, "b": _IDS[:2]}, training=True)
        self.assertEqual(table.size(), 0)

    def test_inputs_that_are_no_dict_are_told(self):
        with self.assertRaisesRegex(ValueError, "must be a dict of features"):
            _layer(id_column("ids")).call(tf.constant(_IDS))

    def test_runs_in_a_dataset(self):
        layer = _layer(id_column("ids"))
        dataset = tf.data.Dataset.from_tensor_slices({"ids": _IDS}).batch(2)
        out = np.concatenate(list(dataset.map(layer)))
        self.assertAllEqual(out, layer({"ids": _IDS}))


class OutputsTest(tf.test.TestCase, parameterized.TestCase):
    def test_concatenated_or_a_dict(self):
        table = _table()
        columns = [id_column("b", "max"), id_column("a")]
        features = {"a": _IDS[:, 0], "b": _IDS[:, 1]}
        out = _layer(*columns, table=table)(features)
        self.assertAllEqual(
            out,
            np.hstack([table.pull(features["b"]), table.pull(features["a"])]),
        )
        pieces = _layer(*columns, table=table, concatenate=False)(features)
        self.assertEqual(list(pieces), ["b", "a"])
        self.assertAllEqual(tf.concat(list(pieces.values()), 1), out)

    def test_tables_with_partly_shared_columns(self):
        a, b, c = (id_column(key) for key in "abc")
        deep, wide = _table("deep", 3), _table("wide", 1)
        other = _table("other", 2)
        generated = generator(self).integers(0, 9, [3, 5, 2])
        features = dict(zip("abc", generated))
        columns = {deep: [a, b, c], wide: [c, a], other: [b, c, a]}
        layer = EmbeddingFeatures(columns)
        together = layer(features)
        # wide's and other's columns are in another order than deep's.
        ops = _traced_ops(layer, features)
        self.assertLen(ops["TfExt>HashCategory"], 1)
        [pull] = ops["TfExt>SparseTablesPull"]
        self.assertEqual(pull.get_attr("dims"), [3, 1, 2])
        self.assertEqual(list(together), ["deep", "wide", "other"])
        for table, its_columns in columns.items():
            alone = EmbeddingFeatures(its_columns, table)(features)
            self.assertAllClose(together[table.name], alone, rtol=1e-6)

    @parameterized.named_parameters(
        ("equal", ("ab", "ab"), 1),
        ("apart", ("a", "b"), 2),
        ("overlapping", ("ab", "a"), 2),
        ("two_of_three", ("ab", "b", "ab"), 2),
    )
    def test_one_unique_a_column_set(self, keys, uniques):
        columns = {
            _table(f"table{i}"): [id_column(key) for key in its]
            for i, its in enumerate(keys)
        }
        layer = EmbeddingFeatures(columns)
        ops = _traced_ops(layer, {"a": _IDS, "b": _IDS})
        self.assertLen(ops["TfExt>HashCategory"], 1)
        [unique] = ops["TfExt>UniqueByShardEach"]
        self.assertEqual(unique.get_attr("N"), uniques)

    def test_a_dict_of_tables_of_dicts(self):
        columns = [id_column("a"), id_column("b")]
        layer = EmbeddingFeatures(
            {_table("x"): columns, _table("y", 3): columns[:1]},
            concatenate=False,
        )
        out = layer({"a": _IDS, "b": _IDS})
        shapes = tf.nest.map_structure(lambda t: list(t.shape), out)
        self.assertEqual(
            shapes, {"x": {"a": [3, 2], "b": [3, 2]}, "y": {"a": [3, 3]}}
        )

    def test_one_table_in_a_dict_is_still_a_dict(self):
        layer = EmbeddingFeatures({_table("x"): [id_column("a")]})
        self.assertEqual(list(layer({"a": _IDS})), ["x"])

    def test_the_dtype_is_the_compute_dtype(self):
        table = _table()
        layer = _layer(id_column("a"), table=table, dtype="mixed_float16")
        out = layer({"a": _IDS[:, 0]})
        self.assertEqual(out.dtype, tf.float16)
        self.assertAllEqual(out, tf.cast(table.pull(_IDS[:, 0]), tf.float16))

    def test_mixed_precision_does_not_round_features(self):
        # 2049 and the boundary are one number in half precision.
        column = category_column("x", boundaries=[2048.5])
        layer = _layer(column, dtype="mixed_float16")
        low, high = layer({"x": tf.constant([2048.0, 2049.0])})
        self.assertNotAllEqual(low, high)

    @parameterized.named_parameters(
        ("no_table", ([id_column("a")],), "list of columns with a `table`"),
        ("empty_dict", ({},), "`columns` of EmbeddingFeatures must not be"),
        ("no_columns", ([], "t"), "must be a non-empty list for each table"),
        ("a_column", (id_column("a"), "t"), "must be a non-empty list for"),
        ("a_key", (["a"], "t"), "'a' for table 'deep'"),
        ("twice", ([id_column("a")] * 2, "t"), "two columns 'a' for .*deep"),
        ("no_such", ([id_column("a")], 5), "must be a tf_ext.SparseTable. Re"),
    )
    def test_wrong_arguments_are_told(self, arguments, text):
        arguments = [_table() if a == "t" else a for a in arguments]
        with self.assertRaisesRegex(ValueError, text):
            EmbeddingFeatures(*arguments)

    def test_tables_of_one_name_are_told(self):
        with self.assertRaisesRegex(ValueError, "names. Received: two .*deep"):
            EmbeddingFeatures(
                {_table(): [id_column("a")], _table(): [id_column("b")]}
            )


def _train_on(layer, features, optimizer=None):
    """One step of SGD at rate 1 on the sum of the outputs."""
    optimizer = optimizer or tf_ext.optimizers.Optimizer(
        keras.optimizers.SGD(1.0)
    )
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(features, training=True))
    variables = [table.shadow for table in layer.tables]
    gradients = tape.gradient(loss, variables)
    if any(gradient is not None for gradient in gradients):
        optimizer.apply_gradients(zip(gradients, variables))
    return gradients


class TrainingTest(tf.test.TestCase, parameterized.TestCase):
    def test_rows_are_created_in_training_alone(self):
        for training, rows in ((None, 0), (False, 0), (True, 4)):
            table = _table()
            layer = _layer(id_column("ids"), table=table)
            layer({"ids": _IDS}, training=training)
            self.assertEqual(table.size(), rows)

    def test_training_may_be_a_tensor(self):
        table = _table()
        layer = _layer(id_column("ids"), table=table)
        call = tf.function(lambda t: layer({"ids": _IDS}, training=t))
        before = call(tf.constant(False))
        self.assertEqual(table.size(), 0)
        self.assertAllEqual(call(tf.constant(True)), before)
        self.assertEqual(table.size(), 4)

    def test_a_gradient_is_summed_by_sign(self):
        table = _table(initializer="zeros")
        layer = _layer(id_column("a"), id_column("b"), table=table)
        gradients = _train_on(layer, {"a": _IDS, "b": _IDS[:, :1]})
        self.assertIsInstance(gradients[0], tf.IndexedSlices)
        self.assertCountEqual(gradients[0].indices.numpy(), [3, 7, -1, 5])
        weights = {sign: row.tolist() for sign, row in rows_of(table).items()}
        self.assertEqual(
            weights, {3: [-5, -5], 7: [-1, -1], -1: [-2, -2], 5: [-1, -1]}
        )

    @parameterized.named_parameters(("layer", True), ("table", False))
    def test_frozen(self, by_layer):
        table = _table(trainable=by_layer)
        layer = _layer(id_column("ids"), table=table, trainable=not by_layer)
        self.assertEqual(_train_on(layer, {"ids": _IDS}), [None])
        self.assertEqual(table.size(), 0)

    def test_a_frozen_layer_on_a_table_that_another_layer_trains(self):
        table = _table(initializer="zeros")
        frozen = _layer(id_column("ids"), table=table, trainable=False)
        trained = _layer(id_column("ids"), table=table)
        optimizer = tf_ext.optimizers.Optimizer(keras.optimizers.SGD(1.0))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(
                trained({"ids": np.array([1, 2])}, training=True)
                + frozen({"ids": np.array([2, 9])}, training=True)
            )
        gradient = tape.gradient(loss, table.shadow)
        optimizer.apply_gradients([(gradient, table.shadow)])
        self.assertEqual(table.size(), 2)
        self.assertAllEqual(table.pull([1, 2]), [[-1, -1], [-1, -1]])
        self.assertTrue(table.trainable)
        # It can be thawed.
        frozen.trainable = True
        frozen({"ids": np.array([9])}, training=True)
        self.assertEqual(table.size(), 3)

    def test_frozen_layers_have_no_trainable_weights(self):
        layer = _layer(id_column("ids"), trainable=False)
        self.assertEmpty(layer.trainable_weights)
        self.assertLen(layer.weights, 1)
        layer.trainable = True
        self.assertLen(layer.trainable_weights, 1)


class FunctionalTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("dense", {"shape": (2,)}, tf.constant),
        ("sparse", {"shape": (2,), "sparse": True}, tf.sparse.from_dense),
        (
            "ragged",
            {"shape": (None,), "ragged": True},
            tf.RaggedTensor.from_tensor,
        ),
    )
    def test_inputs_of_keras(self, kwargs, convert):
        for dtype in ("int64", "string"):
            user = keras.Input((), dtype=dtype, name="user")
            tags = keras.Input(name="tags", dtype=dtype, **kwargs)
            layer = _user_and_tags()
            out = layer({"user": user, "tags": tags})
            self.assertEqual(tuple(out.shape), (None, 4))
            model = tf_ext.Model({"user": user, "tags": tags}, out)
            ids = tf.constant(_IDS)
            if dtype == "string":
                ids = tf.strings.as_string(ids)
            dense = {"user": ids[:, 0], "tags": ids}
            given = {"user": ids[:, 0], "tags": convert(ids)}
            self.assertAllClose(model(given), layer(dense), rtol=1e-6)
            predicted = model.predict(
                tf.data.Dataset.from_tensors(given), verbose=0
            )
            self.assertAllClose(predicted, layer(dense), rtol=1e-6)

    def test_symbolic_shapes(self):
        columns = [id_column("a"), id_column("b")]
        layer = EmbeddingFeatures(
            {_table("x"): columns, _table("y", 3): columns[:1]}
        )
        inputs = {k: keras.Input((), dtype="int64", name=k) for k in "ab"}
        out = layer(inputs)
        self.assertEqual(
            {name: tuple(t.shape) for name, t in out.items()},
            {"x": (None, 4), "y": (None, 3)},
        )
        self.assertEqual(
            layer.compute_output_shape({"a": (5,), "b": (5,)}),
            {"x": (5, 4), "y": (5, 3)},
        )
        if IS_KERAS_3:
            self.assertEqual(
                layer.compute_output_spec(inputs)["y"].shape, (None, 3)
            )

    def test_survives_its_configuration(self):
        columns = [
            category_column("a", combiner="max", bucket_size=7),
            category_column("x", boundaries=[0.5], optional=True),
        ]
        layers = [
            _layer(*columns, concatenate=False, name="one", trainable=False),
            EmbeddingFeatures({_table("x"): columns, _table("y"): columns[:1]}),
        ]
        features = {"a": _IDS, "x": np.float32([0.25, 0.5, 1])}
        for layer in layers:
            again = EmbeddingFeatures.from_config(layer.get_config())
            self.assertEqual(again.columns, layer.columns)
            self.assertEqual(again.name, layer.name)
            self.assertEqual(again.trainable, layer.trainable)
            for old, new in zip(layer.tables, again.tables):
                self.assertIsNot(new, old)
                self.assertEqual(new.config, old.config)
            # Same seeds, so the same initial rows.
            out, expected = again(features), layer(features)
            self.assertEqual(list(out), list(expected))
            for name, value in out.items():
                self.assertAllEqual(value, expected[name])


if __name__ == "__main__":
    tf.test.main()
