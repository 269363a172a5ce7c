# SPDX-License-Identifier: Apache-2.0
"""Columns that are hashed where files are parsed: the signs of raw features."""

import json
import pathlib
import string
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
import pytest
import tensorflow as tf
from absl.testing import parameterized
from hypothesis import example, given, settings
from hypothesis import strategies as st
from models.model_building import rows_of

import tf_ext
from tf_ext import _core, feature_column
from tf_ext._keras import keras
from tf_ext.data.part_hashing import PartHasher
from tf_ext.feature_column.bags import hash_batch
from tf_ext.feature_column.hashed_features import KEY, by_identity, join

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "FormatTest::test_same_signs_of_examples",
        "FormatTest::test_same_signs_of_json_lines",
        "FormatTest::test_same_signs_of_parquet",
        "ModelTest::test_trains_to_the_same_bits*",
    ),
]

category = feature_column.category_column
crossed = feature_column.crossed_column
Field = tf_ext.data.Field

_FIELDS = [
    Field("click", "float32"),
    Field("user"),
    Field("item", default="none"),
    Field("count", "int64", default=-1),
    Field("small", "int32", default=0),
    Field("price", "float32", default=float("nan")),
    Field("time", "int64", default=0),
    Field("tags", separator="|"),
    Field("rated", separator="|", weight_separator=":"),
    Field("ids", "int64", separator="|"),
]
_SCHEMA = tf_ext.data.Schema(_FIELDS, label="click")
_COLUMNS = [
    category("user"),
    category("item", missing="none"),
    category("tags"),
    category("count"),
    category("count", hashing="identity", namespace="as it is"),
    category("small", bucket_size=7, missing=3),
    category("price", boundaries=[0.5, 10.0], missing=1.0),
    category("count", boundaries=[0, 5]),
    category("rated", weights="rated_weight"),
    category("rated", bucket_size=5, missing="a"),
    category("ids", missing=2),
    crossed(["user", "small"]),
    crossed(["user", category("item", missing="none")], bucket_size=11),
    crossed([category("rated", weights="rated_weight"), "user"]),
    crossed(["tags", "ids"]),
    feature_column.time_column("time"),
    feature_column.sequence_category_column("tags", max_length=2),
    category("absent", optional=True),
]
_TEXTS = st.text(string.ascii_letters + "é日😀 -", max_size=12)


def _bags(values):
    return st.lists(values, max_size=3).map("|".join)


_RATED = st.builds(
    lambda text, weight: f"{text.replace('|', '')}:{weight}",
    st.text("ab", min_size=1, max_size=2),
    st.integers(-3, 3),
)
_RECORDS = st.tuples(
    st.sampled_from(["0", "1"]),
    _TEXTS,
    st.sampled_from(["", "none", "cup", "0123456789abcdef"]),
    st.integers(-(2**63), 2**63 - 1).map(str) | st.just(""),
    st.integers(-4, 4).map(str),
    st.sampled_from(["", "0.5", "1", "9.99", "1e30", "cheap"]),
    st.integers(-(10**9), 10**9).map(str),
    _bags(st.text("ab", min_size=1, max_size=9)),
    _bags(_RATED),
    _bags(st.integers(0, 3).map(str)),
)


def _bits(found):
    """Bags and masks, of which NaN equals NaN, and no weights are all 1."""
    signs, row_splits, weights = map(np.asarray, found.bags)
    if not weights.size:
        weights = np.ones_like(signs, np.float32)
    masks = map(np.asarray, found.masks.values())
    return [one.tobytes() for one in (signs, row_splits, weights, *masks)]


def _size_unless_known(columns, features, labels):
    keys = {k for c in columns for p in c.parts for k in p.keys}
    return None if keys & features.keys() else tf.size(labels, tf.int64)


