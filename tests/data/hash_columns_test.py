"""Columns that are hashed in a dataset: the same signs, rows and errors."""

import pathlib
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from model_building import rows_of

import tf_ext
from tf_ext import feature_column
from tf_ext._keras import keras
from tf_ext.data import worker_batches
from tf_ext.feature_column.bags import hash_batch
from tf_ext.feature_column.hashed_features import KEY, join
from tf_ext.layers import EmbeddingFeatures
from tf_ext.models.batch_packing import Packing

_SAMPLES, _BATCH = 23, 8
_category = feature_column.category_column
_sequence = feature_column.sequence_category_column

_USER = _category("user")
_WEIGHTED = _category("tags", weights="tag_weights", combiner="mean")
_POOLED = [
    _USER,
    _category("user", bucket_size=5, namespace="u"),
    _category("age", boundaries=[10, 20.5, 60]),
    _category("number", missing=-1, combiner="max"),
    _category("pair", hashing="identity"),
    _category("sparse", combiner="sqrtn"),
    _category("rated", weights="rating"),
    _category("absent", optional=True),
    _WEIGHTED,
    feature_column.crossed_column([_USER, _WEIGHTED, "pair"], bucket_size=99),
    feature_column.crossed_column(["user", "rated"]),
]
_SEQUENCES = [
    _sequence("tags"),
    _sequence(_category("tags", missing="3"), max_length=2, name="last"),
    _sequence(_category("sparse"), truncating="post", name="first"),
    _sequence("pair"),
    _sequence(_category("padded", missing=0), name="padded"),
    _sequence(_category("padded", missing=0), max_length=2, name="cut"),
    _sequence(_WEIGHTED, ragged=True, append_weight=True, name="ragged"),
    _sequence(_category("absent", optional=True), name="absent sequence"),
]


def _features():
    rng = np.random.default_rng(0)

    def ragged():
        lengths = rng.integers(0, 4, _SAMPLES)
        values = rng.integers(0, 30, lengths.sum()).astype(str)
        return tf.RaggedTensor.from_row_lengths(values, lengths)

    ages = rng.uniform(0, 80, _SAMPLES).astype(np.float32)
    ages[3] = np.nan
    tags = ragged()
    weights = rng.uniform(size=len(tags.flat_values)).astype(np.float32)
    padded = rng.integers(1, 9, [_SAMPLES, 3])
    padded[np.arange(3) >= rng.integers(0, 4, _SAMPLES)[:, np.newaxis]] = 0
    return {
        "user": tf.constant(rng.integers(0, 9, _SAMPLES).astype(str)),
        "age": tf.constant(ages),
        "number": tf.constant(rng.integers(-1, 3, _SAMPLES)),
        "pair": tf.constant(rng.integers(0, 9, [_SAMPLES, 2]), tf.int32),
        "sparse": ragged().to_sparse(),
        "rated": tf.constant(rng.integers(0, 9, [_SAMPLES, 1])),
        "rating": tf.constant(rng.uniform(size=[_SAMPLES, 1]), tf.float32),
        "tags": tags,
        "tag_weights": tags.with_values(tf.constant(weights)),
        "padded": tf.constant(padded),
        "price": tf.constant(rng.normal(size=[_SAMPLES, 1]), tf.float32),
    }


def _data(features=None):
    labels = tf.cast(tf.range(_SAMPLES) % 2, tf.float32)[:, tf.newaxis]
    slices = (features or _features(), labels)
    return tf.data.Dataset.from_tensor_slices(slices).batch(_BATCH)


