"""The counters of admission by count in files of all kinds."""

import json
import os
import re
import shutil
import tempfile
import threading

import h5py
import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from saving_util import TestCase
from sharded_tables import bytes_of_rows, counters_of, shards_on
from snapshot_util import run_command

import tf_ext
from tf_ext import _core
from tf_ext._keras import keras
from tf_ext.admission import Count, Probability
from tf_ext.snapshot import DamagedSnapshotError, open_snapshot
from tf_ext.tables import snapshot_loads

_COUNT = Count(5, forget=4)
_STEPS = 31  # the last one in the middle of a period


def _table(policy=_COUNT, shards=1):
    with shards_on(["/device:CPU:0"] * shards):
        return tf_ext.SparseTable(
            "items",
            dim=2,
            optimizer=tf_ext.optimizers.SparseAdagrad(0.5),
            admission=policy,
        )


def _train(table, first, last):
    """Pushes what depends on the step alone."""
    for step in range(first, last):
        random = np.random.default_rng(step)
        signs = random.integers(0, 2000, 300)
        gradients = random.normal(size=[300, 2]).astype(np.float32)
        table.push(signs, gradients, step=step)


def _trained(policy=_COUNT, shards=2):
    table = _table(policy, shards)
    _train(table, 1, _STEPS)
    return table


def _model(table):
    """A model, for files that need one."""
    inputs = {"id": keras.Input((), dtype="int64", name="id")}
    column = tf_ext.feature_column.category_column("id", hashing="identity")
    embedded = tf_ext.layers.EmbeddingFeatures([column], table)(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(embedded))


def _save(table, kind, path):
    if kind == "snapshot":
        table.save(path)
    elif kind == "delta":
        # What is counted after the base.
        table.save(f"{path}/0", incremental=True)
        table.push(range(5000, 5010), np.ones([10, 2]), step=_STEPS - 1)
        table.save(f"{path}/1", base=f"{path}/0")
    elif kind == "checkpoint":
        tf.train.Checkpoint(table=table).write(f"{path}/x")
    elif kind == "weights":
        os.makedirs(path, exist_ok=True)
        _model(table).save_weights(f"{path}/x.weights.h5")
    else:
        os.makedirs(path, exist_ok=True)
        _model(table).save(f"{path}/x.keras")


def _load(table, kind, path):
    if kind == "snapshot":
        table.load(path)
    elif kind == "delta":
        table.load(f"{path}/1")
    elif kind == "checkpoint":
        tf.train.Checkpoint(table=table).read(f"{path}/x").assert_consumed()
    elif kind == "weights":
        _model(table).load_weights(f"{path}/x.weights.h5")
    else:
        _model(table).load_weights(f"{path}/x.keras")


_KINDS = ("snapshot", "delta", "checkpoint", "weights", "keras")


