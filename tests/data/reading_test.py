# SPDX-License-Identifier: Apache-2.0
"""Datasets of records of text files."""

import gzip
import json
import pathlib
import tempfile
from unittest import mock

import numpy as np
import pandas
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from oracles.readable_files import (
    SCHEMA,
    Field,
    bad_lines,
    good_line,
    numbers_of,
    write_broken,
)

import tf_ext
import tf_ext.data.lines

pytestmark = pytest.mark.slow_tests(
    "MalformedTest::test_each_kind_alone_is_logged_with_file_and_*",
    "MalformedTest::test_exactly_the_malformed_records_are_lost[013]",
    "MalformedTest::test_too_many_end_the_reading_with_a_sentence",
    "OrderTest::test_a_skip_continues_where_another_iteration_ended",
    "OrderTest::test_batches_are_whole_and_in_order[012]",
    "OrderTest::test_iterations_that_are_left_end",
    "OrderTest::test_shuffles_within_and_over_*",
    "ReadTest::test_an_integer_that_pyarrow_alone_takes[134]",
    "ReadTest::test_texts_of_numbers1[23456789]",
    "ReadTest::test_texts_of_numbers[13456789]",
)

Schema = tf_ext.data.Schema


class _FilesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.folder = pathlib.Path(folder)

    def _write(self, name, data):
        path = self.folder / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def _lines(self, name, numbers, separator=","):
        lines = [good_line(number, separator) for number in numbers]
        return self._write(name, b"\n".join(lines) + b"\n")

    def _one(self, path, fields, format="csv", **kwargs):
        """The only batch of a file, as lists."""
        kwargs = {"batch_size": 100, **kwargs}
        missing = kwargs.pop("missing", ("",))
        schema = Schema(fields, missing=missing)
        [batch] = tf_ext.data.read(path, schema, format, **kwargs)
        return {
            name: value.to_list()
            if isinstance(value, tf.RaggedTensor)
            else value.numpy().tolist()
            for name, value in batch.items()
        }