class HashedCase(tf.test.TestCase):
    def assert_same(self, columns, *args, keep=(), **kwargs):
        """Batches of raw features have the signs of those that are hashed."""
        raw = tf_ext.data.read(*args, **kwargs)
        hashed = tf_ext.data.read(*args, **kwargs, columns=columns, keep=keep)
        rows = 0
        for (features, labels), (signs, others) in zip(
            raw, hashed, strict=True
        ):
            self.assertAllEqual(labels, others)
            wanted = hash_batch(
                *(columns, features, False),
                # For columns whose features are all missing.
                batch_size=_size_unless_known(columns, features, labels),
            )
            found = join(columns, by_identity(signs[KEY]))
            self.assertEqual(_bits(found), _bits(wanted))
            self.assertEqual(
                [one.dtype for one in found.bags],
                [one.dtype for one in wanted.bags],
            )
            read = {part.key for c in columns for part in c.parts}
            read |= {k for c in columns for p in c.parts for k in p.keys}
            left = (features.keys() - read) | set(keep)
            self.assertCountEqual(signs, [*left, KEY])
            for key in left:
                self.assertAllEqual(signs[key], features[key])
            rows += len(labels)
        return rows


def _file(data, name="data.csv"):
    path = pathlib.Path(tempfile.mkdtemp()) / name
    path.write_bytes(data)
    return path


class CsvTest(HashedCase):
    def test_same_signs(self):
        records = [
            ("1", "ann", "cup", "7", "3", "1", "5", "a|b", "a:1|b:2", "2|3"),
            ("0", "", "", "", "-1", "", "-9", "", "", ""),
            ("x", "bad number", "", "", "1", "", "1", "", "", ""),
            ("1", "é日😀", "none", "-8", "2", "9.99", "7", "b", "a:-1", "1"),
            (
                "0",
                "bob",
                "0123456789abcdef",
                "1",
                "4",
                "1e30",
                "0",
                "c|",
                "",
                "",
            ),
        ]
        self._check(records * 2, _COLUMNS, 3, 4)

    def test_columns_whose_features_are_missing(self):
        absent = category("absent", optional=True)
        sequence = feature_column.sequence_category_column(
            category("gone", optional=True), max_length=2
        )
        record = ("0", "", "", "", "0", "", "0", "", "", "")
        for columns in (
            [absent],
            [category("user"), absent],
            [category("user"), sequence, absent],
        ):
            self._check([record] * 3, columns, 2, None)

    def test_weights_of_no_values(self):
        columns = [category("user"), category("rated", weights="rated_weight")]
        records = [
            ("1", "ann", "", "", "0", "", "0", "a", rated, "1")
            for rated in ("", "a:3", "", "")
        ]
        self._check(records, columns, 2, None)

    @pytest.mark.slow
    @example(
        records=[("0", "", "", "", "0", "", "0", "", "", "")],
        columns=[category("user"), category("absent", optional=True)],
        batch_size=1,
        shuffle=None,
    )
    @given(
        records=st.lists(_RECORDS, min_size=1, max_size=40),
        columns=st.lists(
            st.sampled_from(_COLUMNS), min_size=1, max_size=18, unique=True
        ),
        batch_size=st.integers(1, 9),
        shuffle=st.sampled_from([None, 5]),
    )
    @settings(max_examples=30, deadline=None)
    def test_same_signs_of_any(self, records, columns, batch_size, shuffle):
        self._check(records, columns, batch_size, shuffle)

    def _check(self, records, columns, batch_size, shuffle):
        lines = "\n".join("\t".join(record) for record in records)
        path = _file(lines.encode(), "data.tsv")
        counts = []
        for some in (None, columns):
            errors = tf_ext.data.ReadErrors()
            list(
                tf_ext.data.read(
                    *(path, _SCHEMA, "tsv"),
                    batch_size=3,
                    columns=some,
                    max_errors=1.0,
                    errors=errors,
                )
            )
            counts.append(errors.by_reason())
        self.assertEqual(*counts)
        rows = self.assert_same(
            *(columns, path, _SCHEMA, "tsv"),
            batch_size=batch_size,
            shuffle=shuffle,
            max_errors=1.0,
        )
        bad = sum(counts[0].values())
        empty = sum(not "".join(record) for record in records)
        self.assertEqual(rows, len(records) - bad - empty)

    def test_what_the_core_hashes(self):
        hasher = PartHasher(_SCHEMA, _COLUMNS, ["user"])
        self.assertEqual(hasher.others, _COLUMNS[-4:])
        one, some, *others = hasher.entries
        self.assertLen(one.columns, 5)
        self.assertLen(some.columns, 4)
        self.assertEqual([len(one.columns) for one in others], [1] * 5)
        # Others read the tags and ids.
        gone = {"item", "count", "small", "price", "rated", "rated_weight"}
        self.assertEqual(hasher.replaced, gone)

    def test_kept(self):
        path = _file(b"1,ann,cup,7,1,2.5,0,a|b,a:1,3\n0,bob,,,2,,0,,,\n")
        columns = [_COLUMNS[0], _COLUMNS[8], _COLUMNS[15]]
        keep = ["rated_weight", "user", "time"]
        rows = self.assert_same(
            *(columns, path, _SCHEMA), batch_size=2, keep=keep
        )
        self.assertEqual(rows, 2)


