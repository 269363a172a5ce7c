# SPDX-License-Identifier: Apache-2.0
"""Rows of single Embeddings in tables, and back."""

import pathlib
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from saving_util import TestCase

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.convert import rows_in, rows_out, slots

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "FromKerasTest::test_training_continues_adam",
        "FromKerasTest::test_training_continues_ftrl",
        "FromKerasTest::test_training_continues_rmsprop",
    ),
]

_DIM = 3
_TOKENS = ["a", "b", "[UNK]x", "", "\u00e9"]
_RULES = {
    "sgd": ("SGD", {}, ()),
    "momentum": (
        "SGD",
        {"momentum": 0.9, "nesterov": True},
        ("momentum",),
    ),
    "adagrad": ("Adagrad", {}, ("accumulator",)),
    "adam": ("Adam", {}, ("m", "v")),
    "ftrl": (
        "Ftrl",
        {"l1_regularization_strength": 0.01},
        ("accumulator", "linear"),
    ),
    "rmsprop": (
        "RMSprop",
        {"momentum": 0.5, "centered": True},
        ("velocity", "momentum", "average_gradient"),
    ),
    "lion": ("Lion", {}, ("momentum",)),
}


def _column(**options):
    return tf_ext.feature_column.category_column("x", **options)


def _table(optimizer="sgd", **options):
    return tf_ext.SparseTable("rows", _DIM, optimizer, **options)


def _embedding(size, **options):
    layer = keras.layers.Embedding(size, _DIM, **options)
    layer.build((None,))
    return layer


def _train(embedding, optimizer, steps):
    """Steps in which each row has one gradient, another in each step."""
    size = embedding.input_dim
    for step in steps:
        rng = np.random.default_rng(step)
        gradient = rng.normal(size=(size, _DIM)).astype(np.float32)
        slices = tf.IndexedSlices(
            tf.constant(gradient), tf.range(size), tf.constant([size, _DIM])
        )
        optimizer.apply_gradients([(slices, embedding.embeddings)])
        yield gradient


