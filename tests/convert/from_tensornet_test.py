# SPDX-License-Identifier: Apache-2.0
"""Rows of TensorNet's dictionary files in tables."""

import gzip
import pathlib
import time
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from oracles import tensornet_files as files
from saving_util import TestCase, contents

import tf_ext
from tf_ext.convert import tensornet_files

pytestmark = pytest.mark.slow_tests("DamageTest::test_flipped_*")

_DIM = 3
_RULES = {"AdaGrad": "row_wise_adagrad", "Adam": "adam", "Ftrl": "ftrl"}
# Field of rows -> that of the oracle's.
_SLOTS = {
    "AdaGrad": {"accumulator": "accumulator"},
    "Adam": {"m": "m", "v": "v"},
    "Ftrl": {"linear": "linear", "accumulator": "sums"},
}
_DAYS = tf_ext.eviction.Unseen(seconds=30 * 86_400)


def _table(rule="row_wise_adagrad", dim=_DIM, **options):
    return tf_ext.SparseTable("rows", dim, rule, **options)


def _fields(table, signs):
    found, fields = table.export_rows()
    order = np.argsort(found)
    places = order[np.searchsorted(found[order], signs.view(np.int64))]
    return {name: field[places] for name, field in fields.items()}


class FormsTest(TestCase):
    def _check(self, rows, optimizer, table, taken, **options):
        directory = self.directory()
        files.save(directory, "deep", rows, optimizer, **options)
        done = tf_ext.convert.from_tensornet(directory, {"deep": table})["deep"]
        signs, expected = rows
        self.assertEqual((done.taken, done.left), (len(signs), 0))
        self.assertEqual(set(done.slots), set(taken))
        self.assertEqual(table.size(), len(signs))
        found = _fields(table, signs)
        names = {"weights": "weights", "show": "show", "click": "click"}
        for field in {"weights", *taken} & {*names, *_SLOTS[optimizer]}:
            name = (names | _SLOTS[optimizer])[field]
            self.assertAllEqual(
                found[field], expected[name].reshape(found[field].shape), field
            )
        return done, found

    @parameterized.product(
        optimizer=list(_RULES),
        mode=["txt", "bin"],
        ranks_and_part=[(1, 1 << 20), (3, 64)],
    )
    def test_of_each_optimizer(self, optimizer, mode, ranks_and_part):
        ranks, part = ranks_and_part
        rows = files.random_rows(0, 60, _DIM)
        table = _table(_RULES[optimizer], statistics=["show"])
        steps = ["step"] if optimizer == "Adam" else []
        with mock.patch.object(tensornet_files, "_READ_BYTES", part):
            done, found = self._check(
                rows,
                optimizer,
                table,
                [*_SLOTS[optimizer], *steps, "show"],
                mode=mode,
                ranks=ranks,
            )
        self.assertEqual(done.notes, ())
        if steps:
            self.assertAllEqual(found["step"], [[2**31 - 1]] * 60)

    @parameterized.named_parameters(
        ("clicks", "txt", ("accumulator", "show", "days", "click"), True, ""),
        ("binary_clicks", "bin", ("accumulator", "show", "days", "click")),
        ("days", "txt", ("accumulator", "show", "days"), True, ""),
        ("shows", "txt", ("accumulator", "show"), True, ""),
        ("binary_shows", "bin", ("accumulator", "show")),
        ("version", "txt", ("accumulator", "version", "show"), True, ""),
        ("no_dim", "txt", ("accumulator", "show"), False, ""),
        ("no_dim_days", "txt", ("accumulator", "show", "days"), False, ""),
    )
    def test_of_each_version(self, mode, tail, with_dim=True, end=""):
        rows = files.random_rows(1, 60, _DIM)
        table = _table(statistics=["show", "click"], eviction=_DAYS)
        taken = ["accumulator", "show"]
        taken += ["click"] if "click" in tail else []
        taken += ["last_seen"] if "days" in tail else []
        _, found = self._check(
            rows,
            "AdaGrad",
            table,
            taken,
            mode=mode,
            tail=tail,
            with_dim=with_dim,
            line_end=end,
        )
        if "days" in tail:
            days = (time.time() - found["last_seen"][:, 0]) / 86_400
            self.assertAllClose(days, rows[1]["days"], atol=0.1)

    @parameterized.parameters(
        ("sparse_block_{}.gz", "txt"),
        ("sparse_block_{}_bin.gz", "bin"),
        ("block_{}_txt.gz", "txt"),
    )
    def test_names(self, pattern, mode):
        rows = files.random_rows(2, 20, _DIM)
        self._check(
            rows,
            "AdaGrad",
            _table(),
            ["accumulator"],
            mode=mode,
            pattern=pattern,
        )

    def test_ranks_of_two_digits(self):
        rows = files.random_rows(10, 60, _DIM)
        self._check(rows, "AdaGrad", _table(), ["accumulator"], ranks=11)

    @parameterized.product(mode=["txt", "bin"], count=[0, 1], dim=[1, 8])
    def test_few_rows(self, mode, count, dim):
        # Forms that more rows would tell apart.
        rows = files.random_rows(3, count, dim)
        self._check(
            rows,
            "AdaGrad",
            _table(dim=dim),
            # Of an empty binary file no form is known, and the first counts.
            ["accumulator"],
            mode=mode,
        )

    def test_other_rules(self):
        rows = files.random_rows(4, 20, _DIM)
        with self.assertLogs("tf_ext", "WARNING"):
            done, _ = self._check(rows, "Adam", _table("adagrad"), [])
        [note] = done.notes
        self.assertEqual(
            note,
            "The slots of table 'rows' start from their initial values: its "
            "rule is SparseAdagrad. TensorNet's Adam is like SparseAdam.",
        )

    def test_weights_that_ftrl_would_lose_are_noted(self):
        directory = self.directory()
        files.save(directory, "deep", files.random_rows(4, 20, _DIM), "Ftrl")
        for slots in (False, True):
            with self.subTest(slots=slots):
                done = tf_ext.convert.from_tensornet(
                    directory, {"deep": _table("ftrl")}, slots=slots
                )
                lost = [n for n in done["deep"].notes if "'linear'" in n]
                self.assertLen(lost, 0 if slots else 1)

    def test_several_tables(self):
        directory = self.directory()
        rows = [files.random_rows(seed, 20, seed) for seed in (1, 5)]
        tables = {}
        for name, one in zip(("0", "deep"), rows):
            files.save(directory, name, one, ranks=2)
            tables[name] = _table(dim=one[1]["weights"].shape[1])
        folder = pathlib.Path(directory, "sparse_table")
        for where in directory, folder:
            done = tf_ext.convert.from_tensornet(where, tables, slots=False)
            self.assertEqual(list(done), ["0", "deep"])
            self.assertEqual(done["deep"].slots, ())
        for table, (signs, fields) in zip(tables.values(), rows):
            self.assertAllEqual(
                table.pull(signs.view(np.int64)), fields["weights"]
            )

    def test_ids_find_their_rows(self):
        """In a layer, as integers of 64 bits, with and without sign."""
        signs, fields = rows = files.random_rows(6, 20, _DIM)
        directory, table = self.directory(), _table()
        files.save(directory, "deep", rows)
        tf_ext.convert.from_tensornet(directory, {"deep": table})
        column = tf_ext.feature_column.category_column(
            "user", hashing="identity"
        )
        layer = tf_ext.layers.EmbeddingFeatures([column], table)
        for ids in signs, signs.view(np.int64):
            found = layer({"user": tf.constant(ids[:, np.newaxis])})
            self.assertAllEqual(found, fields["weights"])

    def test_training_continues_with_adagrad(self):
        """The next update is TensorNet's."""
        rate, epsilon = 0.1, 1e-8
        signs, fields = rows = files.random_rows(7, 20, _DIM)
        directory = self.directory()
        table = _table(tf_ext.optimizers.SparseRowWiseAdagrad(rate, epsilon=0))
        files.save(directory, "deep", rows, mode="bin")
        tf_ext.convert.from_tensornet(directory, {"deep": table})
        gradient = np.random.default_rng(0).normal(size=(20, _DIM))
        sums = fields["accumulator"] + (gradient**2).mean(axis=1)
        step = rate * gradient / (epsilon + np.sqrt(sums))[:, np.newaxis]
        self._push(table, signs, gradient, fields["weights"] - step)

    @parameterized.parameters({}, {"absent": "decay"})
    def test_training_continues_with_adam(self, **options):
        rate, epsilon = 0.1, 1e-8
        signs, fields = rows = files.random_rows(8, 20, _DIM)
        fields["v"] = np.abs(fields["v"])
        directory = self.directory()
        table = _table(
            tf_ext.optimizers.SparseAdam(rate, epsilon=epsilon, **options)
        )
        files.save(directory, "deep", rows, "Adam", mode="bin")
        done = tf_ext.convert.from_tensornet(directory, {"deep": table})
        self.assertEmpty(done["deep"].notes)
        gradient = np.random.default_rng(0).normal(size=(20, _DIM))
        m = 0.9 * fields["m"] + 0.1 * gradient
        v = 0.999 * fields["v"] + 0.001 * gradient**2
        step = rate * m / (epsilon + np.sqrt(v))
        self._push(table, signs, gradient, fields["weights"] - step)

    def test_moments_beside_those_of_a_table_that_has_been_trained(self):
        signs, fields = rows = files.random_rows(8, 20, _DIM)
        table = _table(tf_ext.optimizers.SparseAdam(0.1, absent="decay"))
        other = [max(signs.view(np.int64)) + 1]
        for _ in range(3):
            table.push(other, np.ones([1, _DIM], np.float32))
        directory = self.directory()
        files.save(directory, "deep", rows, "Adam")
        tf_ext.convert.from_tensornet(directory, {"deep": table})
        found = _fields(table, signs)
        # The table corrects a bias of three steps, which these do not have.
        for name, beta in (("m", 0.9), ("v", 0.999)):
            expected = fields[name] * (1 - beta**3)
            self.assertAllClose(found[name], expected, 1e-5, 1e-9)

    def test_a_bias_that_iterations_correct(self):
        rule = tf_ext.optimizers.SparseAdam(bias_correction="global")
        table, directory = _table(rule), self.directory()
        files.save(directory, "deep", files.random_rows(8, 1, _DIM), "Adam")
        done = tf_ext.convert.from_tensornet(directory, {"deep": table})
        self.assertRegex(
            done["deep"].notes[0], "iterations` must be 1073741824"
        )

    def test_training_continues_with_ftrl(self):
        rate, lambda1, lambda2, beta = 0.1, 0.1, 1.0, 1.0
        signs, fields = rows = files.random_rows(9, 20, _DIM)
        fields["sums"] = np.abs(fields["sums"])
        z, n = fields["linear"], fields["sums"]

        def weights(z, n):
            scale = (beta + np.sqrt(n)) * rate + lambda2
            return np.where(
                np.abs(z) <= lambda1, 0, (np.sign(z) * lambda1 - z) / scale
            )

        fields["weights"] = weights(z, n).astype(np.float32)
        directory = self.directory()
        table = _table(
            tf_ext.optimizers.SparseFtrl(
                1 / rate,
                l1_regularization_strength=lambda1,
                l2_regularization_strength=lambda2 / 2,
                beta=beta,
            )
        )
        files.save(directory, "deep", rows, "Ftrl", mode="bin")
        tf_ext.convert.from_tensornet(directory, {"deep": table})
        gradient = np.random.default_rng(0).normal(size=(20, _DIM))
        sums = n + gradient**2
        change = rate * (np.sqrt(sums) - np.sqrt(n)) * fields["weights"]
        self._push(table, signs, gradient, weights(z + gradient - change, sums))

    def _push(self, table, signs, gradient, expected):
        table.push(signs.view(np.int64), gradient.astype(np.float32))
        self.assertAllClose(
            table.pull(signs.view(np.int64)), expected, rtol=1e-5, atol=1e-6
        )


