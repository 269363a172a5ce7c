# SPDX-License-Identifier: Apache-2.0
"""Tables in memory as what a dataset is read from."""

import datetime
import pathlib
import tempfile

import numpy as np
import pandas
import pyarrow as pa
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from oracles import readable_records as records

import tf_ext
from tf_ext.data import tables

pytestmark = pytest.mark.slow_tests(
    "SourcesTest::test_rows_are_those_of_a_file[012345]",
    "SourcesTest::test_shards_are_disjoint_and_whole[012]",
)


try:
    import polars
except ImportError:
    polars = None

Field, Schema = tf_ext.data.Field, tf_ext.data.Schema
_ROWS = 500


class _Stream:
    """An object of a library that is not known, of Arrow's interface alone."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def _arrow(rows=_ROWS):
    fields = [("label", pa.int8()), ("number", pa.int64())]
    fields += [("price", pa.float64()), ("name", pa.string())]
    fields += [("tags", pa.list_(pa.string()))]
    fields += [("tags_weight", pa.list_(pa.float32()))]
    samples = [records.record(number) for number in range(rows)]
    return pa.Table.from_pylist(samples, pa.schema(fields))


def _pandas(table):
    frame = table.to_pandas()
    frame["mixed"] = [n if n % 2 else "x" for n in range(len(frame))]
    return frame.set_index(frame["number"] + 7)


_SOURCES = {
    "arrow": lambda table: table,
    "chunks": lambda table: pa.concat_tables(
        [table.slice(0, 7), table.slice(7, 100), table.slice(107)]
    ),
    "batch": lambda table: table.to_batches()[0],
    "reader": lambda table: table.to_reader(50),
    "stream": _Stream,
    "pandas": _pandas,
    "polars": lambda table: polars.from_arrow(table),
}


def _plain(value):
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    return value.numpy().tolist()


def _rows_of(dataset):
    """Rows of a dataset: pairs of a dict of features and a label."""
    rows = []
    for features, labels in dataset:
        columns = {name: _plain(value) for name, value in features.items()}
        for index, label in enumerate(_plain(labels)):
            row = {name: column[index] for name, column in columns.items()}
            rows.append((row, label))
    return rows


class SourcesTest(parameterized.TestCase):
    def _source(self, name, rows=_ROWS):
        if name == "polars" and polars is None:
            self.skipTest("polars is not installed")
        return _SOURCES[name](_arrow(rows))

    @parameterized.parameters(*_SOURCES)
    def test_rows_are_those_of_a_file(self, name):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        path = pathlib.Path(folder) / "file"
        records.write(path, "parquet", range(_ROWS))
        options = {"batch_size": 32, "shuffle": 100, "seed": 3}
        expected = tf_ext.data.read(path, records.SCHEMA, "parquet", **options)
        found = tf_ext.data.read(self._source(name), records.SCHEMA, **options)
        self.assertEqual(found.element_spec, expected.element_spec)
        rows = _rows_of(found)
        self.assertLen(rows, _ROWS)
        self.assertCountEqual(rows, _rows_of(expected))
        self.assertEqual(rows, _rows_of(found))

    @parameterized.parameters("arrow", "chunks", "pandas", "polars")
    def test_shards_are_disjoint_and_whole(self, name):
        numbers = []
        for index in range(3):
            shard = tf_ext.data.read(
                self._source(name, 100),
                records.SCHEMA,
                batch_size=7,
                shard=(index, 3),
            )
            own = [row["number"] for row, _ in _rows_of(shard)]
            self.assertBetween(len(own), 33, 34)
            numbers += own
        self.assertEqual(numbers, list(range(100)))

    def test_several_tables_and_passes_over_them(self):
        table = _arrow(20)
        dataset = tf_ext.data.read(
            [table, table.slice(5, 5).to_pandas()],
            records.SCHEMA,
            batch_size=10,
            repeat=True,
        )
        rows = _rows_of(dataset.take(6))
        numbers = [row["number"] for row, _ in rows]
        once = [*range(20), *range(5, 10)]
        self.assertEqual(numbers, [*once, *once])

    def test_malformed_rows(self):
        bad = {n: case for n, case in enumerate(records.bad_rows(), 3)}
        samples = [
            bad[n][0] if n in bad else records.record(n) for n in range(40)
        ]
        table = pa.Table.from_pylist(samples, _arrow(1).schema)
        errors = tf_ext.data.ReadErrors()
        with self.assertLogs("tf_ext") as logs:
            dataset = tf_ext.data.read(
                [_arrow(2), table],
                records.SCHEMA,
                batch_size=10,
                shard=(0, 2),
                max_errors=1.0,
                errors=errors,
            )
            rows = _rows_of(dataset)
        self.assertLen(rows, 1 + 20 - len(bad))
        self.assertIn("table 1, row 4: missing value", logs.output[0])
        self.assertEqual(list(errors.by_file()), ["table 1"])
        self.assertEqual((errors.records, errors.errors), (21, len(bad)))

    def test_each_dataset_is_limited_whatever_others_have(self):
        errors = tf_ext.data.ReadErrors()
        whole, bad = (
            tf_ext.data.read(
                pa.table({"price": prices}),
                Schema([Field("price", "float32")]),
                batch_size=20,
                errors=errors,
            )
            for prices in ([1.0] * 400, [1.0] * 3 + [float("inf")])
        )
        list(whole)
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "1 of the first 4 records"
        ):
            list(bad)
        self.assertEqual((errors.records, errors.errors), (404, 1))
        self.assertEqual(errors.by_file(), {"table 0": {"bad number": 1}})

    def test_rows_are_counted_from_the_begin_of_the_table(self):
        prices = [float("inf") if n == 17 else 1.0 for n in range(20)]
        with self.assertLogs("tf_ext") as logs:
            dataset = tf_ext.data.read(
                pa.table({"price": prices}),
                Schema([Field("price", "float32")]),
                batch_size=20,
                shard=(1, 2),
                max_errors=1.0,
            )
            self.assertLen(next(iter(dataset))["price"], 9)
        self.assertIn("table 0, row 18: bad number", logs.output[0])

    def test_empty_ones(self):
        dataset = tf_ext.data.read(_arrow(0), records.SCHEMA, batch_size=1)
        self.assertEmpty(list(dataset))


class LayoutsTest(parameterized.TestCase):
    def _one(self, table, fields):
        [batch] = tf_ext.data.read(table, Schema(fields), batch_size=1000)
        return {name: _plain(value) for name, value in batch.items()}

    @parameterized.parameters(
        pa.large_string(), pa.string_view(), pa.binary(), pa.binary_view()
    )
    def test_of_texts(self, type_):
        column = pa.array(["a", None, "bc", "x" * 50]).cast(type_)
        table = pa.table({"s": column.slice(1), "n": [1, 2, 3]})
        found = self._one(table, [Field("s", default="?"), Field("n", "int32")])
        self.assertEqual(found["s"], [b"?", b"bc", b"x" * 50])

    def test_of_texts_that_stand_for_no_number(self):
        table = pa.table(
            {
                "n": ["1", "?", "NA", None],
                "s": ["?", "a", "NA", None],
                "coded": pa.array(["?", "2.5", "?", "NA"]).dictionary_encode(),
            }
        )
        fields = [Field("n", "int64", default=-1), Field("s", default="none")]
        fields += [Field("coded", "float32", default=0.5)]
        schema = Schema(fields, missing=["?", "NA"])
        [batch] = tf_ext.data.read(table, schema, batch_size=10)
        self.assertEqual(_plain(batch["n"]), [1, -1, -1, -1])
        self.assertEqual(_plain(batch["s"]), [b"?", b"a", b"NA", b"none"])
        self.assertEqual(_plain(batch["coded"]), [0.5, 2.5, 0.5, 0.5])

    def test_of_indices(self):
        columns = {
            "text": pa.array(["b", "a", "b"]).dictionary_encode(),
            "large": pa.array(
                ["b", "a", "b"], pa.large_string()
            ).dictionary_encode(),
            "ids": pa.array([7, 5, 7]).dictionary_encode(),
            "numbers": pa.array([0.5, 2.0, 0.5]).dictionary_encode(),
            "null": pa.DictionaryArray.from_arrays(
                pa.array([0, 1, 0], pa.int8()), pa.array(["x", None])
            ),
        }
        found = self._one(
            pa.table(columns).slice(1),
            [
                Field("text"),
                Field("large"),
                Field("ids"),
                Field("numbers", "float32"),
                Field("null", default="?"),
            ],
        )
        self.assertEqual(found["text"], [b"a", b"b"])
        self.assertEqual(found["large"], [b"a", b"b"])
        self.assertEqual(found["ids"], [b"5", b"7"])
        self.assertEqual(found["numbers"], [2.0, 0.5])
        self.assertEqual(found["null"], [b"?", b"x"])

    def test_of_lists(self):
        values = [["a", "b"], None, [], ["c"]]
        table = pa.table(
            {
                "large": pa.array(values, pa.large_list(pa.large_string())),
                "view": pa.array(values, pa.list_(pa.string_view())),
                "coded": pa.array(
                    values, pa.list_(pa.dictionary(pa.int32(), pa.string()))
                ),
            }
        ).slice(0, 3)
        found = self._one(
            table, [Field(name, bag=True) for name in table.column_names]
        )
        for name in table.column_names:
            self.assertEqual(found[name], [[b"a", b"b"], [], []], name)

    def test_a_frame_that_is_changed_later(self):
        frame = pandas.DataFrame(
            {name: np.arange(3, dtype=np.float32) for name in "xyz"}
        )
        schema = Schema([Field(name, "float32") for name in "xz"])
        dataset = tf_ext.data.read(frame, schema, batch_size=3)
        frame.loc[1, "x"] = 9.0
        [batch] = dataset
        self.assertEqual(batch["x"].numpy().tolist(), [0.0, 1.0, 2.0])

    def test_types_of_pandas(self):
        frame = pandas.DataFrame(
            {
                "Int64": pandas.array([1, None, 2**60], "Int64"),
                "float": [7.0, None, 9.0],
                "object": ["a", None, "b"],
                "string": pandas.array(["a", None, "b"], "string"),
                "category": pandas.Categorical(["x", None, "y"]),
                "bool": [True, False, True],
                "uint64": np.array([1, 2**63, 2**64 - 1], np.uint64),
                "lists": [["a"], [], None],
                "date": [datetime.date(2026, 1, 1)] * 3,
            }
        )
        fields = [Field("Int64", "int64", default=-1), Field("lists", bag=True)]
        fields += [Field("float", "int64", default=-1), Field("bool", "int32")]
        fields += [Field("uint64", "uint64")]
        fields += [Field(name) for name in ("object", "string", "category")]
        found = self._one(frame, fields)
        self.assertEqual(found["Int64"], [1, -1, 2**60])
        self.assertEqual(found["float"], [7, -1, 9])
        self.assertEqual(found["uint64"], [1, 2**63, 2**64 - 1])
        self.assertEqual(found["bool"], [1, 0, 1])
        for name in ("object", "string"):
            self.assertEqual(found[name], [b"a", b"", b"b"])
        self.assertEqual(found["category"], [b"x", b"", b"y"])
        self.assertEqual(found["lists"], [[b"a"], [], []])

    def test_fields_of_structs_and_absent_ones(self):
        users = [{"geo": {"country": "fr"}, "id": 1}, None, {"geo": None}]
        table = pa.table({"user": users, "n": [1, 2, 3]})
        fields = [
            Field("user.geo.country"),
            Field("user.id", "int32", default=-1),
            Field("later", "int32", default=5, optional=True),
            Field("bag", bag=True, optional=True),
        ]
        expected = {
            "user.geo.country": [b"fr", b"", b""],
            "user.id": [1, -1, -1],
            "later": [5, 5, 5],
            "bag": [[], [], []],
        }
        self.assertEqual(self._one(table, fields), expected)
        folder = self.enterContext(tempfile.TemporaryDirectory())
        path = pathlib.Path(folder) / "file"
        pa.parquet.write_table(table, path)
        [batch] = tf_ext.data.read(
            path, Schema(fields), "parquet", batch_size=5
        )
        self.assertEqual({k: _plain(v) for k, v in batch.items()}, expected)

    def test_numbers_and_texts_are_not_copied(self):
        column = pa.array(np.arange(1000))
        texts = pa.array([f"t{n}" for n in range(1000)])
        source = pa.table({"n": column, "s": texts})
        for given in (source, _Stream(source)):
            reader = tables.Tables(
                [given], Schema([Field("n", "int64"), Field("s")]), (0, 1)
            )
            [parse] = reader.blocks("table 0")
            part = parse().part
            for name, array in (("s", texts), ("n", column)):
                found = part.dense[name]
                address = (
                    found.ctypes.data
                    if isinstance(found, np.ndarray)
                    else found.buffers()[2].address
                )
                buffer = array.buffers()[-1]
                self.assertEqual(address, buffer.address)


class RefusalsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"format": "parquet"}, "`format` of read must be left out"),
        ({"header": True}, "`header` of read must be left out"),
        ({"files": [_arrow(1), "a"]}, "`files` of read must be paths .* or ta"),
        ({"shard": (2, 2)}, "`shard` of read"),
        (
            {"files": pa.table({"number": [1]})},
            r"^table 0 must have each field .* not \['label'",
        ),
        (
            {"files": pa.table({"number": [[1]]}), "fields": ["number"]},
            "'number' of table 0 must be text or numbers, but is list",
        ),
        (
            {
                "files": pandas.DataFrame({"x": [1, "a"]}, dtype=object),
                "fields": ["x"],
            },
            "`files` of read must be tables that Arrow .* table 0 is not: .*x",
        ),
        (
            {"files": pa.table([[1], [2]], ["x", "x"]), "fields": ["x"]},
            r"once as a column, but not \['x'\]",
        ),
        (
            {
                "files": pandas.DataFrame([[1, 2]], columns=["x", "x"]),
                "fields": ["x"],
            },
            "table 0 is not",
        ),
    )
    def test_arguments(self, arguments, message):
        arguments = dict(arguments)
        schema = records.SCHEMA
        if "fields" in arguments:
            schema = Schema([Field(n) for n in arguments.pop("fields")])
        arguments = {"files": _arrow(3), "batch_size": 1, **arguments}
        with self.assertRaisesRegex(ValueError, message):
            tf_ext.data.read(schema=schema, **arguments)

    @parameterized.parameters("int32", "uint64", "float32")
    def test_an_optional_number_has_a_default(self, dtype):
        with self.assertRaisesRegex(ValueError, "`optional` of Field 'x' must"):
            Field("x", dtype, optional=True)
        with self.assertRaisesRegex(ValueError, "`optional` of Field 'x' must"):
            Field("x", optional=1)


class TrainingTest(absltest.TestCase):
    def test_epochs_have_their_own_orders(self):
        seen = []
        dataset = tf_ext.data.read(
            _arrow(64), records.SCHEMA, batch_size=16, shuffle=64
        )
        for number in range(2):
            tf_ext.data.epochs.tell_epoch(dataset, number)
            seen.append([row["number"] for row, _ in _rows_of(dataset)])
        self.assertNotEqual(*seen)
        self.assertCountEqual(*seen)


if __name__ == "__main__":
    absltest.main()