class FromKerasTest(TestCase):
    def _check(self, embedding, lookup, column, values, table):
        """A column reads what the lookup and the Embedding read."""
        features = tf_ext.layers.EmbeddingFeatures([column], table)
        ids = values if lookup is None else lookup(tf.constant(values))
        self.assertAllEqual(
            features({"x": tf.constant(values)}), embedding(ids)
        )

    @parameterized.product(unknown=[1, 3], mask=[None, ""], chunk=[1, 1 << 20])
    def test_strings(self, unknown, mask, chunk):
        tokens = [one for one in _TOKENS if one != mask]
        lookup = keras.layers.StringLookup(
            vocabulary=tokens, mask_token=mask, num_oov_indices=unknown
        )
        embedding, table = _embedding(12), _table()
        column = _column()
        with mock.patch.object(rows_in, "CHUNK_BYTES", chunk):
            done = tf_ext.convert.from_keras(embedding, table, column, lookup)
        self._check(embedding, lookup, column, _TOKENS, table)
        # Of the mask token, which is one of _TOKENS, too.
        self.assertEqual(done.taken, len(_TOKENS))
        self.assertEqual(table.size(), len(_TOKENS))
        self.assertEqual(done.left, 12 - len(_TOKENS))
        first = 0 if mask is None else 1
        self.assertAllEqual(
            done.unknown, embedding(tf.range(first, first + unknown))
        )
        [note] = done.notes
        self.assertIn(f"instead of {unknown} row(s)", note)

    def test_masked_tokens_have_no_row(self):
        lookup = keras.layers.StringLookup(vocabulary=["a"], mask_token="-")
        embedding, table = _embedding(3), _table()
        done = tf_ext.convert.from_keras(
            embedding, table, _column(missing="-"), lookup
        )
        self.assertEqual((done.taken, done.left, table.size()), (1, 2, 1))
        self._check(embedding, lookup, _column(), ["a"], table)

    def test_vocabulary_of_a_file(self):
        path = pathlib.Path(self.get_temp_dir(), "vocabulary")
        path.write_text("b\na\nc\n")
        lookup = keras.layers.StringLookup(vocabulary=str(path))
        embedding, table = _embedding(4), _table()
        tf_ext.convert.from_keras(embedding, table, _column(), lookup)
        self._check(embedding, lookup, _column(), ["a", "b", "c"], table)

    def test_integers(self):
        tokens = [7, -5, 2**40]
        lookup = keras.layers.IntegerLookup(vocabulary=tokens, mask_token=0)
        embedding, table = _embedding(5), _table()
        done = tf_ext.convert.from_keras(embedding, table, _column(), lookup)
        self._check(embedding, lookup, _column(), np.array([*tokens, 0]), table)
        self.assertEqual((done.taken, done.left), (4, 1))

    def test_indices_and_bins(self):
        hashing = keras.layers.Hashing(5)
        for lookup in (None, hashing):
            for column in (_column(), _column(hashing="identity")):
                embedding, table = _embedding(5), _table()
                done = tf_ext.convert.from_keras(
                    embedding, table, column, lookup
                )
                self.assertEqual((done.taken, done.left), (5, 0))
                self.assertEqual(done.notes, ())
                self._check(embedding, None, column, np.arange(5), table)

    @parameterized.named_parameters(
        (name, *case) for name, case in _RULES.items()
    )
    def test_training_continues(self, name, options, slots):
        optimizer = getattr(keras.optimizers, name)(0.1, **options)
        embedding = _embedding(4)
        optimizer.build([embedding.embeddings])
        for _ in _train(embedding, optimizer, range(5)):
            pass
        table = _table(getattr(keras.optimizers, name)(0.1, **options))
        done = tf_ext.convert.from_keras(
            embedding, table, _column(), optimizer=optimizer
        )
        self.assertEqual(done.slots, slots)
        # Of Adam: its `iterations`, which `push` is told here.
        self.assertLen(done.notes, 1 if name == "Adam" else 0)
        signs = _column().signs(tf.range(4))
        steps = range(5, 10)
        for step, gradient in zip(steps, _train(embedding, optimizer, steps)):
            table.push(signs, gradient, step=step + 1)
            self.assertAllClose(
                # Keras rounds the powers of Adam's betas.
                table.pull(signs),
                embedding(tf.range(4)),
                1e-5,
                1e-5,
            )

    def test_steps_of_rows(self):
        optimizer, embedding = keras.optimizers.Adam(0.1), _embedding(4)
        optimizer.build([embedding.embeddings])
        for _ in _train(embedding, optimizer, range(5)):
            pass
        table = _table(tf_ext.optimizers.SparseAdam(0.1))
        done = tf_ext.convert.from_keras(
            embedding, table, _column(), optimizer=optimizer
        )
        self.assertEqual(done.slots, ("m", "v", "step"))
        self.assertAllEqual(table.export_rows()[1]["step"], [[5]] * 4)
        [gradient] = _train(embedding, optimizer, [5])
        signs = _column().signs(tf.range(4))
        table.push(signs, gradient)
        self.assertAllClose(
            table.pull(signs), embedding(tf.range(4)), 1e-6, 1e-6
        )

    def test_other_slots_start_from_their_initial_values(self):
        embedding = _embedding(4)
        for optimizer, rule, words in (
            (keras.optimizers.Adagrad(), "row_wise_adagrad", "SparseRowWise"),
            (keras.optimizers.Nadam(), "adam", "the model's Nadam"),
            (keras.optimizers.Adam(amsgrad=True), "adam", "initial values"),
            (keras.optimizers.Adam(), "adam", "not trained the layer yet"),
        ):
            table = _table(rule)
            if "not trained" not in words:
                optimizer.build([embedding.embeddings])
            done = tf_ext.convert.from_keras(
                embedding, table, _column(), optimizer=optimizer
            )
            self.assertEqual(done.slots, ())
            [note] = done.notes
            self.assertIn(words, note)

    def test_other_rows_stay(self):
        table = _table()
        table.import_rows([5], {"weights": [[1.0] * _DIM]})
        tf_ext.convert.from_keras(_embedding(2), table, _column())
        self.assertEqual(table.size(), 3)
        self.assertAllEqual(table.pull([5]), [[1.0] * _DIM])

    def test_says_what_is_lost(self):
        lookup = keras.layers.StringLookup(vocabulary=["a"])
        with self.assertLogs("tf_ext", "WARNING") as log:
            tf_ext.convert.from_keras(
                _embedding(2), _table(unknown="zeros"), _column(), lookup
            )
        self.assertIn("reads zeros from table 'rows'", log.output[0])

    @parameterized.product(mask=[None, "-"], rule=["SGD", "Adagrad"])
    def test_unknown_strings_read_unk(self, mask, rule):
        lookup = keras.layers.StringLookup(
            vocabulary=["a", "b"], mask_token=mask
        )
        size = 3 + (mask is not None)
        embedding, column = _embedding(size), _column(missing=mask)
        optimizer = getattr(keras.optimizers, rule)(0.1)
        for _ in _train(embedding, optimizer, range(2)):
            pass
        table = _table(rule.lower(), unknown="shared")
        done = tf_ext.convert.from_keras(
            embedding, table, column, lookup, optimizer
        )
        self.assertEqual(done.notes, ())
        self.assertEqual(done.taken, 3)
        values = ["a", "b", "c", "[UNK]"]
        self._check(embedding, lookup, column, values, table)
        made = tf_ext.convert.to_keras(table, column, ["a", "b"])
        self.assertAllEqual(
            made.embedding(made.lookup(tf.constant(values))),
            embedding(lookup(tf.constant(values))),
        )
        signs, fields = table.export_rows()
        [place] = np.flatnonzero(signs == table.unknown_ids[0])
        for name in done.slots:
            row = _RULES["adagrad"][2].index(name)
            self.assertEqual(row, 0)
            self.assertAllGreater(fields[name][place], 0.1)

    def test_unknown_integers_read_the_row_that_they_read_in_keras(self):
        lookup = keras.layers.IntegerLookup(
            vocabulary=[5, -7], num_oov_indices=3
        )
        embedding, column = _embedding(5), _column(hashing="identity")
        table = _table(unknown="shared", unknown_buckets=3)
        done = tf_ext.convert.from_keras(embedding, table, column, lookup)
        self.assertEqual((done.taken, done.left, done.notes), (5, 0, ()))
        values = np.array([5, -7, 0, 1, 2, -1, -2, 2**62, -(2**62)])
        self._check(embedding, lookup, column, values, table)
        made = tf_ext.convert.to_keras(table, column, [5, -7])
        self.assertAllEqual(
            made.embedding(made.lookup(tf.constant(values))),
            embedding(lookup(tf.constant(values))),
        )

    def test_says_that_unknown_values_read_other_rows(self):
        lookup = keras.layers.StringLookup(vocabulary=["a"], num_oov_indices=2)
        table = _table(unknown="shared", unknown_buckets=2)
        embedding = _embedding(3)
        done = tf_ext.convert.from_keras(embedding, table, _column(), lookup)
        self.assertIn("not the same ones as in Keras", done.notes[0])
        self.assertAllEqual(
            table.pull(table.unknown_ids), embedding(tf.constant([0, 1]))
        )

    def test_weight_decay_is_l2_of_adam(self):
        adam = keras.optimizers.Adam(0.1)
        adamw = keras.optimizers.AdamW(0.1, weight_decay=0.25)
        adagrad = keras.optimizers.Adagrad(0.1)
        found = [slots.rule_and_l2(one, 4) for one in (adam, adamw, adagrad)]
        self.assertEqual([l2 for _, l2 in found], [0.0, 0.25, 0.0])
        self.assertEqual([one.absent for one, _ in found[:2]], ["decay"] * 2)

    def test_refuses_other_buckets(self):
        lookup = keras.layers.StringLookup(vocabulary=["a"], num_oov_indices=2)
        table = _table(unknown="shared", unknown_buckets=3)
        with self.assertRaisesRegex(ValueError, "must have unknown_buckets=2"):
            tf_ext.convert.from_keras(_embedding(3), table, _column(), lookup)
        self.assertEqual(table.size(), 0)

    def test_refuses_other_arguments(self):
        lookup = keras.layers.StringLookup(vocabulary=["a", "b"])
        good = {
            "embedding": _embedding(3),
            "table": _table(),
            "column": _column(),
            "lookup": lookup,
        }
        unbuilt = keras.layers.Embedding(3, _DIM)
        if IS_KERAS_3:
            unbuilt.built = False
        counts = keras.layers.StringLookup(
            vocabulary=["a"], output_mode="multi_hot"
        )
        for wrong, words in (
            ({"embedding": keras.layers.Dense(1)}, "`embedding` of from_keras"),
            ({"embedding": unbuilt}, "must be a layer that has been built"),
            ({"embedding": _embedding(2)}, "whose largest is 2. Received: lay"),
            ({"embedding": _embedding(3, dtype="float64")}, "of float32"),
            ({"table": "rows"}, "`table` of from_keras must be a tf_ext.Spar"),
            ({"table": tf_ext.SparseTable("t", 2)}, "dim of the Embedding, 3"),
            ({"column": "x"}, "`column` of from_keras must be a column"),
            ({"column": _column(bucket_size=5)}, "must have bucket_size=None"),
            ({"column": _column(boundaries=[1])}, "must have boundaries=None"),
            ({"column": _column(hashing="identity")}, "needs integers"),
            ({"lookup": keras.layers.Dense(1)}, "`lookup` of from_keras"),
            ({"lookup": keras.layers.StringLookup()}, "have a vocabulary"),
            ({"lookup": counts}, "must have output_mode='int'"),
            ({"lookup": keras.layers.Hashing(4)}, "at most as many bins"),
        ):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                tf_ext.convert.from_keras(**good | wrong)
        self.assertEqual(good["table"].size(), 0)


