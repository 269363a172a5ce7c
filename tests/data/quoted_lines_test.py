# SPDX-License-Identifier: Apache-2.0
"""Fields in quotes that have line breaks, and what a wrong quote costs."""

import csv
import io
import pathlib
import tempfile
from unittest import mock

import numpy as np
import pandas
import pytest
from absl.testing import absltest, parameterized

import tf_ext
from tf_ext.data import formats
from tf_ext.data import lines as lines_module

pytestmark = pytest.mark.slow_tests(
    "FlippedBitsTest::test_fifty",
    "ValuesTest::test_order_shuffle_and_continuation",
)


Csv, Field, Schema = tf_ext.data.Csv, tf_ext.data.Field, tf_ext.data.Schema
_FIELDS = [Field("number", "int64"), Field("text"), Field("other")]


def _parsed(path, format="csv", header=False, fields=_FIELDS, missing=("",)):
    """All records of a file, without the cost of a graph for each.

    Returns:
      `(rows, malformed)`: tuples of values, and pairs of line and reason.
    """
    schema = Schema(fields, missing=missing)
    reader = formats.reader_of(schema, format, header, 1)
    rows, malformed, records = [], [], 0
    for parse in reader.blocks(str(path)):
        part, count, bad, _ = parse()
        dense = [part.dense[field.name] for field in fields]
        rows += zip(
            *(
                [value.as_py().decode() for value in column]
                if field.dtype == "string"
                else column.tolist()
                for field, column in zip(fields, dense)
            )
        )
        malformed += [tuple(one) for one in sorted(bad)]
        records += count
    assert records == len(rows) + len(malformed)
    return rows, malformed


class _LinesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.path = pathlib.Path(folder) / "file"

    def _blocks_of(self, size):
        self.enterContext(mock.patch.object(lines_module, "BLOCK_BYTES", size))

    def _read(self, data, *args, **kwargs):
        self.path.write_bytes(
            data if isinstance(data, bytes) else data.encode()
        )
        return _parsed(self.path, *args, **kwargs)


_PIECES = ["a", '"', ",", "\n", "\r\n", "\r", " ", "\t", "b c", "#", '","']
_PIECES += ["ä", '"\n', "\n\n", '""', "1,2\n", "3"]


def _random_rows(rng, count, end="\r\n"):
    def text():
        pieces = rng.choice(_PIECES, rng.integers(0, 6))
        # Python's csv puts no others into quotes.
        return "".join(one for one in pieces if one != "\r" or one in end)

    return [(number, text(), text()) for number in range(count)]


class ValuesTest(_LinesTest):
    @parameterized.product(
        end=["\n", "\r\n"], quoting=[csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC]
    )
    def test_of_random_files_as_csv_has_them(self, end, quoting):
        rng = np.random.default_rng(0)
        for block in (7, 64, 300, 1 << 20):
            self._blocks_of(block)
            rows = _random_rows(rng, 60, end)
            file = io.StringIO(newline="")
            csv.writer(file, lineterminator=end, quoting=quoting).writerows(
                rows
            )
            found, malformed = self._read(file.getvalue())
            self.assertEqual(malformed, [])
            self.assertEqual(found, rows, block)

    @parameterized.parameters(11, 1 << 20)
    def test_numbers_of_lines_are_those_of_the_file(self, block):
        self._blocks_of(block)
        data = 'number,"a\nb",text\n\n1,"x\n\n",y\n2\n\n3,"\n\n",z\n4,"\n"\n'
        fields = [Field("number", "int64"), Field("a\nb"), Field("text")]
        found, malformed = self._read(data, header=True, fields=fields)
        self.assertEqual(found, [(1, "x\n\n", "y"), (3, "\n\n", "z")])
        bad = [(7, "wrong number of fields"), (12, "wrong number of fields")]
        self.assertEqual(malformed, bad)

    def test_reasons_are_those_of_the_record(self):
        data = (
            b'1,"a\nb\xff\nc",x\n2,"a\n\0",y\n3,"\r\n\r",z\nx,"a\n",\n4\r,,\n'
        )
        found, malformed = self._read(data)
        self.assertEqual(found, [(3, "\r\n\r", "z")])
        expected = [(1, "invalid UTF-8"), (4, "NUL byte"), (8, "bad number")]
        expected.append((10, "carriage return"))
        self.assertEqual(malformed, expected)

    @parameterized.parameters(9, 1 << 20)
    def test_with_other_dialects(self, block):
        self._blocks_of(block)
        dialect = Csv(";", True, "cp1252", strip=True, comment="#")
        data = '# "a\n 1 ; " é ; \n # ""b""\n#c"  ;  d \r\n# e"\n2; " \n" ;x'
        found, malformed = self._read(data.encode("cp1252"), dialect)
        expected = [(1, ' é ; \n # "b"\n#c', "d"), (2, " \n", "x")]
        self.assertEqual(found, expected)
        self.assertEqual(malformed, [])

    @parameterized.parameters(5, 1 << 20)
    def test_blanks_before_a_carriage_return(self, block):
        self._blocks_of(block)
        data = '1,a, "b\nc" \r\n2,d, "e\n,f" \r\n'
        found, malformed = self._read(data, Csv(strip=True))
        self.assertEqual(found, [(1, "a", "b\nc"), (2, "d", "e\n,f")])
        self.assertEqual(malformed, [])

    def test_frames_of_pandas(self):
        texts = ["a\nb", 'c"d', "", "e,\r\nf", "\n", None]
        frame = pandas.DataFrame({"number": range(6), "text": texts})
        frame["other"] = frame["text"]
        frame.to_csv(self.path, index=False)
        found, malformed = _parsed(self.path, header=True)
        read = pandas.read_csv(self.path, keep_default_na=False)
        self.assertEqual(found, list(read.itertuples(index=False, name=None)))
        self.assertEqual(malformed, [])

    def test_order_shuffle_and_continuation(self):
        self._blocks_of(500)
        rows = _random_rows(np.random.default_rng(1), 400)
        with open(self.path, "w", newline="") as file:
            csv.writer(file).writerows(rows)
        dataset = tf_ext.data.read(
            self.path, Schema(_FIELDS), batch_size=16, shuffle=64, seed=3
        )
        whole = [batch["number"].numpy().tolist() for batch in dataset]
        self.assertCountEqual([n for b in whole for n in b], range(400))
        rest = [batch["number"].numpy().tolist() for batch in dataset.skip(7)]
        self.assertEqual(rest, whole[7:])
        for batch in dataset.take(3):
            for number, text in zip(batch["number"], batch["text"]):
                expected = rows[int(number)][1].encode()
                self.assertEqual(text.numpy(), expected)


