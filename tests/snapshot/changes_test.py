# SPDX-License-Identifier: Apache-2.0
"""What deltas change, whatever the order of their entries."""

import dataclasses
import os
import pathlib
import shutil
from unittest import mock

import numpy as np
from absl.testing import absltest
from saving_util import TestCase
from snapshot_util import data_files

import tf_ext
from tf_ext.ops.snapshot import snapshot_ops
from tf_ext.snapshot import DamagedSnapshotError, changes, files
from tf_ext.snapshot import manifest as manifests
from tf_ext.tables.saving import snapshot_load, snapshot_save

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

    def test_files_of_several_chunks(self):
        # Of which the checksum is combined from that of the last chunk on.
        table = tf_ext.SparseTable("wide", 8192, "sgd")
        signs = list(range(200))
        table.pull(signs, training=True)
        full, delta = self.path("full"), self.path("delta")
        table.save(full, incremental=True)
        table.push(signs, np.ones([200, 8192]), learning_rate=0.1)
        table.save(delta, base=full)
        chain = files.read_chain(delta)
        for _, manifest in chain:
            [file] = manifest.files
            self.assertGreater(file.bytes, 3 * manifest.chunk_bytes)
        for parts in (changes.changes_of(chain[1:]), changes.all_of(chain)):
            found, _ = self._all(parts)
            self.assertCountEqual(found, signs)

    def test_a_damaged_delta(self):
        path = pathlib.Path(data_files(self.paths[1])[0])
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with self.assertRaisesRegex(DamagedSnapshotError, path.name):
            list(changes.changes_of(self.chain[1:]))