class ToKerasTest(TestCase):
    def _table(self, values):
        table = _table()
        signs = _column().signs(values)
        table.pull(signs, training=True)
        return table

    @parameterized.product(missing=[None, "-"], chunk=[1, 100])
    def test_strings(self, missing, chunk):
        tokens = ["[UNK]", "b", "a"]  # As Keras's special tokens begin.
        column, table = _column(missing=missing), self._table(tokens)
        unknown = [1.0, 2.0, 3.0]
        with mock.patch.object(rows_out, "_CHUNK", chunk):
            made = tf_ext.convert.to_keras(table, column, tokens, unknown)
        values = tf.constant([*tokens, "?"])
        found = made.embedding(made.lookup(values))
        self.assertAllEqual(found[:3], table.pull(column.signs(tokens)))
        self.assertAllEqual(found[3], unknown)
        if missing is not None:
            masked = made.embedding(made.lookup(tf.constant([missing])))
            self.assertAllEqual(masked, [[0.0] * _DIM])

    def test_integers(self):
        tokens = np.array([-1, 7, 0])
        column, table = _column(), self._table(tokens)
        made = tf_ext.convert.to_keras(table, column, tokens)
        found = made.embedding(made.lookup(tf.constant([*tokens, 99])))
        self.assertAllEqual(found[:3], table.pull(column.signs(tokens)))
        self.assertAllEqual(found[3], [0.0] * _DIM)

    def test_a_vector_of_unknown_values(self):
        table = _table(unknown=[1.0, 2.0, 3.0])
        made = tf_ext.convert.to_keras(table, _column(), ["a"])
        found = made.embedding(made.lookup(tf.constant(["b"])))
        self.assertAllEqual(found, [[1.0, 2.0, 3.0]])

    def test_values_without_a_row(self):
        table = self._table(["a"])
        rows = tf_ext.convert.to_matrix(table, _column(), ["b", "a"])
        self.assertAllEqual(rows, table.pull(_column().signs(["b", "a"])))
        self.assertEqual(table.size(), 1)

    def test_there_and_back(self):
        lookup = keras.layers.StringLookup(vocabulary=["a", "b"])
        embedding, table = _embedding(3), _table()
        done = tf_ext.convert.from_keras(embedding, table, _column(), lookup)
        made = tf_ext.convert.to_keras(
            table, _column(), ["a", "b"], done.unknown[0]
        )
        self.assertAllEqual(made.embedding.embeddings, embedding.embeddings)
        self.assertEqual(made.lookup.get_vocabulary(), lookup.get_vocabulary())

    def test_refuses_other_arguments(self):
        good = {"table": _table(), "column": _column(), "vocabulary": ["a"]}
        for wrong, words in (
            ({"table": 5}, "`table` of to_keras must be"),
            ({"column": _column(bucket_size=2)}, "must have bucket_size=None"),
            ({"vocabulary": []}, "`vocabulary` of to_keras must be a list"),
            ({"vocabulary": [1.5]}, "`vocabulary` of to_keras must be a list"),
            ({"vocabulary": ["a", "b", "a"]}, "a value twice. Received: 1"),
            ({"unknown": [1.0]}, "`unknown` of to_keras must be a vector of 3"),
        ):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                tf_ext.convert.to_keras(**good | wrong)


if __name__ == "__main__":
    tf.test.main()
