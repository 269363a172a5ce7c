# SPDX-License-Identifier: Apache-2.0
"""Rows of TensorFlow Recommenders Addons in tables."""

import pathlib
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from oracles import tfra_files
from saving_util import TestCase

import tf_ext
from tf_ext.convert import stored_array, tfra

pytestmark = pytest.mark.slow_tests(
    "CheckpointTest::test_rows_and_slots1[01]",
    "CheckpointTest::test_rows_and_slots[2389]",
)


_DIM = 3
_COLUMN = tf_ext.feature_column.category_column("user")
_IDS = tf_ext.feature_column.category_column("user", hashing="identity")
_SLOTS = {
    "adagrad": {"accumulator": "accumulator"},
    "adam": {"m": "m", "v": "v"},
    "ftrl": {"accumulator": "accumulator", "linear": "linear"},
    "rmsprop": {
        "velocity": "rms",
        "momentum": "momentum",
        "average_gradient": "mg",
    },
    "momentum": {"momentum": "m"},
}
_RULES = {
    "momentum": tf_ext.optimizers.SparseSGD(0.1, momentum=0.9),
    "rmsprop": tf_ext.optimizers.SparseRMSprop(
        0.1, momentum=0.5, centered=True
    ),
}


def _table(rule="sgd", **options):
    return tf_ext.SparseTable("rows", _DIM, _RULES.get(rule, rule), **options)


def _rows(seed=0, count=50, **types):
    return tfra_files.random_rows(seed, count, _DIM, **types)


def _fields(table, column, keys):
    """The fields of the rows of keys, in their order."""
    signs, fields = table.export_rows()
    order = np.argsort(signs)
    wanted = column.signs(keys).numpy()
    places = order[np.searchsorted(signs[order], wanted)]
    assert (signs[places] == wanted).all()
    return {name: field[places] for name, field in fields.items()}


