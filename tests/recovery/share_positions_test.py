# SPDX-License-Identifier: Apache-2.0
"""Where workers are in the data that each reads, in the file of a point."""

import pathlib

import pytest
from absl.testing import parameterized
from saving_util import TestCase

from tf_ext.recovery import files
from tf_ext.snapshot.sealed_json import (
    FORMAT,
    DamagedSnapshotError,
    seal,
)

pytestmark = pytest.mark.both_kerases(slow=True)

_SHARES = {"seed": 7, "epoch": 1, "batches": [3, 0], "ended": [1]}


class SharePositionsTest(TestCase, parameterized.TestCase):
    def _read(self, **members):
        folder = pathlib.Path(self.directory())
        point = {
            "format": FORMAT,
            "tf_ext_version": "0.1.0",
            "step": 3,
            "epoch": 1,
            "step_in_epoch": 3,
            "tables": [],
            "variables_file": "variables-0123456789abcdef.bin",
            "variables_crc32c": "00000000",
            "variables": [],
            **members,
        }
        (folder / files.NAME).write_bytes(seal(point))
        return files.read_point(str(folder)).shares

    def test_those_that_were_written(self):
        self.assertEqual(self._read(shares=_SHARES), _SHARES)
        self.assertIsNone(self._read(shares=None))
        self.assertIsNone(self._read())

    @parameterized.parameters(
        ({"seed": -1}, "shares.seed"),
        ({"epoch": True}, "shares.epoch"),
        ({"batches": [1, -1]}, "shares.batches"),
        ({"batches": [1 << 63]}, "shares.batches"),
        ({"ended": [0.5]}, "shares.ended"),
        ({"ended": None}, "shares.ended"),
    )
    def test_damaged_ones(self, changed, member):
        with self.assertRaisesRegex(DamagedSnapshotError, member):
            self._read(shares={**_SHARES, **changed})
        with self.assertRaisesRegex(DamagedSnapshotError, "shares"):
            self._read(shares=[])
