# SPDX-License-Identifier: Apache-2.0
"""Snapshots rewritten for tables of another shape, rule, type or rows."""

import dataclasses
import os
import random
import shutil
import unittest.mock

import numpy as np
import pytest
import snapshot_util as util
from absl.testing import absltest, parameterized
from models import small_models as small
from saving_util import contents
from transform_util import SIGNS, TransformTestCase, by_sign
from transform_util import table as table_of

import tf_ext
from tf_ext import optimizers as rules
from tf_ext.snapshot import (
    DamagedSnapshotError,
    open_snapshot,
    row_mapping,
    transform,
)
from tf_ext.snapshot.files import read_manifest
from tf_ext.snapshot.manifest import encode
from tf_ext.snapshot.reader import latest_rows
from tf_ext.snapshot.row_mapping import RowMapping

pytestmark = pytest.mark.slow_tests(
    "ConfigTest::test_another_rule_all_there",
    "ConfigTest::test_another_rule_one_is_missing",
)


class DimTest(TransformTestCase):
    @parameterized.parameters(
        ("adagrad", "float32"), ("adam", "float16"), ("ftrl", "bfloat16")
    )
    def test_new_positions_are_those_of_new_rows(self, rule, dtype):
        self._check_new_positions(rule, dtype)

    @parameterized.product(
        rule=sorted(small.RULES), dtype=["float32", "float16", "bfloat16"]
    )
    @pytest.mark.slow
    def test_new_positions_of_all_rules(self, rule, dtype):
        self._check_new_positions(rule, dtype)

    def _check_new_positions(self, rule, dtype):
        slot_dtype = "bfloat16" if dtype == "bfloat16" else "float32"
        types = {"dtype": dtype, "slot_dtype": slot_dtype}
        narrow = table_of(3, rule, **types)
        old = self.saved("old", narrow)
        manifest = transform(old, self.path("new"), dim=5)
        self.assertEqual((manifest.rows, manifest.shards), (len(SIGNS), 2))
        wide = table_of(5, rule, **types)
        wide.pull(SIGNS, training=True)
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
        later = table_of(5, rule, **types)
        self.assertAllEqual(wide.pull([12345]), later.pull([12345]))
        transform(self.path("new"), self.path("back"), dim=3)
        again = table_of(3, rule, **types)
        again.load(self.path("back"))
        self.assertEqual(contents(again), before)

    def test_many_chunks(self):
        table = table_of(64)
        signs = np.arange(9000)
        old = self.saved("old", table, signs)
        transform(old, self.path("new"), dim=80)
        self.assertGreater(open_snapshot(self.path("new")).bytes, 4 << 20)
        found, before = by_sign(self.path("new")), by_sign(old)
        fresh = tf_ext.hashing.initial_rows(
            open_snapshot(self.path("new")).manifest.config, signs
        )
        weights = np.stack([found["weights"][s] for s in signs])
        self.assertAllEqual(
            weights[:, :64], np.stack([before["weights"][s] for s in signs])
        )
        self.assertAllEqual(weights[:, 64:], fresh[:, 64:])

    def test_rows_of_a_large_dim_are_made_in_parts(self):
        old = self.saved("old", table_of(3), range(60))
        chain = open_snapshot(old).chain
        config = chain[-1][1].config.replace("dim=3", "dim=65536")
        mapping = RowMapping(*chain[-1], config)
        parts = list(mapping(latest_rows(chain, lambda _: None)))
        self.assertEqual(sum(map(len, parts)), 60)
        self.assertLess(max(part.nbytes for part in parts), 10 << 20)
        transform(old, self.path("new"), dim=4)
        with unittest.mock.patch.object(row_mapping, "_BYTES_AT_ONCE", 1000):
            transform(old, self.path("parts"), dim=4)
        wanted, found = by_sign(self.path("new")), by_sign(self.path("parts"))
        for sign, values in wanted["weights"].items():
            self.assertAllEqual(found["weights"][sign], values)

    def test_a_projection(self):
        table = table_of(3)
        old = self.saved("old", table)
        matrix = np.random.default_rng(1).normal(size=[3, 5])
        np.save(self.path("matrix.npy"), matrix)
        transform(old, self.path("new"), projection=matrix)
        transform(old, self.path("file"), projection=self.path("matrix.npy"))
        found, before = by_sign(self.path("new")), by_sign(old)
        for sign, weights in before["weights"].items():
            wanted = weights.astype(np.float64) @ matrix
            self.assertAllClose(found["weights"][sign], wanted, 1e-6, 1e-6)
            accumulator = found["accumulator"][sign].tolist()
            self.assertEqual(accumulator, [np.float32(0.1)] * 5)
        for sign, weights in by_sign(self.path("file"))["weights"].items():
            self.assertAllEqual(weights, found["weights"][sign])
        table_of(5).load(self.path("new"))
        transform(old, self.path("large"), projection=matrix * 1e300)
        found = by_sign(self.path("large"))["weights"]
        self.assertTrue(np.isfinite(list(found.values())).all())

    def test_a_chain(self):
        table = table_of(3)
        util.push(table, range(300))
        table.save(self.path("0"), incremental=True)
        util.push(table, range(250, 320), 1)
        table.erase(range(9))
        table.save(self.path("1"), base=self.path("0"))
        transform(self.path("1"), self.path("new"), dim=2)
        narrow = table_of(2)
        narrow.load(self.path("new"))
        self.assertEqual(
            contents(narrow),
            {
                name: {sign: values[:2] for sign, values in of.items()}
                for name, of in contents(table).items()
            },
        )


