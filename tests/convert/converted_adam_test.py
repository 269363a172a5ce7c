# SPDX-License-Identifier: Apache-2.0
"""Rows whose moments are Keras's train on as in Keras, by the same step."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from oracles import tfra_files
from saving_util import TestCase

import tf_ext
from tf_ext._compat.optimizers import slots_of
from tf_ext._keras import keras
from tf_ext.optimizers import SparseAdam

pytestmark = pytest.mark.both_kerases(slow=True)

_DIM, _ROWS, _RATE = 3, 6, 0.02
_COLUMN = tf_ext.feature_column.category_column("x", hashing="identity")


def _table(correction="row", absent="decay", **options):
    rule = SparseAdam(_RATE, bias_correction=correction, absent=absent)
    return tf_ext.SparseTable("rows", _DIM, rule, **options)


class _Twin:
    """An Embedding whose rows Keras's Adam trains, all of them in each step."""

    def __init__(self):
        self.embedding = keras.layers.Embedding(_ROWS, _DIM)
        self.embedding.build((None,))
        self.optimizer = keras.optimizers.Adam(_RATE)
        self.optimizer.build([self.embedding.embeddings])

    def push(self, rows, gradients):
        whole = np.zeros(self.embedding.embeddings.shape, np.float32)
        whole[rows] = gradients
        self.optimizer.apply_gradients(
            [(tf.constant(whole), self.embedding.embeddings)]
        )

    @property
    def weights(self):
        return self.embedding.get_weights()[0]

    def moments(self):
        """By the fields of rows."""
        found = slots_of(self.optimizer)
        return {
            field: np.array(tf.convert_to_tensor(found[name][0]))
            for field, name in (("m", "momentums"), ("v", "velocities"))
        }


