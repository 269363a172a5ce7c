# SPDX-License-Identifier: Apache-2.0
"""Times of files as seconds since 1970."""

import datetime
import json
import math
import pathlib
import tempfile

import numpy as np
import pandas
import pyarrow as pa
from absl.testing import absltest, parameterized
from read_util import read_whole

import tf_ext
from tf_ext.data import times

Field, Schema = tf_ext.data.Field, tf_ext.data.Schema
# What pandas reads as a time, and as what.
_TEXTS = [
    *("2026-01-31", "2026-01-31 12:34", "2026-01-31T12:34:56", "1969-12-31"),
    *("2026-01-31 12:34:56.789", "1969-12-31T23:59:59.999999999Z"),
    *("2026-01-31T12:34:56Z", "2026-01-31 12:34:56+00:00", "1677-09-22"),
    *("2026-01-31T12:34:56.5+05:30", "2026-01-31 12:34:56-0800"),
    *("2026-01-31 12:34:56 UTC", "2024-02-29T23:00:00-01:00", "2261-01-01"),
    *("2026-01-31 12:34:56 GMT", "2026-01-31T12:34+02"),
    "2026-01-31 12:34:56.123456 +0530",
]
_BAD = [
    *("2026-02-30", "2026-13-01", "2026-01-31T25:00:00", "2026-01-31X", "noon"),
    *("2026-01-31T12:34:56+99:00", "2026-1-1", "31.01.2026", "--5"),
    *("9" * 30, "2026-01-31T12:34:56Z5", "2026-01-31 12:34:56 CET"),
]
_NUMBERS = ["0", "-1", "1767268800", "1767268800123", "-1500", "+7", " 8 "]


def _seconds(text):
    """Rounded down, by pandas."""
    return pandas.to_datetime(text, utc=True).value // 10**9