def _passed_on(batch, spec):
    packing = Packing(spec)
    return packing.unpack(packing.pack(batch))


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
        ("whole", lambda data: data),
        ("shares", lambda data: worker_batches.worker_share(data, 3, 2)),
        ("other_sizes", lambda data: data.rebatch(5)),
        (
            "sent",
            lambda data: data.map(
                lambda *batch: _passed_on(batch, data.element_spec)
            ),
        ),
    )
    def test_all_columns_in_all_ways(self, change):
        columns = [*_POOLED, *_SEQUENCES]
        raw = _data()
        hashed = tf_ext.data.hash_columns(raw, columns)
        self.assertEqual(hashed.cardinality(), 3)
        batches = 0
        for (features, labels), (signs, others) in zip(
            change(raw), change(hashed), strict=True
        ):
            self.assertCountEqual(signs, ["price", KEY])
            self.assertAllEqual(labels, others)
            self._assert_same(columns, features, signs)
            batches += 1
        self.assertGreaterEqual(batches, 3)

    def test_single_values_alone_and_some_columns_in_another_order(self):
        crossed = feature_column.crossed_column(["user", "rated"])
        columns = [_USER, crossed, _category("rated", weights="rating")]
        raw = next(iter(_data()))[0]
        hashed = next(iter(tf_ext.data.hash_columns(_data(), columns)))[0]
        self.assertEqual(
            [one["signs"].shape for one in hashed[KEY].values()], [[8]] * 3
        )
        for some in (columns, columns[:2], columns[2:], columns[::-1]):
            self._assert_same(some, raw, hashed)

    def test_no_samples(self):
        columns = [*_POOLED, *_SEQUENCES]
        raw = _data().map(
            lambda features, _: tf.nest.map_structure(
                lambda v: (
                    tf.sparse.slice(v, [0, 0], [0, v.dense_shape[1]])
                    if isinstance(v, tf.SparseTensor)
                    else v[:0]
                ),
                features,
            )
        )
        hashed = next(iter(tf_ext.data.hash_columns(raw, columns)))
        self._assert_same(columns, next(iter(raw)), hashed)
        empty = worker_batches.empty_batch(
            tf_ext.data.hash_columns(_data(), columns).element_spec
        )
        self.assertEqual(join(_POOLED, empty[0][KEY]).bags.row_splits, [0])

    def test_saved_datasets(self):
        path = tempfile.mkdtemp(dir=self.get_temp_dir())
        tf_ext.data.hash_columns(_data(), _POOLED).save(path)
        loaded = tf.data.Dataset.load(path)
        for (raw, _), (hashed, _) in zip(_data(), loaded, strict=True):
            self._assert_same(_POOLED, raw, hashed)

    def test_order_with_threads(self):
        data = tf.data.Dataset.range(200).map(lambda i: {"id": i}).batch(1)
        column = _category("id", hashing="identity")
        for calls in (4, None):
            hashed = tf_ext.data.hash_columns(
                data, [column], num_parallel_calls=calls
            )
            signs = [join([column], one[KEY]).bags.signs[0] for one in hashed]
            self.assertAllEqual(signs, range(200))


