# SPDX-License-Identifier: Apache-2.0
"""Snapshots as NumPy arrays."""

import contextlib
import os
import pathlib
import random
import shutil

import numpy as np
import snapshot_util as util
import tensorflow as tf
from absl.testing import absltest, parameterized
from oracles import snapshot_files_util as files_util
from saving_util import TestCase, contents

import tf_ext
from tf_ext.snapshot import DamagedSnapshotError, open_snapshot


def _read(path):
    """What `contents` gives of a table, of a snapshot's chunks."""
    snapshot = open_snapshot(path)
    read = {name: {} for name in snapshot.fields}
    for signs, fields in snapshot.chunks():
        for name, values in fields.items():
            dtype, count = snapshot.fields[name]
            assert values.dtype == dtype
            assert values.shape == (len(signs), count)
            for sign, value in zip(signs.tolist(), values.tolist()):
                assert sign not in read[name], sign
                read[name][sign] = value
    return read


class TableTest(TestCase):
    """Snapshots that tables have written."""

    @parameterized.named_parameters(
        ("adagrad", tf_ext.optimizers.SparseAdagrad(0.1)),
        ("adam", tf_ext.optimizers.SparseAdam(0.1)),
        ("sgd", tf_ext.optimizers.SparseSGD(0.1)),
    )
    def test_chunks_are_the_rows(self, optimizer):
        path = self.directory()
        table = util.table(2, optimizer=optimizer)
        util.push(table, [0, -1, 5, 2**63 - 1, -(2**63), *range(7, 90)])
        table.save(path, step=12)
        self.assertEqual(_read(path), contents(table))
        self.assertEqual(open_snapshot(path).manifest.step, 12)

    def test_many_chunks(self):
        path = self.directory()
        table = util.table(dim=64)
        util.push(table, range(5000))
        table.save(path)
        snapshot = open_snapshot(path)
        self.assertGreater(snapshot.bytes, 2 << 20)
        sizes = []
        chunks = list(snapshot.chunks(["weights"], sizes.append))
        self.assertEqual(sum(sizes), snapshot.bytes)
        self.assertLen(chunks, len(sizes))
        self.assertEqual(
            [list(fields) for _, fields in chunks], [["weights"]] * 3
        )
        signs = np.concatenate([signs for signs, _ in chunks])
        self.assertAllEqual(np.sort(signs), np.arange(5000))

    def test_an_empty_table(self):
        path = self.directory()
        util.table(2).save(path)
        self.assertEqual(list(open_snapshot(path).chunks()), [])

    def test_a_chain(self):
        root = self.directory()
        table = util.table(2)
        util.push(table, range(300))
        table.save(f"{root}/0", incremental=True)
        util.push(table, range(250, 320), 1)
        table.erase(range(9))
        table.save(f"{root}/1", base=f"{root}/0")
        wanted = contents(table)
        util.push(table, [3, 300, 400], 2)
        table.erase([319])
        table.save(f"{root}/2", base=f"{root}/1")
        self.assertEqual(_read(f"{root}/1"), wanted)
        self.assertEqual(_read(f"{root}/2"), contents(table))
        self.assertLen(open_snapshot(f"{root}/2").chain, 3)

    def test_other_file_systems(self):
        table = util.table(2)
        util.push(table, range(300))
        root = f"ram://{self.directory()}"
        table.save(f"{root}/0", incremental=True)
        util.push(table, range(290, 310), 1)
        table.save(f"{root}/1", base=f"{root}/0")
        self.assertEqual(_read(f"{root}/1"), contents(table))
        tf_ext.snapshot.reshard(f"{root}/1", f"{root}/all", 3)
        self.assertEqual(_read(f"{root}/all"), contents(table))
        with self.assertRaisesRegex(FileNotFoundError, "no snapshot in 'ram:"):
            open_snapshot(f"{root}/none")
        file = tf.io.gfile.glob(f"{root}/all/*.chunks")[0]
        tf.io.gfile.remove(file)
        with self.assertRaisesRegex(DamagedSnapshotError, f"missing: {file}"):
            open_snapshot(f"{root}/all").verify()

    def test_rewriting_takes_all_forms_of_paths(self):
        root = pathlib.Path(self.directory())
        table = util.table(2)
        util.push(table, range(30))
        table.save(root / "0")
        with contextlib.chdir(root):
            for rewrite, path, out in (
                (tf_ext.snapshot.compact, root / "0", "1"),
                (tf_ext.snapshot.compact, f"file://{root}/0", "2/"),
                (tf_ext.snapshot.compact, "./0/", pathlib.Path("3")),
                (tf_ext.snapshot.transform, pathlib.Path("0"), root / "4"),
            ):
                rewrite(path, out)
                for each in (out, root / out):
                    self.assertEqual(_read(each), contents(table))

    def test_damage_is_found(self):
        root = self.directory()
        table = util.table(2)
        util.push(table, range(300))
        table.save(f"{root}/0", incremental=True)
        util.push(table, range(250, 320), 1)
        table.erase(range(5))
        table.save(f"{root}/1", base=f"{root}/0")
        files = [
            f"{root}/{d}/{f}" for d in "01" for f in os.listdir(f"{root}/{d}")
        ]
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        generator = random.Random(seed)
        for trial in range(150):
            file = generator.choice(files)
            with open(file, "rb") as opened:
                whole = opened.read()
            data = bytearray(whole)
            if trial % 3:
                data[generator.randrange(len(data))] ^= generator.randrange(
                    1, 256
                )
            else:
                del data[generator.randrange(len(data)) :]
            with open(file, "wb") as opened:
                opened.write(data)
            for read in (lambda s: s.verify(), lambda s: list(s.chunks())):
                with self.assertRaisesRegex(
                    DamagedSnapshotError, rf"^{file} is damaged.* byte \d+"
                ):
                    read(open_snapshot(f"{root}/1"))
            with open(file, "wb") as opened:
                opened.write(whole)
        open_snapshot(f"{root}/1").verify()