class ConfigTest(TransformTestCase):
    """Another name, rule or type."""

    def test_another_name(self):
        old = self.saved("old", table_of(3))
        manifest = transform(old, self.path("new"), name="renamed")
        self.assertEqual(manifest.label, "renamed")
        table = table_of(3, name="renamed")
        table.load(self.path("new"))
        self.assertEqual(contents(table), util.loaded(old, **_loads(3)))
        fresh = table_of(3, name="renamed")
        self.assertAllEqual(table.pull([12345]), fresh.pull([12345]))

    @parameterized.named_parameters(
        (
            "all_there",
            "adam",
            tf_ext.optimizers.SparseAdam(0.1, bias_correction="global"),
            ["m", "v"],
        ),
        ("by_name", "lion", "momentum", ["momentum"]),
        ("one_is_missing", "adagrad", tf_ext.optimizers.SparseFtrl(0.1), []),
        (
            "of_another_kind",
            "adagrad",
            tf_ext.optimizers.SparseRowWiseAdagrad(0.1, 0.5),
            [],
        ),
        ("none", "adam", "sgd", []),
    )
    def test_another_rule(self, before, optimizer, taken):
        old = self.saved("old", table_of(3, before))
        manifest = transform(old, self.path("new"), optimizer=optimizer)
        # Its learning rate is none of this rule.
        self.assertNotIn("optimizer", manifest.state)
        if optimizer == "momentum":
            optimizer = rules.SparseSGD(0.1, momentum=0.9)
        kwargs = {"initializer": "normal", "seed": 7}
        table = util.table(dim=3, optimizer=optimizer, **kwargs)
        table.pull(SIGNS, training=True)
        fresh = contents(table)
        table.load(self.path("new"))
        found, saved = contents(table), by_sign(old)
        for name, rows in found.items():
            for sign, values in rows.items():
                wanted = fresh[name][sign]
                if name in ["weights", *taken]:
                    wanted = saved[name][sign].tolist()
                self.assertEqual(values, wanted, name)

    def test_weights_that_ftrl_would_lose_are_a_warning(self):
        ftrl = tf_ext.optimizers.SparseFtrl(0.1, l1_regularization_strength=0.1)
        kwargs = {"initializer": "normal", "seed": 7, "dim": 3}
        old = self.saved("old", table_of(3, "adagrad"))

        def table():
            return util.table(optimizer=ftrl, **kwargs)

        for take in (
            lambda: transform(old, self.path("new"), optimizer=ftrl),
            lambda: table().load(old, weights_only=True),
            lambda: table().import_rows([1], {"weights": [[0.5, 0, 0]]}),
        ):
            with self.assertLogs("tf_ext", "WARNING") as log:
                take()
            self.assertRegex(log.output[0], "'linear'.* lost at its next one")
        with tf_ext.serving.weights_only():
            served = table()
        # 0.5 * sqrt(4) / 0.1 + 0.1
        fields = {
            "weights": [[0.5, -0.5, 0.0]],
            "accumulator": [[4.0, 4.0, 4.0]],
            "linear": [[-10.1, 10.1, 0.0]],
        }
        whole = table()
        with self.assertNoLogs("tf_ext", "WARNING"):
            served.load(old, weights_only=True)
            table().import_rows([1], {"weights": [[0.0, 0.0, 0.0]]})
            whole.import_rows([1], fields)
        whole.push([1], [[0.0, 0.0, 0.0]])
        self.assertAllClose(whole.pull([1]), fields["weights"], 1e-6, 0)

    def test_no_warning_where_ftrl_keeps_its_slots(self):
        old = self.saved("old", table_of(3, "ftrl"))
        with self.assertNoLogs("tf_ext", "WARNING"):
            transform(old, self.path("new"), dim=2)

    def test_a_name_stands_for_what_it_does_in_a_table(self):
        old = self.saved("old", table_of(1, "sgd"))
        for dim in (1, 4):
            for name in ("adagrad", "row_wise_adagrad", "ftrl", "adam"):
                path = self.path(f"{dim}{name}")
                manifest = transform(old, path, optimizer=name, dim=dim)
                table = tf_ext.SparseTable("user", dim, name, "normal", seed=7)
                self.assertEqual(manifest.config, table.rows.config)

    @parameterized.parameters("float16", "bfloat16")
    def test_types(self, dtype):
        table = table_of(3)
        old = self.saved("old", table)
        extreme = [[1e9, -3e38, 0.1], [1.0, 0.5, 2.0]]
        table.import_rows([5, 7], {"weights": extreme})
        table.save(old)
        manifest = transform(
            old, self.path("new"), dtype=dtype, slot_dtype="bfloat16"
        )
        small_table = table_of(3, dtype=dtype, slot_dtype="bfloat16")
        wanted = table_of(3, dtype=dtype, slot_dtype="bfloat16")
        small_table.load(self.path("new"))
        converted = wanted.load(old, convert=True)
        self.assertEqual(contents(small_table), contents(wanted))
        self.assertEqual(manifest.conversion, converted.conversion)
        self.assertGreater(manifest.conversion.rounded, len(SIGNS))
        manifest = transform(
            self.path("new"),
            self.path("back"),
            dtype="float32",
            slot_dtype="float32",
        )
        self.assertEqual(manifest.conversion.rounded, 0)
        self.assertEqual(manifest.conversion.saturated, 0)
        table.load(self.path("back"))
        self.assertEqual(contents(table), contents(wanted))

    def test_rows_that_are_shrunk(self):
        table = table_of(3, l2=0.5)
        util.push(table, SIGNS)
        table.pull([4242], training=True)  # Never pushed: as it began.
        for step in range(3):
            table.push([0], np.ones([1, 3], np.float32), step=step + 2)
        table.save(self.path("old"))
        transform(self.path("old"), self.path("new"), dim=5)
        wide = table_of(5, l2=0.5)
        wide.pull(SIGNS, training=True)
        fresh = table_of(5, l2=0.5)
        wide.load(self.path("new"))
        signs = [*SIGNS, 4242]
        found = wide.pull(signs)
        self.assertAllEqual(found[:, :3], table.pull(signs))
        # New positions have not been shrunk yet.
        self.assertAllEqual(found[:, 3:], fresh.pull(signs)[:, 3:])
        for each in (table, wide):
            gradients = np.zeros([1, each.dim], np.float32)
            each.push([777], gradients, step=9)
        # Two roundings instead of one.
        now = table.pull(signs)
        self.assertAllClose(wide.pull(signs)[:, :3], now, 1e-6, 0)
        self.assertNotAllClose(wide.pull([5]), found[2:3])

    @parameterized.parameters("keep", "decay")
    def test_rows_that_moved_while_they_were_absent(self, absent):
        rule = rules.SparseAdam(0.1, absent=absent)
        kwargs = {"initializer": "normal", "seed": 7}
        table = util.table(2, dim=3, optimizer=rule, **kwargs)
        util.push(table, SIGNS)
        for step in range(3):
            table.push([0], np.ones([1, 3], np.float32), step=step + 2)
        table.save(self.path("old"))
        rule = rules.SparseAdam(0.1, absent="decay")
        manifest = transform(
            self.path("old"),
            self.path("new"),
            dim=2,
            optimizer=None if absent == "decay" else rule,
        )
        # A table that is loaded in place has no history of its own left.
        self.assertIn("absent_state", manifest.state)
        narrow = util.table(2, dim=2, optimizer=rule, **kwargs)
        narrow.load(self.path("new"))
        found = narrow.pull(SIGNS)
        self.assertAllEqual(found, table.pull(SIGNS)[:, :2])
        for each in (table, narrow):
            gradients = np.zeros([1, each.dim], np.float32)
            each.push([777], gradients, step=5)
        moved = narrow.pull(SIGNS)
        self.assertNotAllClose(moved, found)
        if absent == "decay":
            # The rows move from step 4 on: with the history that was saved.
            self.assertAllClose(moved, table.pull(SIGNS)[:, :2], 1e-5, 1e-7)


