# SPDX-License-Identifier: Apache-2.0
"""What deltas change, whatever the order of their entries."""

import pathlib
from unittest import mock

import numpy as np
from absl.testing import absltest
from saving_util import TestCase
from snapshot_util import data_files

import tf_ext
from tf_ext.snapshot import DamagedSnapshotError, changes, files

_DIM = 2


def _signs(*values):
    return np.array(values, np.int64)


class ChangesTest(TestCase):
    def setUp(self):
        super().setUp()
        table = tf_ext.SparseTable("t", _DIM, "sgd")
        table.pull(range(10), training=True)
        self.paths = [self.path(str(i)) for i in range(3)]
        table.save(self.paths[0], incremental=True)
        for base, path in zip(self.paths, self.paths[1:]):
            table.erase([int(base[-1])])
            table.pull([20 + int(base[-1]), 5], training=True)
            table.push([5], np.ones([1, _DIM]), learning_rate=0.1)
            table.save(path, base=base)
        self.table = table
        self.chain = files.read_chain(self.paths[2])

    def _all(self, parts):
        rows, erased = {}, []
        for part in parts:
            some = dict(zip(part.signs.tolist(), map(bytes, part.weights)))
            assert not rows.keys() & some.keys()
            rows |= some
            erased += part.erased.tolist()
        return rows, sorted(erased)

    def _rows(self):
        signs, fields = self.table.export_rows()
        return dict(zip(signs.tolist(), map(bytes, fields["weights"])))

    def test_deltas(self):
        ids = [manifest.id for _, manifest in self.chain]
        self.assertLen(changes.deltas_since(self.chain, ids[0]), 2)
        self.assertEmpty(changes.deltas_since(self.chain, ids[2]))
        self.assertIsNone(changes.deltas_since(self.chain, None))
        wanted = self._rows()
        found, erased = self._all(changes.changes_of(self.chain[1:]))
        self.assertEqual(found, {s: wanted[s] for s in (5, 20, 21)})
        self.assertEqual(erased, [0, 1])
        found, erased = self._all(changes.changes_of(self.chain[2:]))
        self.assertEqual(found, {s: wanted[s] for s in (5, 21)})
        self.assertEqual(erased, [1])
        self.assertEqual(self._all(changes.all_of(self.chain)), (wanted, []))

    def test_the_last_entry_of_a_sign_counts(self):
        # Rows may come and go while they are saved.
        (path, manifest) = self.chain[1]
        dtype = changes.row_dtype(manifest)

        def rows(**values):
            found = np.zeros(len(values), dtype)
            found["sign"] = [int(name[1:]) for name in values]
            found["weights"] = [[value] * _DIM for value in values.values()]
            return found.view(np.uint8).reshape(len(values), -1)

        chunks = [
            files.Chunk(_signs(1, 2), rows(s1=1.0, s3=1.0, s4=1.0), _signs(3)),
            files.Chunk(_signs(4, 5), rows(s3=2.0, s8=3.0), _signs(6)),
            files.Chunk(_signs(6), rows(s6=1.0, s7=1.0), _signs(7, 7)),
        ]
        chunks[1].rows[1, :8] = chunks[1].rows[0, :8]  # Twice in one chunk.

        def read(path, manifest, file, progress, backwards):
            return iter(chunks[::-1] if backwards else chunks)

        with mock.patch.object(changes, "read_chunks", read):
            found, erased = self._all(changes.changes_of([(path, manifest)]))
        self.assertEqual(
            found,
            {
                sign: np.full(_DIM, value, np.float32).tobytes()
                for sign, value in ((1, 1.0), (3, 3.0), (6, 1.0))
            },
        )
        self.assertEqual(erased, [2, 4, 5, 7])

    def test_a_damaged_delta(self):
        path = pathlib.Path(data_files(self.paths[1])[0])
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with self.assertRaisesRegex(DamagedSnapshotError, path.name):
            list(changes.changes_of(self.chain[1:]))


if __name__ == "__main__":
    absltest.main()