class FormatTest(HashedCase, parameterized.TestCase):
    """Values that texts cannot have, and the other formats."""

    def _rows(self):
        texts = ["ann", "", "a\0b", "日本", "0123456789abcdef", None] * 4
        return {
            "click": [float(i % 2) for i in range(24)],
            "user": texts,
            "count": [None if i == 5 else i - 3 for i in range(24)],
            "bag": [
                [texts[j] or "x" for j in range(i % 4)] or None
                for i in range(24)
            ],
            "bag_weight": [
                [j / 2 for j in range(i % 4)] or None for i in range(24)
            ],
            "big": [2**64 - 1 - i for i in range(24)],
        }

    def test_same_signs_of_parquet(self):
        path = _file(b"")
        parquet.write_table(self._table(), path, row_group_size=7)
        self._check(path, "parquet")

    def test_same_signs_of_a_table(self):
        self._check(self._table().slice(1, 22), "csv")

    @parameterized.parameters(None, 40)
    def test_same_signs_of_texts_that_repeat(self, shuffle):
        """They are read as indices into their dictionaries."""
        texts = [f"word {i}" for i in range(7)] + ["", "0123456789abcdef" * 2]
        rng = np.random.default_rng(1)
        columns = {
            name: pa.array([texts[i] for i in rng.integers(0, 9, 900)])
            for name in ("user", "item", "other")
        }
        columns["item"] = pc.if_else(
            pc.equal(columns["item"], "word 3"), None, columns["item"]
        )
        columns["count"] = pa.array(["1", "2", "x"] * 300)
        columns["click"] = pa.array(range(900))
        fields = [
            Field("user"),
            Field("item", default="none"),
            Field("other"),
            Field("count", "int64"),
            Field("click", "float32"),
        ]
        used = [category("user"), category("item", missing="none")]
        used.append(crossed(["user", "item"]))
        path = _file(b"")
        parquet.write_table(pa.table(columns), path, row_group_size=400)
        coded = [
            one.dictionary_encode() if one.type == pa.string() else one
            for one in columns.values()
        ]
        chunks = [
            pa.table(coded, list(columns)).slice(i, 300) for i in (0, 300, 600)
        ]
        for source, format in ((path, "parquet"), (chunks, "csv")):
            rows = self.assert_same(
                *(used, source, tf_ext.data.Schema(fields, "click"), format),
                batch_size=32,
                shuffle=shuffle,
                max_errors=1.0,
                keep=["item"],
            )
            self.assertEqual(rows, 600)

    def test_same_signs_of_json_lines(self):
        rows = self._table().to_pylist()
        text = "\n".join(map(json.dumps, rows)).replace("\\u0000", "")
        self._check(_file(text.encode()), "jsonl")

    def test_same_signs_of_examples(self):
        path = str(_file(b""))
        with tf.io.TFRecordWriter(path) as file:
            for row in self._table().to_pylist():
                file.write(_example(row))
        self._check(path, "tfrecord")

    def _table(self):
        rows = self._rows()
        big = pa.array(rows.pop("big"), pa.uint64())
        return pa.table(rows).append_column("big", big)

    def _check(self, source, format):
        schema = tf_ext.data.Schema(
            [
                Field("click", "float32"),
                Field("user"),
                Field("count", "int32", default=-7),
                Field("bag", bag=True),
                Field("bag_weight", "float32", bag=True),
                Field("big", "uint64"),
            ],
            label="click",
        )
        columns = [
            category("user"),
            category("user", missing=""),
            category("count"),
            category("bag", weights="bag_weight"),
            category("bag"),
            category("big"),
            category("big", hashing="identity", namespace="bits"),
            category("big", boundaries=[5.0, 1.8e19], namespace="sizes"),
            crossed(["user", "bag"]),
        ]
        for shuffle in (None, 10):
            rows = self.assert_same(
                *(columns, source, schema, format),
                batch_size=5,
                shuffle=shuffle,
            )
            self.assertGreater(rows, 20)


