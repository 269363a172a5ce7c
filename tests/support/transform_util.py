# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of snapshots that are rewritten for other tables."""

import os

import numpy as np
import snapshot_util as util
from models import small_models as small
from saving_util import TestCase

from tf_ext.snapshot import open_snapshot

SIGNS = np.array([0, -1, 5, 2**63 - 1, -(2**63), *range(7, 90)])


def table(dim, rule="adagrad", **kwargs):
    """A table of two shards, whose initial weights are all different."""
    optimizer = small.RULES[rule](0.1)
    kwargs = {"initializer": "normal", "seed": 7} | kwargs
    return util.table(2, dim=dim, optimizer=optimizer, **kwargs)


def by_sign(path):
    """`{field: {sign: values}}` of a snapshot, which must be whole."""
    snapshot = open_snapshot(path)
    snapshot.verify()
    found = {name: {} for name in snapshot.fields}
    for signs, fields in snapshot.chunks():
        for name, values in fields.items():
            found[name] |= dict(zip(signs.tolist(), values, strict=True))
    return found


class TransformTestCase(TestCase):
    """A test that rewrites snapshots in a directory."""

    def setUp(self):
        super().setUp()
        self.root = self.directory()

    def path(self, name):
        """A path in the directory."""
        return os.path.join(self.root, name)

    def saved(self, name, table, signs=SIGNS, seed=0):
        """The path of a snapshot of a table that has been trained."""
        util.push(table, signs, seed)
        table.save(self.path(name))
        return self.path(name)
