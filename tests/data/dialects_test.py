# SPDX-License-Identifier: Apache-2.0
"""Text files with other delimiters, encodings, decimals and comments."""

import gzip
import pathlib
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_ext
from tf_ext.data import dialect
from tf_ext.data.lines import Lines

pytestmark = pytest.mark.slow_tests(
    "DamageTest::test_flipped_bits_cost_few_records",
    "DelimiterTest::test_stands_in_for_one_that_lines_have",
    "EncodingTest::test_ids_are_in_utf_8[24]",
    "StripTest::test_of_lines[34]",
)

Csv, Field = tf_ext.data.Csv, tf_ext.data.Field


class _DialectTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.path = pathlib.Path(folder) / "file"

    def _read(self, data, fields, csv, missing=("",), **kwargs):
        """The only batch of a file, as lists, and what was malformed."""
        self.path.write_bytes(
            data if isinstance(data, bytes) else data.encode()
        )
        errors = tf_ext.data.ReadErrors()
        schema = tf_ext.data.Schema(fields, missing=missing)
        batches = list(
            tf_ext.data.read(
                self.path,
                schema,
                csv,
                batch_size=1000,
                max_errors=1.0,
                errors=errors,
                **kwargs,
            )
        )
        found = {}
        for name, value in batches[0].items() if batches else ():
            is_ragged = isinstance(value, tf.RaggedTensor)
            found[name] = value.to_list() if is_ragged else list(value.numpy())
        return found, errors


class FilesTest(_DialectTest):
    """Files as some public data sets are distributed."""

    def test_colons_of_movielens_1m(self):
        lines = "1::1193::5::978300760\n1::661:2::3::978302109\n2::9::4\n"
        fields = [Field("user"), Field("item"), Field("stars", "int32")]
        fields.append(Field("time", "int64"))
        found, errors = self._read(lines, fields, Csv("::", quotes=False))
        self.assertEqual(found["item"], [b"1193", b"661:2"])
        self.assertEqual(found["time"], [978300760, 978302109])
        self.assertEqual(errors.by_reason(), {"wrong number of fields": 1})

    def test_semicolons_and_latin_1_of_book_crossing(self):
        lines = '"User";"Book";"Stars"\r\n'
        lines += '"276725";"José; ""a""";"0"\r\n"8";"Straße";"7"\r\n'
        fields = [Field("Book"), Field("Stars", "int32")]
        csv = Csv(";", encoding="latin-1")
        found, errors = self._read(
            lines.encode("latin-1"), fields, csv, header=True
        )
        names = [name.decode() for name in found["Book"]]
        self.assertEqual(names, ['José; "a"', "Straße"])
        self.assertEqual(found["Stars"], [0, 7])
        self.assertEqual(errors.errors, 0)

    def test_blanks_and_comments_of_adult(self):
        lines = "|1x3 Cross validator\n25, Private, ?, <=50K.\n"
        lines += "38 ,\tState-gov\t, 11th, >50K.\n\n"
        fields = [Field("age", "int32"), Field("work"), Field("school")]
        values = {"<=50K.": 0.0, ">50K.": 1.0}
        fields.append(Field("high", "float32", values=values))
        found, errors = self._read(
            lines, fields, Csv(strip=True, comment="|"), missing=["?"]
        )
        self.assertEqual(found["age"], [25, 38])
        self.assertEqual(found["work"], [b"Private", b"State-gov"])
        self.assertEqual(found["school"], [b"", b"11th"])
        self.assertEqual(found["high"], [0.0, 1.0])
        self.assertEqual((errors.records, errors.errors), (2, 0))

    def test_control_a_of_hive(self):
        fields = [Field("a"), Field("b", separator="\x02")]
        found, _ = self._read(
            'x"\x01p\x02q\n', fields, Csv("\x01", quotes=False)
        )
        self.assertEqual(found, {"a": [b'x"'], "b": [[b"p", b"q"]]})


class DecimalTest(_DialectTest):
    def test_of_fields_bags_and_weights(self):
        lines = "2,5;0,5|-1,5e1;a:0,25|b:2\n,5;3;\n2.5;1;\n1;0.5;\n1;2;a:1.0\n"
        fields = [
            Field("x", "float32"),
            Field("y", "float32", separator="|"),
            Field("z", separator="|", weight_separator=":"),
        ]
        found, errors = self._read(lines, fields, Csv(";", decimal=","))
        self.assertEqual(found["x"], [2.5, 0.5])
        self.assertEqual(found["y"], [[0.5, -15.0], [3.0]])
        self.assertEqual(found["z_weight"], [[0.25, 2.0], []])
        self.assertEqual(errors.by_reason(), {"bad number": 3})

    def test_integers_have_zeros_behind_it_at_most(self):
        found, errors = self._read(
            "1\n1,0\n1.0\n1,5\n", [Field("x", "int64")], Csv(";", decimal=",")
        )
        self.assertEqual(found["x"], [1, 1])
        self.assertEqual(errors.errors, 2)


