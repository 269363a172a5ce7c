# SPDX-License-Identifier: Apache-2.0
"""Columns that are hashed in a dataset: the same signs, rows and errors."""

import dataclasses
import pathlib
import tempfile

import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases.hash_columns_cases import (
    POOLED,
    SEQUENCES,
    STRUCTURES,
    USER,
    WEIGHTED,
    all_hashed,
    category,
    data_of_all,
    features_of_all,
    sequence,
)
from models import sequence_models
from models.model_building import rows_of

import tf_ext
from tf_ext import feature_column
from tf_ext._batch_source import source_with
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.data import worker_batches
from tf_ext.feature_column.bags import hash_batch
from tf_ext.feature_column.hashed_features import KEY, join
from tf_ext.layers import EmbeddingFeatures
from tf_ext.layers.hashed_inputs import replaced_in
from tf_ext.training.parameter_servers.batch_packing import Packing

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ArgumentTest::test_refused_kept",
        "ArgumentTest::test_refused_labels",
        "ArgumentTest::test_refused_missing",
        "ArgumentTest::test_refused_none",
        "ArgumentTest::test_refused_samples",
        "ArgumentTest::test_refused_type",
        "BatchTest::test_all_columns_*",
        "BatchTest::test_each_structure_in_shares_that_are_sent",
        "BatchTest::test_filler_batches_of_workers_without_data",
        "BatchTest::test_single_values_alone_and_some_columns_in_another_order",
        "LayerTest::test_other_combiners_and_names_are_the_same_column",
        "LayerTest::test_what_is_there_before_what_the_model_was_given",
        "ModelTest::test_saved_and_served_models_take_raw_features_*",
        "ModelTest::test_trains_to_the_same_bits",
    ),
]


def _sent(data):
    """Batches as a cluster's workers receive them."""
    packing = Packing(data.element_spec)
    return data.map(lambda *batch: packing.unpack(packing.pack(batch)))


def _sent_share(data):
    return _sent(worker_batches.worker_share(data, 3, 2))


def _saved_and_loaded(data):
    with tempfile.TemporaryDirectory() as path:
        data.save(path)
        yield from tf.data.Dataset.load(path)


class BatchTest(tf.test.TestCase, parameterized.TestCase):
    def _assert_same(self, columns, raw, hashed):
        wanted = hash_batch(columns, raw, return_error=False)
        found = join(columns, hashed[KEY])
        for one, other in zip(wanted.bags, found.bags, strict=True):
            self.assertEqual(one.dtype, other.dtype)
            self.assertAllEqual(one, other)
        self.assertEqual(list(wanted.masks), list(found.masks))
        for column, mask in wanted.masks.items():
            self.assertAllEqual(mask, found.masks[column])
        self.assertEqual(found.error, b"")

    @parameterized.named_parameters(
        ("whole", lambda data: data), ("saved", _saved_and_loaded)
    )
    def test_all_columns(self, change):
        self._check(change)

    @pytest.mark.slow
    def test_all_columns_in_other_batch_sizes(self):
        self._check(lambda data: data.rebatch(5))

    @pytest.mark.slow
    def test_all_columns_in_shares_that_are_sent(self):
        self._check(_sent_share)

    def _check(self, change):
        self.assertEqual(all_hashed().cardinality(), 4)
        columns = [*POOLED, *SEQUENCES]
        for features, signs in self._batches(
            change, data_of_all(), all_hashed()
        ):
            self.assertCountEqual(signs, ["price", KEY])
            self._assert_same(columns, features, signs)

    def _batches(self, change, raw, hashed):
        count = 0
        for (features, labels), (signs, others) in zip(
            change(raw), change(hashed), strict=True
        ):
            self.assertAllEqual(labels, others)
            yield features, signs
            count += 1
        self.assertGreaterEqual(count, 4)

    def test_each_structure_in_shares_that_are_sent(self):
        keys = ["user", "tags", "tag_weights", "sparse", "rated", "rating"]
        raw = data_of_all().map(lambda x, y: ({key: x[key] for key in keys}, y))
        hashed = tf_ext.data.hash_columns(raw, STRUCTURES)
        for features, signs in self._batches(_sent_share, raw, hashed):
            self._assert_same(STRUCTURES, features, signs)

    def test_layers_stand_for_their_columns(self):
        layer = EmbeddingFeatures([USER], tf_ext.SparseTable("layer", 2))
        (wanted,) = tf_ext.data.hash_columns(data_of_all(), [USER]).take(1)
        for given in (layer, [layer], [[layer], USER], layer.columns):
            (found,) = tf_ext.data.hash_columns(data_of_all(), given).take(1)
            tf.nest.map_structure(
                self.assertAllEqual, found[0][KEY], wanted[0][KEY]
            )
            self.assertEqual(found[0].keys(), wanted[0].keys())

    def test_single_values_alone_and_some_columns_in_another_order(self):
        crossed = feature_column.crossed_column(["user", "rated"])
        columns = [USER, crossed, category("rated", weights="rating")]
        raw = next(iter(data_of_all()))[0]
        hashed = next(iter(tf_ext.data.hash_columns(data_of_all(), columns)))[0]
        self.assertEqual(
            [one["signs"].shape for one in hashed[KEY].values()], [[8]] * 3
        )
        for some in (columns, columns[:2], columns[2:], columns[::-1]):
            self._assert_same(some, raw, hashed)

    def test_filler_batches_of_workers_without_data(self):
        empty = worker_batches.blank_batch(all_hashed().element_spec, 0)
        found = join([*POOLED, *SEQUENCES], empty[0][KEY])
        self.assertEqual(found.bags.row_splits, [0])

    def test_order_with_threads(self):
        data = tf.data.Dataset.range(100).map(lambda i: {"id": i}).batch(1)
        column = category("id", hashing="identity")
        for calls in (4, None):
            hashed = tf_ext.data.hash_columns(
                data, [column], num_parallel_calls=calls
            )
            [signs] = zip(*(tf.nest.flatten(batch) for batch in hashed))
            self.assertAllEqual(tf.concat(signs, 0), range(100))