class ErrorsTest(TestCase):
    def _refused(self, error, text, directory, tables=None, **options):
        tables = tables or {"deep": _table()}
        with self.assertRaisesRegex(error, text):
            tf_ext.convert.from_tensornet(directory, tables, **options)
        for table in tables.values():
            self.assertEqual(table.size(), 0)

    def _saved(self, **options):
        directory = self.directory()
        rows = files.random_rows(0, 60, _DIM)
        return directory, files.save(directory, "deep", rows, **options)

    def test_arguments(self):
        directory, _ = self._saved()
        for tables, text in ([], "`tables` of"), ({"a": 2}, "`table` of"):
            with self.assertRaisesRegex(ValueError, f"{text} from_tensornet"):
                tf_ext.convert.from_tensornet(directory, tables)
        self._refused(
            ValueError, "`slots` of from_tensornet", directory, slots=1
        )
        self._refused(TypeError, "`directory` of from_tensornet", 1)
        self._refused(
            ValueError,
            "must name tables of .*: 'deep'. Received: 'wide'",
            directory,
            {"deep": _table(), "wide": _table()},
        )
        self._refused(FileNotFoundError, "not a directory", f"{directory}/no")
        self._refused(
            ValueError,
            "has rows of dim 3. The table has dim 4.",
            directory,
            {"deep": _table(dim=4)},
        )

    def test_missing_files(self):
        directory, paths = self._saved(ranks=2)
        for path in paths:
            data = path.read_bytes()
            path.unlink()
            self._refused(
                tf_ext.convert.DamagedFilesError, "must have 8 files", directory
            )
            path.write_bytes(data)
        paths[0].with_name("sparse_block_0.gz").write_bytes(b"")
        self._refused(
            tf_ext.convert.DamagedFilesError, "of several saves", directory
        )

    def test_missing_ranks(self):
        directory, paths = self._saved(ranks=3)
        folders = [paths[8 * i].parent for i in range(3)]
        for rank in range(3):
            away = folders[rank].rename(f"{directory}/away")
            # Of the last one, the other rows are in the wrong ranks.
            self._refused(
                tf_ext.convert.DamagedFilesError,
                "rank_0, rank_1 and so on|with signs of rank 0 of 2",
                directory,
            )
            away.rename(folders[rank])

    def test_files_in_wrong_places(self):
        for mode in "txt", "bin":
            directory, paths = self._saved(mode=mode)
            paths[0].write_bytes(paths[1].read_bytes())
            self._refused(
                tf_ext.convert.DamagedFilesError, "and of block 0", directory
            )

    def test_other_optimizers(self):
        directory, paths = self._saved()
        text = gzip.decompress(paths[3].read_bytes())
        paths[3].write_bytes(gzip.compress(text.replace(b"AdaGrad", b"Lamb")))
        self._refused(
            tf_ext.convert.DamagedFilesError,
            "optimizer or version of TensorNet that is not known",
            directory,
        )


