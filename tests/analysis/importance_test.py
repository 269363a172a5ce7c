# SPDX-License-Identifier: Apache-2.0
"""The importance of columns, against NumPy and on data of a known teacher."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import mirrored_strategy
from saving_util import contents

import tf_ext
from tf_ext._keras import keras
from tf_ext.analysis import column_importance, importance

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ImportanceTest::test_columns_that_the_teacher_ignores_are_last",
        "ImportanceTest::test_one_of_several_outputs1",
        "ImportanceTest::test_own_metric",
        "ImportanceTest::test_shuffled_as_by_numpy1",
        "ImportanceTest::test_the_same_whichever_others_are_measured",
        "ImportanceTest::test_under_mirrored_strategy",
        "ImportanceTest::test_wrong_arguments",
    ),
]

_SIZE = 300


def _features():
    """Dense numbers and strings, and ragged and sparse ids with weights."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 4, _SIZE)
    lengths[0] = 2
    total = int(lengths.sum())
    bags, weights = (
        tf.RaggedTensor.from_row_lengths(values, lengths)
        for values in (
            rng.integers(0, 9, total),
            rng.random(total).astype(np.float32),
        )
    )
    dense = np.where(rng.random([_SIZE, 5]) < 0.4, rng.random([_SIZE, 5]), 0)
    return {
        "number": rng.normal(size=[_SIZE, 1]).astype(np.float32),
        "text": rng.choice(["a", "bb", "ccc"], _SIZE),
        "tags": bags,
        "shares": weights,
        # With gaps, and samples without a value.
        "places": tf.sparse.from_dense(dense.astype(np.float32)),
    }


def _scores(features):
    """What `Teller` predicts, from lists of each sample's values."""
    return np.array(
        [
            number[0] * len(text) * (1 + np.dot(tags, shares))
            + 0.5 * len(text)
            + np.dot(row, [1, 2, 3, 4, 5])
            for number, text, tags, shares, row in zip(
                features["number"],
                features["text"],
                features["tags"],
                features["shares"],
                features["places"],
            )
        ],
        np.float32,
    )


class Teller(tf_ext.Model):
    """A model of fixed weights, whose scores depend on all features."""

    def call(self, inputs, training=None):
        assert not training
        told = inputs["tags"].with_values(
            tf.cast(inputs["tags"].values, tf.float32) * inputs["shares"].values
        )
        places = tf.sparse.to_dense(inputs["places"])
        lengths = tf.cast(tf.strings.length(inputs["text"]), tf.float32)
        return (
            inputs["number"][:, 0] * lengths * (1 + tf.reduce_sum(told, 1))
            + 0.5 * lengths
            + tf.linalg.matvec(places, tf.range(1.0, 6.0))
        )


_COLUMNS = {
    "number": ["number"],
    "text": ["text"],
    "tags": ["tags", "shares"],
    "places": ["places"],
}


def _lists():
    """`_features`, as lists of the values of each sample."""
    features = _features()
    for name in ("tags", "shares"):
        features[name] = features[name].to_list()
    features["places"] = tf.sparse.to_dense(features["places"]).numpy()
    return features


def _labels():
    noise = np.random.default_rng(4).normal(size=_SIZE)
    scores = _scores(_lists())
    return (scores + noise > np.median(scores)).astype(np.float32)


def _batches(features, *others, size=64):
    data = tf.data.Dataset.from_tensor_slices((features, *others))
    return data.batch(size)


def _pairs(labels, scores, weights=None):
    """AUC by its definition, from all pairs."""
    labels, scores = np.ravel(labels), np.ravel(scores)
    weights = np.ones(len(labels)) if weights is None else np.ravel(weights)
    positive, negative = labels == 1, labels == 0
    wins = np.sign(scores[positive][:, None] - scores[negative])
    sizes = weights[positive][:, None] * weights[negative]
    return np.average((1 + wins) / 2, weights=sizes)