class StripTest(_DialectTest):
    @parameterized.parameters(
        (" a , b ", ["a", "b"]),
        ("\t a\t,\t b c \t", ["a", "b c"]),
        (' "a , b" , " c" ', ["a , b", " c"]),
        (' " ""a"" , " , ""', [' "a" , ', ""]),
        (" , ", ["", ""]),
    )
    def test_of_lines(self, line, fields):
        data = f"{line}\r\n{line}\n{line}\n"
        found, errors = self._read(
            data, [Field("x"), Field("y")], Csv(strip=True)
        )
        self.assertEqual(errors.errors, 0)
        for name, value in zip("xy", fields, strict=True):
            self.assertEqual(found[name], [value.encode()] * 3)

    def test_a_tab_that_is_the_delimiter_stays(self):
        csv = Csv("\t", quotes=False, strip=True)
        found, _ = self._read(" a \t\t b\n", [Field(x) for x in "xyz"], csv)
        self.assertEqual(found, {"x": [b"a"], "y": [b""], "z": [b"b"]})

    def test_blank_lines_are_empty(self):
        found, errors = self._read(
            "a\n  \t\nb\nc d  ", [Field("x")], Csv(strip=True)
        )
        self.assertEqual(found["x"], [b"a", b"b", b"c d"])
        self.assertEqual((errors.records, errors.errors), (3, 0))

    def test_random_lines_as_a_simple_reading_of_them(self):
        rng = np.random.default_rng(0)
        for quotes in (False, True):
            for _ in range(200):
                parts = rng.choice(
                    ["a", " ", "\t", ",", "\n", "b c", '"x , y"'], 30
                )
                text = "".join(parts) + "\n"
                if quotes:
                    # Where a quote begins a field, or there is none.
                    text = text.replace('"', "") if '""' in text else text
                else:
                    text = text.replace('"', "")
                expected = []
                for line in text.splitlines():
                    fields, inside = [""], False
                    for one in line:
                        inside ^= one == '"'
                        if one == "," and not inside:
                            fields.append("")
                        else:
                            fields[-1] += one
                    expected.append(",".join(f.strip(" \t") for f in fields))
                csv = Csv(quotes=quotes, strip=True)
                found = csv.block(Lines(text.encode(), 1)).lines.data
                self.assertEqual(found.decode().splitlines(), expected)

    def test_a_long_line_of_blanks_takes_linear_time(self):
        lines = Lines(b"a" + b" \t" * (1 << 20) + b"b\n", 1)
        found = Csv(strip=True).block(lines).lines
        self.assertLen(found.data, 3 + (2 << 20))


class EncodingTest(_DialectTest):
    @parameterized.parameters("utf-8", "latin-1", "cp1252", "shift_jis", "gbk")
    def test_ids_are_in_utf_8(self, encoding):
        word = {"shift_jis": "表", "gbk": "王"}.get(encoding, "Müller")
        data = f'"{word}|a"|2\nb|3\n'.encode(encoding)
        fields = [Field("x"), Field("n", "int32")]
        found, errors = self._read(data, fields, Csv("|", encoding=encoding))
        self.assertEqual(found["x"], [f"{word}|a".encode(), b"b"])
        self.assertEqual(errors.errors, 0)

    def test_bytes_that_it_does_not_have(self):
        data = b"a\n\x81\nb\n\xe9\n"
        found, errors = self._read(data, [Field("x")], Csv(encoding="cp1252"))
        self.assertEqual(found["x"], [b"a", b"b", "é".encode()])
        self.assertEqual(errors.by_reason(), {"invalid UTF-8": 1})

    def test_compressed_with_a_mark(self):
        data = gzip.compress("x;y\nä;1\n".encode("utf-8-sig"))
        found, _ = self._read(
            data, [Field("y", "int32"), Field("x")], Csv(";"), header=True
        )
        self.assertEqual(found, {"x": ["ä".encode()], "y": [1]})


class HeaderTest(_DialectTest):
    def test_quotes_of_names(self):
        text = '"x"\ty\n1\t2\n'
        for quotes, name in ((True, "x"), (False, '"x"')):
            fields = [Field(name, "int64"), Field("y", "int64")]
            batch, errors = self._read(
                text, fields, Csv("\t", quotes=quotes), header=True
            )
            self.assertEqual(batch, {name: [1], "y": [2]})
            self.assertEqual(errors.errors, 0)


