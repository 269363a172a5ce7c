# SPDX-License-Identifier: Apache-2.0
"""Files of several schemas: columns that later files have, and older lack."""

import pathlib
import tempfile

import pandas
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_ext

pytestmark = pytest.mark.slow_tests(
    "FilesTest::test_older_files_have_the_defaults[02]",
)


Field, Schema = tf_ext.data.Field, tf_ext.data.Schema
_OLD = pandas.DataFrame({"user": ["ann", "bob"], "n": [1, 2]})
_NEW = pandas.DataFrame(
    {"user": ["cem"], "n": [3], "device": ["tv"], "age": [7], "tags": ["a|b"]}
)
_LATER = [
    Field("device", default="?", optional=True),
    Field("age", "int32", default=-1, optional=True),
    Field("tags", separator="|", optional=True),
]
_FIELDS = [Field("user"), Field("n", "int64")]


def _write(frame, path, format, header):
    if format == "parquet":
        frame.to_parquet(path)
    elif format == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        separator = "\t" if format == "tsv" else ","
        frame.to_csv(path, index=False, header=header, sep=separator)


class FilesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(
            self.enterContext(tempfile.TemporaryDirectory())
        )

    def _read(self, files, fields, format, header=False, **kwargs):
        rows = []
        for batch in tf_ext.data.read(
            files,
            Schema(fields),
            format,
            batch_size=16,
            header=header,
            **kwargs,
        ):
            columns = [
                value.to_list()
                if isinstance(value, tf.RaggedTensor)
                else value.numpy().tolist()
                for value in batch.values()
            ]
            rows += zip(*columns, strict=True)
        return rows

    def _files(self, format, header):
        files = []
        for name, frame in (("2026-02", _OLD), ("2026-03", _NEW)):
            files.append(self.folder / name)
            _write(frame, files[-1], format, header)
        return files

    @parameterized.parameters(
        ("csv", True),
        ("csv", False),
        ("tsv", False),
        ("parquet", False),
        ("jsonl", False),
    )
    def test_older_files_have_the_defaults(self, format, header):
        files = self._files(format, header)
        found = self._read(files, [*_FIELDS, *_LATER], format, header)
        expected = [
            (b"ann", 1, b"?", -1, []),
            (b"bob", 2, b"?", -1, []),
            (b"cem", 3, b"tv", 7, [b"a", b"b"]),
        ]
        self.assertEqual(found, expected)

    @parameterized.parameters(("csv", True), ("parquet", False))
    def test_are_refused_unless_the_user_says_so(self, format, header):
        files = self._files(format, header)
        fields = [*_FIELDS, Field("device"), *_LATER[1:]]
        message = r"2026-02 must have.*\['device'\].*optional=True"
        with self.assertRaisesRegex(Exception, message):
            self._read(files, fields, format, header)

    def test_without_names_most_records_of_the_first_block_decide(self):
        path = self.folder / "file"
        path.write_text("ann\nbob,1\ncem,2\ndan,3,tv\neve,4\n")
        errors = tf_ext.data.ReadErrors()
        found = self._read(
            path,
            [*_FIELDS, *_LATER[:2]],
            "csv",
            max_errors=1.0,
            errors=errors,
        )
        self.assertEqual([row[1] for row in found], [1, 2, 4])
        self.assertEqual(errors.by_reason(), {"wrong number of fields": 2})

    def test_without_names_they_are_the_last_ones(self):
        path = self.folder / "file"
        path.write_text("")
        fields = [_LATER[0], *_FIELDS]
        with self.assertRaisesRegex(
            ValueError, "`schema` of read must be .*last"
        ):
            self._read(path, fields, "csv")
        self.assertEmpty(self._read(path, fields, "csv", header=True))

    def test_of_which_a_file_has_none(self):
        path = self.folder / "file"
        path.write_text("x,y\n1,2\n3,4\n")
        found = self._read(path, _LATER, "csv", header=True)
        self.assertEqual(found, [(b"?", -1, [])] * 2)


if __name__ == "__main__":
    absltest.main()