def _first(data):
    return next(iter(data))[0]


@dataclasses.dataclass(frozen=True)
class LogarithmPart(feature_column.Part):
    key: str
    boundaries = (0.0, 1.0)
    conversion = "log"

    def converted_type(self, dtype):
        return tf.float32

    def convert(self, values):
        return tf.math.log(tf.cast(values, tf.float32))


@dataclasses.dataclass(frozen=True)
class Logarithm(feature_column.Column):
    key: str
    combiner: str = "sum"

    @property
    def parts(self):
        return (LogarithmPart(self.key),)

    @property
    def name(self):
        return self.key

    @property
    def namespace(self):
        return self.key


class LayerTest(tf.test.TestCase):
    def _batches(self, columns, **kwargs):
        hashed = tf_ext.data.hash_columns(data_of_all(), columns, **kwargs)
        return _first(data_of_all()), _first(hashed)

    def test_other_combiners_and_names_are_the_same_column(self):
        mean = category("user", combiner="mean")
        named = feature_column.crossed_column(["user", "pair"], name="both")
        layer = EmbeddingFeatures([mean, named], tf_ext.SparseTable("a", 2))
        unnamed = feature_column.crossed_column(["user", "pair"])
        raw, hashed = self._batches([USER, unnamed])
        self.assertAllEqual(layer(raw), layer(hashed))

    def test_masks(self):
        layer = EmbeddingFeatures(
            [*SEQUENCES, USER], tf_ext.SparseTable("b", 2), concatenate=False
        )
        raw, hashed = _first(data_of_all()), _first(all_hashed())
        wanted, found = layer(raw), layer(hashed)
        for name, output in wanted.items():
            self.assertAllEqual(output, found[name])
            if hasattr(output, "_keras_mask"):
                self.assertAllEqual(output._keras_mask, found[name]._keras_mask)
        masks, others = layer.compute_mask(raw), layer.compute_mask(hashed)
        self.assertAllEqual(masks["cut"], others["cut"])

    def test_another_layer_hashes_what_is_there(self):
        table = tf_ext.SparseTable("c", 2)
        price = category("price", boundaries=[0.0])
        raw, hashed = self._batches([USER, price], keep=["price"])
        layer = EmbeddingFeatures([category("price", boundaries=[1.0])], table)
        self.assertAllEqual(layer(raw), layer(hashed))

    def test_what_is_there_before_what_the_model_was_given(self):
        raw, hashed = self._batches([USER])
        others = {"user": tf.reverse(raw["user"], [0])}
        table = tf_ext.SparseTable("e", 2, initializer="uniform")
        layer = EmbeddingFeatures([USER], table)
        outer = tf_ext.data.hash_columns(
            tf.data.Dataset.from_tensors(others), [USER]
        )
        expected = layer(raw)
        with source_with(hashed=replaced_in(next(iter(outer)))):
            self.assertAllEqual(layer(hashed), expected)
        self.assertNotAllEqual(layer(others), expected)

    def test_columns_that_are_hashed_in_another_way(self):
        _, hashed = self._batches([USER, WEIGHTED, SEQUENCES[1]])
        for column in (
            category("user", bucket_size=7),
            category("user", namespace="other"),
            category("user", missing="1"),
            category("user", optional=True, missing=""),
            category("tags"),
            category("tags", weights="tag_weights", optional=True, missing=""),
            sequence(category("tags", missing="3"), max_length=3),
            sequence(
                category("tags", missing="3"), max_length=2, truncating="post"
            ),
        ):
            layer = EmbeddingFeatures(
                [column], tf_ext.SparseTable("d", 2), concatenate=False
            )
            with self.assertRaisesRegex(
                ValueError,
                f"Column '{column.name}' of layer '{layer.name}' is not among "
                "those that tf_ext.data.hash_columns has hashed. Give it all "
                'columns of the layer. The column is {"features": .*; hashed '
                f'of the same features are: {{"features": ."{column.name}"',
            ):
                layer(hashed)

    def test_integers_that_are_converted_to_no_value(self):
        layer = EmbeddingFeatures(
            [Logarithm("n"), USER], tf_ext.SparseTable("f", 1, "sgd", "normal")
        )
        batch = {
            "n": tf.constant([-1, 1, 5, -3]),
            "user": tf.constant([1, 2, 3, 4]),
        }
        data = tf.data.Dataset.from_tensors(batch)
        hashed = tf_ext.data.hash_columns(data, layer)
        found = layer(next(iter(hashed)))
        self.assertAllEqual(found, layer(batch))
        self.assertAllEqual(found[:, 0] == 0, [True, False, False, True])

    def test_some_columns_that_are_not_hashed(self):
        _, hashed = self._batches([USER], keep=["user"])
        layer = EmbeddingFeatures(
            [USER, category("price", boundaries=[0])],
            tf_ext.SparseTable("e", 2),
        )
        with self.assertRaisesRegex(
            ValueError, "Column 'price' .*of the same features are: none"
        ):
            layer(hashed)


