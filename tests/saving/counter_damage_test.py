# SPDX-License-Identifier: Apache-2.0
"""Damaged and forged counters in files of all kinds."""

import json
import os
import re
import shutil
import tempfile

import h5py
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.counter_tables import make_model, make_table, trained
from models.sharded_tables import bytes_of_rows, counters_of
from oracles.snapshot_forging import reseal
from saving_util import TestCase
from snapshot_util import run_command

from tf_ext import _core
from tf_ext.snapshot import DamagedSnapshotError, open_snapshot

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "CheckTest::test_*",
        "CheckpointTest::test_refuses_period",
        "CheckpointTest::test_refuses_twice",
        "DamageTest::test_of_a_manifest_count",
        "DamageTest::test_of_a_manifest_file",
        "DamageTest::test_of_a_manifest_forget",
        "DamageTest::test_of_a_manifest_kind",
        "DamageTest::test_of_a_manifest_n_big",
        "DamageTest::test_of_a_manifest_name",
        "DamageTest::test_of_a_manifest_negative",
        "DamageTest::test_of_a_manifest_no_period",
        "DamageTest::test_with_valid_checksums_out_of_order",
        "DamageTest::test_with_valid_checksums_shard",
        "DamageTest::test_with_valid_checksums_too_few",
        "KerasFileTest::test_refuses_bits",
        "KerasFileTest::test_refuses_zero",
    ),
]


class DamageTest(TestCase):
    """Nothing of a damaged file reaches a table."""

    def _check_refused(self, path, says):
        """All readers refuse it; tables with rows or counters stay as is."""
        signs = [1, 1, 1, 1, 1, 2, -7]
        # With rows and counters, and with counters alone.
        for other, some in ((make_table(shards=3), signs), (make_table(), [7])):
            other.push(some, np.ones([len(some), 2]), step=40)
            before = bytes_of_rows(other), counters_of(other)
            for in_place in (False, True):
                with self.assertRaisesRegex(DamagedSnapshotError, says):
                    other.load(path, in_place=in_place)
                after = bytes_of_rows(other), counters_of(other)
                self.assertEqual(after, before)
        empty = make_table()
        with self.assertRaisesRegex(DamagedSnapshotError, says):
            empty.load(path)
        self.assertEqual(counters_of(empty), (0, {}))
        self.assertEqual(empty.size(), 0)
        status, _, err = run_command("verify", path)
        self.assertEqual(status, 1)
        self.assertRegex(err, says)
        status, _, err = run_command("compact", path, self.path("out"))
        self.assertEqual(status, 1)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        temporary = tempfile.TemporaryDirectory(prefix="tf_ext_counters_")
        cls.addClassCleanup(temporary.cleanup)
        cls.whole = temporary.name
        trained().save(cls.whole)

    def _saved(self):
        path = self.path("0")
        shutil.copytree(self.whole, path)
        name = open_snapshot(path).manifest.counters.files[0].name
        return path, os.path.join(path, name)

    def test_of_a_file(self):
        path, file = self._saved()
        with open(file, "rb") as opened:
            data = bytearray(opened.read())
        data[500] ^= 1
        with open(file, "wb") as opened:
            opened.write(data)
        self._check_refused(path, "counters-.* is damaged at byte 0: .*CRC32C")
        with open(file, "wb") as opened:
            opened.write(data[:-12])
        self._check_refused(path, "counters-.* is damaged at byte .*: it has")
        os.remove(file)
        self._check_refused(path, "is missing: .*counters-")

    @parameterized.named_parameters(
        ("period", lambda m: m["counters"].update(period=2**62), "period"),
        ("no_period", lambda m: m["counters"].pop("period"), "period"),
        ("negative", lambda m: m["counters"].update(period=-1), "period"),
        ("kind", lambda m: m.update(counters=[]), "counters must be a JSON"),
        ("file", lambda m: m["counters"]["files"].pop(), "each of 2 shards"),
        (
            "shard",
            lambda m: m["counters"]["files"][0].update(shard=1),
            "each of 2 shards",
        ),
        (
            "same_file",
            lambda m: m["counters"]["files"][0].update(
                name=m["counters"]["files"][1]["name"]
            ),
            "different names",
        ),
        (
            "name",
            lambda m: m["counters"]["files"][0].update(name="../x"),
            r"files\[0\].name must be a name counters-",
        ),
        (
            "count",
            lambda m: m["counters"]["files"][0].update(counters=2**40),
            r"files\[0\].counters must be an integer from 0 to",
        ),
        (
            "other_count",
            lambda m: m["counters"]["files"][0].update(counters=1),
            "not the one that the manifest names",
        ),
        ("n", lambda m: _set_config(m, "n=5", "n=3"), "a count of -?[34] of"),
        ("n_1", lambda m: _set_config(m, "n=5", "n=1"), "from 0 to 0"),
        ("n_0", lambda m: _set_config(m, "n=5", "n=0"), "`admission.n` must"),
        ("n_big", lambda m: _set_config(m, "n=5", "n=256"), "1 to 255"),
        (
            "forget",
            lambda m: _set_config(m, "forget=4", "forget=x"),
            "`admission.forget` must be",
        ),
        (
            "policy",
            lambda m: _set_config(m, "=count", "=chance"),
            "admission=count",
        ),
    )
    def test_of_a_manifest(self, change, says):
        path, _ = self._saved()
        reseal(f"{path}/manifest.json", change)
        self._check_refused(path, says)

    @parameterized.named_parameters(
        ("twice", lambda rows: rows[[0, 0, *range(2, len(rows))]], "twice"),
        ("out_of_order", lambda rows: rows[::-1], "out of order"),
        ("too_many", lambda rows: _with_count(rows, 5), "a count of 5 of"),
        ("too_few", lambda rows: _with_count(rows, -5), "a count of -5 of"),
        ("zero", lambda rows: _with_count(rows, 0), "a count of 0 of"),
        ("shard", lambda rows: _of_another_shard(rows), "of shard 1, but"),
    )
    def test_with_valid_checksums(self, change, says):
        path, name = self._saved()
        snapshot = open_snapshot(path)
        file = snapshot.manifest.counters.files[0]
        with open(name, "rb") as opened:
            data = np.frombuffer(opened.read()[32:], np.uint8)
        rows = np.ascontiguousarray(change(data.reshape([-1, 12])))
        encoder = _core.RowFileEncoder(12, file.tag)
        with open(name, "wb") as opened:
            opened.write(encoder.add_rows(rows) + encoder.finish())
        crc = f"{encoder.crc32c:08x}"
        reseal(
            f"{path}/manifest.json",
            lambda m: m["counters"]["files"][0].update(crc32c=crc),
        )
        self._check_refused(path, says)