class SecondsTest(parameterized.TestCase):
    def test_of_texts(self):
        found, bad = times.to_seconds(pa.array([*_TEXTS, *_BAD]), "s")
        self.assertEqual(bad, list(range(len(_TEXTS), len(_TEXTS + _BAD))))
        expected = [_seconds(text) for text in _TEXTS]
        self.assertEqual(found.to_pylist(), expected + [None] * len(_BAD))

    @parameterized.parameters(*times.UNITS)
    def test_of_numbers_in_each_form(self, unit):
        count = times.UNITS[unit]
        values = [int(text) for text in _NUMBERS]
        forms = [_NUMBERS, values, [float(v) for v in values]]
        forms.append(pa.array(values, pa.decimal128(38, 0)))
        forms.append([f"{v}.25" for v in values])
        forms.append([v + 0.25 for v in values])
        for form in forms:
            found, bad = times.to_seconds(pa.array(form), unit)
            floors = [math.floor(float(v)) for v in pa.array(form).to_pylist()]
            expected = [one // count for one in floors]
            self.assertEqual((found.to_pylist(), bad), (expected, []), form)
        expected = [value // count for value in values]
        mixed = pa.array([*_NUMBERS, None, "2026-01-31", "x", "-0.5"])
        found, bad = times.to_seconds(mixed, unit)
        more = [None, _seconds("2026-01-31"), None, -1]
        self.assertEqual(found.to_pylist(), expected + more)
        self.assertEqual(bad, [len(_NUMBERS) + 2])

    def test_of_numbers_that_are_too_large(self):
        for values in (
            pa.array([2**63, 5], pa.uint64()),
            pa.array([2.0**63, 5.0]),
            pa.array([float("inf"), 5.0]),
            pa.array([-1e300, 5.0]),
            pa.array([float("nan"), 5.0]),
            pa.array([float("inf"), 5.0], pa.float32()),
            pa.array([str(2**63), "5"]),
            pa.array([f"{2**63}.5", "5"]),
        ):
            found, bad = times.to_seconds(values, "ms")
            self.assertEqual((found.to_pylist(), bad), ([None, 0], [0]))

    def test_of_types_of_arrow(self):
        moments = [
            datetime.datetime(2026, 1, 31, 12, 34, 56),
            None,
            datetime.datetime(1969, 12, 31, 23, 59, 59, 999000),
        ]
        expected = [_seconds("2026-01-31 12:34:56"), None, -1]
        for type_ in (
            *(pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns")),
            pa.timestamp("us", "UTC"),
            pa.timestamp("ns", "Asia/Tokyo"),
        ):
            found, bad = times.to_seconds(pa.array(moments, type_), "s")
            self.assertEqual((found.to_pylist(), bad), (expected, []), type_)
        days = pa.array([moments[0].date(), None, moments[2].date()])
        for type_ in (pa.date32(), pa.date64()):
            found, _ = times.to_seconds(days.cast(type_), "ns")
            expected = [_seconds("2026-01-31"), None, -86_400]
            self.assertEqual(found.to_pylist(), expected)


class ReadTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.path = pathlib.Path(folder) / "file"

    def _read(self, fields, format, source=None, **kwargs):
        source = self.path if source is None else source
        return read_whole(source, fields, format, **kwargs)

    def test_of_csv(self):
        rows = [*_TEXTS, "1767268800000", "", "x"]
        lines = [f'{n},"{t}",{t}|5|\n' for n, t in enumerate(rows)]
        self.path.write_text("".join(lines))
        fields = [
            Field("n", "int64"),
            Field("t", "int64", time="ms", default=-7),
            Field("bag", "int64", time="ms", separator="|"),
        ]
        found, errors = self._read(fields, "csv")
        expected = [*map(_seconds, _TEXTS), 1767268800]
        self.assertEqual(found["n"], list(range(len(expected))))
        self.assertEqual(found["t"], expected)
        self.assertEqual(found["bag"], [[second, 0] for second in expected])
        # An empty text is a time that is missing, but none in a bag.
        self.assertEqual(errors, {"bad time": 2})

    def test_missing_ones(self):
        self.path.write_text("1,\n2,5\n")
        for default, expected in ((0, [0, 5]), (None, [5])):
            fields = [Field("n", "int64")]
            fields.append(Field("t", "int64", time="s", default=default))
            found, errors = self._read(fields, "csv")
            self.assertEqual(found["t"], expected)
            self.assertEqual(bool(errors), default is None)

    def test_of_json(self):
        values = [5, "2026-01-31T00:00:00Z", 1767268800.75, None, "7", -0.5, 0]
        lines = [
            {"n": n, "e": {"at": v}, "iso": "2026-01-31", "many": [v, 3]}
            for n, v in enumerate(values)
        ]
        lines[3]["many"] = None
        bad = [True, "x", [1], 2**64, {"a": 1}]
        lines += [{"n": 9, "e": {"at": v}, "iso": "1969-12-31"} for v in bad]
        self.path.write_text("\n".join(map(json.dumps, lines)))
        fields = [
            Field("n", "int64"),
            Field("e.at", "int64", time="s", default=-9),
            Field("iso", "int64", time="ns"),
            Field("many", "int64", time="s", bag=True),
        ]
        found, errors = self._read(fields, "jsonl")
        day = _seconds("2026-01-31")
        expected = [5, day, 1767268800, -9, 7, -1, 0]
        many = [[one, 3] for one in expected]
        many[3] = []
        # A list of dates and numbers is malformed.
        del expected[1], many[1]
        self.assertEqual(found["n"], [0, 2, 3, 4, 5, 6])
        self.assertEqual(found["e.at"], expected)
        self.assertEqual(found["iso"], [day] * 6)
        self.assertEqual(found["many"], many)
        self.assertEqual(errors, {"wrong type": 3, "bad time": 3})

    def test_of_frames_and_parquet(self):
        at = pandas.to_datetime(["2026-01-31 12:34:56.7", None])
        frame = pandas.DataFrame({"at": at, "zone": at.tz_localize("UTC")})
        frame["text"] = ["2026-01-31T12:34:56Z", None]
        frame["ms"] = [1769862896700, None]
        fields = [Field(name, "int64", time="ms", default=0) for name in frame]
        expected = {name: [1769862896, 0] for name in frame}
        found, errors = self._read(fields, "csv", frame)
        self.assertEqual((found, errors), (expected, {}))
        frame.to_parquet(self.path)
        found, errors = self._read(fields, "parquet")
        self.assertEqual((found, errors), (expected, {}))
        # Without a unit, it is no number.
        with self.assertRaisesRegex(ValueError, "'at' of table 0 must be num"):
            self._read([Field("at", "int64")], "csv", frame)

    def test_hours_of_a_time_column(self):
        self.path.write_text("2026-01-31T12:34:56Z\n2026-01-30 12:00:00\n")
        found, _ = self._read([Field("t", "int64", time="s")], "csv")
        hour = tf_ext.feature_column.time_column("t")
        signs = hour.signs(np.array(found["t"]))
        self.assertEqual(int(signs[0]), int(signs[1]))


class ArgumentsTest(parameterized.TestCase):
    @parameterized.parameters(
        {"time": "min"},
        {"time": 5},
        {"time": "s", "dtype": "int32"},
        {"time": "s", "dtype": "string"},
        {"time": "s", "values": {"a": 1}},
    )
    def test_refused(self, **arguments):
        with self.assertRaisesRegex(ValueError, "`time` of Field 'x' must be"):
            Field("x", **{"dtype": "int64", **arguments})


if __name__ == "__main__":
    absltest.main()