_MODEL_KEYS = ["user", "age", "tags", "tag_weights", "price"]


def _model(kind):
    """A model of all kinds of columns; all start with the same weights."""
    deep = tf_ext.SparseTable(
        "deep",
        3,
        seed=1,
        statistics=["show", "click"],
        admission=tf_ext.admission.Count(2),
    )
    wide = tf_ext.SparseTable("wide", 1, "ftrl", seed=2)
    crossed = feature_column.crossed_column(["user", WEIGHTED], bucket_size=9)
    ages = category("age", boundaries=[20.5, 60])
    embed = EmbeddingFeatures(
        {deep: [USER, WEIGHTED, crossed], wide: [ages, USER]}, click="price"
    )
    statistics = EmbeddingFeatures([USER], deep, cvm=True)
    history = EmbeddingFeatures([sequence("tags")], wide, concatenate=False)
    masked = sequence_models.MaskedSum()
    join_all = keras.layers.Concatenate()
    dense = keras.layers.Dense(1, kernel_initializer="ones")

    def call(inputs):
        sequence = masked(history(inputs)["tags"])
        parts = [*embed(inputs).values(), statistics(inputs), sequence]
        return dense(join_all([*parts, inputs["price"]]))

    class Subclassed(tf_ext.Model):
        def __init__(self):
            super().__init__()
            self.parts = [embed, statistics, history, masked, join_all, dense]

        def call(self, inputs, training=None):
            return call(inputs)

    if kind == "functional":
        inputs = _inputs(_MODEL_KEYS)
        model = tf_ext.Model(inputs, call(inputs))
    else:
        model = Subclassed()
    model.compile(tf_ext.optimizers.Optimizer("adam"), "mse")
    return model