class DelimiterTest(_DialectTest):
    def test_stands_in_for_one_that_lines_have(self):
        csv = Csv("||", quotes=False)
        used = bytes(dialect._STAND_INS)
        self.assertEqual(csv.block(Lines(b"a||b\n", 1)).delimiter, used[:1])
        for last in (1, 5, len(used) - 1):
            data = used[:last] + b"||x\n"
            found, errors = self._read(data, [Field("x"), Field("y")], csv)
            self.assertEqual(found, {"x": [used[:last]], "y": [b"x"]})
            self.assertEqual(errors.errors, 0)
        _, errors = self._read(
            used + b"||x\n" * 2, [Field("x"), Field("y")], csv
        )
        self.assertEqual(errors.by_reason(), {"wrong number of fields": 1})

    def test_outside_ascii(self):
        csv = Csv("§", quotes=False, encoding="latin-1")
        found, _ = self._read(
            "ä§b\n".encode("latin-1"), [Field("x"), Field("y")], csv
        )
        self.assertEqual(found, {"x": ["ä".encode()], "y": [b"b"]})

    def test_hexadecimal_numbers_after_it(self):
        fields = [Field("x"), Field("n", "int32")]
        found, errors = self._read(
            "a::0x10\nb::16\n", fields, Csv("::", quotes=False)
        )
        self.assertEqual(found["n"], [16])
        self.assertEqual(errors.by_reason(), {"bad number": 1})


class CommentTest(_DialectTest):
    def test_before_the_header_and_between_lines(self):
        data = "// a\n//\nx,y\n1,2 // z\n// 3,4\n5\n//"
        fields = [Field("x", "int32"), Field("y")]
        with self.assertLogs("tf_ext", "WARNING") as logs:
            found, errors = self._read(
                data, fields, Csv(comment="//"), header=True
            )
        self.assertEqual(found, {"x": [1], "y": [b"2 // z"]})
        self.assertEqual((errors.records, errors.errors), (2, 1))
        self.assertIn("line 6", "".join(logs.output))

    def test_outside_ascii_in_another_encoding(self):
        csv = Csv(comment="§", encoding="latin-1")
        found, errors = self._read(
            "§ a\nx\nä\n§ b\n".encode("latin-1"),
            [Field("x")],
            csv,
            header=True,
        )
        self.assertEqual(found, {"x": ["ä".encode()]})
        self.assertEqual((errors.records, errors.errors), (1, 0))

    def test_only_comments(self):
        found, errors = self._read("#\n# a\n", [Field("x")], Csv(comment="#"))
        self.assertEqual((found, errors.records), ({}, 0))
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "The header of .*'x'"
        ):
            self._read("#\n# a\n", [Field("x")], Csv(comment="#"), header=True)


class DamageTest(_DialectTest):
    def test_flipped_bits_cost_few_records(self):
        csv = Csv("::", False, "cp1252", strip=True, decimal=",", comment="#")
        lines = [f"user {n} :: é{n}|x ::{n},5\n" for n in range(50)]
        whole = "".join(lines).encode("cp1252")
        fields = [Field("a"), Field("b", separator="|"), Field("c", "float32")]
        rng = np.random.default_rng(0)
        for _ in range(25):
            data = bytearray(whole)
            place = int(rng.integers(len(data)))
            data[place] ^= 1 << int(rng.integers(8))
            found, errors = self._read(bytes(data), fields, csv)
            self.assertBetween(errors.records, 49, 51, place)
            self.assertLessEqual(errors.errors, 2, place)
            self.assertLen(found["a"], errors.records - errors.errors)


class ArgumentsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"delimiter": ""}, "delimiter", "characters of a line"),
        ({"delimiter": "\n"}, "delimiter", "characters of a line"),
        ({"delimiter": '"'}, "delimiter", "characters of a line"),
        ({"delimiter": None}, "delimiter", "characters of a line"),
        ({"delimiter": "::"}, "delimiter", "with quotes=False"),
        ({"delimiter": "§"}, "delimiter", "with quotes=False"),
        ({"quotes": "no"}, "quotes", "True or False"),
        ({"strip": 1}, "strip", "True or False"),
        ({"encoding": "utf-16"}, "encoding", "has ASCII"),
        ({"encoding": "utf-8-sig"}, "encoding", "has ASCII"),
        ({"encoding": "UTF_8_sig"}, "encoding", "has ASCII"),
        ({"encoding": "iso2022_jp"}, "encoding", "has ASCII"),
        ({"encoding": "iso2022_kr"}, "encoding", "has ASCII"),
        ({"encoding": "unicode_escape"}, "encoding", "has ASCII"),
        ({"encoding": "rot13"}, "encoding", "has ASCII"),
        ({"encoding": "hex"}, "encoding", "has ASCII"),
        ({"encoding": "no such"}, "encoding", "has ASCII"),
        ({"encoding": None}, "encoding", "has ASCII"),
        ({"decimal": ","}, "decimal", "not the delimiter"),
        ({"decimal": ";"}, "decimal", "not the delimiter"),
        ({"comment": ""}, "comment", "or None"),
        ({"comment": 3}, "comment", "or None"),
    )
    def test_refused(self, arguments, name, allowed):
        with self.assertRaisesRegex(
            ValueError, f"Argument `{name}` of Csv must be .*{allowed}"
        ):
            Csv(**arguments)

    def test_lists_in_the_schema(self):
        schema = tf_ext.data.Schema([Field("x", bag=True)])
        with self.assertRaisesRegex(ValueError, "`schema` of read"):
            tf_ext.data.read(__file__, schema, Csv(";"), batch_size=1)


if __name__ == "__main__":
    absltest.main()