class WrongQuotesTest(_LinesTest):
    @parameterized.parameters(5, 40, 1 << 20)
    def test_a_missing_quote_costs_its_record(self, block):
        self._blocks_of(block)
        data = '1,"a\nb",c\n2,"d,e\n3,"f\ng",h\n4,"i",j\n5,k,l\n'
        found, malformed = self._read(data)
        expected = [(1, "a\nb", "c"), (3, "f\ng", "h"), (4, "i", "j")]
        self.assertEqual(found, [*expected, (5, "k", "l")])
        self.assertEqual(malformed, [(3, "wrong quotes")])

    def test_quotes_that_never_close(self):
        for data in (
            '1,a,b\n2,"c,d\n3,e,f\n4,g,h\n',
            '1,a,b\n2,"c,d\n3,e,f\n4,g,h',
        ):
            for block in (8, 1 << 20):
                self._blocks_of(block)
                found, malformed = self._read(data)
                self.assertEqual([row[0] for row in found], [1, 3, 4])
                self.assertEqual(malformed, [(2, "wrong quotes")])

    def test_a_record_of_several_lines_has_a_most_size(self):
        self._blocks_of(1 << 14)
        most = lines_module.MAX_LINE_BYTES
        for size, is_one in ((most, True), (most + 1, False)):
            line = "x" * 1023 + "\n"
            text = line * (size // 1024 - 1) + "x" * ((size - 5) % 1024)
            record = f'1,"{text}",'
            self.assertEqual(len(record), size)
            found, malformed = self._read(f"{record}\n2,a,b\n")
            if is_one:
                self.assertTrue(found == [(1, text, ""), (2, "a", "b")])
                self.assertEqual(malformed, [])
            else:
                self.assertEqual(found, [(2, "a", "b")])
                self.assertEqual(malformed[0], (1, "wrong quotes"))
                self.assertLen(malformed, record.count("\n") + 1)

    def test_comments_are_no_begin_of_a_record(self):
        data = '1,a,b\n#,"c\n2,"#\nd",e\n#"\n3,f,g\n'
        found, malformed = self._read(data, Csv(comment="#"))
        expected = [(1, "a", "b"), (2, "#\nd", "e"), (3, "f", "g")]
        self.assertEqual((found, malformed), (expected, []))
        # What closes a field of the comment, if it were one, opens another.
        data = '1,a,b\n#,"c\n2,"\nd",e\n3,f,g\n'
        found, malformed = self._read(data, Csv(comment="#"))
        expected = [(1, "a", "b"), (2, "\nd", "e"), (3, "f", "g")]
        self.assertEqual((found, malformed), (expected, []))

    def test_without_quotes_they_are_text(self):
        found, malformed = self._read('1\t"a\tb\n2\tc"\td\n', "tsv")
        self.assertEqual(found, [(1, '"a', "b"), (2, 'c"', "d")])
        self.assertEqual(malformed, [])


class FlippedBitsTest(_LinesTest):
    def _check(self, flips, block):
        self._blocks_of(block)
        rng = np.random.default_rng(block)
        rows = [
            (n, f'a{n}\n"b" {n}' if n % 3 else "", f"{n},c") for n in range(60)
        ]
        file = io.StringIO(newline="")
        csv.writer(file, lineterminator="\n").writerows(rows)
        whole = file.getvalue().encode()
        for _ in range(flips):
            data = bytearray(whole)
            place = int(rng.integers(len(data)))
            data[place] ^= 1 << int(rng.integers(8))
            found, malformed = self._read(bytes(data))
            same = set(found) & set(rows)
            # A record of two lines may become two, joined ones are one.
            self.assertGreaterEqual(len(same), 58, place)
            self.assertLessEqual(len(malformed), 3, place)
            if len(found) != 60:
                self.assertNotEmpty(malformed, place)

    def test_fifty(self):
        self._check(50, 200)

    @pytest.mark.slow
    def test_five_hundred(self):
        for block in (50, 1 << 20):
            self._check(500, block)


if __name__ == "__main__":
    absltest.main()