class FilesTest(TestCase):
    @parameterized.product(
        keys=[np.int64, np.int32],
        dtype=[np.float32, np.float16, np.float64, tf.bfloat16.as_numpy_dtype],
    )
    def test_types(self, keys, dtype):
        path, table = self.directory(), _table()
        rows = _rows(keys=keys, dtype=dtype)
        tfra_files.save_to_file_system(path, "user", *rows)
        done = tf_ext.convert.from_tfra(
            path,
            table,
            _COLUMN,
            key_dtype=np.dtype(keys).name,
            value_dtype=tf.as_dtype(dtype).name,
        )
        self.assertEqual(done._replace(unknown=None), (50, 0, None, (), ()))
        self.assertAllEqual(done.unknown, np.zeros([0, _DIM]))
        self.assertEqual(table.size(), 50)
        found = _fields(table, _COLUMN, rows[0])["weights"]
        self.assertAllEqual(found, rows[1].astype(np.float32))

    @parameterized.parameters((1, 1, 700), (3, 2, 700), (2, 3, 1 << 24))
    def test_tables_and_ranks(self, shards, ranks, chunk):
        path, table = self.directory(), _table("adam")
        keys, values = _rows()
        more = {"shards": shards, "ranks": ranks}
        tfra_files.save_to_file_system(path, "a/user", keys, values, **more)
        # Slots are in another order.
        order = np.random.default_rng(1).permutation(50)
        slots = {name: _rows(seed)[1] for seed, name in enumerate("mv", 5)}
        for name, numbers in slots.items():
            tfra_files.save_to_file_system(
                path, f"a/user/look/{name}", keys[order], numbers[order], **more
            )
        with mock.patch.object(tfra, "CHUNK_BYTES", chunk):
            done = tf_ext.convert.from_tfra(path, table, _IDS, step=7)
        self.assertEqual((done.taken, done.left), (50, 0))
        self.assertEqual(done.slots, ("m", "v", "step"))
        self.assertEqual(done.notes, ())
        found = _fields(table, _IDS, keys)
        self.assertAllEqual(found["weights"], values)
        self.assertAllEqual(found["m"], slots["m"])
        self.assertAllEqual(found["v"], slots["v"])
        self.assertAllEqual(found["step"], np.full([50, 1], 7))

    def test_no_rows(self):
        path, table = self.directory(), _table()
        tfra_files.save_to_file_system(path, "user", *_rows(count=0))
        self.assertEqual(tf_ext.convert.from_tfra(path, table, _IDS).taken, 0)

    def test_a_table_saved_alone(self):
        # Hash tables have a method of the name, too, which takes any name.
        path, table = pathlib.Path(self.directory()), _table()
        rows = _rows()
        for base in "user_mht_1of1", "mine":
            (path / f"{base}-keys").write_bytes(rows[0].tobytes())
            (path / f"{base}-values").write_bytes(rows[1].tobytes())
        for name in "user", "mine":
            table.clear()
            tf_ext.convert.from_tfra(path, table, _IDS, name)
            self.assertAllEqual(table.pull(rows[0]), rows[1])

    def test_the_last_of_repeated_keys_counts(self):
        path, table = self.directory(), _table("adagrad")
        keys, values = _rows()
        twice = np.concatenate([keys, keys[:5]])
        tfra_files.save_to_file_system(
            path, "user", twice, np.concatenate([values, values[:5] + 1])
        )
        for chunk in 1, 1 << 20:
            with mock.patch.object(tfra, "CHUNK_BYTES", chunk):
                done = tf_ext.convert.from_tfra(path, table, _IDS)
            self.assertEqual((done.taken, done.left), (50, 5))
            self.assertAllEqual(table.pull(keys[5:]), values[5:])
            self.assertAllEqual(table.pull(keys[:5]), values[:5] + 1)

    def test_missing_values_are_left(self):
        path, table = self.directory(), _table("adagrad")
        keys, values = _rows()
        for name in "user", "user/l/accumulator":
            tfra_files.save_to_file_system(path, name, keys, np.abs(values))
        column = tf_ext.feature_column.category_column(
            "user", missing=int(keys[3])
        )
        done = tf_ext.convert.from_tfra(path, table, column)
        self.assertEqual((done.taken, done.left), (49, 1))
        self.assertEqual((table.size(), done.notes), (49, ()))

    def test_other_rows_stay(self):
        path, table = self.directory(), _table()
        keys, values = _rows()
        tfra_files.save_to_file_system(path, "user", keys, values)
        table.import_rows([1], {"weights": [[5.0, 6.0, 7.0]]})
        tf_ext.convert.from_tfra(path, table, _IDS)
        self.assertEqual(table.size(), 51)
        self.assertAllEqual(table.pull([1]), [[5.0, 6.0, 7.0]])


