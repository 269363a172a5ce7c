# SPDX-License-Identifier: Apache-2.0
"""tf_ext.serving.weights_only: models whose tables cannot be trained."""

import os

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.small_models import RULES, batch, compiled, functional, table
from saving_util import FORMATS, TestCase, contents

import tf_ext
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "WeightsOnlyTest::test_ends_with_the_context",
        "WeightsOnlyTest::test_refuses_what_reads_otherwise",
        "WeightsOnlyTest::test_rows_that_only_serve_have_no_hyperparameters_to_compare",
        "WeightsOnlyTest::test_takes_snapshots_of_any_rule[0126]",
    ),
]


def _weights(contents_of_table):
    return contents_of_table["weights"]


def _trained_model(rule="adam"):
    model = compiled(functional(table(rule)))
    features, labels = batch(np.random.default_rng(1))
    model.fit(features, labels, epochs=2, verbose=0)
    return model, features


class WeightsOnlyTest(TestCase):
    def _assert_serves(self, served, trained, features):
        [mine], [theirs] = served.tables, trained.tables
        self.assertEqual(_weights(contents(mine)), _weights(contents(theirs)))
        self.assertEqual(mine.stats()["row_bytes"], 8 + 4 * 4)
        # Rows that are not there, too.
        features = {k: np.concatenate([v, v + 99]) for k, v in features.items()}
        self.assertAllEqual(
            served.predict(features, verbose=0),
            trained.predict(features, verbose=0),
        )
        self.assertEqual(mine.size(), theirs.size())

    @parameterized.named_parameters(*FORMATS)
    def test_takes_weights_from(self, name):
        trained, features = _trained_model()
        write, read = self.format(name)
        write(trained)
        with tf_ext.serving.weights_only():
            served = compiled(functional(table("adam")))
        read(served)
        self._assert_serves(served, trained, features)

    def test_loads_a_saved_model_inside_of_it(self):
        trained, features = _trained_model()
        path = self.path("model.keras")
        trained.save(path)
        with tf_ext.serving.weights_only():
            served = keras.models.load_model(path)
        self._assert_serves(served, trained, features)
        # A copy of the copy, and what is made outside as ever.
        again = self.path("again.keras")
        served.save(again)
        with tf_ext.serving.weights_only():
            self._assert_serves(
                keras.models.load_model(again), trained, features
            )
        with self.assertRaisesRegex(ValueError, "'none'"):
            keras.models.load_model(again)
        outside = keras.models.load_model(path)
        self.assertEqual(
            contents(outside.tables[0]), contents(trained.tables[0])
        )

    @parameterized.parameters(*RULES)
    def test_takes_snapshots_of_any_rule(self, rule):
        trained = table(rule)
        paths = [self.path(str(number)) for number in range(2)]
        trained.pull(np.arange(50), training=True)
        trained.save(paths[0], incremental=True)
        trained.push(np.arange(40, 60), np.ones([20, 4]), learning_rate=0.1)
        trained.erase(np.arange(10))
        trained.save(paths[1], base=paths[0])
        for name in ("sgd", "adam"):
            with tf_ext.serving.weights_only():
                served = table(name)
            served.load(paths[0])
            served.apply_delta(paths[1])
            self.assertEqual(
                contents(served), {"weights": _weights(contents(trained))}
            )
            served.load(paths[0])
            served.load(paths[1], in_place=True)
            self.assertEqual(
                contents(served), {"weights": _weights(contents(trained))}
            )
        # Its own snapshots are as those of others.
        own = self.path("own")
        served.save(own, incremental=True)
        with tf_ext.serving.weights_only():
            copy = table()
        copy.load(own)
        self.assertEqual(contents(copy), contents(served))
        with self.assertRaisesRegex(ValueError, "`optimizer` is .*'none'"):
            table(rule).load(own)

    def test_rows_that_only_serve_have_no_hyperparameters_to_compare(self):
        rates = (0.5, 0.25)
        trained, other = (
            tf_ext.SparseTable("t", 2, tf_ext.optimizers.SparseAdam(rate))
            for rate in rates
        )
        with tf_ext.serving.weights_only():
            served = tf_ext.SparseTable(
                "t", 2, tf_ext.optimizers.SparseAdam(rates[1])
            )
        path = self.path("t")
        trained.save(path)
        with self.assertLogs("tf_ext"):
            other.load(path)
        with self.assertNoLogs("tf_ext"):
            served.load(path)

    def test_refuses_what_reads_otherwise(self):
        path = self.path("rows")
        trained = tf_ext.SparseTable("deep", 4, "adam", "normal", seed=4)
        trained.pull([1], training=True)
        trained.save(path)
        with tf_ext.serving.weights_only():
            served = table()
        with self.assertRaisesRegex(ValueError, "its `seed` is '3'"):
            served.load(path)
        served.load(path, weights_only=True)
        self.assertEqual(served.size(), 1)

    def test_refuses_to_be_trained(self):
        with tf_ext.serving.weights_only():
            served = table("sgd")
            model = compiled(functional(table("adam")))
        message = (
            "inside of tf_ext.serving.weights_only: it holds weights to serve "
            "and cannot be trained"
        )
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
            served.push([1], np.ones([1, 4]), learning_rate=0.1)
        self.assertEqual(served.size(), 0)
        features, labels = batch(np.random.default_rng(1))
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
            model.fit(features, labels, verbose=0)

    def test_ends_with_the_context(self):
        with self.assertRaises(KeyError):
            with tf_ext.serving.weights_only():
                raise KeyError
        self.assertLen(table("adam").rows.fields, 4)

    def test_serves_by_signatures(self):
        trained, features = _trained_model()
        path = os.path.join(self.directory(), "x.keras")
        trained.save(path)
        with tf_ext.serving.weights_only():
            served = keras.models.load_model(path)
        exported = self.path("exported")
        served.export(exported)
        loaded = tf.saved_model.load(exported)
        self.assertAllClose(
            loaded.serve({k: tf.constant(v) for k, v in features.items()}),
            trained.predict(features, verbose=0),
        )


if __name__ == "__main__":
    tf.test.main()
