# SPDX-License-Identifier: Apache-2.0
"""Snapshots rewritten for tables of another shape, rule, type or rows."""

import os

import numpy as np
import snapshot_util as util
from absl.testing import absltest, parameterized
from models import small_models as small
from saving_util import TestCase, contents

import tf_ext
from tf_ext.snapshot import open_snapshot, transform

_SIGNS = np.array([0, -1, 5, 2**63 - 1, -(2**63), *range(7, 90)])


def _table(dim, rule="adagrad", **kwargs):
    optimizer = small.RULES[rule](0.1)
    kwargs = {"initializer": "normal", "seed": 7} | kwargs
    return util.table(2, dim=dim, optimizer=optimizer, **kwargs)


def _by_sign(path):
    """`{field: {sign: values}}` of a snapshot, and the number of its rows."""
    snapshot = open_snapshot(path)
    snapshot.verify()
    found = {name: {} for name in snapshot.fields}
    for signs, fields in snapshot.chunks():
        for name, values in fields.items():
            found[name] |= dict(zip(signs.tolist(), values, strict=True))
    return found


class TransformTestCase(TestCase):
    def setUp(self):
        super().setUp()
        self.root = self.directory()

    def path(self, name):
        return os.path.join(self.root, name)

    def saved(self, name, table, signs=_SIGNS, seed=0):
        """The path of a snapshot of a table that has been trained."""
        util.push(table, signs, seed)
        table.save(self.path(name))
        return self.path(name)


class DimTest(TransformTestCase):
    @parameterized.product(
        rule=sorted(small.RULES), dtype=["float32", "float16", "bfloat16"]
    )
    def test_new_positions_are_those_of_new_rows(self, rule, dtype):
        slot_dtype = "bfloat16" if dtype == "bfloat16" else "float32"
        types = {"dtype": dtype, "slot_dtype": slot_dtype}
        narrow = _table(3, rule, **types)
        old = self.saved("old", narrow)
        manifest = transform(old, self.path("new"), dim=5)
        self.assertEqual((manifest.rows, manifest.shards), (len(_SIGNS), 2))
        wide = _table(5, rule, **types)
        wide.pull(_SIGNS, training=True)
        fresh = contents(wide)
        wide.load(self.path("new"))
        found, before = contents(wide), contents(narrow)
        self.assertSameElements(found, before)
        for name in found:
            for sign, values in found[name].items():
                mine = before[name][sign]
                self.assertEqual(values[: len(mine)], mine)
                rest = fresh[name][sign][len(mine) :]
                self.assertEqual(values[len(mine) :], rest)
        # And of ids that come later.
        later = _table(5, rule, **types)
        self.assertAllEqual(wide.pull([12345]), later.pull([12345]))
        transform(self.path("new"), self.path("back"), dim=3)
        again = _table(3, rule, **types)
        again.load(self.path("back"))
        self.assertEqual(contents(again), before)

    def test_many_chunks(self):
        table = _table(64)
        signs = np.arange(9000)
        old = self.saved("old", table, signs)
        transform(old, self.path("new"), dim=80)
        self.assertGreater(open_snapshot(self.path("new")).bytes, 4 << 20)
        found, before = _by_sign(self.path("new")), _by_sign(old)
        fresh = tf_ext.hashing.initial_rows(
            open_snapshot(self.path("new")).manifest.config, signs
        )
        weights = np.stack([found["weights"][s] for s in signs])
        self.assertAllEqual(
            weights[:, :64], np.stack([before["weights"][s] for s in signs])
        )
        self.assertAllEqual(weights[:, 64:], fresh[:, 64:])

    def test_a_projection(self):
        table = _table(3)
        old = self.saved("old", table)
        matrix = np.random.default_rng(1).normal(size=[3, 5])
        np.save(self.path("matrix.npy"), matrix)
        transform(old, self.path("new"), projection=matrix)
        transform(old, self.path("file"), projection=self.path("matrix.npy"))
        found, before = _by_sign(self.path("new")), _by_sign(old)
        for sign, weights in before["weights"].items():
            wanted = weights.astype(np.float64) @ matrix
            self.assertAllClose(found["weights"][sign], wanted, 1e-6, 1e-6)
            accumulator = found["accumulator"][sign].tolist()
            self.assertEqual(accumulator, [np.float32(0.1)] * 5)
        for sign, weights in _by_sign(self.path("file"))["weights"].items():
            self.assertAllEqual(weights, found["weights"][sign])
        _table(5).load(self.path("new"))

    def test_a_chain(self):
        table = _table(3)
        util.push(table, range(300))
        table.save(self.path("0"), incremental=True)
        util.push(table, range(250, 320), 1)
        table.erase(range(9))
        table.save(self.path("1"), base=self.path("0"))
        transform(self.path("1"), self.path("new"), dim=2)
        narrow = _table(2)
        narrow.load(self.path("new"))
        self.assertEqual(
            contents(narrow),
            {
                name: {sign: values[:2] for sign, values in of.items()}
                for name, of in contents(table).items()
            },
        )


if __name__ == "__main__":
    absltest.main()