def _order(seed, repeat):
    return np.random.default_rng([seed, repeat]).permutation(_SIZE)


class ImportanceTest(tf.test.TestCase, parameterized.TestCase):
    def assert_sorted(self, found):
        losses = [column.loss for column in found.columns]
        self.assertEqual(losses, sorted(losses, reverse=True))

    def assert_refused(self, message, **changes):
        arguments = {"columns": _COLUMNS, **changes}
        data = arguments.pop("data", _batches(_features(), _labels()))
        with self.assertRaisesRegex(ValueError, message):
            column_importance(
                arguments.pop("model", Teller()), data, **arguments
            )

    @parameterized.parameters(False, True)
    def test_shuffled_as_by_numpy(self, weighted):
        lists, labels = _lists(), _labels()
        weights = np.random.default_rng(6).random(_SIZE) if weighted else None
        others = [labels] if weights is None else [labels[:, None], weights]
        found = column_importance(
            Teller(),
            _batches(_features(), *others),
            _COLUMNS,
            repeats=3,
            seed=9,
        )
        baseline = _pairs(labels, _scores(lists), weights)
        self.assertEqual((found.metric, found.method), ("AUC", "shuffle"))
        self.assertAllClose(found.baseline, baseline, 0, 1e-6)
        self.assertCountEqual([c.name for c in found.columns], _COLUMNS)
        self.assert_sorted(found)
        for column in found.columns:
            expected = []
            for repeat in range(3):
                order = _order(9, repeat)
                changed = {
                    name: [lists[name][i] for i in order]
                    for name in _COLUMNS[column.name]
                }
                auc = _pairs(labels, _scores({**lists, **changed}), weights)
                expected.append(baseline - auc)
            self.assertAllClose(column.losses, expected, 0, 1e-6)
            self.assertAllClose(column.loss, np.mean(expected), 0, 1e-6)
            # Student's t for 2 degrees of freedom.
            half = 4.302653 * np.std(expected, ddof=1) * np.sqrt(4 / 3)
            self.assertAllClose(column.high - column.loss, half, 0, 1e-5)
            self.assertAllClose(column.loss - column.low, half, 0, 1e-5)

    def test_left_out_as_by_numpy(self):
        lists, labels = _lists(), _labels()
        found = column_importance(
            Teller(),
            _batches(_features(), labels),
            _COLUMNS,
            method="leave_out",
            missing={"number": 0.25, "text": ""},
            repeats=3,
            seed=2,
        )
        nothing = {
            "number": [[0.25]],
            "text": [""],
            "tags": [[]],
            "shares": [[]],
            "places": [np.zeros(5)],
        }
        before = _scores(lists)
        self.assertLen(found.columns, 4)
        self.assert_sorted(found)
        for column in found.columns:
            names = _COLUMNS[column.name]
            after = _scores({**lists, **{n: nothing[n] * _SIZE for n in names}})
            loss = _pairs(labels, before) - _pairs(labels, after)
            self.assertAllClose(column.loss, loss, 0, 1e-6)
            expected = []
            for repeat in range(3):
                rng = np.random.default_rng([2, repeat])
                drawn = rng.integers(_SIZE, size=_SIZE)
                expected.append(
                    _pairs(labels[drawn], before[drawn])
                    - _pairs(labels[drawn], after[drawn])
                )
            self.assertAllClose(column.losses, expected, 0, 1e-6)
            half = 4.302653 * np.std(expected, ddof=1)
            self.assertAllClose(column.high - column.loss, half, 0, 1e-5)
            self.assertAllClose(column.loss - column.low, half, 0, 1e-5)

    def test_columns_that_the_teacher_ignores_are_last(self):
        effects = {"user": 2.0, "item": 1.2, "city": 0.8}
        names = [*effects, "hour", "slot", "browser"]
        rng = np.random.default_rng(14)
        ids = {name: rng.integers(0, 12, 7000) for name in names}
        logits = 0.0
        for name, size in effects.items():
            effect = rng.normal(size=12)
            effect = (effect - effect.mean()) / effect.std()
            logits += size * effect[ids[name]]
        labels = rng.random(7000) < 1 / (1 + np.exp(-logits))
        labels = labels.astype(np.float32)
        table = tf_ext.SparseTable(
            "deep", dim=4, optimizer=tf_ext.optimizers.SparseAdagrad(0.1)
        )
        columns = [tf_ext.feature_column.category_column(n) for n in names]
        inputs = {n: keras.Input((), dtype="int64", name=n) for n in names}
        embedded = tf_ext.layers.EmbeddingFeatures(columns, table)(inputs)
        dense = keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")
        model = tf_ext.Model(inputs, dense(embedded))
        model.compile(
            tf_ext.optimizers.Optimizer(keras.optimizers.Adam(0.01)),
            "binary_crossentropy",
        )
        trained, held = slice(0, 4000), slice(4000, None)
        model.fit(
            {name: ids[name][trained] for name in names},
            labels[trained],
            batch_size=100,
            epochs=2,
            shuffle=False,
            verbose=0,
        )
        # Ids without a row: nothing of what follows makes one.
        ids["slot"][4000:4100] = np.arange(1000, 1100)
        before = contents(table)
        weights = dense.get_weights()
        steps = int(model.optimizer.iterations)
        found = column_importance(
            model,
            _batches({n: ids[n][held] for n in names}, labels[held], size=500),
        )
        order = [column.name for column in found.columns]
        self.assertEqual(order[:3], [*effects])
        self.assertCountEqual(order[3:], names[3:])
        for column in found.columns[:3]:
            self.assertGreater(column.low, 0.01)
        for column in found.columns[3:]:
            self.assertBetween(0.0, column.low, column.high)
            self.assertLess(column.high - column.low, 0.01)
        self.assertEqual(contents(table), before)
        for one, other in zip(dense.get_weights(), weights, strict=True):
            self.assertAllEqual(one, other)
        self.assertEqual(int(model.optimizer.iterations), steps)

    def test_the_same_whichever_others_are_measured(self):
        data = _batches(_features(), _labels())
        both = ["number", "text"]
        every = column_importance(Teller(), data, both, repeats=2)
        (one,) = column_importance(Teller(), data, ["text"], repeats=2).columns
        self.assertIn(one, every.columns)
        again = column_importance(Teller(), data, ["text"], repeats=2, seed=1)
        self.assertNotEqual(again.columns[0].losses, one.losses)

    def test_own_metric(self):
        seen = []

        def minus_error(labels, predictions, weights):
            seen.append((labels.shape, predictions.shape, weights.shape))
            errors = np.square(labels - np.ravel(predictions))
            return -np.average(errors, weights=weights)

        labels, weights = _labels(), np.linspace(0, 1, _SIZE)
        found = column_importance(
            Teller(),
            _batches(_features(), labels, weights),
            ["number"],
            metric=minus_error,
            repeats=2,
        )
        self.assertEqual(found.metric, "minus_error")
        error = np.average(
            np.square(labels - _scores(_lists())), weights=weights
        )
        self.assertAllClose(found.baseline, -error, 1e-5, 0)
        self.assertAllEqual(seen, [[(_SIZE,)] * 3] * len(seen))

    @parameterized.parameters("second", 1)
    def test_one_of_several_outputs(self, output):
        features = {
            "a": _features()["number"],
            "b": _features()["number"][::-1],
        }
        inputs = {name: keras.Input([1], name=name) for name in features}
        outputs = {
            "first": keras.layers.Rescaling(1.0, name="first")(inputs["a"]),
            "second": keras.layers.Rescaling(1.0, name="second")(inputs["b"]),
        }
        first, second = (
            (features[name] > 0).astype(np.float32) for name in "ab"
        )
        labels = {"first": first, "second": second}
        if output == 1:
            outputs, labels = list(outputs.values()), (first, second)
        model = tf_ext.Model(inputs, outputs)
        data = _batches(features, labels)
        found = column_importance(model, data, output=output, repeats=2)
        self.assertEqual(found.baseline, 1.0)
        self.assertEqual([c.name for c in found.columns], ["b", "a"])
        self.assertEqual(found.columns[1].losses, (0.0, 0.0))
        for wrong in (None, "third", 2):
            self.assert_refused(
                "`output` of column_importance must be that of one of the "
                "labels and weights: ('first', 'second'|0, 1).*Received: "
                f"output={wrong!r}",
                model=model,
                data=data,
                output=wrong,
            )
        self.assert_refused(
            "that of one of the model's outputs",
            model=model,
            data=_batches(features, first),
            columns=["a"],
        )

    def test_under_mirrored_strategy(self):
        with mirrored_strategy().scope():
            inputs = {n: keras.Input([1], name=n) for n in ("number", "other")}
            model = tf_ext.Model(
                inputs, keras.layers.Add()(list(inputs.values()))
            )
        numbers = _features()["number"]
        features = {"number": numbers, "other": numbers[::-1]}
        labels = _labels()
        # The last batch is of a single sample, fewer than replicas.
        data = _batches(features, labels, size=23)
        found = column_importance(model, data, ["number"], repeats=2)
        shuffled = numbers[_order(0, 1)] + features["other"]
        auc = _pairs(labels, shuffled)
        baseline = _pairs(labels, numbers + features["other"])
        self.assertAllClose(found.columns[0].losses[1], baseline - auc, 0, 1e-6)

    def test_only_in_one_process(self):
        regime = mock.Mock(strategy_name="SomeStrategy")
        regime.placement.has_all = False
        with mock.patch.object(
            importance, "regime_of_model", return_value=regime
        ):
            self.assert_refused(
                "`model` of column_importance must be in one process.*"
                "Received: model='one under SomeStrategy'"
            )

    def test_plain_keras_model(self):
        inputs = {"number": keras.Input([1], name="number")}
        model = keras.Model(inputs, inputs["number"] * 1.0)
        data = _batches({"number": _features()["number"]}, _labels())
        found = column_importance(model, data, repeats=2)
        self.assertGreater(found.columns[0].loss, 0.05)

    def test_wrong_arguments(self):
        for message, changes in (
            (
                "`method` .* 'shuffle' or 'leave_out'.*'drop'",
                {"method": "drop"},
            ),
            ("`metric` .* a function or None", {"metric": "auc"}),
            ("`missing` .* a dict or None", {"missing": ["text"]}),
            ("`missing` .* None unless method=", {"missing": {"text": ""}}),
            ("`repeats` .* at least 2.*=1", {"repeats": 1}),
            ("`seed` .* at least 0.*=-1", {"seed": -1}),
            ("`model` .* keras.Model", {"model": None}),
            (
                "`columns` .* of the features 'number', 't.*'x'",
                {"columns": ["x"]},
            ),
            ("`columns` .* a list of features, or", {"columns": "text"}),
            ("`columns` .* a list of features, or", {"columns": []}),
            ("`columns` .* a list of features, or", {"columns": {"a": "text"}}),
            ("`columns` .* a list of features, or", {"columns": {"a": []}}),
            ("`columns` .* a list of features, or", {"columns": {"a": 3}}),
        ):
            self.assert_refused(message, **changes)
        for message, missing in (
            ("given for the dense feature 'text'.*=None", {"number": 0.0}),
            ("given for the dense feature 'number'.*=None", None),
            (".*float32 for 'number'", {"number": "x", "text": ""}),
            (".*float32 for 'number'", {"number": [1.0, 2.0], "text": ""}),
            ("of dense features, as others .*'tags'", {"tags": 0}),
            ("of the features 'number', .*'x'", {"x": 0}),
        ):
            message = f"`missing` of column_importance must be {message}"
            self.assert_refused(message, method="leave_out", missing=missing)

    def test_wrong_data(self):
        features, labels = _features(), _labels()
        numbers = features["number"]
        batches = _batches({"number": numbers}, labels)
        allowed = r"`data` .* of batches \(features, labels\) or "
        for message, data in (
            ("`data` .* a tf.data.Dataset", {"number": numbers}),
            ("`data` .* finite", batches.repeat()),
            (allowed, _batches({"number": numbers})),
            (allowed, _batches(numbers, labels)),
            (allowed, _batches({}, labels)),
            (allowed, _batches({"number": {"x": numbers}}, labels)),
            (allowed, batches.unbatch()),
            (
                "`data` .* of at least 2 samples.*=1",
                batches.unbatch().batch(1).take(1),
            ),
            ("`data` .* of at least 2 samples.*=0", batches.take(0)),
            (
                "AUC of 300 .* finite, but is nan: it needs samples of both",
                _batches({"number": numbers}, labels * 0),
            ),
            (
                "labels.* must be 0 or 1",
                _batches({"number": numbers}, labels * 2),
            ),
            (
                "Predictions .* but are NaN for 300 of 300",
                _batches({"number": numbers * np.nan}, labels),
            ),
        ):
            inputs = {"number": keras.Input([1], name="number")}
            model = tf_ext.Model(
                inputs, keras.layers.Rescaling(1.0)(inputs["number"])
            )
            self.assert_refused(message, model=model, data=data, columns=None)

    def test_dense_features_of_other_widths(self):
        data = tf.data.Dataset.from_generator(
            lambda: [({"x": np.ones([2, n])}, np.ones(2)) for n in (3, 4)],
            output_signature=(
                {"x": tf.TensorSpec([None, None])},
                tf.TensorSpec([None]),
            ),
        )
        self.assert_refused(
            r"The feature 'x' must have one shape in all batches, but has "
            r"\(3,\) and \(4,\) without the batch. Pad it to one length, or ",
            data=data,
        )

    def test_sparse_features_of_other_widths(self):
        class Sums(tf_ext.Model):
            def call(self, inputs):
                return tf.reduce_sum(tf.sparse.to_dense(inputs["x"]), 1)

        rows = [
            np.array([[1.0, 0, 3], [0, 0, 0]]),
            np.array([[0, 5.0], [2, 0]]),
        ]
        labels = [[1, 0], [1, 0]]
        one, other = (
            tf.data.Dataset.from_tensors(({"x": tf.sparse.from_dense(x)}, y))
            for x, y in zip(rows, labels)
        )
        data = one.concatenate(other)
        found = column_importance(Sums(), data, repeats=2)
        self.assertEqual(found.baseline, 1.0)
        sums, flat = np.array([4, 0, 5, 2]), np.ravel(labels)
        expected = []
        for repeat in range(2):
            order = np.random.default_rng([0, repeat]).permutation(4)
            expected.append(1.0 - _pairs(flat, sums[order]))
        self.assertAllClose(found.columns[0].losses, expected)

    def test_bags_that_are_torn_apart(self):
        tags, shares = _features()["tags"], _features()["shares"]
        inputs = {
            "tags": keras.Input(
                [None], dtype="int64", name="tags", ragged=True
            ),
            "shares": keras.Input([None], name="shares", ragged=True),
        }
        column = tf_ext.feature_column.category_column("tags", weights="shares")
        embed = tf_ext.layers.EmbeddingFeatures(
            [column], tf_ext.SparseTable("torn", dim=1)
        )
        model = tf_ext.Model(inputs, embed(inputs))
        data = _batches({"tags": tags, "shares": shares}, _labels())
        column_importance(model, data, {"both": ["tags", "shares"]}, repeats=2)
        errors = (ValueError, tf.errors.InvalidArgumentError)
        with self.assertRaises(errors) as e:
            column_importance(model, data)
        (note,) = e.exception.__notes__
        self.assertIn("This happened after column 'tags' was changed", note)


if __name__ == "__main__":
    tf.test.main()