class FormatTest(TestCase):
    """Snapshots written as the format is described."""

    def setUp(self):
        super().setUp()
        self.root = self.directory()

    def _write(self, name, chunks, **kwargs):
        path = os.path.join(self.root, name)
        files_util.write(path, chunks, **kwargs)
        return path

    def _weights(self, path):
        open_snapshot(path).verify()
        return {k: v[0] for k, v in _read(path)["weights"].items()}

    def test_the_later_row_of_a_sign_counts(self):
        path = self._write(
            "0",
            [{"rows": [(1, 1), (2, 2), (1, 3)]}, {"rows": [(2, 4), (5, 5)]}],
        )
        self.assertEqual(self._weights(path), {1: 3, 2: 4, 5: 5})

    def test_the_later_row_stays_the_later_in_other_shards(self):
        path = self._write("0", [{"rows": [(i % 3, i) for i in range(300)]}])
        out = os.path.join(self.root, "out")
        manifest = tf_ext.snapshot.reshard(path, out, 2)
        self.assertEqual(manifest.rows, 300)
        self.assertEqual(self._weights(out), {0: 297, 1: 298, 2: 299})

    def test_a_chunks_signs_are_erased_before_and_after_its_rows(self):
        base = self._write("0", [{"rows": [(s, s) for s in range(6)]}])
        path = self._write(
            "1",
            [
                {"before": [0, 1], "rows": [(1, 11), (2, 12), (3, 13)]},
                {"rows": [(7, 17)], "after": [2]},
                {"before": [3, 9], "rows": [(2, 22), (7, 27)], "after": [8, 7]},
            ],
            base=base,
        )
        self.assertEqual(self._weights(path), {1: 11, 2: 22, 4: 4, 5: 5})

    def test_a_row_of_another_shard(self):
        path = self._write(
            "0", [{"rows": [(s, 1) for s in range(9)]}], shards=2
        )
        with self.assertRaisesRegex(
            DamagedSnapshotError,
            "holds the sign . of shard 1, .*of shard 0 alone",
        ):
            open_snapshot(path).verify()

    @parameterized.parameters({"rows": 0}, {"erased": 0}, {"crc32c": 5})
    def test_a_file_that_the_manifest_does_not_name(self, **changes):
        base = self._write("0", [{}])
        chunk = {"rows": [(1, 1)], "after": [2, 3]}
        path = self._write("1", [chunk], base=base, **changes)
        for read in (lambda s: s.verify(), lambda s: list(s.chunks())):
            with self.assertRaisesRegex(
                DamagedSnapshotError, "chunks is not the one that the manifest"
            ):
                read(open_snapshot(path))

    def test_missing_files_and_snapshots(self):
        base = self._write("0", [{"rows": [(1, 1)]}])
        path = self._write("1", [{"rows": [(1, 1)]}], base=base)
        with self.assertRaisesRegex(
            FileNotFoundError, "no snapshot in .*/none"
        ):
            open_snapshot(os.path.join(self.root, "none"))
        (file,) = util.data_files(base)
        os.remove(file)
        with self.assertRaisesRegex(
            DamagedSnapshotError,
            f"of the snapshot in {base} is missing: {file}",
        ):
            open_snapshot(path).verify()
        shutil.rmtree(base)
        with self.assertRaisesRegex(
            FileNotFoundError,
            f"{path} continues a snapshot that is missing.*{base}",
        ):
            open_snapshot(path)
        files_util.write(self.root + "/other", [{}])
        os.rename(self.root + "/other", base)
        with self.assertRaisesRegex(
            DamagedSnapshotError, "has been replaced by"
        ):
            open_snapshot(path)

    def test_arguments(self):
        path = self._write("0", [{"rows": [(1, 1)]}])
        with self.assertRaisesRegex(
            ValueError, "which are weights. Received: 'momentum'"
        ):
            open_snapshot(path).chunks(["momentum"])
        self.assertEqual(open_snapshot(f"file://{path}").path, path)


if __name__ == "__main__":
    absltest.main()