def _inputs(keys):
    features = features_of_all()
    return {
        key: keras.Input(
            features[key].shape[1:],
            dtype=features[key].dtype.name,
            ragged=isinstance(features[key], tf.RaggedTensor),
            name=key,
        )
        for key in keys
    }


@keras.utils.register_keras_serializable(package="hash_columns_test")
class Small(tf_ext.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embed = EmbeddingFeatures([USER], tf_ext.SparseTable("small", 1))

    def call(self, inputs, training=None):
        return self.embed(inputs, training=training)


def _small_functional():
    inputs = _inputs(["user"])
    table = tf_ext.SparseTable("small", 1)
    return tf_ext.Model(inputs, EmbeddingFeatures([USER], table)(inputs))


class ModelTest(tf.test.TestCase, parameterized.TestCase):
    def test_trains_to_the_same_bits(self):
        self._compare("functional")

    @pytest.mark.slow
    def test_trains_a_subclassed_model_to_the_same_bits(self):
        self._compare("subclassed")

    def _compare(self, kind):
        raw = data_of_all().map(
            lambda features, labels: (
                {key: features[key] for key in _MODEL_KEYS}
                | {"price": tf.abs(features["price"])},
                labels,
                # Of the samples.
                features["price"] ** 2,
            )
        )
        models = _model(kind), _model(kind)
        columns = [
            column
            for layer in models[0].layers
            if isinstance(layer, EmbeddingFeatures)
            for column in layer.columns
        ]
        hashed = tf_ext.data.hash_columns(raw, columns)
        data = raw.take(3), hashed.take(3)
        histories = [
            model.fit(d, epochs=2, validation_data=d, verbose=0).history
            for model, d in zip(models, data, strict=True)
        ]
        self.assertEqual(*histories)
        self.assertLen(histories[0]["val_loss"], 2)
        weights = [model.get_weights() for model in models]
        tf.nest.map_structure(self.assertAllEqual, *weights)
        for one, other in zip(*(m.tables for m in models), strict=True):
            fields = ["weights"]
            fields += ["show", "click"] if one.name == "deep" else ["linear"]
            for field in fields:
                wanted, found = rows_of(one, field), rows_of(other, field)
                self.assertNotEmpty(wanted)
                tf.nest.map_structure(self.assertAllEqual, wanted, found)
        # Each predicts from what it has not been trained on.
        outputs = [
            model(_first(d))
            for model, d in zip(models, reversed(data), strict=True)
        ]
        self.assertAllEqual(*outputs)

    @parameterized.named_parameters(
        ("functional", _small_functional), ("subclassed", Small)
    )
    def test_saved_and_served_models_take_raw_features(self, make):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))
        raw = {"user": _first(data_of_all())["user"]}
        hashed = _first(tf_ext.data.hash_columns(data_of_all(), [USER]))
        model = make()
        wanted = model(hashed, training=True)
        if make is Small:
            with self.assertRaisesRegex(
                ValueError, "has it been called with features.*not hashed"
            ):
                tf_ext.serving.export(model, folder / "served")
        self.assertAllEqual(model(raw), wanted)
        served = tf_ext.serving.export(model, folder / "served")
        served = tf.saved_model.load(served)
        self.assertAllEqual(served.serve(raw), wanted)
        if make is Small and not IS_KERAS_3:
            return  # tf_keras would build it with features of floats.
        model.save(folder / "model.keras")
        loaded = keras.models.load_model(folder / "model.keras")
        self.assertAllEqual(loaded(hashed), wanted)
        self.assertAllEqual(loaded(raw), wanted)

    def test_features_that_another_layer_reads(self):
        table = tf_ext.SparseTable("f", 2)
        price = category("price", boundaries=[0.0])
        inputs = _inputs(["price"])
        rows = EmbeddingFeatures([price], table)(inputs)
        both = keras.layers.Concatenate(name="both")([rows, inputs["price"]])
        model = tf_ext.Model(inputs, both)
        raw = {"price": _first(data_of_all())["price"]}
        [hashed, kept] = (
            _first(tf_ext.data.hash_columns(data_of_all(), [price], keep=keep))
            for keep in ((), ["price"])
        )
        with self.assertRaisesRegex(
            ValueError,
            "The feature 'price' is not in the batch, because "
            "tf_ext.data.hash_columns has hashed it, but layer 'both' of model "
            r".* reads it, too. Let it stay there: .*keep=\['price'\]",
        ):
            model(hashed)
        self.assertAllEqual(model(raw), model(kept))
        counted = tf_ext.SparseTable("i", 2, statistics=["show", "click"])
        layer = EmbeddingFeatures([price], counted, click="price", name="its")
        with self.assertRaisesRegex(ValueError, "layer 'its' of model"):
            tf_ext.Model(inputs, layer(inputs))(hashed)

    def test_inputs_that_are_a_list(self):
        users = _inputs(["user"])["user"]
        layer = EmbeddingFeatures([USER], tf_ext.SparseTable("j", 2))
        model = tf_ext.Model([users], layer({"user": users}))
        raw = {"user": _first(data_of_all())["user"]}
        hashed = _first(tf_ext.data.hash_columns(data_of_all(), [USER]))
        self.assertAllEqual(model(raw), model(hashed))
        self.assertEqual(model.tables[0].stats()["rows"], 0)
        model(hashed, training=True)
        self.assertGreater(model.tables[0].stats()["rows"], 0)

    def test_errors_of_a_batch(self):
        columns = [USER, WEIGHTED]
        inputs = _inputs(["user", "tags", "tag_weights"])
        layer = EmbeddingFeatures(columns, tf_ext.SparseTable("g", 2))
        model = tf_ext.Model(inputs, layer(inputs))
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        tags = tf.ragged.constant([["a"], ["b", "c"]])
        for users, weights, message in (
            (["x", "y"], [[1.0, 2.0], [3.0]], "^The weights .* differ.$"),
            (["x"], [[1.0], [2.0, 3.0]], "must have the same batch size"),
        ):
            features = {
                "user": tf.constant(users),
                "tags": tags,
                "tag_weights": tf.ragged.constant(weights),
            }
            raw = tf.data.Dataset.from_tensors((features, tf.zeros([2, 4])))
            # Static shapes would tell before a batch is read.
            raw = worker_batches.variable_batch_size(raw)
            with self.assertRaises(tf.errors.InvalidArgumentError) as wanted:
                feature_column.columns_to_bags(columns, features)
            with self.assertRaises(tf.errors.InvalidArgumentError) as found:
                model.fit(tf_ext.data.hash_columns(raw, columns), verbose=0)
            self.assertRegex(wanted.exception.message, message)
            self.assertEqual(wanted.exception.message, found.exception.message)


class ArgumentTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("dataset", {"dataset": [1]}, "`dataset` .* a tf.data.Dataset"),
        (
            "features",
            {"dataset": tf.data.Dataset.range(2)},
            "`dataset` .* batches whose features are a dict",
        ),
        (
            "samples",
            {"dataset": data_of_all().unbatch()},
            "`dataset` .* of batches, not of samples",
        ),
        (
            "labels",
            {"dataset": data_of_all().map(lambda x, y: (x, y[0, 0]))},
            "`dataset` .* of batches, not of samples",
        ),
        (
            "columns",
            {"columns": "user"},
            "`columns` .* list of such layers, col",
        ),
        (
            "column",
            {"columns": [USER, 1]},
            "`columns` .* list of such layers, col",
        ),
        ("none", {"columns": []}, "`columns` .* list of such layers, col"),
        ("keep", {"keep": "user"}, "`keep` .* that columns read, 'user'"),
        ("no_keys", {"keep": 1}, "`keep` .* Received: keep=1"),
        ("kept", {"keep": ["age"]}, r"Received: keep=\['age'\]"),
        ("calls", {"num_parallel_calls": 0}, "AUTOTUNE or None.*=0"),
        (
            "missing",
            {"columns": [category("other")]},
            "^The feature 'other' of column 'other' is missing",
        ),
        (
            "type",
            {"columns": [category("age")]},
            "^The feature 'age' has floats, which cannot be ids",
        ),
    )
    def test_refused(self, arguments, message):
        arguments = {"dataset": data_of_all(), "columns": [USER], **arguments}
        with self.assertRaisesRegex(ValueError, message):
            tf_ext.data.hash_columns(**arguments)

    def test_hashed_twice(self):
        with self.assertRaisesRegex(ValueError, "hash all columns at once"):
            tf_ext.data.hash_columns(all_hashed(), [category("age")])


if __name__ == "__main__":
    tf.test.main()