class SlotsTest(TestCase):
    def _saved(self, names, seed=0):
        path = self.directory()
        keys, _ = _rows()
        for i, name in enumerate(names, seed):
            tfra_files.save_to_file_system(path, name, keys, _rows(i)[1])
        return path, keys

    @parameterized.parameters(*_SLOTS)
    def test_rules(self, rule):
        names = _SLOTS[rule]
        path, keys = self._saved(
            ["user", *(f"user/l/{one}" for one in names.values())]
        )
        table = _table(rule)
        done = tf_ext.convert.from_tfra(path, table, _IDS, step=3)
        self.assertContainsSubset(names, done.slots)
        self.assertEqual(done.notes, ())
        found = _fields(table, _IDS, keys)
        for i, field in enumerate(names, 1):
            self.assertAllEqual(found[field], _rows(i)[1])

    def _fresh(self, path, keys, table, why, **options):
        with self.assertLogs("tf_ext", "WARNING"):
            done = tf_ext.convert.from_tfra(path, table, _IDS, **options)
        self.assertEqual((done.taken, done.slots), (50, ()))
        [note] = done.notes
        self.assertIn("start from their initial values: ", note)
        self.assertIn(why, note)
        new = _table(table.optimizer)
        new.pull(keys, training=True)
        expected = _fields(new, _IDS, keys)
        for name, field in _fields(table, _IDS, keys).items():
            if name != "weights":
                self.assertAllEqual(field, expected[name])

    def test_without_slots(self):
        path, keys = self._saved(["user"])
        why = "no variable is field 'accumulator' of 'user' for SparseAdagrad"
        self._fresh(path, keys, _table("adagrad"), why)

    def test_without_one_of_them(self):
        path, keys = self._saved(["user", "user/l/m"])
        self._fresh(path, keys, _table("adam"), "no variable is field 'v'")

    def test_without_the_step(self):
        path, keys = self._saved(["user", "user/l/m", "user/l/v"])
        self._fresh(path, keys, _table("adam"), "pass `step`")

    def test_of_one_number(self):
        path, keys = self._saved(["user", "user/l/accumulator"])
        table = _table("row_wise_adagrad")
        why = "field 'accumulator' of SparseRowWiseAdagrad has 1 number"
        self._fresh(path, keys, table, why)

    def test_none_wanted(self):
        path, _ = self._saved(["user", "user/l/accumulator"])
        done = tf_ext.convert.from_tfra(path, _table("adagrad"), _IDS, slots={})
        self.assertEqual((done.slots, done.notes), ((), ()))

    def test_of_two_lookups(self):
        names = ["user", "user/one/accumulator", "user/two/accumulator"]
        path, keys = self._saved(names)
        table = _table("adagrad")
        with self.assertRaisesRegex(
            ValueError,
            "Argument `slots` of from_tfra must say which variable has field "
            "'accumulator' of the rows: user_one_accumulator, "
            "user_two_accumulator. Received: slots=None",
        ):
            tf_ext.convert.from_tfra(path, table, _IDS)
        self.assertEqual(table.size(), 0)
        done = tf_ext.convert.from_tfra(
            path, table, _IDS, slots={"accumulator": names[2]}
        )
        self.assertEqual(done.slots, ("accumulator",))
        found = _fields(table, _IDS, keys)["accumulator"]
        self.assertAllEqual(found, _rows(2)[1])

    @parameterized.parameters(
        [{"m": "user"}], [{"accumulator": "x"}], [{"accumulator": 1}], [3]
    )
    def test_wrong_names(self, slots):
        path, _ = self._saved(["user"])
        with self.assertRaisesRegex(
            ValueError,
            "`slots` of from_tfra must be a dict from accumulator to names "
            "among user, or None. Received: slots=",
        ):
            tf_ext.convert.from_tfra(path, _table("adagrad"), _IDS, slots=slots)

    def test_belong_to_the_longest_name(self):
        names = ["user", "user_item", "user/l/accumulator"]
        path, _ = self._saved([*names, "user_item/l/accumulator"])
        for i, name in enumerate(names[:2]):
            table = _table("adagrad")
            tf_ext.convert.from_tfra(path, table, _IDS, name)
            found = table.export_rows()[1]["accumulator"]
            self.assertAllEqual(np.sort(found, 0), np.sort(_rows(i + 2)[1], 0))

    def test_of_other_keys(self):
        path, table = self.directory(), _table("adagrad")
        keys, values = _rows()
        tfra_files.save_to_file_system(path, "user", keys[5:], values[5:])
        tfra_files.save_to_file_system(
            path, "user/accumulator", keys[:45], values[:45]
        )
        with self.assertLogs("tf_ext", "WARNING"):
            done = tf_ext.convert.from_tfra(path, table, _IDS)
        self.assertEqual((done.taken, table.size()), (45, 45))
        [note] = done.notes
        self.assertIn("5 rows of slots are of keys without weights", note)
        found = _fields(table, _IDS, keys[5:])["accumulator"]
        self.assertAllEqual(found[:40], values[5:45])
        # Those without a slot have that of a new row.
        self.assertLen(np.unique(found[40:]), 1)