class CheckTest(TestCase):
    """What all readers call for each chunk of a file."""

    def setUp(self):
        super().setUp()
        signs = np.arange(-3, 5)
        self.signs = signs[np.argsort(_core.counter_keys(signs))]

    def _chunk(self, places, counts):
        rows = np.zeros([len(counts), _core.COUNTER_BYTES], np.uint8)
        rows[:, :8] = self.signs[places, np.newaxis].view(np.uint8)
        rows[:, 8:] = np.array(counts, "<i4")[:, np.newaxis].view(np.uint8)
        return rows

    def test_each_count(self):
        good = [1, 4, 2, 3]
        for older, bad in ((False, (0, -1, 5)), (True, (0, -5, 5))):
            check = _core.CounterCheck(5, older)
            check.check(self._chunk(range(4), good))
            for place in range(4):
                for count in bad:
                    counts = [*good[:place], count, *good[place + 1 :]]
                    with self.assertRaisesRegex(
                        ValueError,
                        f"a count of {count} of the sign {self.signs[place]};",
                    ):
                        _core.CounterCheck(5, older).check(
                            self._chunk(range(4), counts)
                        )
        _core.CounterCheck(5, True).check(self._chunk(range(2), [-4, -1]))

    def test_order_within_chunks_and_over_them(self):
        check = _core.CounterCheck(5, False)
        check.check(self._chunk([0, 2], [1, 1]))
        check.check(self._chunk([3, 5], [1, 1]))
        for places in ([5], [4], [0], [6, 6], [7, 6]):
            check = _core.CounterCheck(5, False)
            check.check(self._chunk([3, 5], [1, 1]))
            with self.assertRaisesRegex(
                ValueError, "out of order, or .* twice"
            ):
                check.check(self._chunk(places, [1] * len(places)))


def _set_config(members, old, new):
    table = members["table"]
    assert old in table["config"], table
    table["config"] = table["config"].replace(old, new)


def _with_count(rows, count):
    rows = rows.copy()
    rows[7, 8:] = np.array([count], "<i4").view(np.uint8)
    return rows


