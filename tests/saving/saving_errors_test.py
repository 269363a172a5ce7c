# SPDX-License-Identifier: Apache-2.0
"""Files that do not fit are refused, and the table stays as it was."""

import json
import pathlib
from unittest import mock

import h5py
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models as small
from models.model_building import generator
from saving_util import FORMATS, TestCase, contents, trained

import tf_ext
from tf_ext._keras import keras
from tf_ext.optimizers import SparseAdam, SparseRMSprop, SparseSGD
from tf_ext.tables import rows
from tf_ext.tables.saving import keras_files

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "BrokenOffTest::test_weights_file_stays_whole",
        "DamageTest::test_checkpoint_of_another_model_is_not_consumed",
        "DamageTest::test_is_refused_format_of_the_future",
        "DamageTest::test_is_refused_no_weights_of_a_chunk",
        "DamageTest::test_is_refused_shorter_chunk",
        "DamageTest::test_nothing_is_touched_if_it_is_of__*",
        "IdentityTest::test_name_and_slot_start_values_are_no_identity_checkpoint",
        "IdentityTest::test_other_dim_of_a_table_alone",
        "LimitTest::test_*",
        "SkipTest::test_*",
    ),
]


def _model(rule="adagrad", dim=4, initializer="normal", seed=3):
    table = tf_ext.SparseTable("deep", dim, rule, initializer, seed)
    return small.compiled(small.functional(table))


class IdentityTest(TestCase):
    @parameterized.named_parameters(
        (f"{name}_from_{kind}", kind, kwargs, key, mine, theirs)
        for kind, _ in FORMATS
        for name, kwargs, key, mine, theirs in (
            ("dim", {"dim": 8}, "dim", "8", "4"),
            ("seed", {"seed": 5}, "seed", "5", "3"),
            (
                "initializer",
                {"initializer": "uniform"},
                "initializer",
                "uniform",
                "normal",
            ),
            (
                "initializer_value",
                {"initializer": tf_ext.initializers.Normal(stddev=0.5)},
                "initializer.stddev",
                "0.5",
                "0.05",
            ),
            ("rule", {"rule": "sgd"}, "optimizer", "sgd", "adagrad"),
            (
                "rule_of_other_slots",
                {"rule": "row_wise_adagrad"},
                "optimizer",
                "row_wise_adagrad",
                "adagrad",
            ),
        )
        # There TensorFlow compares the variables of the next layer first.
        if (name, kind) != ("dim", "checkpoint")
    )
    def test_other_(self, kind, kwargs, key, mine, theirs):
        self._assert_refused(kind, {}, kwargs, key, mine, theirs)

    def test_other_dim_of_a_table_alone(self):
        path = self.path("checkpoint")
        signs, ones = [1, -1], np.ones((2, 8), np.float32)
        saved = small.table()
        saved.push(signs, ones[:, :4], learning_rate=0.1)
        tf.train.Checkpoint(table=saved).write(path)
        table = tf_ext.SparseTable("deep", 8, "sgd", "normal", seed=3)
        table.push(signs, ones, learning_rate=0.1)
        before = contents(table)
        with self.assertRaisesRegex(
            ValueError,
            "restored into table 'deep': its `dim` is '8', that of the saved "
            "rows is '4'",
        ):
            tf.train.Checkpoint(table=table).read(path)
        self.assertEqual(contents(table), before)

    def test_slots_that_a_checkpoint_lacks(self):
        write, read = self.format("checkpoint")
        model, features, labels = trained(self)
        write(model)
        other = _model("ftrl")
        other.train_on_batch(features, labels)
        before = contents(other.tables[0])
        with self.assertRaisesRegex(
            ValueError,
            "table 'deep': its `optimizer` is 'ftrl', that of the saved rows "
            "is 'adagrad'",
        ):
            read(other)
        self.assertEqual(contents(other.tables[0]), before)

    @parameterized.named_parameters(
        ("momentum", SparseSGD(0.1), SparseSGD(0.1, momentum=0.9)),
        (
            "bias_correction",
            SparseAdam(bias_correction="row"),
            SparseAdam(bias_correction="global"),
        ),
        ("centered", SparseRMSprop(), SparseRMSprop(centered=True)),
        ("rmsprop_momentum", SparseRMSprop(), SparseRMSprop(momentum=0.5)),
    )
    def test_slots_of_another_(self, saved, mine):
        old, new = (small.table(rule).config for rule in (saved, mine))
        [key] = [key for key in new if new[key] != old.get(key)]
        self._assert_refused(
            "weights", {"rule": saved}, {"rule": mine}, key, new[key], old[key]
        )

    def _assert_refused(self, kind, saved, kwargs, key, mine, theirs):
        write, read = self.format(kind)
        features, labels = small.batch(np.random.default_rng(0))
        model = _model(**saved)
        model.train_on_batch(features, labels)
        write(model)
        other = _model(**kwargs)
        other.train_on_batch(features, labels)
        before = contents(other.tables[0])
        with self.assertRaisesRegex(
            ValueError,
            f"Rows cannot be restored into table 'deep': its `{key}` is "
            f"'{mine}', that of the saved rows is '{theirs}'. Make the table "
            "as it was saved.",
        ):
            read(other)
        self.assertEqual(contents(other.tables[0]), before)

    @parameterized.named_parameters(*FORMATS)
    def test_name_and_slot_start_values_are_no_identity(self, name):
        write, read = self.format(name)
        model, _, _ = trained(self, tf_ext.optimizers.SparseAdagrad())
        write(model)
        rule = tf_ext.optimizers.SparseAdagrad(initial_accumulator_value=0.5)
        table = tf_ext.SparseTable("other", 4, rule, "normal", seed=3)
        other = small.compiled(small.functional(table))
        self.assertEqual(table.size(), 0)
        read(other)
        self.assertEqual(contents(table), contents(model.tables[0]))


