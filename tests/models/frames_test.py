# SPDX-License-Identifier: Apache-2.0
"""Frames of pandas, and Python's batches of strings, as the data of a model."""

import datetime

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import mirrored_strategy

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.models.arrays import to_arrays

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "FramesTest::test_a_split_for_validation",
        "FramesTest::test_are_as_arrays_*",
        "FramesTest::test_batches_are_as_arrays_*",
        "FramesTest::test_on_replicas",
    ),
]

pandas = pytest.importorskip("pandas")

_BATCH, _BATCHES = 8, 3
_ROWS = _BATCH * _BATCHES
_TEXTS = ("user", "job", "city")


def _columns():
    """The features and labels as arrays: what all frames hold."""
    rng = np.random.default_rng(3)
    features = {
        "user": rng.choice(["ann", "bob", "cäm"], [_ROWS, 1]),
        "job": rng.choice(["a", "b", ""], [_ROWS, 1]),
        "city": rng.choice(["x", "y"], [_ROWS, 1]),
        "code": rng.integers(0, 9, [_ROWS, 1]),
        "age": rng.uniform(size=[_ROWS, 1]).astype(np.float32),
    }
    return features, rng.integers(0, 2, [_ROWS, 1]).astype(np.float32)


def _frame():
    features, labels = _columns()
    one = {name: array[:, 0] for name, array in features.items()}
    frame = pandas.DataFrame(
        {
            "user": pandas.Series(one["user"], dtype="string"),
            "job": pandas.Series(one["job"], dtype=object),
            "city": pandas.Categorical(one["city"]),
            "code": pandas.array(one["code"], dtype="Int64"),
            "age": pandas.array(one["age"], dtype="Float32"),
        }
    )
    frame.index += 100
    return frame, pandas.Series(labels[:, 0], index=frame.index)


def _model(strategy=None):
    strategy = strategy or tf.distribute.get_strategy()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        inputs = {
            name: keras.Input([1], dtype="string", name=name) for name in _TEXTS
        }
        inputs["code"] = keras.Input([1], dtype="int64", name="code")
        inputs["age"] = keras.Input([1], name="age")
        columns = [
            tf_ext.feature_column.category_column(name)
            for name in (*_TEXTS, "code")
        ]
        rows = tf_ext.layers.EmbeddingFeatures(
            columns, tf_ext.SparseTable("frames", 2)
        )(inputs)
        hidden = keras.layers.Concatenate()([rows, inputs["age"]])
        model = tf_ext.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
        model.compile(tf_ext.optimizers.Optimizer("adam"), "mse")
    return model


class _Batches(keras.utils.Sequence):
    def __init__(self, batch, **options):
        if IS_KERAS_3:
            super().__init__(**options)
        self.batch = batch
        self.epochs = 0

    def __len__(self):
        return _BATCHES

    def __getitem__(self, index):
        return self.batch(slice(index * _BATCH, (index + 1) * _BATCH))

    def on_epoch_end(self):
        self.epochs += 1


def _of_strings(rows):
    features, labels = _columns()
    return {name: one[rows] for name, one in features.items()}, labels[rows]


def _of_frame(rows):
    frame, labels = _frame()
    return frame.iloc[rows], labels.iloc[rows]


def _of_series(rows):
    frame, labels = _of_frame(rows)
    return dict(frame), labels


def _generator(batch):
    return (batch(slice(i, i + _BATCH)) for i in range(0, _ROWS, _BATCH))


_ALL = slice(None)
# Functions that return the arguments `x` and `y`.
_DATA = {
    "frame": lambda: _of_frame(_ALL),
    "series": lambda: _of_series(_ALL),
    "values": lambda: (
        {name: one.values for name, one in _of_series(_ALL)[0].items()},
        _of_series(_ALL)[1].values,
    ),
}
_SOURCES = {
    f"{kind}_of_{name}": lambda make=make, batch=batch: (make(batch), None)
    for kind, make in (("sequence", _Batches), ("generator", _generator))
    for name, batch in (
        ("strings", _of_strings),
        ("frames", _of_frame),
        ("series", _of_series),
    )
}