def _of_another_shard(rows):
    """Replaces the last sign by one of shard 1 that is in order."""
    signs = np.arange(10**6)
    key = _core.counter_keys(rows[-2:-1, :8].copy().view("<i8")[:, 0])
    signs = signs[_core.counter_keys(signs) > key]
    sign = signs[_core.shard_of(signs, 2) == 1][:1]
    rows = rows.copy()
    rows[-1, :8] = sign.astype("<i8").view(np.uint8)
    return rows


class KerasFileTest(TestCase):
    """Damage of files of Keras, whose checksums are valid."""

    @parameterized.named_parameters(
        ("count", {"counts": lambda v: v * 9}, {}, "from -4 to 4 and not 0"),
        ("zero", {"counts": lambda v: v * 0}, {}, "but one is 0"),
        ("twice", {"signs": lambda v: v * 0}, {}, "0 occurs twice"),
        ("dtype", {"counts": lambda v: v.astype("f4")}, {}, "are int64 .* flo"),
        ("length", {"counts": lambda v: v[:3]}, {}, r"int32 \[3, 1\]"),
        ("bits", {"signs": None}, {}, "'counters_000000_signs' has the CRC32C"),
        ("period", {}, {"period": -1}, "period must be from 0 to"),
        ("text", {}, {"period": "7"}, "but is '7'"),
        ("chunks", {}, {"chunks": -1}, "counters is"),
        (
            "more",
            {},
            {"chunks": 2},
            "table 'items' .*'counters_000001_signs' is",
        ),
        ("config", {}, {"config": ("n=5", "n=0")}, "`admission.n` must be"),
        ("policy", {}, {"config": ("=count", "=x")}, "is not by count"),
    )
    def test_refuses(self, arrays, members, says):
        model = make_model(trained(shards=1))
        path = self.path("x.weights.h5")
        model.save_weights(path)
        with h5py.File(path, "r+") as file:
            found = []
            file.visit(found.append)
            [header] = [n for n in found if n.endswith("/header")]
            group = file[header.removesuffix("/header")]
            text = json.loads(np.asarray(group["header"]).tobytes())
            for name, change in arrays.items():
                name = f"counters_000000_{name}"
                value = np.asarray(group[name])
                del group[name]
                group[name] = value + 1 if change is None else change(value)
                if change is not None:
                    crc = _core.crc32c(np.asarray(group[name]).tobytes())
                    text["crc32c"][name] = crc
            if "config" in members:
                text["config"] = text["config"].replace(*members["config"])
            else:
                text["counters"].update(members)
            sealed = json.dumps(text).encode()
            for name, value in (
                ("header", np.frombuffer(sealed, np.uint8)),
                ("header_crc32c", np.array([_core.crc32c(sealed)], np.uint32)),
            ):
                del group[name]
                group[name] = value
        table = trained(shards=2)
        before = bytes_of_rows(table), counters_of(table)
        with self.assertRaisesRegex(ValueError, says):
            make_model(table).load_weights(path)
        self.assertEqual((bytes_of_rows(table), counters_of(table)), before)


class CheckpointTest(TestCase):
    @parameterized.named_parameters(
        ("count", "counts", lambda v: v * 9, "from -4 to 4 and not 0"),
        ("twice", "signs", lambda v: v * 0, "0 occurs twice"),
        ("length", "counts", lambda v: v[:3], r"int32 \[3, 1\]"),
        ("period", "period", lambda v: v - 9, "must be from 0 to"),
    )
    def test_refuses(self, name, change, says):
        table, path = trained(shards=1), self.path("x")
        reader = tf.train.load_checkpoint(
            tf.train.Checkpoint(table=table).write(path)
        )
        names = list(reader.get_variable_to_shape_map())
        tensors = [reader.get_tensor(each) for each in names]
        [index] = [
            i for i, n in enumerate(names) if re.search(f"counter_{name}0?$", n)
        ]
        tensors[index] = change(tensors[index])
        tf.raw_ops.SaveV2(
            prefix=path,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=tensors,
        )
        other = trained(shards=2)
        before = bytes_of_rows(other), counters_of(other)
        with self.assertRaisesRegex(ValueError, says):
            tf.train.Checkpoint(table=other).read(path)
        self.assertEqual((bytes_of_rows(other), counters_of(other)), before)


if __name__ == "__main__":
    tf.test.main()