class LayerTest(tf.test.TestCase):
    def _batches(self, columns, **kwargs):
        data = tf_ext.data.hash_columns(_data(), columns, **kwargs)
        return next(iter(_data()))[0], next(iter(data))[0]

    def test_other_combiners_and_names_are_the_same_column(self):
        mean = _category("user", combiner="mean")
        named = feature_column.crossed_column(["user", "pair"], name="both")
        layer = EmbeddingFeatures([mean, named], tf_ext.SparseTable("a", 2))
        unnamed = feature_column.crossed_column(["user", "pair"])
        raw, hashed = self._batches([_USER, unnamed])
        self.assertAllEqual(layer(raw), layer(hashed))

    def test_masks(self):
        layer = EmbeddingFeatures(
            [*_SEQUENCES, _USER], tf_ext.SparseTable("b", 2), concatenate=False
        )
        raw, hashed = self._batches(layer.columns)
        wanted, found = layer(raw), layer(hashed)
        for name, output in wanted.items():
            self.assertAllEqual(output, found[name])
            if hasattr(output, "_keras_mask"):
                self.assertAllEqual(output._keras_mask, found[name]._keras_mask)
        masks, others = layer.compute_mask(raw), layer.compute_mask(hashed)
        self.assertAllEqual(masks["cut"], others["cut"])

    def test_another_layer_hashes_what_is_there(self):
        table = tf_ext.SparseTable("c", 2)
        price = _category("price", boundaries=[0.0])
        raw, hashed = self._batches([_USER, price], keep=["price"])
        layer = EmbeddingFeatures([_category("price", boundaries=[1.0])], table)
        self.assertAllEqual(layer(raw), layer(hashed))

    def test_columns_that_are_hashed_in_another_way(self):
        raw, hashed = self._batches([_USER, _WEIGHTED, _SEQUENCES[1]])
        del raw
        for column in (
            _category("user", bucket_size=7),
            _category("user", namespace="other"),
            _category("user", missing="1"),
            _category("user", optional=True, missing=""),
            _category("tags"),
            _category("tags", weights="tag_weights", optional=True, missing=""),
            _sequence(_category("tags", missing="3"), max_length=3),
            _sequence(
                _category("tags", missing="3"), max_length=2, truncating="post"
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

    def test_some_columns_that_are_not_hashed(self):
        _, hashed = self._batches([_USER], keep=["user"])
        layer = EmbeddingFeatures(
            [_USER, _category("price", boundaries=[0])],
            tf_ext.SparseTable("e", 2),
        )
        with self.assertRaisesRegex(
            ValueError, "Column 'price' .*of the same features are: none"
        ):
            layer(hashed)


def _tables():
    deep = tf_ext.SparseTable(
        "deep",
        3,
        seed=1,
        statistics=["show", "click"],
        admission=tf_ext.admission.Count(2),
    )
    return deep, tf_ext.SparseTable("wide", 1, "ftrl", seed=2)


def _model(kind):
    keras.utils.set_random_seed(1)
    deep, wide = _tables()
    # Names are there once, and the others are in no input of Keras.
    pooled = {column.name: column for column in _POOLED}
    pooled = [column for name, column in pooled.items() if name != "absent"]
    embed = EmbeddingFeatures({deep: pooled, wide: pooled[::2]}, click="price")
    statistics = EmbeddingFeatures([_USER], deep, cvm=True)
    history = EmbeddingFeatures([_SEQUENCES[0]], wide, concatenate=False)
    masked = keras.layers.GlobalMaxPooling1D()
    join_all, dense = keras.layers.Concatenate(), keras.layers.Dense(1)

    def call(inputs):
        rows = embed(inputs)
        sequence = masked(history(inputs)["tags"])
        parts = [*rows.values(), statistics(inputs), sequence, inputs["price"]]
        return dense(join_all(parts))

    if kind == "functional":
        inputs = {
            key: keras.Input(
                value.shape[1:],
                dtype=value.dtype.name,
                ragged=isinstance(value, tf.RaggedTensor),
                sparse=isinstance(value, tf.SparseTensor),
                name=key,
            )
            for key, value in _features().items()
        }
        model = tf_ext.Model(inputs, call(inputs))
    else:

        class Subclassed(tf_ext.Model):
            def __init__(self):
                super().__init__()
                self.parts = [embed, statistics, history, masked]
                self.parts += [join_all, dense]

            def call(self, inputs, training=None):
                return call(inputs)

        model = Subclassed()
    model.compile(tf_ext.optimizers.Optimizer("adam"), "mse", metrics=["mae"])
    return model


def _clicks(features):
    return {**features, "price": tf.abs(features["price"])}


class ModelTest(tf.test.TestCase, parameterized.TestCase):
    def test_trains_to_the_same_bits(self):
        self._compare("functional")

    @pytest.mark.slow
    def test_trains_a_subclassed_model_to_the_same_bits(self):
        self._compare("subclassed")

    def _compare(self, kind):
        raw = _data(_clicks(_features()))
        hashed = tf_ext.data.hash_columns(raw, [*_POOLED, *_SEQUENCES])
        models = _model(kind), _model(kind)
        histories = [
            model.fit(data, epochs=2, verbose=0).history
            for model, data in zip(models, (raw, hashed), strict=True)
        ]
        self.assertEqual(*histories)
        for one, other in zip(*(m.get_weights() for m in models), strict=True):
            self.assertAllEqual(one, other)
        for one, other in zip(*(m.tables for m in models), strict=True):
            fields = ["weights"]
            fields += ["show", "click"] if one.name == "deep" else ["linear"]
            for field in fields:
                wanted, found = rows_of(one, field), rows_of(other, field)
                self.assertNotEmpty(wanted)
                self.assertEqual(wanted.keys(), found.keys())
                for sign, row in wanted.items():
                    self.assertAllEqual(row, found[sign])
        wanted = models[0].predict(raw, verbose=0)
        for data in (raw, hashed):
            self.assertAllEqual(wanted, models[1].predict(data, verbose=0))

    def test_inputs_of_served_models_are_raw(self):
        model = _model("subclassed")
        data = _data(_clicks(_features()))
        raw = next(iter(data))[0]
        hashed = tf_ext.data.hash_columns(data, [*_POOLED, *_SEQUENCES])
        model.predict(hashed, verbose=0)
        path = pathlib.Path(self.get_temp_dir(), "served")
        with self.assertRaisesRegex(
            ValueError, "is neither functional nor has it been called"
        ):
            tf_ext.serving.export(model, path)
        wanted = model(raw)
        folder = tf_ext.serving.export(model, path)
        loaded = tf.saved_model.load(folder)
        self.assertAllClose(wanted, loaded.serve(raw))

    def test_features_that_another_layer_reads(self):
        table = tf_ext.SparseTable("f", 2)
        price = _category("price", boundaries=[0.0])
        inputs = {"price": keras.Input([1], name="price")}
        rows = EmbeddingFeatures([price], table)(inputs)
        both = keras.layers.Concatenate(name="both")([rows, inputs["price"]])
        model = tf_ext.Model(inputs, both)
        raw = {"price": next(iter(_data()))[0]["price"]}
        [hashed, kept] = (
            next(iter(tf_ext.data.hash_columns(_data(), [price], keep=keep)))[0]
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

    def test_errors_of_a_batch(self):
        column = _category("tags", weights="tag_weights")
        features = {
            "tags": tf.ragged.constant([["a"], ["b", "c"]]),
            "tag_weights": tf.ragged.constant([[1.0, 2.0], [3.0]]),
        }
        inputs = {
            key: keras.Input([None], dtype=value.dtype.name, ragged=True)
            for key, value in features.items()
        }
        layer = EmbeddingFeatures([column], tf_ext.SparseTable("g", 2))
        model = tf_ext.Model(inputs, layer(inputs))
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        raw = tf.data.Dataset.from_tensors((features, tf.zeros([2, 2])))
        with self.assertRaises(tf.errors.InvalidArgumentError) as wanted:
            feature_column.columns_to_bags([column], features)
        with self.assertRaises(tf.errors.InvalidArgumentError) as found:
            model.fit(tf_ext.data.hash_columns(raw, [column]), verbose=0)
        self.assertRegex(found.exception.message, "^The weights .* differ.$")
        self.assertEqual(wanted.exception.message, found.exception.message)

    def test_errors_of_the_op(self):
        columns = [_category("a"), _category("b")]
        sizes = tf.TensorSpec([None], tf.int64)
        raw = tf.data.Dataset.from_generator(
            lambda: [({"a": [1], "b": [1, 2]}, [[0.0]])],
            output_signature=(
                {"a": sizes, "b": sizes},
                tf.TensorSpec([None, 1]),
            ),
        )
        inputs = {key: keras.Input((), dtype="int64") for key in "ab"}
        layer = EmbeddingFeatures(columns, tf_ext.SparseTable("h", 1))
        model = tf_ext.Model(inputs, layer(inputs))
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        hashed = tf_ext.data.hash_columns(raw, columns)
        with self.assertRaises(tf.errors.InvalidArgumentError) as wanted:
            feature_column.columns_to_bags(columns, next(iter(raw))[0])
        with self.assertRaises(tf.errors.InvalidArgumentError) as found:
            model.fit(hashed, verbose=0)
        self.assertIn("one batch size", wanted.exception.message)
        self.assertEqual(wanted.exception.message, found.exception.message)


class ArgumentTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("dataset", {"dataset": [1]}, "`dataset` .* a tf.data.Dataset"),
        (
            "features",
            {"dataset": tf.data.Dataset.range(2)},
            "`dataset` .* whose features are a dict by key",
        ),
        ("columns", {"columns": "user"}, "`columns` .* a list of columns"),
        ("column", {"columns": [_USER, 1]}, "`columns` .* a list of columns"),
        ("none", {"columns": []}, "`columns` .* a list of columns"),
        ("keep", {"keep": "user"}, "`keep` .* that columns read, 'user'"),
        ("kept", {"keep": ["age"]}, r"Received: keep=\['age'\]"),
        ("calls", {"num_parallel_calls": 0}, "AUTOTUNE or None.*=0"),
        (
            "missing",
            {"columns": [_category("other")]},
            "^The feature 'other' of column 'other' is missing",
        ),
        (
            "type",
            {"columns": [_category("age")]},
            "^The feature 'age' is of floats, which are no ids",
        ),
    )
    def test_refused(self, arguments, message):
        arguments = {"dataset": _data(), "columns": [_USER], **arguments}
        with self.assertRaisesRegex(ValueError, message):
            tf_ext.data.hash_columns(**arguments)

    def test_hashed_twice(self):
        hashed = tf_ext.data.hash_columns(_data(), [_USER])
        with self.assertRaisesRegex(ValueError, "hash all columns at once"):
            tf_ext.data.hash_columns(hashed, [_category("age")])


if __name__ == "__main__":
    tf.test.main()