class FramesTest(tf.test.TestCase, parameterized.TestCase):
    def expected(self, strategy=None):
        features, labels = _columns()
        features = {
            name: tf.constant(array) for name, array in features.items()
        }
        model = _model(strategy)
        model.fit(features, labels, batch_size=_BATCH, shuffle=False, verbose=0)
        return (
            model.evaluate(features, labels, batch_size=_BATCH, verbose=0),
            model.predict(features, batch_size=_BATCH, verbose=0),
        )

    def check(self, make, strategy=None):
        model = _model(strategy)
        x, y = make()
        options = {} if y is None else {"y": y, "batch_size": _BATCH}
        validation = make() if options else _of_frame(_ALL)
        model.fit(
            x, shuffle=False, verbose=0, validation_data=validation, **options
        )
        x, y = make()
        loss = model.evaluate(x, verbose=0, **options)
        x, y = make()
        found = model.predict(x, verbose=0)
        expected_loss, expected = self.expected(strategy)
        self.assertAllClose(loss, expected_loss)
        self.assertAllClose(found, expected)

    @parameterized.named_parameters(_DATA.items())
    def test_are_as_arrays(self, make):
        self.check(make)

    @parameterized.named_parameters(_SOURCES.items())
    def test_batches_are_as_arrays(self, make):
        self.check(make)

    def test_on_replicas(self):
        self.check(_DATA["frame"], mirrored_strategy())

    def test_a_split_for_validation(self):
        frame, labels = _frame()
        model = _model()
        history = model.fit(
            dict(frame), labels, validation_split=0.5, verbose=0
        )
        self.assertIn("val_loss", history.history)

    def test_single_batches(self):
        frame, labels = _frame()
        model = _model()
        model.train_on_batch(dict(frame), labels)
        model.test_on_batch(frame, labels)
        self.assertAllClose(
            model.predict_on_batch(frame), model.predict(frame, verbose=0)
        )

    @pytest.mark.slow  # Keras takes its time to start and end them.
    def test_batches_of_other_processes(self):
        options = {"workers": 2, "use_multiprocessing": True}
        own = options if IS_KERAS_3 else {}
        model = _model()
        batches = _Batches(_of_series, **own)
        given = {} if IS_KERAS_3 else options
        model.fit(batches, verbose=0, shuffle=False, **given)
        self.assertGreater(batches.epochs, 0)
        found = model.predict(_frame()[0], batch_size=_BATCH, verbose=0)
        self.assertAllClose(found, self.expected()[1])

    def test_a_matrix_for_a_single_input(self):
        inputs = keras.Input([2])
        model = tf_ext.Model(inputs, keras.layers.Dense(1)(inputs))
        frame = pandas.DataFrame({"a": [1, 2], "b": [0.5, 1.5]})
        array = frame.to_numpy("float32")
        self.assertAllClose(
            model.predict(frame, verbose=0), model.predict(array, verbose=0)
        )
        with self.assertRaisesRegex(
            ValueError,
            r"Argument `x` is a DataFrame that .*'a' is int64, 'b' is \w+. "
            r"Pass them as separate features: dict\(frame\)",
        ):
            model.predict(frame.assign(b=["u", "v"]), verbose=0)

    def test_columns_for_a_list_of_inputs(self):
        inputs = [keras.Input([1], name=name) for name in ("b", "a")]
        model = tf_ext.Model(inputs, 10.0 * inputs[0] + inputs[1])
        frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
        found = model.predict(frame, verbose=0)
        self.assertAllEqual(found, [[31.0], [42.0]])

    def test_a_matrix_without_columns(self):
        found = to_arrays(pandas.DataFrame(index=range(3)))
        self.assertEqual(found.shape, (3, 0))

    def test_batches_of_features_alone(self):
        frame, _ = _frame()
        model = _model()
        found = model.predict(_Batches(lambda rows: frame[rows]), verbose=0)
        expected = model.predict(frame, batch_size=_BATCH, verbose=0)
        self.assertAllClose(found, expected)

    def test_features_of_subclassed_models(self):
        class Own(tf_ext.Model):
            def call(self, inputs):
                return tf.strings.length(inputs["user"])

        frame = pandas.DataFrame({"user": ["a", "bc"], "other": [1, 2]})
        found = Own().predict(frame, verbose=0)
        self.assertAllEqual(found, [[1], [2]])


class ErrorsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("text", ["ann", None], "string", r"'user' .* 1 of 2 .* row 1\. Fill"),
        ("object", ["ann", None], object, "'user' must have a value in each"),
        ("category", ["ann", None], "category", "'user' must have a value"),
        ("integer", [1, None], "Int64", "'user' .* a column of Int64, but 1"),
        ("boolean", [True, None], "boolean", "'user' must have a value"),
        ("mixed", ["ann", 3], object, r"'user' .* str \(row 0\), int \(row 1"),
        (
            "date",
            [datetime.datetime(2026, 1, 1)],
            "datetime64[ns]",
            r"'user' must hold numbers or strings, but is of type .*\. Cast it",
        ),
        (
            "duration",
            [datetime.timedelta(1)],
            "timedelta64[ns]",
            "'user' must hold numbers or strings, but is of type timedelta64",
        ),
        ("objects", [object()], object, r"'user' .* object \(row 0"),
        ("large", [2**70], object, r"'user' must hold only strings, only"),
        ("bags", [["a"], ["b", None]], object, r"'user' .* but row 1 is"),
    )
    def test_name_the_feature(self, values, dtype, message):
        frame = pandas.DataFrame({"user": pandas.Series(values, dtype=dtype)})
        with self.assertRaisesRegex(ValueError, f"The feature {message}"):
            to_arrays(frame, is_keyed=True)

    @parameterized.parameters(pandas.NA, None, float("nan"))
    def test_name_the_row_of_a_value_that_is_missing(self, missing):
        array = np.array(["ann", "bob", missing], object)
        bags = [["ann"], [], ["bob", missing]]
        for values in (array, array.tolist(), bags):
            with self.assertRaisesRegex(
                ValueError, f"'user' must have .* but row 2 is .*{missing}.* F"
            ):
                to_arrays({"user": values}, is_keyed=True)

    def test_name_the_argument(self):
        frame, labels = _frame()
        with self.assertRaisesRegex(ValueError, "^Argument `y` must have a"):
            _model().fit(frame, labels.astype(object).where(labels > 2, None))
        with self.assertRaisesRegex(ValueError, "The feature 'job' must have"):
            _model().predict(frame.assign(job=None), verbose=0)

    def test_reach_users_of_batches(self):
        frame, labels = _frame()
        frame = frame.assign(job=None)
        with self.assertRaisesRegex(ValueError, "The feature 'job' must have"):
            _model().fit(_Batches(lambda rows: (frame[rows], labels[rows])))

    @parameterized.parameters((1, "y"), (2, "sample_weight"))
    def test_name_the_part_of_a_batch(self, part, name):
        frame, labels = _frame()
        missing = labels.astype(object).where(labels > 2, None)

        def batch(rows):
            parts = [frame[rows], labels[rows], labels[rows]]
            parts[part] = missing[rows]
            return tuple(parts)

        with self.assertRaisesRegex(ValueError, f"^Argument `{name}` must"):
            _model().fit(_Batches(batch), verbose=0)

    def test_columns_with_the_same_name(self):
        frame = pandas.DataFrame([[1, 2]], columns=["a", "a"])
        with self.assertRaisesRegex(ValueError, "names, but 'a' occurs"):
            to_arrays(frame, is_keyed=True)


class ColumnsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("nan", pandas.Series([1.0, np.nan]), [[1.0], [np.nan]]),
        (
            "own_nan",
            pandas.Series([1.0, None], dtype="Float32"),
            [[1.0], [np.nan]],
        ),
        ("bags", pandas.Series([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ("index", pandas.Index(["a", "b"]), [b"a", b"b"]),
        ("booleans", pandas.Series([True, False]), [[True], [False]]),
        ("sparse", pandas.Series([0, 2], dtype="Sparse[int64]"), [[0], [2]]),
    )
    def test_values(self, column, expected):
        self.assertAllEqual(to_arrays({"a": column})["a"], expected)

    def test_bags_of_different_lengths(self):
        found = to_arrays({"a": pandas.Series([["u"], [], ["v", "w"]])})["a"]
        self.assertEqual(found.to_list(), [[b"u"], [], [b"v", b"w"]])


if __name__ == "__main__":
    tf.test.main()