class RoundTripTest(TestCase):
    @parameterized.product(kind=_KINDS, shards=[1, 3])
    def test_training_goes_on_as_without_a_break(self, kind, shards):
        table, path = _trained(), self.path("saved")
        _save(table, kind, path)
        other = _table(shards=shards)
        other.push([1, 1, -5], np.ones([3, 2]), step=3)
        _load(other, kind, path)
        period, counters = counters_of(table)
        self.assertEqual(counters_of(other), (period, counters))
        self.assertEqual(period, 7)
        # Of both generations, of all counts.
        self.assertEqual({*counters.values()}, {*range(-4, 5)} - {0})
        for each in (table, other):
            _train(each, _STEPS, 2 * _STEPS)
        self.assertEqual(bytes_of_rows(other), bytes_of_rows(table))
        self.assertEqual(counters_of(other), counters_of(table))

    @parameterized.product(kind=_KINDS)
    def test_into_tables_that_admit_otherwise(self, kind):
        table, path = _trained(), self.path("saved")
        _save(table, kind, path)
        period, counters = counters_of(table)
        expected = {
            Count(7, 4): (period, counters),
            Count(3, 4): (
                period,
                {s: min(2, max(-2, c)) for s, c in counters.items()},
            ),
            Count(5): (0, {sign: abs(c) for sign, c in counters.items()}),
            # It is unknown which these would have forgotten.
            Count(5, 3): (0, {}),
            Count(1, 4): (period, {}),
        }
        for policy, found in expected.items():
            other = _table(policy, shards=3)
            other.push([1, -5], np.ones([2, 2]), step=30)
            _load(other, kind, path)
            self.assertEqual(counters_of(other), found, policy)
        for policy in (None, Probability(0.5)):
            other = _table(policy)
            _load(other, kind, path)
            self.assertEqual(bytes_of_rows(other), bytes_of_rows(table))
        with tf_ext.serving.weights_only():
            served = _table()
        _load(served, kind, path)
        self.assertEqual(served.size(), table.size())

    @parameterized.product(kind=_KINDS)
    def test_files_without_counters_leave_none(self, kind):
        plain, path = _trained(None), self.path("saved")
        _save(plain, kind, path)
        table = _trained()
        _load(table, kind, path)
        self.assertEqual(counters_of(table), (0, {}))
        self.assertEqual(bytes_of_rows(table), bytes_of_rows(plain))

    def test_signs_that_got_a_row_meanwhile_get_no_counter(self):
        # As in a save while training goes on: counters are written first.
        table, path = _trained(), self.path("saved")
        table.save(f"{path}/0", incremental=True)
        table.save(f"{path}/1", base=f"{path}/0")
        sign, _ = next(iter(counters_of(table)[1].items()))
        other = _table()
        other.import_rows([sign], {"weights": [[1.0, 2.0]]})
        snapshot_loads.snapshot_files.restore_counters(
            other.rows,
            f"{path}/1",
            open_snapshot(f"{path}/1").manifest,
            weights_only=False,
            load=True,
        )
        expected = counters_of(table)[1]
        del expected[sign]
        self.assertEqual(counters_of(other)[1], expected)

    def test_of_a_save_during_training_none_is_lost(self):
        signs = np.arange(8000)
        table, path = _table(Count(2), shards=2), self.directory()
        table.push(signs, np.ones([8000, 2]))
        stop = threading.Event()

        def admit():
            for some in np.split(signs, 160):
                table.push(some, np.ones([50, 2]))
                if stop.is_set():
                    return

        thread = threading.Thread(target=admit)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(stop.set)
        table.save(f"{path}/0", incremental=True)
        for number in range(1, 5):
            table.save(f"{path}/{number}", base=f"{path}/{number - 1}")
            other = _table(Count(2))
            other.load(f"{path}/{number}")
            _, counters = counters_of(other)
            rows = bytes_of_rows(other).keys()
            self.assertNoCommonElements(rows, counters)
            self.assertEqual(rows | counters.keys(), {*signs.tolist()})


class SnapshotTest(TestCase):
    def test_manifest_files_and_command(self):
        table, path = _trained(), self.path("0")
        manifest = table.save(path)
        self.assertEqual(manifest.counters.period, 7)
        self.assertEqual(manifest.counters.count, table.stats()["waiting"])
        self.assertEqual([f.shard for f in manifest.counters.files], [0, 1])
        table.save(path)  # replaces them
        names = [n for n in os.listdir(path) if n.startswith("counters-")]
        self.assertLen(names, 2)
        status, out, _ = run_command("inspect", path)
        self.assertEqual(status, 0)
        self.assertRegex(out, r"\ncounters  [\d,]+ in period 7, [\d.]+ kB\n")
        status, out, _ = run_command("verify", path)
        self.assertIn("is whole: 4 files", out)
        self.assertIsNone(_trained(None).save(self.path("1")).counters)

    def test_replaced_by_in_place_loads_and_deltas(self):
        table, path = _trained(), self.directory()
        table.save(f"{path}/0", incremental=True)
        first = counters_of(table)
        _train(table, _STEPS, _STEPS + 9)
        table.save(f"{path}/1", base=f"{path}/0")
        self.assertNotEqual(counters_of(table), first)
        other = _table(shards=3)
        _train(other, 50, 60)
        other.load(f"{path}/0", in_place=True)
        self.assertEqual(counters_of(other), first)
        other.apply_delta(f"{path}/1")
        self.assertEqual(counters_of(other), counters_of(table))
        for in_place in (False, True):
            other.load(f"{path}/0", weights_only=True, in_place=in_place)
            self.assertEqual(counters_of(other), (0, {}))
            other.load(f"{path}/1", in_place=in_place)
            self.assertEqual(counters_of(other), counters_of(table))

    def test_followers_read_none(self):
        table, path = _trained(), self.path("0")
        table.save(path)
        other = _table()
        other.push([7], np.ones([1, 2]))
        update = snapshot_loads.update_to(other.rows, path, "items")
        for file in open_snapshot(path).manifest.counters.files:
            os.remove(os.path.join(path, file.name))
        update.check()
        update.verify()
        update.apply()
        self.assertEqual(bytes_of_rows(other), bytes_of_rows(table))
        with tf_ext.serving.weights_only():
            served = _table()
        served.load(path)
        self.assertEqual(served.size(), table.size())

    @parameterized.parameters(1, 2, 3, 5)
    def test_resharded_and_compacted(self, shards):
        table, path = _trained(), self.directory()
        table.save(f"{path}/0", incremental=True)
        _train(table, _STEPS, _STEPS + 9)
        table.save(f"{path}/1", base=f"{path}/0")
        run_command("reshard", f"{path}/1", f"{path}/r", "--shards", shards)
        run_command("compact", f"{path}/1", f"{path}/c")
        for name, files in (("r", shards), ("c", 2)):
            status, out, err = run_command("verify", f"{path}/{name}")
            self.assertEqual((status, err), (0, ""))
            self.assertIn(f"{2 * files} files", out)
            other = _table(shards=3)
            other.load(f"{path}/{name}")
            self.assertEqual(counters_of(other), counters_of(table))
            self.assertEqual(bytes_of_rows(other), bytes_of_rows(table))

    def test_many_chunks(self):
        table, path = _table(shards=2), self.path("0")
        table.push(range(250_000), np.ones([250_000, 2]), step=9)
        manifest = table.save(path)
        self.assertGreater(manifest.counters.files[0].bytes, 1 << 20)
        other = _table()
        other.load(path)
        self.assertEqual(counters_of(other), counters_of(table))