def _steps(count, seed=0, most=_ROWS):
    """Rows and gradients of steps, in which some rows are absent."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        rows = rng.permutation(_ROWS)[: rng.integers(1, most + 1)]
        gradients = rng.normal(size=(len(rows), _DIM)).astype(np.float32)
        # Each row has gradients of another size.
        yield rows, gradients * (1 + rows[:, np.newaxis])


def _trained(steps):
    twin = _Twin()
    for step, (rows, gradients) in enumerate(_steps(steps)):
        if step == 0:
            rows, gradients = np.arange(_ROWS), gradients[:1]
        twin.push(rows, gradients)
    return twin


class AdamTest(TestCase):
    def _check_trains_on(self, twin, table, steps=40, first=None):
        """The last row is absent from all steps, others from some."""
        before = twin.weights
        for step, (rows, gradients) in enumerate(_steps(steps, 1, 3)):
            gradients, rows = gradients[rows < 5], rows[rows < 5]
            twin.push(rows, gradients)
            told = {} if first is None else {"step": first + step}
            table.push(rows, gradients, **told)
            if step % 10 == 9 or step < 3:
                self.assertAllClose(
                    table.pull(range(_ROWS)), twin.weights, 1e-5, 2e-6
                )
        if np.any(twin.moments()["v"][5]):
            self.assertNotAllClose(before[5], twin.weights[5], 1e-3, 1e-3)

    # The core keeps the last 170 steps apart from those before.
    @parameterized.parameters(1, 20, 250)
    def test_from_keras(self, steps):
        twin, table = _trained(steps), _table()
        done = tf_ext.convert.from_keras(
            twin.embedding, table, _COLUMN, optimizer=twin.optimizer
        )
        self.assertEqual((done.slots, done.notes), (("m", "v"), ()))
        self.assertAllEqual(table.pull(range(_ROWS)), twin.weights)
        self._check_trains_on(twin, table)

    def test_rows_are_absent_for_long(self):
        twin, table = _trained(20), _table()
        tf_ext.convert.from_keras(
            twin.embedding, table, _COLUMN, optimizer=twin.optimizer
        )
        self._check_trains_on(twin, table, 220)
        # All rows are there again.
        gradients = np.ones([_ROWS, _DIM], np.float32)
        for each in (twin, table):
            each.push(np.arange(_ROWS), gradients)
        self.assertAllClose(table.pull(range(_ROWS)), twin.weights, 1e-5, 2e-6)

    def test_the_step_is_saved(self):
        twin, table = _trained(20), _table()
        tf_ext.convert.from_keras(
            twin.embedding, table, _COLUMN, optimizer=twin.optimizer
        )
        path, copy = self.directory(), _table()
        table.save(path)
        copy.load(path)
        self._check_trains_on(twin, copy)

    def test_an_optimizer_that_has_made_no_step(self):
        twin, table = _trained(0), _table()
        done = tf_ext.convert.from_keras(
            twin.embedding, table, _COLUMN, optimizer=twin.optimizer
        )
        self.assertEqual(done.notes, ())
        self._check_trains_on(twin, table)

    def test_embeddings_of_other_steps_in_one_table(self):
        """The first decides; the others have the same corrected moments."""
        table = _table()
        for place, steps in enumerate((4, 30)):
            twin = _trained(steps)
            column = tf_ext.feature_column.category_column(f"x{place}")
            tf_ext.convert.from_keras(
                twin.embedding, table, column, optimizer=twin.optimizer
            )
            signs, fields = table.export_rows()
            order = np.argsort(signs)
            mine = column.signs(tf.range(_ROWS)).numpy()
            places = order[np.searchsorted(signs[order], mine)]
            for field, values in twin.moments().items():
                beta = {"m": 0.9, "v": 0.999}[field]
                self.assertAllClose(
                    fields[field][places] / (1 - beta**4),
                    values / (1 - beta**steps),
                    1e-5,
                )

    @parameterized.parameters("decay", "keep")
    def test_the_global_correction_needs_iterations(self, absent):
        twin, table = _trained(20), _table("global", absent)
        done = tf_ext.convert.from_keras(
            twin.embedding, table, _COLUMN, optimizer=twin.optimizer
        )
        [note] = done.notes
        self.assertIn("`model.optimizer.iterations` must be 20.", note)
        if absent == "decay":
            self._check_trains_on(twin, table, first=21)

    def test_from_tfra(self):
        twin, path = _trained(20), self.directory()
        keys = np.arange(_ROWS)
        values = {"x": twin.weights}
        values |= {f"x/{name}": one for name, one in twin.moments().items()}
        for name, rows in values.items():
            tfra_files.save_to_file_system(path, name, keys, rows)
        table = _table()
        done = tf_ext.convert.from_tfra(path, table, _COLUMN)
        self.assertEqual(done.slots, ())
        self.assertIn("pass `step`", done.notes[0])
        done = tf_ext.convert.from_tfra(path, table, _COLUMN, step=20)
        self.assertEqual((done.slots, done.notes), (("m", "v"), ()))
        self._check_trains_on(twin, table)
        for step, words in ((20, "20."), (None, "their number of steps.")):
            done = tf_ext.convert.from_tfra(
                path, _table("global"), _COLUMN, step=step
            )
            self.assertIn(f"iterations` must be {words}", done.notes[0])

    @parameterized.parameters("row", "global")
    def test_model_from_keras(self, correction):
        keras.utils.set_random_seed(2)
        inputs = [keras.Input((1,), dtype="int64", name=key) for key in "ab"]
        parts = [
            keras.layers.Flatten()(keras.layers.Embedding(8, _DIM)(one))
            for one in inputs
        ]
        outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(parts))
        before = keras.Model(inputs, outputs)
        before.compile(keras.optimizers.Adam(_RATE), "mse")
        rng = np.random.default_rng(3)

        def train(count, ids, *models):
            for _ in range(count):
                features = [rng.permutation(ids)[:4, None] for _ in "ab"]
                labels = np.sin(features[0] + 2.0 * features[1])
                losses = [m.train_on_batch(features, labels) for m in models]
            return losses

        train(30, 8, before)
        rule = SparseAdam(_RATE, bias_correction=correction, absent="decay")
        done = tf_ext.convert.model_from_keras(before, rule)
        self.assertEqual(done.notes, ())
        self.assertLen(done.model.tables, 1)
        # Ids from 5 on do not occur any more.
        expected, found = train(30, 5, before, done.model)
        self.assertAllClose(found, expected, 1e-5, 1e-6)
        features = [np.arange(8)[:, None]] * 2
        expected, found = (
            one.predict(features, verbose=0) for one in (before, done.model)
        )
        self.assertAllClose(found, expected, 1e-5, 1e-5)


if __name__ == "__main__":
    tf.test.main()