class DamageTest(TestCase):
    def _refused(self, directory, text):
        tables = {"deep": _table(), "wide": _table()}
        with self.assertRaisesRegex(tf_ext.convert.DamagedFilesError, text):
            tf_ext.convert.from_tensornet(directory, tables)
        self.assertEqual([t.size() for t in tables.values()], [0, 0])

    def _saved(self, mode, rows=None):
        directory = self.directory()
        rows = rows or files.random_rows(0, 60, _DIM)
        files.save(directory, "deep", rows, mode=mode)
        return directory, files.save(directory, "wide", rows, mode=mode)

    @parameterized.parameters("txt", "bin")
    def test_cut_off(self, mode):
        directory, paths = self._saved(mode)
        data = paths[5].read_bytes()
        for size in range(0, len(data), 9):
            paths[5].write_bytes(data[:size])
            self._refused(directory, "is damaged")
        plain = gzip.decompress(data)
        for end in 2, 3, 9:
            paths[5].write_bytes(gzip.compress(plain[:-end]))
            self._refused(directory, "is damaged")

    @parameterized.product(mode=["txt", "bin"], damage=["cut off", "flipped"])
    def test_the_end_of_a_file_of_several_reads(self, mode, damage):
        """All of its rows are whole, and still none is taken."""
        directory, paths = self._saved(mode)
        data = bytearray(paths[5].read_bytes())
        if damage == "cut off":
            del data[-8:]
        else:
            data[-8] ^= 1  # Of the checksum.
        paths[5].write_bytes(data)
        with mock.patch.object(tensornet_files, "_READ_BYTES", 64):
            self._refused(directory, "cannot be decompressed")

    @parameterized.product(mode=["txt", "bin"], value=[np.nan, np.inf])
    def test_no_numbers(self, mode, value):
        for name in "weights", "accumulator", "show":
            rows = files.random_rows(0, 60, _DIM)
            rows[1][name][7] = value
            directory, _ = self._saved(mode, rows)
            self._refused(directory, f"in the row of sign {rows[0][7]}")

    @parameterized.parameters(
        (b"\t3\t", b"\t4\t"),
        (b"\t3\t", b"\t3\t\t"),
        (b"\t3\t", b"\tx\t"),
        (b"\n\n", b"\n1\n"),
        (b"dim:3", b"dim:x"),
        (b"dim:3\n", b""),
        (b"\n", b"x" * 10_000),
    )
    def test_lines(self, before, after):
        directory, paths = self._saved("txt")
        text = gzip.decompress(paths[2].read_bytes())
        self.assertIn(before, text)
        head, _, rest = text.rpartition(before)
        paths[2].write_bytes(gzip.compress(head + after + rest))
        self._refused(directory, "is damaged")

    @parameterized.parameters("no row", "of another block")
    def test_changed_between_check_and_import(self, change):
        directory, paths = self._saved("txt")
        changed = paths[3].read_bytes()
        if change == "no row":
            text = gzip.decompress(paths[2].read_bytes())
            changed = gzip.compress(text.replace(b"\t3\t", b"\tx\t"))
        rows = tensornet_files.Block.rows

        def change_and_read(block, *args):
            paths[2].write_bytes(changed)
            return rows(block, *args)

        with mock.patch.object(tensornet_files.Block, "rows", change_and_read):
            with self.assertRaisesRegex(
                tf_ext.convert.DamagedFilesError, "has changed meanwhile"
            ):
                tf_ext.convert.from_tensornet(directory, {"wide": _table()})

    def test_a_line_without_end(self):
        # Not kept until memory ends.
        form = tensornet_files._forms(_DIM, is_text=True)[0]
        parse = tensornet_files._Lines(form)
        self.assertEmpty(parse(b"1" * 100))
        self.assertIsNone(parse(b"1" * 10_000))

    @parameterized.parameters("txt", "bin")
    def test_flipped_bytes(self, mode):
        directory, paths = self._saved(mode)
        intact = _table()
        tf_ext.convert.from_tensornet(directory, {"wide": intact})
        expected = contents(intact)
        data = paths[0].read_bytes()
        rng = np.random.default_rng(5)
        refused = 0
        for at in rng.integers(len(data), size=500):
            damaged = bytearray(data)
            damaged[at] ^= 1 << int(rng.integers(8))
            paths[0].write_bytes(damaged)
            table = _table()
            try:
                tf_ext.convert.from_tensornet(directory, {"wide": table})
            except (tf_ext.convert.DamagedFilesError, ValueError):
                refused += 1
                self.assertEqual(table.size(), 0)
            else:  # In the head of gzip, such as the time.
                self.assertEqual(contents(table), expected)
        self.assertGreater(refused, 400)


if __name__ == "__main__":
    tf.test.main()