class DamageTest(TestCase):
    """Nothing of a damaged file reaches a table."""

    def _check_refused(self, path, says):
        """All readers refuse it; tables with rows or counters stay as is."""
        signs = [1, 1, 1, 1, 1, 2, -7]
        # With rows and counters, and with counters alone.
        for other, some in ((_table(shards=3), signs), (_table(), [7])):
            other.push(some, np.ones([len(some), 2]), step=40)
            before = bytes_of_rows(other), counters_of(other)
            for in_place in (False, True):
                with self.assertRaisesRegex(DamagedSnapshotError, says):
                    other.load(path, in_place=in_place)
                after = bytes_of_rows(other), counters_of(other)
                self.assertEqual(after, before)
        empty = _table()
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
        _trained().save(cls.whole)

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
        with open(f"{path}/manifest.json", "rb") as file:
            members = json.loads(file.read())
        del members["crc32c"]
        change(members)
        _seal(members, f"{path}/manifest.json")
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
        with open(f"{path}/manifest.json", "rb") as opened:
            members = json.loads(opened.read())
        del members["crc32c"]
        members["counters"]["files"][0]["crc32c"] = f"{encoder.crc32c:08x}"
        _seal(members, f"{path}/manifest.json")
        self._check_refused(path, says)


def _seal(members, path):
    body = json.dumps(members, indent=2).removesuffix("\n}").encode()
    ending = f',\n  "crc32c": "{_core.crc32c(body):08x}"\n}}\n'
    with open(path, "wb") as file:
        file.write(body + ending.encode())


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
        ("twice", {"signs": lambda v: v * 0}, {}, "0 is there twice"),
        ("dtype", {"counts": lambda v: v.astype("f4")}, {}, "are int64 .* flo"),
        ("length", {"counts": lambda v: v[:3]}, {}, r"int32 \[3, 1\]"),
        ("bits", {"signs": None}, {}, "'counters_000000_signs' has the CRC32C"),
        ("period", {}, {"period": -1}, "period must be from 0 to"),
        ("text", {}, {"period": "7"}, "but is '7'"),
        ("chunks", {}, {"chunks": -1}, "counters is"),
        ("more", {}, {"chunks": 2}, "'counters_000001_signs' is missing"),
        ("config", {}, {"config": ("n=5", "n=0")}, "`admission.n` must be"),
        ("policy", {}, {"config": ("=count", "=x")}, "is not by count"),
    )
    def test_refuses(self, arrays, members, says):
        model = _model(_trained(shards=1))
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
        table = _trained(shards=2)
        before = bytes_of_rows(table), counters_of(table)
        with self.assertRaisesRegex(ValueError, says):
            _model(table).load_weights(path)
        self.assertEqual((bytes_of_rows(table), counters_of(table)), before)


class CheckpointTest(TestCase):
    @parameterized.named_parameters(
        ("count", "counts", lambda v: v * 9, "from -4 to 4 and not 0"),
        ("twice", "signs", lambda v: v * 0, "0 is there twice"),
        ("length", "counts", lambda v: v[:3], r"int32 \[3, 1\]"),
        ("period", "period", lambda v: v - 9, "must be from 0 to"),
    )
    def test_refuses(self, name, change, says):
        table, path = _trained(shards=1), self.path("x")
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
        other = _trained(shards=2)
        before = bytes_of_rows(other), counters_of(other)
        with self.assertRaisesRegex(ValueError, says):
            tf.train.Checkpoint(table=other).read(path)
        self.assertEqual((bytes_of_rows(other), counters_of(other)), before)


if __name__ == "__main__":
    tf.test.main()