class ReadTest(_FilesTest):
    @parameterized.parameters("csv", "tsv")
    def test_values_types_and_shapes(self, format):
        separator = "," if format == "csv" else "\t"
        path = self._lines("a", range(10), separator)
        dataset = tf_ext.data.read(path, SCHEMA, format, batch_size=4)
        features, labels = dataset.element_spec
        self.assertEqual(labels, tf.TensorSpec([None], tf.float32))
        self.assertEqual(features["number"], tf.TensorSpec([None], tf.int64))
        self.assertEqual(
            features["tags"], tf.RaggedTensorSpec([None, None], tf.string)
        )
        batches = list(dataset)
        self.assertEqual([len(labels) for _, labels in batches], [4, 4, 2])
        number = 0
        for features, labels in batches:
            self.assertEqual(
                list(features), ["number", "price", "name", "tags"]
            )
            for i, label in enumerate(labels.numpy()):
                self.assertEqual(label, number % 2)
                self.assertEqual(features["number"][i], number)
                price = number / 4 if number % 5 else -1.0
                self.assertEqual(features["price"][i], price)
                self.assertEqual(
                    features["name"][i].numpy().decode(), f"näme{number}"
                )
                self.assertEqual(
                    features["tags"][i].numpy().tolist(),
                    [f"t{number}-{j}".encode() for j in range(number % 3)],
                )
                number += 1

    def test_criteo_as_it_is(self):
        fields = [Field("label", "float32")]
        fields += [Field(f"I{i}", "float32", default=-2.0) for i in range(13)]
        fields += [Field(f"C{i}") for i in range(26)]
        line = "1\t5\t\t" + "\t".join(["7"] * 11 + ["68fd1e64", ""] * 13)
        found = self._one(self._write("day_0", f"{line}\n"), fields, "tsv")
        self.assertEqual(found["label"], [1.0])
        self.assertEqual([found["I0"], found["I1"]], [[5.0], [-2.0]])
        self.assertEqual([found["C0"], found["C25"]], [[b"68fd1e64"], [b""]])

    def test_avazu_as_it_is(self):
        path = self._write(
            "train.csv",
            "id,click,hour,C1,banner_pos\n"
            "1000009418151094273,0,14102100,1005,0\n"
            "10000169349117863715,1,14102100,1005,1\n",
        )
        fields = [Field("click", "float32"), Field("id"), Field("C1", "int32")]
        found = self._one(path, fields, header=True)
        self.assertEqual(found["click"], [0.0, 1.0])
        self.assertEqual(found["id"][1], b"10000169349117863715")
        self.assertEqual(found["C1"], [1005, 1005])

    def test_movielens_as_it_is(self):
        path = self._write(
            "u.data", "196\t242\t3\t881250949\n186\t302\t4\t891717742\n"
        )
        fields = [
            Field("user", "int64"),
            Field("item", "int64"),
            Field("rating", "float32"),
            Field("time", "unused"),
        ]
        self.assertEqual(
            self._one(path, fields, "tsv"),
            {"user": [196, 186], "item": [242, 302], "rating": [3.0, 4.0]},
        )

    def test_quotes_of_csv(self):
        path = self._write("a.csv", 'a,"b,""c"""\n"",\n"d",e\n')
        found = self._one(path, [Field("x"), Field("y")])
        self.assertEqual(found["x"], [b"a", b"", b"d"])
        self.assertEqual(found["y"], [b'b,"c"', b"", b"e"])

    def test_quotes_of_tsv_are_text(self):
        path = self._write("a.tsv", '"a\tb"\n')
        found = self._one(path, [Field("x"), Field("y")], "tsv")
        self.assertEqual(found, {"x": [b'"a'], "y": [b'b"']})

    def test_missing_and_default_values(self):
        path = self._write("a.csv", "?,?,?\n,,\n1,2,x\n")
        fields = [
            Field("i", "int32", default=-5),
            Field("f", "float32", default=float("-inf")),
            Field("s", default="none"),
        ]
        found = self._one(path, fields, missing=["", "?"])
        self.assertEqual(found["i"], [-5, -5, 1])
        self.assertEqual(found["f"], [float("-inf"), float("-inf"), 2.0])
        self.assertEqual(found["s"], [b"none", b"none", b"x"])

    @parameterized.parameters("csv", "jsonl")
    def test_missing_bags(self, format):
        data = "?,NA\n1|2|,a|NA\nNA,?\n3,b|\n4,|c||\n"
        if format == "jsonl":
            rows = [line.split(",") for line in data.split()]
            data = "\n".join(json.dumps({"n": n, "s": s}) for n, s in rows)
        path = self._write("a", data)
        fields = [
            Field("n", "int64", separator="|"),
            Field("s", separator="|"),
        ]
        found = self._one(path, fields, format, missing=["?", "NA"])
        self.assertEqual(found["n"], [[], [1, 2], [], [3], [4]])
        self.assertEqual(
            found["s"], [[], [b"a", b"NA"], [], [b"b"], [b"", b"c", b""]]
        )

    def test_bags_of_numbers_and_weights(self):
        path = self._write("a.csv", "1|2,a:0.5|b::2\n,\n3,c:1\n")
        fields = [
            Field("n", "int64", separator="|"),
            Field("w", separator="|", weight_separator=":"),
        ]
        found = self._one(path, fields)
        self.assertEqual(found["n"], [[1, 2], [], [3]])
        self.assertEqual(found["w"], [[b"a", b"b:"], [], [b"c"]])
        self.assertEqual(found["w_weight"], [[0.5, 2.0], [], [1.0]])

    def test_weights_without_their_bag(self):
        path = self._write("a.csv", "0.5|2,1\n,2\n1,3\n")
        fields = [
            Field("solo_weight", "float32", separator="|"),
            Field("id", "int64"),
        ]
        found = self._one(path, fields)
        self.assertEqual(found["solo_weight"], [[0.5, 2.0], [], [1.0]])

    @parameterized.product(
        format=["csv", "tsv", "quoted", "bags", "json"],
        dtype=["int32", "int64", "uint64", "float32"],
    )
    def test_texts_of_numbers(self, format, dtype):
        integers = {"5": 5, "+5": 5, "-5": -5, " 5\u2003": 5, " +7": 7}
        integers |= {"007": 7, "-0": 0, "2147483647": 2147483647}
        integers |= {"5.0": 5, " +7.00": 7, "-8.0": -8}
        floats = {"1e3": 1000, ".5": 0.5, "+5.": 5, "-1E-2": -0.01}
        floats["5.01"] = 5.01
        bad = ["0x10", "0X1F", " 0x80000000", "+0x1", "-0x1", "0x", "0x1p3"]
        bad += ["+-5", "++5", "+", "-", "+ 5", "1_000", "5 6", "0b1", "1e"]
        bad += ["nan", "inf", "\u0661", "true", "9" * 60]
        if dtype == "float32":
            good = integers | floats
        else:
            good = integers
            bad += [*floats, "18446744073709551616", "5.0.0", ".0"]
        if dtype == "int64":
            bad += ["9223372036854775808", "9223372036854775808.0"]
            good["-9223372036854775808.0"] = -(2**63)
        if dtype == "uint64":
            negative = ["-5", "-0", "-8.0"]
            bad += negative
            good = {k: v for k, v in good.items() if k not in negative}
            good["18446744073709551615"] = 2**64 - 1
        if dtype == "int32":
            bad += ["2147483648", "-2147483649"]
        line = {
            "csv": "{}\n",
            "tsv": "{}\t0x1\n",
            "quoted": '"{}"\n',
            "bags": "0|{}\n",
            "json": '{{"x": "0|{}"}}\n',
        }[format]
        lines = [line.format(text) for text in [*good, *bad]]
        path = self._write("a", "".join(lines))
        errors = tf_ext.data.ReadErrors()
        separator = "|" if format in ("bags", "json") else None
        fields = [Field("x", dtype, separator=separator)]
        if format == "tsv":
            fields.append(Field("s"))
        name = {"json": "jsonl", "tsv": "tsv"}.get(format, "csv")
        found = self._one(path, fields, name, max_errors=1.0, errors=errors)
        values = np.array(list(good.values()), dtype)
        if separator:
            self.assertEqual(found["x"], [[0, value] for value in values])
        else:
            self.assertEqual(found["x"], values.tolist())
        self.assertEqual(errors.by_reason(), {"bad number": len(bad)})

    @parameterized.parameters(
        ("csv", "0x10,1\n2,3\n", [2]),
        ("csv", "2,3\n 0X10,1\n", [2]),
        ("csv", '1,2\n5,"0x3"\n', [1]),
        ("csv", "1,2\n5, 0x80000000\n", [1]),
        ("tsv", "1\t2\n5\t0x3\n", [1]),
        ("tsv", "1\t2\n0x3\t \n", [1]),
    )
    def test_an_integer_that_pyarrow_alone_takes(self, format, data, good):
        path = self._write("a", data)
        fields = [Field("x", "int64"), Field("y", "int32", default=0)]
        errors = tf_ext.data.ReadErrors()
        found = self._one(
            path,
            fields,
            format,
            missing=["", " "],
            max_errors=1.0,
            errors=errors,
        )
        self.assertEqual(found["x"], good)
        self.assertEqual(errors.by_reason(), {"bad number": 1})

    def test_hexadecimal_texts_beside_numbers(self):
        lines = [f"{n},0x{n:x},{n / 2}\n" for n in range(1000)]
        path = self._write("a.csv", "".join(lines))
        fields = [Field("n", "int64"), Field("s"), Field("f", "float32")]
        found = self._one(path, fields, batch_size=1000)
        self.assertEqual(found["n"], list(range(1000)))
        self.assertEqual(found["s"][255], b"0xff")
        self.assertEqual(found["f"][255], 127.5)

    def test_malformed_bags_cost_their_record(self):
        path = self._write("a.csv", "1|x,a:1\n2,a\n3,a:b\n4|5,c:1\n")
        fields = [
            Field("n", "int64", separator="|"),
            Field("w", separator="|", weight_separator=":"),
        ]
        errors = tf_ext.data.ReadErrors()
        found = self._one(path, fields, max_errors=1.0, errors=errors)
        self.assertEqual(found["n"], [[4, 5]])
        self.assertEqual(found["w_weight"], [[1.0]])
        self.assertEqual(errors.by_reason(), {"bad number": 2, "bad weight": 1})

    def test_values_of_texts(self):
        path = self._write("a.csv", "yes\nno\nmaybe\n\nyes\n")
        errors = tf_ext.data.ReadErrors()
        fields = [Field("x", "float32", values={"yes": 1.0, "no": 0.0})]
        found = self._one(path, fields, max_errors=1.0, errors=errors)
        self.assertEqual(found["x"], [1.0, 0.0, 1.0])
        self.assertEqual(errors.by_reason(), {"unknown value": 1})

    def test_line_ends_byte_order_mark_and_no_end_of_last_line(self):
        path = self._write("a.csv", b"\xef\xbb\xbfx,y\r\n1,a\r\n\r\n2,b")
        found = self._one(path, [Field("x", "int32"), Field("y")], header=True)
        self.assertEqual(found, {"x": [1, 2], "y": [b"a", b"b"]})

    def test_gzip_with_any_name(self):
        lines = b"".join(good_line(n) + b"\n" for n in range(50))
        path = self._write("a", gzip.compress(lines))
        dataset = tf_ext.data.read(path, SCHEMA, batch_size=8)
        self.assertEqual(numbers_of(dataset), list(range(50)))

    def test_damaged_gzip_is_an_error_with_file_and_position(self):
        lines = b"".join(good_line(n) + b"\n" for n in range(5000))
        data = gzip.compress(lines)
        path = self._write("a.gz", data[: len(data) // 2])
        with self.assertRaisesRegex(
            Exception, r"a\.gz is damaged before byte \d+: it"
        ):
            list(tf_ext.data.read(path, SCHEMA, batch_size=8))

    def test_empty_files(self):
        empty = self._write("empty", b"")
        some = self._lines("some", range(3))
        dataset = tf_ext.data.read([empty, some], SCHEMA, batch_size=8)
        self.assertEqual(numbers_of(dataset), [0, 1, 2])
        self.assertEmpty(
            list(tf_ext.data.read(empty, SCHEMA, batch_size=1, repeat=True))
        )

    def test_labels_and_weights(self):
        path = self._write("a.csv", "1,2,3\n")
        fields = [Field(name, "float32") for name in "abc"]
        schema = Schema(fields, label=["a", "b"], sample_weight="c")
        [(features, labels, weights)] = tf_ext.data.read(
            path, schema, batch_size=1
        )
        self.assertEqual(features, {})
        self.assertEqual(list(labels), ["a", "b"])
        self.assertEqual(weights.numpy().tolist(), [3.0])


class OrderTest(_FilesTest):
    def setUp(self):
        super().setUp()
        # Blocks end within batches.
        self.enterContext(
            mock.patch.object(tf_ext.data.lines, "BLOCK_BYTES", 700)
        )
        self.files = [
            self._lines(f"part-{i}", range(100 * i, 100 * i + 100))
            for i in range(4)
        ]

    def _read(self, batch_size=16, **kwargs):
        return tf_ext.data.read(
            self.files, SCHEMA, batch_size=batch_size, **kwargs
        )

    @parameterized.parameters(1, 7, 16, 64, 1000)
    def test_batches_are_whole_and_in_order(self, batch_size):
        dataset = self._read(batch_size)
        sizes = [len(labels) for _, labels in dataset]
        self.assertEqual(sizes[:-1], [batch_size] * (len(sizes) - 1))
        self.assertEqual(numbers_of(dataset), list(range(400)))

    @parameterized.parameters(1, 5)
    def test_threads_do_not_change_the_order(self, threads):
        self.assertEqual(numbers_of(self._read(threads=threads)), [*range(400)])

    @parameterized.parameters(1, 50, 1000)
    def test_shuffles_within_and_over_files(self, shuffle):
        dataset = self._read(shuffle=shuffle)
        first, again = numbers_of(dataset), numbers_of(dataset)
        self.assertCountEqual(first, range(400))
        self.assertEqual(first, again)
        self.assertNotEqual(first, list(range(400)))
        self.assertNotEqual(
            first, numbers_of(self._read(shuffle=shuffle, seed=1))
        )
        if shuffle == 1000:
            jumps = np.abs(np.diff(first))
            self.assertGreater(np.median(jumps), 50)

    def test_a_shuffle_holds_no_more_than_it_says(self):
        first = numbers_of(self._read(shuffle=50).take(4))
        self.assertLen({number // 100 for number in first}, 1)
        self.assertNotEqual(first, sorted(first))

    def test_bags_follow_their_rows(self):
        for features, labels in self._read(shuffle=200):
            for i, number in enumerate(features["number"].numpy()):
                tags = features["tags"][i].numpy().tolist()
                self.assertLen(tags, number % 3)
                for tag in tags:
                    self.assertStartsWith(tag.decode(), f"t{number}-")
                self.assertEqual(labels[i], number % 2)

    def test_repeats_in_another_order(self):
        batches = self._read(50, shuffle=400, repeat=True).take(24)
        passes = np.reshape(numbers_of(batches), [3, 400])
        for one in passes:
            self.assertCountEqual(one, range(400))
        self.assertNotEqual(passes[0].tolist(), passes[1].tolist())
        self.assertNotEqual(passes[1].tolist(), passes[2].tolist())

    def test_shards_are_disjoint_files(self):
        context = tf.distribute.InputContext(2, 1, 2)
        for shards in (((0, 2), (1, 2)), ((0, 2), context)):
            numbers = [numbers_of(self._read(shard=shard)) for shard in shards]
            self.assertEqual(numbers[0], [*range(100), *range(200, 300)])
            self.assertCountEqual(numbers[0] + numbers[1], range(400))

    def test_patterns_of_folders(self):
        for name in ("day-1", "day-2"):
            (self.folder / name).mkdir()
            self._write(f"{name}/part", good_line(int(name[-1])) + b"\n")
        dataset = tf_ext.data.read(
            f"{self.folder}/day-*/part", SCHEMA, batch_size=4
        )
        self.assertEqual(numbers_of(dataset), [1, 2])

    def test_a_skip_continues_where_another_iteration_ended(self):
        dataset = self._read(32, shuffle=100, repeat=True)
        whole = numbers_of(dataset.take(40))
        begun = numbers_of(self._read(32, shuffle=100, repeat=True).take(17))
        rest = self._read(32, shuffle=100, repeat=True).skip(17).take(23)
        self.assertEqual(begun + numbers_of(rest), whole)

    def test_iterations_that_are_left_end(self):
        for _ in range(3):
            next(iter(self._read(8, repeat=True, threads=2)))


class MalformedTest(_FilesTest):
    @parameterized.product(separator=[",", "\t"], block=[3000, 4 << 20])
    def test_exactly_the_malformed_records_are_lost(self, separator, block):
        path = self.folder / "broken"
        numbers, counts = write_broken(path, 4000, separator)
        errors = tf_ext.data.ReadErrors()
        format = "csv" if separator == "," else "tsv"
        with mock.patch.object(tf_ext.data.lines, "BLOCK_BYTES", block):
            # The share of the first blocks may be above that of the file.
            dataset = tf_ext.data.read(
                path,
                SCHEMA,
                format,
                batch_size=64,
                max_errors=0.015,
                errors=errors,
            )
            self.assertEqual(numbers_of(dataset), numbers)
            # Reading again counts nothing twice.
            self.assertEqual(numbers_of(dataset), numbers)
        self.assertEqual(errors.by_file(), {str(path): counts})
        self.assertEqual(errors.records, 4000)
        self.assertEqual(errors.errors, 40)
        self.assertLen(counts, 8 if separator == "," else 7)

    @parameterized.parameters(",", "\t")
    def test_each_kind_alone_is_logged_with_file_and_line(self, separator):
        format = "csv" if separator == "," else "tsv"
        for index, (line, reason) in enumerate(bad_lines(separator)):
            lines = [good_line(1, separator), line, good_line(2, separator)]
            path = self._write(f"file{index}", b"\n".join(lines))
            errors = tf_ext.data.ReadErrors()
            with self.assertLogs("tf_ext") as logs:
                dataset = tf_ext.data.read(
                    path,
                    SCHEMA,
                    format,
                    batch_size=8,
                    max_errors=0.5,
                    errors=errors,
                )
                self.assertEqual(numbers_of(dataset), [1, 2], (line, reason))
            self.assertEqual(errors.by_reason(), {reason: 1})
            self.assertIn(f"file{index}, line 2: {reason}", logs.output[0])

    def test_lines_are_counted_behind_headers_and_empty_lines(self):
        path = self._write("a.csv", "x,y\n\n1,2\n\nx,3\n4,5,6\n7,8\n9,\n")
        fields = [Field("x", "int32"), Field("y", "int32")]
        with self.assertLogs("tf_ext") as logs:
            found = self._one(path, fields, header=True, max_errors=1.0)
        self.assertEqual(found, {"x": [1, 7], "y": [2, 8]})
        lines = [text.split(", ")[-1] for text in logs.output]
        self.assertEqual(
            lines,
            [
                "line 5: bad number",
                "line 6: wrong number of fields",
                "line 8: missing value",
            ],
        )

    def test_too_many_end_the_reading_with_a_sentence(self):
        path = self.folder / "broken.csv"
        write_broken(path, 4000, every=50)
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            # Those before the line of 10 MB, where a block ends.
            r"11 of the first 595 records are malformed, a share "
            r"above max_errors=0\.01\. In the first files: .*broken\.csv: ",
        ):
            list(tf_ext.data.read(path, SCHEMA, batch_size=64))
        list(tf_ext.data.read(path, SCHEMA, batch_size=64, max_errors=0.03))

    def test_none_allowed(self):
        path = self._write("a", b"\n".join([good_line(1), b"x"]))
        with self.assertRaisesRegex(Exception, "1 of the first 2 records"):
            list(tf_ext.data.read(path, SCHEMA, batch_size=1, max_errors=0))

    def test_a_few_of_few_are_judged_at_the_end(self):
        lines = [good_line(1), b"x", *map(good_line, range(2, 30))]
        path = self._write("a", b"\n".join(lines))
        batches = iter(tf_ext.data.read(path, SCHEMA, batch_size=4))
        next(batches)
        with self.assertRaisesRegex(Exception, "1 of the first 30 records"):
            list(batches)

    def test_the_first_ten_are_logged(self):
        path = self._write("a", b"x\n" * 40)
        with self.assertLogs("tf_ext") as logs:
            list(tf_ext.data.read(path, SCHEMA, batch_size=4, max_errors=1))
        self.assertLen(logs.output, 11)
        self.assertIn("counted, not logged", logs.output[-1])

    def test_a_header_without_the_fields(self):
        path = self._write("a.csv", "x,z\n1,2\n")
        with self.assertRaisesRegex(Exception, r"but not \['y'\].*'x,z'"):
            self._one(path, [Field("x"), Field("y")], header=True)

    def test_a_header_with_a_carriage_return(self):
        path = self._write("a.csv", "x,y\r1,2\r3,4\r")
        message = "The header of .* must be a line of names, but is 'x,y"
        with self.assertRaisesRegex(Exception, message):
            self._one(path, [Field("x"), Field("y")], header=True)

    def test_a_header_with_repeated_names(self):
        path = self._write("a.csv", "x,y,x,y.1,x,y\n1,2,3,4,5,6\n")
        fields = [Field(name) for name in ("x.2", "x", "y.2", "x.1", "y.1")]
        found = self._one(path, fields, header=True)
        expected = pandas.read_csv(path, dtype=str).to_dict("list")
        for field in fields:
            texts = [text.decode() for text in found[field.name]]
            self.assertEqual(texts, expected[field.name], field.name)

    def test_a_header_with_names_that_are_not_wanted(self):
        path = self._write(
            "a.csv", "id,,x,,id_2,id_2\n1,a,2,b,c\n3,a,4,b,c,d\n"
        )
        fields = [Field("x", "int32"), Field("id"), Field("id_2", "unused")]
        found = self._one(path, fields, header=True, max_errors=0.5)
        self.assertEqual(found["id"], [b"3"])
        self.assertEqual(found["x"], [4])


if __name__ == "__main__":
    absltest.main()