def _loads(dim):
    return {
        "dim": dim,
        "optimizer": small.RULES["adagrad"](0.1),
        "initializer": "normal",
        "seed": 7,
    }


class RefusalTest(TransformTestCase):
    def setUp(self):
        super().setUp()
        self.old = self.saved("old", table_of(3))
        self.other = self.saved("other", table_of(4))

    def test_arguments(self):
        for arguments, message in (
            (
                {"dim": 0},
                "`dim` of transform must be an int from 1 to",
            ),
            (
                {"projection": [[1.0]]},
                r"`projection`.* \[3, new dim\]",
            ),
            (
                {"projection": np.eye(3), "dim": 2},
                "`dim` of transform must be 3, as of `projection`",
            ),
            ({"projection": [[np.nan]] * 3}, "finite numbers .*float64"),
            ({"name": ""}, "`name` of transform must be a printable text"),
            ({"name": "x" * 201}, "name=xxx.* of 1 to 200 bytes"),
            ({"optimizer": "adam "}, "`optimizer` of transform must be a"),
            ({"optimizer": "none"}, "`optimizer` of transform must be"),
            ({"dtype": "int8"}, "`dtype` of transform must be 'float32'"),
            ({"slot_dtype": "float16"}, "`slot_dtype` of transform must"),
            ({"keep": "show > 3"}, "with one of sign, norm before one of"),
            (
                {"drop": "sign > x"},
                "`drop` of transform must be a",
            ),
            ({"drop": f"sign > {2**63}"}, "`drop` of transform must be a"),
            ({"drop": np.ones(3)}, "signs as int64, .*these are float64"),
            ({"keep": [3]}, "`keep` of transform must be a condition"),
            (
                {"keep": lambda signs, _: signs},
                r"`keep` of transform must return bool \[\d+\], .* int64",
            ),
            ({"by": "sum"}, "`by` of transform must be 'priority' or 'mean'"),
            ({"dtype": "float16", "name": "\n"}, "`name` of transform"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                transform(self.old, self.path("new"), **arguments)
            self.assertFalse(os.path.exists(self.path("new")))

    def test_tables_that_differ(self):
        for by, message in (
            ("mean", "cannot be merged: `dim` is '3' in the first and '4' in"),
            ("show", "`dim` is '3'"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                transform(self.old, self.path("new"), merge=[self.other], by=by)
        for kwargs, key in (
            ({"dtype": "float16"}, "dtype"),
            ({"rule": "adam"}, "optimizer"),
            ({"l2": 0.1}, "l2"),
            ({"statistics": ["show"]}, "statistics"),
        ):
            other = self.saved(key, table_of(3, **kwargs))
            with self.assertRaisesRegex(ValueError, f"merged: `{key}` is "):
                transform(self.old, self.path("new"), merge=other)
        with self.assertRaisesRegex(ValueError, "they have no statistics"):
            transform(self.old, self.path("new"), merge=[self.old], by="show")
        self.assertFalse(os.path.exists(self.path("new")))

    def test_files(self):
        for path, content in (
            (self.path("none.npy"), None),
            (self.path("bad.npy"), b"\x93NUMPY"),
            (self.path("zip.npy"), b"PK\x03\x04"),
        ):
            if content is not None:
                with open(path, "wb") as file:
                    file.write(content)
            for argument in ("projection", "drop"):
                with self.assertRaises((FileNotFoundError, ValueError)):
                    transform(self.old, self.path("new"), **{argument: path})
        with self.assertRaisesRegex(FileNotFoundError, "no snapshot in"):
            transform(self.path("none"), self.path("new"))
        with self.assertRaisesRegex(ValueError, "`out` must be a directory"):
            transform(self.old, self.other)
        with self.assertRaisesRegex(ValueError, "`out` must be a directory"):
            transform(self.old, self.old)
        self.assertFalse(os.path.exists(self.path("new")))

    def test_a_configuration_of_no_table(self):
        manifest = read_manifest(self.old)
        config = manifest.config.replace("initializer=normal", "initializer=x")
        manifest = dataclasses.replace(manifest, config=config)
        with open(os.path.join(self.old, "manifest.json"), "wb") as file:
            file.write(encode(manifest))
        with self.assertRaisesRegex(
            DamagedSnapshotError, "manifest.json is damaged: .*config.*'?x"
        ):
            transform(self.old, self.path("new"), dim=4)
        self.assertFalse(os.path.exists(self.path("new")))


class DamageTest(TransformTestCase):
    """What is damaged is refused, and nothing is left."""

    def test_some_flipped_bytes_and_truncations(self):
        self._check_damage(12)

    @pytest.mark.slow
    def test_flipped_bytes_and_truncations(self):
        self._check_damage(500)

    def _check_damage(self, trials):
        table = table_of(3)
        util.push(table, range(300))
        table.save(self.path("0"), incremental=True)
        util.push(table, range(250, 320), 1)
        table.save(self.path("1"), base=self.path("0"))
        files = [
            os.path.join(self.path(d), name)
            for d in "01"
            for name in os.listdir(self.path(d))
        ]
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        generator = random.Random(seed)
        for trial in range(trials):
            file = generator.choice(files)
            with open(file, "rb") as opened:
                whole = opened.read()
            at = generator.randrange(len(whole))
            if trial % 3:
                changed = bytearray(whole)
                changed[at] ^= 1 << generator.randrange(8)
            else:
                changed = whole[:at]
            with open(file, "wb") as opened:
                opened.write(changed)
            arguments = [{"dim": 5}, {"keep": "norm > 0"}, {"merge": "1"}]
            chosen = generator.choice(arguments)
            if "merge" in chosen:
                chosen = {"merge": self.path("1")}
            with self.assertRaises((DamagedSnapshotError, FileNotFoundError)):
                transform(self.path("1"), self.path("new"), **chosen)
            self.assertFalse(os.path.exists(self.path("new")), (file, at))
            with open(file, "wb") as opened:
                opened.write(whole)
        transform(self.path("1"), self.path("new"), dim=5)

    def test_what_a_killed_process_left(self):
        old = self.saved("old", table_of(3))
        new = self.path("new")
        transform(old, new, dim=5)
        [*names] = os.listdir(new)
        wanted = by_sign(new)
        os.rename(f"{new}/manifest.json", f"{new}/manifest.json.part")
        with open(f"{new}/writer-host-1-{'0' * 16}.claim", "wb"):
            pass
        transform(old, new, dim=5)
        self.assertLen(os.listdir(new), len(names))
        self.assertNotIn("manifest.json.part", os.listdir(new))
        for name, rows in by_sign(new).items():
            for sign, values in rows.items():
                self.assertAllEqual(values, wanted[name][sign])
        for name in ("manifest.json", "notes.txt"):
            shutil.rmtree(new)
            os.mkdir(new)
            with open(os.path.join(new, name), "wb"):
                pass
            with self.assertRaisesRegex(ValueError, "`out` must be"):
                transform(old, new, dim=5)
            self.assertEqual(os.listdir(new), [name])


class CommandTest(TransformTestCase):
    def test_options(self):
        policy = {"statistics": ["show"]}
        first = self.saved("first", table_of(3, **policy), [1, 2, 3])
        second = self.saved("second", table_of(3, **policy), [3, 4])
        np.save(self.path("m.npy"), np.eye(3, 2))
        np.save(self.path("s.npy"), np.array([1]))
        status, out, err = util.run_command(
            *("transform", first, self.path("new"), "--merge", second),
            *("--by=mean", "--name=b", "--optimizer=adam", "--dtype=bfloat16"),
            *("--slot-dtype=bfloat16", "--projection", self.path("m.npy")),
            *("--dim=2", "--keep=show >= 0", "--keep", "norm > 0"),
            *("--drop", self.path("s.npy"), "--drop=sign==2"),
        )
        self.assertEqual((status, err), (0, ""))
        self.assertRegex(
            out, r"values were rounded, 0 to .*\n.*/new: 2 rows in 2 shards"
        )
        self.assertEqual(
            open_snapshot(self.path("new")).fields,
            {
                "weights": ("bfloat16", 2),
                "m": ("bfloat16", 2),
                "v": ("bfloat16", 2),
                "step": ("int32", 1),
                "show": ("float32", 1),
            },
        )
        self.assertEqual(sorted(by_sign(self.path("new"))["m"]), [3, 4])
        status, out, err = util.run_command(
            "transform", first, self.path("x"), "--dim=0"
        )
        self.assertEqual((status, out), (2, ""))
        self.assertIn("Argument `dim` of transform must be", err)


if __name__ == "__main__":
    absltest.main()