class CheckpointTest(TestCase):
    @parameterized.product(
        keys=[np.int64, np.int32, object],
        dtype=[np.float32, np.float16],
        owner=["model/params", None],
    )
    def test_rows_and_slots(self, keys, dtype, owner):
        prefix, table = self.path("ckpt"), _table("adagrad")
        rows = _rows(count=400, keys=keys, dtype=dtype)
        slot = _rows(1, count=400, dtype=dtype)[1]
        tfra_files.save_checkpoint(
            prefix,
            {"a.Sb/user": rows, "a.Sb/user/l/accumulator": (rows[0], slot)},
            owner,
            shards=3,
            dense=np.ones([7, 3]),
        )
        # Lengths and bytes of strings are read in parts, too.
        for chunk in 3000, 1 << 24:
            table.clear()
            with (
                mock.patch.object(tfra, "CHUNK_BYTES", chunk),
                mock.patch.object(stored_array, "_READ_BYTES", chunk // 50),
            ):
                done = tf_ext.convert.from_tfra(prefix, table, _COLUMN)
            self.assertEqual((done.taken, done.notes), (400, ()))
            found = _fields(table, _COLUMN, rows[0])
            self.assertAllEqual(found["weights"], rows[1].astype(np.float32))
            self.assertAllEqual(found["accumulator"], slot.astype(np.float32))
        done = tf_ext.convert.from_tfra(prefix, table, _COLUMN, "a.Sb/user")
        self.assertEqual(done.taken, 400)

    @parameterized.parameters(
        "optimizer___iterations", "optimizer__iter", "iterations"
    )
    def test_steps(self, name):
        prefix, table = self.path("ckpt"), _table("adam")
        keys, values = _rows()
        tfra_files.save_checkpoint(
            prefix,
            {one: (keys, values) for one in ("user", "user/m", "user/v")},
            **{f"{name}__.ATTRIBUTES__VARIABLE_VALUE": np.int64(2**40)},
        )
        tf_ext.convert.from_tfra(prefix, table, _IDS)
        steps = table.export_rows()[1]["step"]
        self.assertAllEqual(steps, np.full([50, 1], 2**31 - 1))
        tf_ext.convert.from_tfra(prefix, table, _IDS, step=5)
        self.assertAllEqual(table.export_rows()[1]["step"], [[5]] * 50)

    def test_strings_find_their_rows(self):
        """In a layer: keys of strings, and hashes that users have made."""
        words = tf.constant([["ann"], ["bob"], ["\u00e9"], [""]])
        flat = tf.reshape(words, [-1])
        ids = {
            "strings": (flat.numpy(), _COLUMN, words),
            "buckets": (
                tf.strings.to_hash_bucket_fast(flat, 1 << 40).numpy(),
                _IDS,
                tf.strings.to_hash_bucket_fast(words, 1 << 40),
            ),
            "fingerprints": (
                tf_ext.hashing.fingerprint64(flat.numpy()).view(np.int64),
                _IDS,
                tf.reshape(tf.bitcast(tf.fingerprint(flat), tf.int64), [-1, 1]),
            ),
        }
        for name, (keys, column, features) in ids.items():
            with self.subTest(name):
                prefix, table = self.path("ckpt"), _table()
                values = _rows(count=4)[1]
                tfra_files.save_checkpoint(prefix, {"user": (keys, values)})
                tf_ext.convert.from_tfra(prefix, table, column)
                layer = tf_ext.layers.EmbeddingFeatures([column], table)
                self.assertAllEqual(layer({"user": features}), values)

    def test_the_latest_of_a_directory(self):
        directory = self.directory()
        keys, values = _rows()
        for i in range(2):
            tfra_files.save_checkpoint(
                f"{directory}/ckpt-{i}", {"user": (keys, values + i)}
            )
        pathlib.Path(directory, "checkpoint").write_text(
            'model_checkpoint_path: "ckpt-1"\n'
        )
        table = _table()
        tf_ext.convert.from_tfra(directory, table, _IDS)
        self.assertAllEqual(table.pull(keys), values + 1)


class ErrorsTest(TestCase):
    def _refused(self, error, text, path, *, table=None, **options):
        table = table or _table("adagrad")
        with self.assertRaisesRegex(error, text):
            tf_ext.convert.from_tfra(
                path, table, options.pop("column", _IDS), **options
            )
        if isinstance(table, tf_ext.SparseTable):
            self.assertEqual(table.size(), 0)

    def test_arguments(self):
        path = self.directory()
        tfra_files.save_to_file_system(path, "user", *_rows())
        self._refused(ValueError, "`table` of from_tfra", path, table="user")
        self._refused(ValueError, "`column` of from_tfra", path, column="user")
        self._refused(
            ValueError,
            "`column` of from_tfra must have bucket_size=None",
            path,
            column=tf_ext.feature_column.category_column("u", bucket_size=5),
        )
        for step in -1, True, 1.5, 2**63:
            self._refused(
                ValueError,
                f"`step` of from_tfra must be .* Received: step={step}",
                path,
                step=step,
            )
        self._refused(
            ValueError, "`key_dtype` .* int64, int32", path, key_dtype="string"
        )
        self._refused(
            ValueError, "`value_dtype` .* float32", path, value_dtype="int8"
        )
        self._refused(TypeError, "`path` of from_tfra", 5)
        self._refused(
            ValueError,
            "`name` of from_tfra must be one of the variables of .*: 'user'. "
            "Received: name='item'",
            path,
            name="item",
        )
        tfra_files.save_to_file_system(path, "item", *_rows())
        self._refused(
            ValueError,
            "as .* has several: 'item', 'user'. Received: name=None",
            path,
        )

    def test_nothing_there(self):
        path = self.directory()
        for one in path, f"{path}/none":
            self._refused(FileNotFoundError, "has no rows of TFRA", one)
        tfra_files.save_checkpoint(f"{path}/ckpt", {}, dense=np.ones(3))
        pathlib.Path(path, "TFRADynamicEmbedding").mkdir()
        self._refused(
            FileNotFoundError,
            f"that has tables. Pass {path}/TFRADynamicEmbedding.",
            f"{path}/ckpt",
        )

    def test_types_of_a_checkpoint(self):
        prefix = self.path("ckpt")
        keys, values = _rows()
        tfra_files.save_checkpoint(
            prefix,
            {
                "user": (keys, values),
                "ints": (keys, values.astype(np.int32)),
                "wide": (keys, np.ones([50, 4], np.float32)),
                "words": (np.array([b"a"] * 50, object), values),
            },
        )
        self._refused(
            ValueError,
            "`value_dtype` of from_tfra must be None for a checkpoint",
            prefix,
            name="user",
            value_dtype="float32",
        )
        self._refused(
            ValueError,
            "values of int32 for 'ints'. Rows have",
            prefix,
            name="ints",
        )
        self._refused(
            ValueError,
            r"values of shape \(50, 4\) for 'wide'. The table has dim 3",
            prefix,
            name="wide",
        )
        self._refused(
            ValueError, "needs integers", prefix, name="words", column=_IDS
        )

    def test_missing_files(self):
        path = self.directory()
        files = tfra_files.save_to_file_system(
            path, "user", *_rows(), shards=2, ranks=2
        )
        for file in files:
            data = file.read_bytes()
            file.unlink()
            self._refused(
                tf_ext.convert.DamagedFilesError, "but no user_mht_", path
            )
            file.write_bytes(data)
        for keys, values in zip(files[::2], files[1::2]):
            kept = keys.read_bytes(), values.read_bytes()
            keys.unlink(), values.unlink()
            number = keys.name.removeprefix("user_mht_")[0]
            self._refused(
                tf_ext.convert.DamagedFilesError,
                f"lacks files of 'user': those of table {number} of 2 of rank",
                path,
            )
            keys.write_bytes(kept[0]), values.write_bytes(kept[1])
        tfra_files.save_to_file_system(path, "user", *_rows(), ranks=3)
        self._refused(
            tf_ext.convert.DamagedFilesError, "tables of several saves", path
        )

    def test_missing_tables_of_a_checkpoint(self):
        prefix = self.path("ckpt")
        keys, values = _rows()
        base = "m/tables_of_user/1/.ATTRIBUTES__table"
        tfra_files.save_checkpoint(
            prefix, {}, **{f"{base}-keys": keys, f"{base}-values": values}
        )
        self._refused(
            tf_ext.convert.DamagedFilesError,
            r"lacks tables of 'user': it has those of number \[1\]",
            prefix,
        )


if __name__ == "__main__":
    tf.test.main()