def _example(row):
    example = tf.train.Example()
    for name, value in row.items():
        values = value if isinstance(value, list) else [value]
        feature = example.features.feature[name]
        for one in values:
            if isinstance(one, str):
                feature.bytes_list.value.append(one.encode())
            elif isinstance(one, float):
                feature.float_list.value.append(one)
            elif isinstance(one, int):
                feature.int64_list.value.append(one - (one >= 2**63) * 2**64)
    return example.SerializeToString()


class PartsTest(HashedCase):
    def _folder(self):
        folder = pathlib.Path(tempfile.mkdtemp())
        for index in range(3):
            lines = (
                f"1,u{index},{row},7,1,2.5,0,a|b,a:1,{row}\n"
                for row in range(7)
            )
            (folder / f"part-{index}").write_text("".join(lines))
        return folder / "part-*"

    def test_shards(self):
        files, some = self._folder(), [category("user"), category("tags")]
        for shard in ((0, 2), (1, 2)):
            options = {"batch_size": 4, "shard": shard, "shuffle": 9}
            rows = self.assert_same(some, files, _SCHEMA, **options)
            self.assertEqual(rows, (14, 7)[shard[0]])

    def test_kept_in_memory_and_repeated(self):
        data = tf_ext.data.read(
            self._folder(), _SCHEMA, batch_size=4, columns=_COLUMNS[:4]
        )
        once = [tf.nest.flatten(batch) for batch in data]
        kept = data.cache()
        for again in (kept, kept, data.prefetch(2), data.repeat(2).skip(6)):
            for batch, wanted in zip(again, once, strict=True):
                tf.nest.map_structure(
                    self.assertAllEqual, tf.nest.flatten(batch), wanted
                )


class ModelTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("functional", "subclassed")
    def test_trains_to_the_same_bits(self, kind):
        lines = "".join(
            f"{i % 2},u{i % 7},{'' if i % 5 == 0 else i % 3},{i},1,{i},0,"
            f"{'|'.join('abc'[: i % 4])},,\n"
            for i in range(41)
        )
        path = _file(lines.encode())
        schema = tf_ext.data.Schema(
            [
                field
                if field.name in ("click", "user", "item", "tags")
                else Field(field.name, "unused")
                for field in _FIELDS
            ],
            label="click",
        )
        histories, rows = [], []
        for hashed in (False, True):
            model, columns = _model(kind)
            data = tf_ext.data.read(
                *(path, schema),
                batch_size=8,
                shuffle=20,
                columns=columns if hashed else None,
            )
            fitted = model.fit(data, epochs=3, validation_data=data, verbose=0)
            histories.append(fitted.history)
            rows.append([rows_of(table, "weights") for table in model.tables])
        self.assertEqual(*histories)
        self.assertNotEmpty(rows[0][0])
        tf.nest.map_structure(self.assertAllEqual, *rows)


def _model(kind):
    table = tf_ext.SparseTable("rows", 3, "adagrad", seed=1)
    columns = [
        category("user"),
        category("tags", combiner="mean"),
        category("item", missing=""),
        crossed(["user", "item"]),
    ]
    layer = tf_ext.layers.EmbeddingFeatures(columns, table)
    dense = keras.layers.Dense(1, kernel_initializer="ones")
    if kind == "functional":
        inputs = {
            key: keras.Input([], dtype="string", name=key)
            for key in ("user", "item")
        }
        inputs["tags"] = keras.Input(
            [None], dtype="string", ragged=True, name="tags"
        )
        model = tf_ext.Model(inputs, dense(layer(inputs)))
    else:

        class Subclassed(tf_ext.Model):
            def __init__(self):
                super().__init__()
                self.parts = [layer, dense]

            def call(self, inputs, training=None):
                return dense(layer(inputs))

        model = Subclassed()
    model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    return model, layer.columns


