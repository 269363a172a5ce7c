# SPDX-License-Identifier: Apache-2.0
"""Snapshots rewritten for dense Adam go on at the step of their moments."""

import numpy as np
import pytest
import snapshot_util as util
import tensorflow as tf
from absl.testing import absltest, parameterized
from transform_util import TransformTestCase, by_sign

from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.optimizers import SparseAdam
from tf_ext.snapshot import transform

pytestmark = pytest.mark.both_kerases(slow=True)

_DIM, _ROWS, _RATE, _BETA_2 = 3, 6, 0.02, 0.98


def _rule(absent="decay", **options):
    options = {"beta_2": _BETA_2} | options
    return SparseAdam(_RATE, absent=absent, **options)


def _table(rule, **options):
    options = {"dim": _DIM, "optimizer": rule, "initializer": "zeros"} | options
    return util.table(2, **options)


def _gradients(steps, rows, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        gradients = rng.normal(size=(rows, _DIM))
        gradients *= 1 + np.arange(rows)[:, np.newaxis]
        yield gradients.astype(np.float32)


def _train(table, steps, rows=_ROWS, seed=0, first=1):
    for step, gradients in enumerate(_gradients(steps, rows, seed), first):
        table.push(np.arange(rows), gradients, step=step)


class AdamTest(TransformTestCase):
    def _transformed(self, table, rule, **options):
        table.save(self.path("old"))
        transform(self.path("old"), self.path("new"), optimizer=rule, **options)
        made = _table(rule, **options)
        made.load(self.path("new"))
        return made

    def test_trains_on_as_in_keras(self):
        """Rows that were in each step of lazy Adam are those of a matrix."""
        steps = 600
        lazy = _table(_rule("keep"))
        kind = keras.Variable if IS_KERAS_3 else tf.Variable
        variable = kind(np.zeros([_ROWS, _DIM], np.float32))
        adam = keras.optimizers.Adam(_RATE, beta_2=_BETA_2)
        adam.build([variable])
        push = tf.function(lambda g: adam.apply_gradients([(g, variable)]))
        for gradients in _gradients(steps, _ROWS):
            push(tf.constant(gradients))
        _train(lazy, steps)
        table = self._transformed(lazy, _rule())
        before = np.array(tf.convert_to_tensor(variable))
        for gradients in _gradients(30, 2, seed=1):
            whole = np.zeros([_ROWS, _DIM], np.float32)
            whole[:2] = gradients
            push(tf.constant(whole))
            table.push([0, 1], gradients)
        expected = np.array(tf.convert_to_tensor(variable))
        self.assertAllClose(table.pull(range(_ROWS)), expected, 1e-4, 1e-4)
        # Also rows that were absent.
        self.assertNotAllClose(before[2:], expected[2:], 1e-3, 2e-3)

    @parameterized.product(
        correction=["row", "global"], slot_dtype=["float32", "bfloat16"]
    )
    def test_rows_of_different_steps(self, correction, slot_dtype):
        lazy = _table(_rule("keep", beta_2=0.99))
        for rows in (1, 3, 6):
            _train(lazy, 4, rows, seed=rows)
        rule = _rule(bias_correction=correction)
        made = self._transformed(lazy, rule, slot_dtype=slot_dtype)
        saved = by_sign(self.path("old"))
        signs, fields = made.export_rows()
        steps = np.array([saved["step"][sign][0] for sign in signs])
        self.assertCountEqual(steps, [12, 8, 8, 4, 4, 4])
        precision = 1e-6 if slot_dtype == "float32" else 2**-8
        # Betas are those with which the rows were trained.
        for field, beta in (("m", 0.9), ("v", 0.99)):
            was = np.array([saved[field][sign] for sign in signs])
            corrected = was / (1 - beta ** steps[:, np.newaxis])
            self.assertAllClose(fields[field], corrected, precision)
        # Nothing is left to correct.
        weights = made.pull(signs)
        made.push(signs, np.zeros([_ROWS, _DIM]), step=2**30)
        down = np.sqrt(fields["v"] * _BETA_2) + 1e-7
        moved = weights - _RATE * fields["m"] * 0.9 / down
        self.assertAllClose(made.pull(signs), moved, 1e-5, 1e-2 * precision)

    def test_moments_of_the_global_correction_stay(self):
        lazy = _table(_rule("keep", bias_correction="global"))
        _train(lazy, 20)
        made = self._transformed(lazy, _rule())
        for found, expected in zip(
            made.export_rows()[1].values(), lazy.export_rows()[1].values()
        ):
            self.assertAllEqual(found, expected)
        weights, m, v = (
            made.export_rows()[1][k] for k in ("weights", "m", "v")
        )
        made.push([99], np.zeros([1, _DIM]))
        moved = weights - _RATE * m * 0.9 / (np.sqrt(v * _BETA_2) + 1e-7)
        signs = lazy.export_rows()[0]
        self.assertAllClose(made.pull(signs), moved, 1e-5, 1e-6)

    @parameterized.parameters(
        {"epsilon": 2e-7}, {"bias_correction": "global"}, {"beta_2": 0.985}
    )
    def test_other_arguments_keep_the_step(self, **changes):
        dense = _table(_rule())
        _train(dense, 20)
        made = self._transformed(dense, _rule(**changes), dim=2)
        for name, beta in (("m", 0.9), ("v", _BETA_2)):
            other = changes.get("beta_2", beta) if name == "v" else beta
            factor = (1 - other**20) / (1 - beta**20)
            self.assertAllClose(
                made.export_rows()[1][name],
                dense.export_rows()[1][name][:, :2] * factor,
                1e-5,
            )
        ids = range(_ROWS)
        before = dense.pull(ids)
        for step, gradients in enumerate(_gradients(20, 2, seed=1), 21):
            dense.push([0, 1], gradients, step=step)
            made.push([0, 1], gradients[:, :2], step=step)
            # Exact at first: others forget faster.
            tolerance = 0.05 * _RATE if "beta_2" in changes else 1e-6
            self.assertAllClose(
                made.pull(ids), dense.pull(ids)[:, :2], 1e-5, tolerance
            )
            if "beta_2" in changes:
                break
        self.assertNotAllClose(before, dense.pull(ids), 1e-3, 1e-3)

    @parameterized.product(
        steps=[(5, 40), (40, 5), (0, 40), (40, 0)],
        rule=[None, _rule(bias_correction="global")],
    )
    def test_merged_tables_go_on_at_the_longest_step(self, steps, rule):
        names = ("old", "other")
        for name, count, first in zip(names, steps, (0, 4)):
            table = _table(_rule())
            table.import_rows([first], {"weights": np.ones([1, _DIM])})
            for gradients in _gradients(count, 3, seed=first):
                table.push(np.arange(first, first + 3), gradients)
            table.save(self.path(name))
        more = {"merge": self.path("other"), "optimizer": rule}
        transform(self.path("old"), self.path("new"), **more)
        made = _table(rule or _rule())
        made.load(self.path("new"))
        self.assertEqual(made.rows.adam_step, None if rule else 40)
        signs, fields = made.export_rows()
        for name, count in zip(names, steps):
            saved = by_sign(self.path(name))
            rows = [row for row, sign in enumerate(signs) if sign in saved["m"]]
            self.assertLen(rows, 3 if count else 1)
            for field, beta in (("m", 0.9), ("v", _BETA_2)):
                factor = (1 - beta**40) / (1 - beta ** max(count, 1))
                was = np.array([saved[field][signs[row]] for row in rows])
                self.assertAllClose(fields[field][rows], was * factor, 1e-5)

    def test_other_slots_begin_anew(self):
        old = self.saved("adagrad", _table(None), np.arange(_ROWS))
        transform(old, self.path("dense"), optimizer=_rule())
        made, new = _table(_rule()), _table(_rule())
        made.load(self.path("dense"))
        new.import_rows(np.arange(_ROWS), {"weights": made.pull(range(_ROWS))})
        for each in (made, new):
            _train(each, 5)
        self.assertAllEqual(made.pull(range(_ROWS)), new.pull(range(_ROWS)))

    @parameterized.product(l2=(0.0, 0.1), in_place=(False, True))
    def test_weights_alone_begin_anew(self, l2, in_place):
        old = self.saved("adagrad", _table(None), np.arange(_ROWS))
        used, new = _table(_rule(), l2=l2), _table(_rule(), l2=l2)
        _train(used, 50)
        for each in (used, new):
            each.load(old, weights_only=True, in_place=in_place)
            _train(each, 5)
            _train(each, 20, rows=2)
        found = used.pull(range(_ROWS))
        self.assertAllClose(found, new.pull(range(_ROWS)), 1e-6, 1e-6)
        self.assertEqual(used.rows.adam_step, 25)


if __name__ == "__main__":
    absltest.main()
