# SPDX-License-Identifier: Apache-2.0
"""Models on tables against the same models on variables, step by step."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import (
    BagsOfSigns,
    BatchLosses,
    StaticFeatures,
    StaticNetwork,
    TableNetwork,
    generator,
    mirrored_strategy,
    number,
    rows_of,
)

import tf_ext
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "TwinTest::test__wide_and_deep_adagrad",
    ),
]

_STEPS = 300
_BATCH_SIZE = 16

_COMBINERS = {"a": "sum", "b": "mean", "c": "sqrtn"}

# How the table is used: {table: combiners by feature} for each layer, and the
# calls, which are the number of a layer and what takes a feature's place.
_USES = {
    "one_layer": ([{"deep": _COMBINERS}], [(0, {})]),
    "two_layers": (
        [
            {"deep": {"a": "sum", "b": "mean"}},
            {"deep": {"b": "sqrtn", "c": "mean"}},
        ],
        [(0, {}), (1, {})],
    ),
    "layer_called_twice": (
        [{"deep": {"a": "sum", "b": "mean"}}],
        [(0, {}), (0, {"a": "c", "b": "a"})],
    ),
    "wide_and_deep": (
        [{"wide": {"a": "sum", "c": "sum"}, "deep": _COMBINERS}],
        [(0, {})],
    ),
    "two_layers_called_twice": (
        [{"deep": {"a": "sum"}}, {"deep": {"b": "mean", "c": "sum"}}],
        [(0, {}), (1, {}), (0, {"a": "b"}), (1, {"b": "c", "c": "a"})],
    ),
}
_DIMS = {"wide": 1, "deep": 4}

# Keras optimizer, the tables' rule, where weights start. FTRL works its
# weights out of its slots, in Keras for rows without a gradient as well: only
# from zeros is a lazy row the same.
_RULES = {
    "sgd": ("SGD", tf_ext.optimizers.SparseSGD, "uniform"),
    "adagrad": ("Adagrad", tf_ext.optimizers.SparseAdagrad, "uniform"),
    "ftrl": ("Ftrl", tf_ext.optimizers.SparseFtrl, "zeros"),
}


class StaticTables(keras.layers.Layer):
    """`StaticFeatures` of several tables, as a layer of several tables."""

    def __init__(self, parts):
        super().__init__(autocast=False)
        self.parts = parts

    def call(self, inputs):
        outputs = {name: part(inputs) for name, part in self.parts.items()}
        return outputs if len(outputs) > 1 else outputs["deep"]


class _Twins:
    """A model on tables and the same on variables, with equal weights.

    Args:
      use: key of _USES.
      rule: key of _RULES.
      data: BagsOfSigns.
      strategy: of the model on tables, or None.
      dense_options: options of the Keras optimizers.
      rule_options: options of the tables' rule.
    """

    def __init__(
        self,
        use,
        rule,
        data,
        strategy=None,
        dense_options=None,
        rule_options=None,
    ):
        layers, calls = _USES[use]
        names = sorted({name for layer in layers for name in layer})
        keras_name, self._sparse, self._initializer = _RULES[rule]
        self.signs = data.signs

        def dense():
            return getattr(keras.optimizers, keras_name)(
                0.1, **(dense_options or {})
            )

        with (strategy or tf.distribute.get_strategy()).scope():
            self.tables = {
                name: self._table(name, rule_options) for name in names
            }
            features = [
                tf_ext.layers.EmbeddingFeatures(
                    {
                        self.tables[name]: data.columns(combiners)
                        for name, combiners in layer.items()
                    }
                    if len(layer) > 1
                    else data.columns(layer["deep"]),
                    None if len(layer) > 1 else self.tables["deep"],
                )
                for layer in layers
            ]
            self.model = TableNetwork([(features[i], r) for i, r in calls])
            self.model.compile(tf_ext.optimizers.Optimizer(dense()), _loss())

        self.initial = {}
        self.embeddings = {name: self._embedding(name) for name in names}
        static = [
            StaticTables(
                {
                    name: StaticFeatures(self.embeddings[name], combiners)
                    for name, combiners in layer.items()
                }
            )
            for layer in layers
        ]
        self.static = StaticNetwork([(static[i], r) for i, r in calls])
        self.static.compile(dense(), _loss())

    def _table(self, name, options):
        return tf_ext.SparseTable(
            name,
            _DIMS[name],
            self._sparse(**(options or {})),
            self._initializer,
            seed=11,
        )

    def _embedding(self, name):
        embedding = keras.layers.Embedding(len(self.signs), _DIMS[name])
        embedding.build((None,))
        self.initial[name] = self.tables[name].pull(self.signs).numpy()
        embedding.set_weights([self.initial[name]])
        return embedding


def _loss():
    return keras.losses.BinaryCrossentropy(from_logits=True)


def _losses(model, dataset):
    callback = BatchLosses()
    model.fit(dataset, verbose=0, callbacks=[callback], shuffle=False)
    return callback.losses


class TwinTest(tf.test.TestCase, parameterized.TestCase):
    def _data(self, vocabulary=30):
        return BagsOfSigns(
            generator(self), "abc", _STEPS * _BATCH_SIZE, vocabulary
        )

    def _assert_same_training(self, twins, data, ragged):
        dataset = data.dataset(_BATCH_SIZE, ragged)
        losses = _losses(twins.model, dataset)
        self.assertLen(losses, _STEPS)
        expected = _losses(twins.static, data.dataset(_BATCH_SIZE, False))
        self.assertAllClose(losses, expected, rtol=1e-5, atol=0.0)
        self.assertEqual(number(twins.model.optimizer.iterations), _STEPS)
        for name, table in twins.tables.items():
            rows = rows_of(table)
            self.assertCountEqual(rows, data.signs.tolist())
            trained = twins.embeddings[name].get_weights()[0]
            self._assert_near(
                [rows[sign] for sign in data.signs.tolist()], trained
            )
            # They have moved, so that there was something to compare.
            moves = np.abs(trained - twins.initial[name]).max(axis=1)
            self.assertGreater(np.median(moves), 1e-3)
        for part in ("hidden", "logits"):
            for variable, expected in zip(
                getattr(twins.model, part).get_weights(),
                getattr(twins.static, part).get_weights(),
                strict=True,
            ):
                self._assert_near(variable, expected)

    def _assert_near(self, actual, expected):
        largest = np.abs(expected).max()
        self.assertAllClose(actual, expected, rtol=1e-5, atol=1e-5 * largest)

    @parameterized.named_parameters(
        (f"{use}_{rule}", use, rule)
        for use in _USES
        for rule in _RULES
        if rule == "adagrad"
    )
    def test_(self, use, rule):
        self._assert_twins_are_the_same(use, rule)

    @parameterized.named_parameters(
        (f"{use}_{rule}", use, rule)
        for use in _USES
        for rule in _RULES
        if rule != "adagrad" and use != "two_layers_called_twice"
    )
    @pytest.mark.slow
    def test_more_(self, use, rule):
        self._assert_twins_are_the_same(use, rule)

    def _assert_twins_are_the_same(self, use, rule):
        data = self._data()
        self._assert_same_training(_Twins(use, rule, data), data, ragged=True)

    def test_padded_bags(self):
        data = self._data()
        twins = _Twins("one_layer", "adagrad", data)
        self._assert_same_training(twins, data, ragged=False)

    @parameterized.named_parameters(
        ("layer_called_twice_ftrl", "layer_called_twice", "ftrl"),
        ("wide_and_deep_adagrad", "wide_and_deep", "adagrad"),
    )
    def test_two_mirrored_replicas_(self, use, rule):
        self._assert_replicas_are_as_one(use, rule)

    @parameterized.named_parameters(
        ("one_layer_sgd", "one_layer", "sgd"),
        ("one_layer_ftrl", "one_layer", "ftrl"),
        ("two_layers_adagrad", "two_layers", "adagrad"),
        ("layer_called_twice_adagrad", "layer_called_twice", "adagrad"),
    )
    @pytest.mark.slow
    def test_more_of_two_mirrored_replicas_(self, use, rule):
        self._assert_replicas_are_as_one(use, rule)

    def _assert_replicas_are_as_one(self, use, rule):
        data = self._data()
        twins = _Twins(use, rule, data, mirrored_strategy())
        self._assert_same_training(twins, data, ragged=True)

    @parameterized.named_parameters(
        ("clipnorm", "wide_and_deep", {"clipnorm": 0.02}, False),
        ("clipvalue", "one_layer", {"clipvalue": 0.005}, False),
        (
            "global_clipnorm",
            "wide_and_deep",
            {"global_clipnorm": 0.05},
            False,
        ),
        (
            "global_clipnorm_over_layers",
            "two_layers",
            {"global_clipnorm": 0.05},
            False,
        ),
        (
            "clipnorm_over_replicas",
            "one_layer",
            {"clipnorm": 0.02},
            True,
        ),
        (
            "global_clipnorm_over_replicas",
            "wide_and_deep",
            {"global_clipnorm": 0.05},
            True,
        ),
    )
    def test_clipping_by_(self, use, options, mirrored):
        data = self._data()
        strategy = mirrored_strategy() if mirrored else None
        twins = _Twins(use, "sgd", data, strategy, options)
        self._assert_same_training(twins, data, ragged=not mirrored)

    @parameterized.named_parameters(("sgd", "sgd"), ("adagrad", "adagrad"))
    def test_weight_decay_where_all_rows_are_touched_(self, rule):
        data = self._data(vocabulary=7)
        decay = {"weight_decay": 0.1}
        twins = _Twins("one_layer", rule, data, None, decay, decay)
        self._assert_same_training(twins, data, ragged=True)


if __name__ == "__main__":
    tf.test.main()
