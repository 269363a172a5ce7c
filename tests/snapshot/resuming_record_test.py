# SPDX-License-Identifier: Apache-2.0
"""The record of how far a snapshot is written, by itself."""

import dataclasses
import os

from absl.testing import absltest, parameterized
from saving_util import TestCase

from tf_ext import _core
from tf_ext.snapshot import manifest as manifests
from tf_ext.snapshot import resuming
from tf_ext.snapshot.storage import storage_of

_ROW_BYTES = 16
# Two passes over the rows: over shards 0 and 1, then over shard 2.
_PASSES, _COUNTERS = [[0, 1], [2]], 3
_HEADER = _core.CHUNK_HEADER_BYTES


def _rows(shard, rows, size=None):
    size = _HEADER + rows * _ROW_BYTES if size is None else size
    name = f"rows-0123456789abcdef-{shard:05}-000.chunks"
    return manifests.RowFile(name, shard, 2**64 - 1 - shard, rows, 0, size, 7)


def _counters(shard):
    name = f"counters-0123456789abcdef-{shard:05}.chunks"
    return manifests.RowFile(name, shard, shard, 0, 0, _HEADER, 9)


_RECORDS = {
    "nothing": resuming.Record("w"),
    # Of a shard without rows there is no chunk yet.
    "begun": resuming.Record(
        "w", blocks=3, begun=(_rows(0, 5), _rows(1, 0, size=0))
    ),
    "a_pass": resuming.Record(
        "w",
        1,
        bytes_read=99,
        rounded=(3, 2, 1),
        files=(_rows(0, 5), _rows(1, 0)),
    ),
    "a_pass_and_a_part": resuming.Record(
        "w", 1, 2, files=(_rows(0, 5), _rows(1, 0)), begun=(_rows(2, 4),)
    ),
    "all_rows": resuming.Record(
        "w", 2, files=tuple(_rows(shard, shard) for shard in range(3))
    ),
    "counters": resuming.Record(
        "w",
        2,
        files=tuple(_rows(shard, shard) for shard in range(3)),
        counters=(_counters(0), _counters(1)),
    ),
}
_PART = _RECORDS["a_pass_and_a_part"]


class RecordTest(TestCase):
    def setUp(self):
        super().setUp()
        self.out = self.directory()
        self.storage = storage_of(self.out)

    def _write(self, record):
        for file in (*record.files, *record.begun, *record.counters):
            self._resize(file, 0)
        resuming.write(self.storage, self.out, record)

    def _resize(self, file, more):
        with open(os.path.join(self.out, file.name), "wb") as opened:
            opened.write(bytes(file.bytes + more))

    def _read(self, work="w", passes=_PASSES, counters=_COUNTERS):
        return resuming.read(
            self.storage, self.out, work, _ROW_BYTES, passes, counters
        )

    @parameterized.parameters(*_RECORDS)
    def test_is_read_as_it_was_written(self, name):
        record = _RECORDS[name]
        self._write(record)
        self.assertEqual(self._read(), record)
        self.assertLen(
            record.names,
            len(record.files) + len(record.begun) + len(record.counters),
        )
        self.assertIsNone(self._read(work="another"))

    def test_without_a_record(self):
        self.assertIsNone(self._read())

    def test_bytes_may_follow_what_is_begun_alone(self):
        self._write(_PART)
        self._resize(_PART.begun[0], 3)
        self.assertEqual(self._read(), _PART)
        self._resize(_PART.files[0], 3)
        self.assertIsNone(self._read())

    @parameterized.parameters("files", "begun")
    def test_files_that_lack_bytes_or_are_missing(self, member):
        self._write(_PART)
        [file, *_] = getattr(_PART, member)
        self._resize(file, -1)
        self.assertIsNone(self._read())
        os.remove(os.path.join(self.out, file.name))
        self.assertIsNone(self._read())

    @parameterized.named_parameters(
        ("too_few_files", {"files": _PART.files[:1]}),
        ("files_of_other_shards", {"files": _PART.files[::-1]}),
        ("nothing_begun", {"begun": ()}),
        ("begun_without_blocks", {"blocks": 0}),
        ("counters_before_all_rows", {"counters": (_counters(0),)}),
        ("too_many_passes", {"passes": 3}),
        ("blocks_after_all_passes", {"passes": 2, "blocks": 1}),
        ("counts", {"rounded": (1, 2)}),
        ("negative_counts", {"rounded": (1, 2, -1)}),
        (
            "erased_signs",
            {"begun": (dataclasses.replace(_rows(2, 4), erased=1),)},
        ),
        (
            "a_complete_file_without_a_chunk",
            {"files": (_rows(0, 5), _rows(1, 0, size=0))},
        ),
    )
    def test_does_not_fit(self, changes):
        self._write(dataclasses.replace(_PART, **changes))
        self.assertIsNone(self._read())

    def test_more_counters_than_shards(self):
        self._write(_RECORDS["counters"])
        self.assertIsNone(self._read(counters=1))


if __name__ == "__main__":
    absltest.main()
