# SPDX-License-Identifier: Apache-2.0
"""The files of days."""

import datetime
import os
import pathlib
import tempfile

import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_ext


class ListFilesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.folder = pathlib.Path(folder)

    def _write(self, *names):
        for name in names:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).touch()

    def _list(self, *args, **kwargs):
        files = tf_ext.data.list_files(self.folder, *args, **kwargs)
        return [os.path.relpath(file, self.folder) for file in files]

    @parameterized.named_parameters(
        ("date", datetime.date(2024, 1, 31), {}),
        ("string", "2024-01-31", {}),
        ("one_in_a_list", [datetime.date(2024, 1, 31)], {}),
        ("time", datetime.datetime(2024, 1, 31, 5), {}),
        ("code_of_a_time", datetime.datetime(2024, 1, 31, 5),
         {"pattern": "{day:%Y-%m-%d}/*"}),
        ("integers", [31], {"pattern": "2024-01-{day:02}/*"}),
    )  # fmt: skip
    def test_of_one_day_sorted(self, days, kwargs):
        names = [f"2024-01-31/part-{i}" for i in (2, 10, 0, 1)]
        self._write(*names, "2024-01-30/part-0", "2024-01-310/part-0")
        self.assertEqual(self._list(days, **kwargs), sorted(names))

    def test_days_keep_their_order(self):
        self._write("1/b", "1/a", "2/a", "3/a")
        self.assertEqual(self._list([3, 1]), ["3/a", "1/a", "1/b"])
        self.assertEqual(self._list(iter(["2", "1"])), ["2/a", "1/a", "1/b"])

    @parameterized.named_parameters(
        ("folders", "{day:%Y/%m/%d}/part-*", "2024/03/01/part-7"),
        ("names", "day_{day:%Y%m%d}.tfrecord", "day_20240301.tfrecord"),
        ("twice", "{day:%Y}/{day}-*", "2024/2024-03-01-0"),
    )
    def test_patterns_of_dates(self, pattern, name):
        self._write(name, "2024/03/02/part-7", "2024/03/01/other")
        day = datetime.date(2024, 3, 1)
        self.assertEqual(self._list(day, pattern=pattern), [name])

    def test_leaves_out_what_is_no_data(self):
        self._write("1/a", "1/_SUCCESS", "1/.a.crc", "1/b_")
        self.assertEqual(self._list(1), ["1/a", "1/b_"])

    def test_another_file_system(self):
        for name in ("2/b", "2/a", "1/c"):
            path = f"ram://day_files/{name}"
            tf.io.gfile.makedirs(os.path.dirname(path))
            tf.io.gfile.GFile(path, "w").write("x")
        self.assertEqual(
            tf_ext.data.list_files("ram://day_files", [1, 2]),
            [f"ram://day_files/{name}" for name in ("1/c", "2/a", "2/b")],
        )

    def test_names_all_missing_days(self):
        self._write("2024-01-02/a", "2024-01-03/_SUCCESS")
        days = [datetime.date(2024, 1, day) for day in (1, 2, 3)]
        with self.assertRaises(FileNotFoundError) as caught:
            self._list(days)
        self.assertStartsWith(
            str(caught.exception),
            f"There are no files of 2 of 3 days: 2024-01-01 ({self.folder}/"
            f"2024-01-01/*), 2024-01-03 ({self.folder}/2024-01-03/*). The "
            "argument `days` of list_files must be written as in",
        )
        with self.assertRaisesRegex(FileNotFoundError, r"1 of 1 days: '7' \("):
            self._list("7")
        with self.assertRaises(FileNotFoundError):
            tf_ext.data.list_files(self.folder / "missing", "1")

    @parameterized.named_parameters(
        ("none", None), ("empty", []), ("twice", [1, 2, 1]), ("float", 1.0),
        ("bool", [True]), ("text", ""), ("bytes", [b"1"]),
    )  # fmt: skip
    def test_refuses_days(self, days):
        with self.assertRaisesRegex(
            ValueError, "`days` of list_files must be dates, strings or integ"
        ):
            self._list(days)

    @parameterized.named_parameters(
        ("without_day", "part-*"),
        ("another_field", "{date}/*"),
        ("position", "{}/*"),
        ("brace", "{day/*"),
        ("escaped", "{{day}}/*"),
        ("code", "{day:%Y}/*"),
        ("attribute", "{day.year}/*"),
    )
    def test_refuses_patterns(self, pattern):
        with self.assertRaisesRegex(
            ValueError,
            "`pattern` of list_files must be a pattern with a replacement "
            "field {day} that fits the days",
        ):
            self._list(["1"], pattern=pattern)


if __name__ == "__main__":
    absltest.main()
