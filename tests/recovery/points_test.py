# SPDX-License-Identifier: Apache-2.0
"""What a process still writes of a recovery point once another has taken over.

The other one claims the directory between two steps of the write, where no
timing of real processes would meet it each time.
"""

import os
import tempfile
import types
from unittest import mock

import tensorflow as tf
from models.small_models import table

from tf_ext.recovery import beside, points
from tf_ext.regimes import local_regime
from tf_ext.snapshot import SnapshotConflictError
from tf_ext.tables.saving.snapshot_save import Save


class WriteTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.root = self.enterContext(tempfile.TemporaryDirectory())
        self.path = os.path.join(self.root, "point-0000000001")
        self.model = types.SimpleNamespace(
            tables=[table(name="deep"), table(name="wide")]
        )
        self.claim = points.claim(self.root, self.model)
        self.saved = []

    def claim_by_another(self):
        points.claim(self.root, self.model)

    def write(self, taken_in=None):
        """Writes a point, whose directory is taken as a table is saved."""

        def save_of(index, table, path):
            self.saved.append(index)
            if index == taken_in:
                self.claim_by_another()
            return Save(table.rows, path)

        point = points.Point(1, 0, 1, self.path)
        with (
            mock.patch.object(points, "_State"),
            self.assertRaises(SnapshotConflictError),
        ):
            beside.run(
                points.write(point, self.model, save_of, self.claim),
                local_regime().processes,
                "Saving",
            )

    def test_nothing_if_it_is_taken_before(self):
        self.claim_by_another()
        self.write()
        self.assertEmpty(self.saved)
        self.assertFalse(os.path.exists(self.path))

    def test_no_further_table(self):
        self.write(taken_in=0)
        self.assertEqual(self.saved, [0])

    def test_no_point(self):
        self.write(taken_in=1)
        self.assertEqual(self.saved, [0, 1])
        self.assertCountEqual(os.listdir(self.path), ["table-000", "table-001"])


if __name__ == "__main__":
    tf.test.main()