class EndOfChainTest(TestCase):
    """A full snapshot that also says how the chain before it goes on."""

    def setUp(self):
        super().setUp()
        self.root = self.directory()
        self.table = tf_ext.SparseTable("t", _DIM, "sgd")
        self.table.pull(range(100), training=True)
        self.states = {}
        self.table.save(self.at("0"), incremental=True)
        self.note(0)
        for number, anew in enumerate([False, True, False, True, False], 1):
            self.table.erase([number])
            self.table.pull([200 + number], training=True)
            self.table.push(
                [50 + number], np.ones([1, _DIM]), learning_rate=0.1
            )
            path = self.at(str(number))
            self.table.save(path, base=self.table.rows.chain.links[-1][0])
            if anew:
                self.save_whole(number)
            self.note(number)

    def save_whole(self, number):
        """Begins a chain of a full snapshot with a delta's id."""
        snapshot_save.Save(
            self.table.rows,
            self.at(f"{number}/base"),
            step=number,
            id=self.id_of(number),
        ).run()

    def at(self, name):
        return os.path.join(self.root, name)

    def note(self, number):
        signs, fields = self.table.export_rows()
        rows = dict(zip(signs.tolist(), map(bytes, fields["weights"])))
        self.states[number] = rows

    def id_of(self, number):
        return files.read_manifest(self.at(str(number))).id

    def deltas(self, number, held):
        chain = files.read_chain(self.at(str(number)))
        return changes.deltas_since(chain, held)

    def test_each_snapshot_leads_to_all_later_ones(self):
        for first in range(6):
            held = self.id_of(first)
            for last in range(first, 6):
                deltas = self.deltas(last, held)
                self.assertLen(deltas, last - first)
                rows = dict(self.states[first])
                for part in changes.changes_of(deltas):
                    for sign in part.erased.tolist():
                        rows.pop(sign, None)
                    rows |= zip(part.signs.tolist(), map(bytes, part.weights))
                self.assertEqual(rows, self.states[last])
                self.assertLess(sum(m.rows for _, m in deltas), 20)
        self.assertIsNone(self.deltas(1, self.id_of(2)))
        for held in ("", None, "0" * 32):
            self.assertIsNone(self.deltas(5, held))

    def test_each_full_snapshot_is_one_of_its_own(self):
        for number in (2, 4):
            chain = files.read_chain(self.at(f"{number}/base"))
            self.assertEqual([m.kind for _, m in chain], ["full"])
            self.assertEqual(chain[0][1].step, number)
            self.assertEqual(chain[0][1].id, self.id_of(number))
        for number, length in enumerate([1, 2, 3, 2, 3, 2]):
            self.assertLen(files.read_chain(self.at(str(number))), length)
        for name in ("0", "1", "2", "2/base", "3", "4", "4/base", "5"):
            served = tf_ext.SparseTable("t", _DIM, "sgd")
            served.load(self.at(name))
            self.table = served
            self.note(9)
            self.assertEqual(self.states[9], self.states[int(name[0])])

    def test_a_table_that_follows(self):
        with tf_ext.serving.weights_only():
            self.table = tf_ext.SparseTable("t", _DIM, "sgd")
        for number, whole in ((1, True), (2, False), (5, False), (4, True)):
            path = self.at(str(number))
            update = snapshot_load.update_to(self.table.rows, path)
            self.assertEqual(update.whole, whole)
            update.check()
            update.verify()
            update.apply()
            self.note(9)
            self.assertEqual(self.states[9], self.states[number])

    def test_what_the_chain_does_not_need_may_be_damaged(self):
        held, second = self.id_of(1), self.id_of(2)
        path = pathlib.Path(self.at("2"))
        for file in (path / "manifest.json", path / data_files(path)[0]):
            whole = file.read_bytes()
            file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
            self.assertIsNone(self.deltas(3, held))
            self.assertIsNone(self.deltas(5, held))
            file.unlink()
            self.assertIsNone(self.deltas(3, held))
            self.assertLen(self.deltas(3, second), 1)
            file.write_bytes(whole)
            self.assertLen(self.deltas(3, held), 2)
        # It is not what leads to another one, nor to one of other rows.
        manifest = files.read_manifest(str(path))
        shutil.copy(self.at("4/manifest.json"), path)
        self.assertIsNone(self.deltas(3, held))
        other = dataclasses.replace(
            manifest, fields=manifest.fields[:1] + manifest.fields[:1]
        )
        for found in (manifest, other):
            with mock.patch.object(files, "read_manifest", return_value=found):
                self.assertEqual(
                    files.read_changes(str(path / "base"), manifest),
                    (str(path), manifest) if found is manifest else None,
                )
                self.assertIsNone(files.read_changes(str(path), manifest))

    def test_a_circle_of_chains(self):
        for number, other in ((2, 4), (4, 2)):
            folder = self.at(str(number))
            forged = dataclasses.replace(
                files.read_manifest(folder),
                base=(f"../{other}/base", self.id_of(other)),
                sequence=1,
            )
            path = pathlib.Path(folder, "manifest.json")
            path.write_bytes(manifests.encode(forged))
        self.assertIsNone(self.deltas(5, "0" * 32))

    def test_a_full_snapshot_that_fails(self):
        self.table.save(self.at("6"), base=self.at("5"))
        for step in ("sync", "commit", "end"):
            with mock.patch.object(
                snapshot_save.Save, step, side_effect=OSError(28, "No space")
            ):
                with self.assertRaises(OSError):
                    self.save_whole(6)
        # The old chain goes on from its delta.
        self.table.erase([90])
        self.table.save(self.at("7"), base=self.at("6"))
        self.note(7)
        self.assertLen(self.deltas(7, self.id_of(5)), 2)

    def test_rows_that_change_while_all_are_written(self):
        shard = self.table.rows.shards[0]
        saved = type(shard).run

        def run(shard, op, *inputs, **more):
            if op is snapshot_ops.sparse_table_save:
                change()
            result = saved(shard, op, *inputs, **more)
            if op is snapshot_ops.sparse_table_save:
                change()
            return result

        def change():
            self.table.erase([60 + len(changed)])
            self.table.pull([300 + len(changed)], training=True)
            self.table.push(
                [80, 81 + len(changed)],
                np.ones([2, _DIM]),
                learning_rate=0.1,
            )
            changed.append(True)

        changed = []
        self.table.save(self.at("6"), base=self.at("5"))
        with mock.patch.object(type(shard), "run", run):
            self.save_whole(6)
        self.assertLen(changed, 2)
        self.table.save(self.at("7"), base=self.at("6/base"))
        self.note(7)
        self.assertLen(files.read_chain(self.at("7")), 2)
        held = self.id_of(5)
        self.assertLen(self.deltas(7, held), 2)
        self.table = tf_ext.SparseTable("t", _DIM, "sgd")
        self.table.load(self.at("7"))
        self.note(9)
        self.assertEqual(self.states[9], self.states[7])

    def test_a_chain_that_has_gone_on_is_kept(self):
        self.table.save(self.at("6"), base=self.at("5"))
        write = snapshot_save.Save.commit

        def commit(save):
            write(save)
            self.table.end_incremental()

        with mock.patch.object(snapshot_save.Save, "commit", commit):
            self.save_whole(6)
        self.assertEqual(self.table.rows.chain.links, ())


if __name__ == "__main__":
    absltest.main()