class SkipTest(TestCase):
    def _model(self, dim):
        inputs = {"user": keras.Input((), dtype="int64", name="user")}
        user = tf_ext.feature_column.category_column("user")
        tables = [
            tf_ext.SparseTable(*one, "sgd") for one in (("a", 2), ("b", dim))
        ]
        layer = tf_ext.layers.EmbeddingFeatures({t: [user] for t in tables})
        return tf_ext.Model(inputs, layer(inputs))

    def test_a_table_that_differs(self):
        saved, other = self._model(2), self._model(3)
        for table in saved.tables:
            table.push([7], np.ones([1, 2]), learning_rate=0.1)
        path = self.path("x.weights.h5")
        saved.save_weights(path)
        with self.assertRaisesRegex(ValueError, "table 'b': its `dim` is '3'"):
            other.load_weights(path)
        self.assertEqual([table.size() for table in other.tables], [0, 0])
        other.load_weights(path, skip_mismatch=True)
        self.assertEqual([table.size() for table in other.tables], [1, 0])
        self.assertEqual(contents(other.tables[0]), contents(saved.tables[0]))


class LimitTest(TestCase):
    @parameterized.named_parameters(("keras", "keras"), ("weights", "weights"))
    def test_larger_table_is_refused(self, name):
        write, _ = self.format(name)
        model, _, _ = trained(self)
        table = model.tables[0]
        before = contents(table)
        size = table.size() * table.rows.bytes_per_row
        with mock.patch.object(keras_files, "MAX_BYTES", size - 1):
            with self.assertRaisesRegex(
                ValueError,
                rf"Table 'deep' holds {table.size()} rows, 0.0 GiB; .keras and "
                r".weights.h5 files hold at most 0 GiB per table. Save it with "
                r"SparseTable.save, tf.train.Checkpoint",
            ):
                write(model)
        self.assertEqual(contents(table), before)

    @parameterized.named_parameters(("keras", "keras"), ("weights", "weights"))
    def test_table_of_the_limit_is_saved(self, name):
        write, _ = self.format(name)
        model, _, _ = trained(self)
        table = model.tables[0]
        size = table.size() * table.rows.bytes_per_row
        with mock.patch.object(keras_files, "MAX_BYTES", size):
            write(model)

    def test_limit_is_4_gib(self):
        self.assertEqual(keras_files.MAX_BYTES, 4 * 2**30)


def _delete(name):
    def damage(group):
        del group[name]

    return damage


def _shorten(name):
    def damage(group):
        values = group[name][:-1]
        del group[name]
        group[name] = values

    return damage