class ArgumentTest(tf.test.TestCase):
    def _refuse(self, message, **kwargs):
        path = _file(b"1,ann,cup,7,1,2.5,0,a|b,a:1,3\n")
        with self.assertRaisesRegex(ValueError, message):
            tf_ext.data.read(path, _SCHEMA, batch_size=1, **kwargs)

    def test_refused(self):
        self._refuse("`columns` of read must be", columns=["user"])
        self._refuse("`keep` of read .*'user'", columns=_COLUMNS[:1], keep="x")
        self._refuse("`keep` of read must be left out", keep=["user"])
        self._refuse(
            "^The feature 'other' of column 'other' is missing",
            columns=[category("other")],
        )
        self._refuse(
            "^The feature 'price' has floats", columns=[category("price")]
        )
        self._refuse("'click' is missing", columns=[category("click")])
        schema = tf_ext.data.Schema([Field("user"), Field(KEY)])
        with self.assertRaisesRegex(ValueError, f"a field '{KEY}'"):
            hashed = {"columns": [category("user")], "batch_size": 1}
            tf_ext.data.read(_file(b"ann,x\n"), schema, **hashed)


class CoreTest(tf.test.TestCase):
    def test_offsets_outside_of_the_text(self):
        column = ("ns", 0, False, [(0, 0, None, [])])
        hasher = _core.HashedColumns([column])
        text = np.frombuffer(b"anntom", np.uint8)

        def signs(offsets, data=text):
            given = (np.array(offsets, np.int32), data)
            rows = len(offsets) - 1
            return hasher.hash(["it"], [given], [None], [None], rows)[0]

        wanted = category("x", namespace="ns").signs(["ann", "", "tom"])
        self.assertAllEqual(signs([0, 3, 3, 6]), wanted)
        self.assertAllEqual(signs([3, 6]), wanted[2:])
        for wrong in ([0, 7], [-1, 3], [3, 0], [0, 4, 3, 6], []):
            with self.assertRaisesRegex(ValueError, "it has offsets that"):
                signs(wrong)
        texts = (np.array([0, 3, 3, 6], np.int32), text)
        rows = hasher.hash_rows(["it"], [texts], 3)
        self.assertAllEqual(rows, wanted[:, tf.newaxis])
        nothing = hasher.hash_rows(["it"], [(np.zeros(1, np.int32), text)], 0)
        self.assertEqual(nothing.shape, (0, 1))
        leaves_out = _core.HashedColumns([("ns", 0, False, [(0, 0, "", [])])])
        with self.assertRaisesRegex(ValueError, "does not have one sign"):
            leaves_out.hash_rows(["it"], [texts], 3)
        with self.assertRaisesRegex(ValueError, "multiple of the batch size"):
            hasher.hash_rows(["it"], [texts], 2)
        for indices in ([2, 0, 0, 1], []):
            given = (*texts, np.array(indices, np.int32))
            rows = hasher.hash_rows(["it"], [given], len(indices))
            self.assertAllEqual(rows[:, 0], wanted.numpy()[indices])
        for wrong in ([3], [0, -1], [[0]]):
            given = (*texts, np.array(wrong, np.int32))
            with self.assertRaisesRegex(ValueError, "not of its 3 texts"):
                hasher.hash_rows(["it"], [given], len(wrong))
        with self.assertRaisesRegex(ValueError, "it must be a pair"):
            hasher.hash(["it"], [(text,)], [None], [None], 1)

    def test_texts_that_repeat_have_the_signs_of_others(self):
        part, other = (0, 0, None, []), (1, 0, None, [])
        hasher = _core.HashedColumns(
            [
                ("a", 0, False, [part]),
                ("b", 7, False, [part]),
                ("cross", 0, False, [part, other]),
                ("c", 0, False, [other]),
            ]
        )
        rng = np.random.default_rng(0)

        def given(texts):
            ends = np.cumsum([0, *map(len, texts)]).astype(np.int32)
            return ends, np.frombuffer("".join(texts).encode(), np.uint8)

        # Of more rows than are hashed at a time.
        for rows in (1300, 80, 79):
            inputs, repeated = [], []
            for count in (40, 1):
                texts = [
                    "x" * (i % 13) + str(i) * (i > 0) for i in range(count)
                ]
                indices = rng.integers(0, count, rows, np.int32)
                inputs.append(given([texts[i] for i in indices]))
                repeated.append((*given(texts), indices))
            names = ["one", "other"]
            self.assertAllEqual(
                hasher.hash_rows(names, repeated, rows),
                hasher.hash_rows(names, inputs, rows),
            )


if __name__ == "__main__":
    tf.test.main()