def _forget_checksums(group):
    """Makes the rows those of a file that was written before it had any."""
    header = json.loads(bytes(group["header"][:]))
    del header["crc32c"]
    del group["header"], group["header_crc32c"]
    group["header"] = keras_files._array_of(json.dumps(header))


def _empty_checksum(group):
    del group["header_crc32c"]
    group["header_crc32c"] = np.zeros([0], np.uint32)


def _shorten_chunk(group):
    _forget_checksums(group)
    for name in ("signs", "weights", "accumulator"):
        _shorten(f"chunk_000001_{name}")(group)


def _replace_header(old, new):
    def damage(group):
        _forget_checksums(group)
        text = bytes(group["header"][:]).decode()
        assert old in text, text
        del group["header"]
        group["header"] = keras_files._array_of(text.replace(old, new))

    return damage


class DamageTest(TestCase):
    @parameterized.named_parameters(
        (
            "no_header",
            _delete("header"),
            "The file holds no rows of table 'deep'",
        ),
        (
            "no_signs_of_a_chunk",
            _delete("chunk_000001_signs"),
            "damaged: 'chunk_000001_signs' is missing",
        ),
        (
            "no_weights_of_a_chunk",
            _delete("chunk_000001_weights"),
            r"field 'weights' should be \[n, 4\], the saved rows have None",
        ),
        (
            "empty_checksum",
            _empty_checksum,
            r"damaged: 'header' has the CRC32C \d+, but was saved with None",
        ),
        (
            "shorter_field",
            _shorten("chunk_000001_accumulator"),
            r"damaged: chunk 1 has \d+ signs and fields of other lengths",
        ),
        (
            "shorter_chunk",
            _shorten_chunk,
            r"damaged: \d+ found, but the header says \d+",
        ),
        (
            "format_of_the_future",
            _replace_header('"format": 1', '"format": 3'),
            "are in format 3; this version of tf_ext reads 1",
        ),
    )
    def test_is_refused(self, damage, message):
        model, _, _ = trained(self)
        path = self.path("x.weights.h5")
        # Five rows a chunk: sign, weights and accumulator.
        with mock.patch.object(rows, "_CHUNK_BYTES", 5 * (8 + 16 + 16)):
            model.save_weights(path)
        with h5py.File(path, "a") as file:
            damage(_group_of_the_table(file))
        model.tables[0].push([10**15], np.ones((1, 4)), learning_rate=0.1)
        before = contents(model.tables[0])
        with self.assertRaisesRegex(ValueError, message):
            model.load_weights(path)
        self.assertEqual(contents(model.tables[0]), before)

    def test_file_without_checksums_is_loaded(self):
        model, _, _ = trained(self)
        expected = contents(model.tables[0])
        path = self.path("x.weights.h5")
        model.save_weights(path)
        with h5py.File(path, "a") as file:
            _forget_checksums(_group_of_the_table(file))
        model.tables[0].clear()
        model.load_weights(path)
        self.assertEqual(contents(model.tables[0]), expected)

    @parameterized.named_parameters(
        ("signs", "chunk_000001_signs"),
        ("weights", "chunk_000000_weights"),
        ("slots", "chunk_000001_accumulator"),
        ("header", "header"),
        ("checksum", "header_crc32c"),
    )
    def test_one_flipped_bit_of_(self, name):
        model, _, _ = trained(self)
        path = self.path("x.weights.h5")
        with mock.patch.object(rows, "_CHUNK_BYTES", 5 * (8 + 16 + 16)):
            model.save_weights(path)
        with h5py.File(path) as file:
            dataset = _group_of_the_table(file)[name].id
            first, size = dataset.get_offset(), dataset.get_storage_size()
        before = contents(model.tables[0])
        whole = pathlib.Path(path).read_bytes()
        for place in np.linspace(0, size - 1, 7).astype(int):
            damaged = bytearray(whole)
            damaged[first + place] ^= 1 << (place % 8)
            pathlib.Path(path).write_bytes(damaged)
            with self.assertRaisesRegex(
                ValueError,
                "The rows of table 'deep' are damaged: "
                rf"'{name.removesuffix('_crc32c')}' has the CRC32C \d+, but "
                r"was saved with \d+",
            ):
                model.load_weights(path)
            self.assertEqual(contents(model.tables[0]), before)

    def test_flipped_bits_anywhere_load_no_other_rows(self):
        rng = generator(self)
        model, _, _ = trained(self)
        path = pathlib.Path(self.path("x.weights.h5"))
        model.save_weights(path)
        saved = contents(model.tables[0])
        model.tables[0].push([10**15], np.ones((1, 4)), learning_rate=0.1)
        before = contents(model.tables[0])
        whole = path.read_bytes()
        refused = 0
        for _ in range(25):
            damaged = bytearray(whole)
            damaged[rng.integers(len(whole))] ^= 1 << rng.integers(8)
            path.write_bytes(damaged)
            try:
                model.load_weights(path)
            except Exception:
                refused += 1
                self.assertEqual(contents(model.tables[0]), before)
            else:
                self.assertEqual(contents(model.tables[0]), saved)
                model.tables[0].push(
                    [10**15], np.ones((1, 4)), learning_rate=0.1
                )
        self.assertGreater(refused, 0)

    @parameterized.named_parameters(
        ("rows_of_the_second_table", "second"), ("a_variable", "variable")
    )
    def test_nothing_is_touched_if_it_is_of_(self, what):
        model = self._two_tables()
        path = self.path("x.weights.h5")
        model.save_weights(path)
        with h5py.File(path, "a") as file:
            names = []
            file.visit(names.append)
            if what == "second":
                [*_, name] = [n for n in names if n.endswith("_weights")]
                file[name][0, 0] += 1.0
            else:
                name = next(n for n in names if "dense" in n and "vars/0" in n)
                del file[name]
        model.train_on_batch(*small.batch(generator(self)))
        others = [*model.layers[-1].weights, *model.optimizer.variables]
        for table in model.tables:
            table.push([10**15], np.ones((1, 4)), learning_rate=0.1)

        def now():
            rows = [contents(table) for table in model.tables]
            return rows, [tf.convert_to_tensor(v).numpy() for v in others]

        before = now()
        with self.assertRaises((ValueError, KeyError)):
            model.load_weights(path)
        after = now()
        self.assertEqual(after[0], before[0])
        for one, other in zip(after[1], before[1], strict=True):
            self.assertAllEqual(one, other)

    def _two_tables(self):
        ids = small.inputs()
        layers = [
            tf_ext.layers.EmbeddingFeatures(
                small.columns(), small.table("adagrad", name=name)
            )
            for name in ("first", "second")
        ]
        vectors = [layer(ids) for layer in layers]
        joined = keras.layers.Concatenate()(vectors)
        model = tf_ext.Model(ids, keras.layers.Dense(1)(joined))
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        model.train_on_batch(*small.batch(generator(self)))
        return model

    def test_checkpoint_of_another_model_is_not_consumed(self):
        path = self.path("checkpoint")
        tf.train.Checkpoint(other=tf.Variable(1.0)).write(path)
        model, _, _ = trained(self)
        before = contents(model.tables[0])
        status = tf.train.Checkpoint(model=model).read(path)
        with self.assertRaises(AssertionError):
            status.assert_existing_objects_matched()
        self.assertEqual(contents(model.tables[0]), before)


def _group_of_the_table(file):
    """The HDF5 group that holds the rows."""
    found = []
    file.visit(
        lambda name: found.append(name) if name.endswith("/header") else None
    )
    [name] = found
    return file[name.removesuffix("/header")]


class BrokenOffTest(TestCase):
    def test_weights_file_stays_whole(self):
        model, features, labels = trained(self)
        path = pathlib.Path(self.path("x.weights.h5"))
        model.save_weights(path)
        expected = contents(model.tables[0])
        model.train_on_batch(features, labels)
        with (
            mock.patch.object(
                tf_ext.SparseTable,
                "save_own_variables",
                side_effect=tf.errors.UnavailableError(None, None, "lost"),
            ),
            self.assertRaisesRegex(tf.errors.UnavailableError, "lost"),
        ):
            model.save_weights(path)
        self.assertEqual([*path.parent.iterdir()], [path])
        loaded = _model()
        loaded.load_weights(path)
        self.assertEqual(contents(loaded.tables[0]), expected)
        model.save_weights(path)
        loaded.load_weights(path)
        self.assertEqual(contents(loaded.tables[0]), contents(model.tables[0]))
        self.assertNotEqual(contents(loaded.tables[0]), expected)


if __name__ == "__main__":
    tf.test.main()
