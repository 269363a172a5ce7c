# SPDX-License-Identifier: Apache-2.0
"""Streams of files that appear in a directory."""

import gzip
import json
import math
import os
import pathlib
import tempfile
import time
from unittest import mock

import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_ext

Field, Schema = tf_ext.data.Field, tf_ext.data.Schema
_X = Schema([Field("x", "int64")])


class DirectoryTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.folder = pathlib.Path(folder)
        self.progress = tf_ext.data.StreamProgress()

    def _stream(self, format="csv", source=None, **options):
        options = {"batch_size": 2, "follow": False, **options}
        return tf_ext.data.stream(
            source or tf_ext.data.DirectorySource(self.folder),
            *(_X, format),
            progress=self.progress,
            **options,
        )

    def _all(self, data):
        found = []
        for batch in data:
            found += batch["x"].numpy().tolist()
            self.progress.advance()
        return found

    def _write(self, name, *numbers):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{n}\n" for n in numbers))

    def test_files_are_read_in_order_once(self):
        self._write("b", 3, 4, 5)
        self._write("a", 1, 2)
        self._write("_x", 9)
        self._write(".y", 9)
        data = self._stream()
        self.assertEqual(self._all(data), [1, 2, 3, 4, 5])
        self._write("c", 6)
        self._write("aa", 9)  # Too late.
        self._write("_SUCCESS")
        self.assertEqual(self._all(data), [6])
        self.assertEqual(self._all(data), [])

    def test_batches_are_full_whatever_is_read_at_once(self):
        self._write("a", *range(1000))
        with mock.patch.object(tf_ext.data.lines, "BLOCK_BYTES", 100):
            batches = [
                batch["x"].numpy().tolist()
                for batch in self._stream(batch_size=64)
            ]
        self.assertEqual([len(x) for x in batches], 15 * [64] + [40])
        self.assertEqual([x for one in batches for x in one], [*range(1000)])

    def test_a_file_that_is_begun_in_the_middle(self):
        self._write("a", *range(100))
        source = tf_ext.data.DirectorySource(self.folder)
        with mock.patch.object(tf_ext.data.lines, "BLOCK_BYTES", 50):
            for skipped in range(1, 101, 3):
                consumer = source.open({".": ["a", skipped]}, False)
                left = []
                while (some := consumer.poll(7, 0.0)) is not None:
                    left += some
                consumer.close()
                self.assertEqual(
                    left.pop(), (".", ["a", None], None, None, {}, None)
                )
                self.assertEqual(
                    [(one.position, int(one.value)) for one in left],
                    [(["a", n + 1], n) for n in range(skipped, 100)],
                )

    def test_files_are_closed(self):
        self._write("a", *range(100))
        source = tf_ext.data.DirectorySource(self.folder)
        runs, opened = source.runs, []

        def noted(*args):
            opened.append(runs(*args))
            return opened[-1]

        with (
            mock.patch.object(tf_ext.data.lines, "BLOCK_BYTES", 50),
            mock.patch.object(source, "runs", noted),
        ):
            source.open({".": ["", None]}, False).close()
            self.assertEmpty(opened)
            consumer = source.open({".": ["", None]}, False)
            self.assertLen(consumer.poll(7, 0.0), 7)
            self.assertIsNotNone(opened[0].gi_frame)
            consumer.close()
            self.assertIsNone(opened[0].gi_frame)

    def test_values_have_no_line_breaks(self):
        (self.folder / "a").write_bytes(b"1\r\n2\n\r\n3\r\r\n4\r")
        source = tf_ext.data.DirectorySource(self.folder)
        consumer = source.open({".": ["", None]}, False)
        self.assertEqual(
            [one.value for one in consumer.poll(9, 0.0)],
            [b"1", b"2", b"", b"3\r", b"4", None],
        )

    def test_times_have_fractions(self):
        self._write("a", 1)
        os.utime(self.folder / "a", ns=(0, 1_000_250_000_000))
        self._all(self._stream())
        self.assertEqual(self.progress.event_time, 1000.25)

    def test_folders_are_partitions(self):
        self._write("w2/a", 1, 2, 3)
        self._write("w1/z", 4)
        data = self._stream()
        self.assertCountEqual(self._all(data), [1, 2, 3, 4])
        self._write("w1/zz", 5)
        self._write("w2/b", 6)
        self.assertCountEqual(self._all(data), [5, 6])
        self.assertCountEqual(self.progress.positions, ["w1", "w2"])

    def test_until_when_partitions_were_read(self):
        self._write("one/a", *range(3))
        self._write("two/a", 3)
        source = tf_ext.data.DirectorySource(self.folder)
        positions = {name: ["", None] for name in ("one", "two")}
        begin = time.time()
        consumer = source.open(positions, True)
        self.assertEmpty(consumer.read_until())
        self.assertLen(consumer.poll(2, 0.0), 2)
        self.assertEmpty(consumer.read_until())
        while consumer.poll(2, 0.0):
            self.assertNotIn("one", consumer.read_until())
        until = consumer.read_until()
        self.assertEqual({*until}, {"one", "two"})
        self.assertBetween(until["one"], begin, time.time())
        consumer = source.open(positions, False)
        while consumer.poll(9, 0.0) is not None:
            pass
        self.assertEqual(
            consumer.read_until(), dict.fromkeys(positions, math.inf)
        )

    def test_new_files_are_seen(self):
        self._write("a", 1)
        batches = iter(self._stream(follow=True, max_delay=0.1))
        self.assertEqual(next(batches)["x"].numpy().tolist(), [1])
        self._write(".b", 2)
        (self.folder / ".b").rename(self.folder / "b")
        self.assertEqual(next(batches)["x"].numpy().tolist(), [2])
        with self.assertLogs("tf_ext", "WARNING") as logs:
            self._write("aa", 9)
            self._write("c", 3)
            self.assertEqual(next(batches)["x"].numpy().tolist(), [3])
        self.assertIn("'aa'", logs.output[0])

    def test_file_systems_without_a_folder_of_the_root(self):
        folder = f"ram://{self.folder.name}"
        tf.io.gfile.makedirs(folder)
        with tf.io.gfile.GFile(f"{folder}/a", "w") as file:
            file.write("1\n2\n")
        source = tf_ext.data.DirectorySource(folder)
        self.assertEqual(source.position(".", "latest"), ["a", None])
        self.assertEqual(self._all(self._stream(source=source)), [1, 2])

    @mock.patch.object(tf_ext.data.directory_source, "_LIST_SECONDS", 0.0)
    def test_a_file_that_comes_back_is_not_read_again(self):
        self._write("a", 1)
        self._write("b", 2)
        source = tf_ext.data.DirectorySource(self.folder)
        consumer = source.open({".": ["", None]}, True)
        for _ in range(2):
            consumer.poll(2, 0.0)
        (self.folder / "b").unlink()
        self.assertEmpty(consumer.poll(9, 0.0))
        self._write("b", 3)
        self._write("c", 4)
        with self.assertLogs("tf_ext", "WARNING") as logs:
            found = consumer.poll(9, 0.0)
        self.assertEqual([one.value for one in found], [b"4", None])
        self.assertIn("'b'", logs.output[0])

    def test_kinds_of_files(self):
        with gzip.open(self.folder / "a.gz", "wb") as file:
            file.write(b"1\r\n2")
        source = tf_ext.data.DirectorySource(self.folder, "*.gz")
        self._write("b", 9)
        self.assertEqual(self._all(self._stream(source=source)), [1, 2])

    def test_records(self):
        path = str(self.folder / "a")
        with tf.io.TFRecordWriter(path) as writer:
            for n in range(5):
                writer.write(json.dumps({"x": n}).encode())
        data = pathlib.Path(path).read_bytes()
        changed = data.replace(b'{"x": 3}', b'{"x": 9}')
        pathlib.Path(path).write_bytes(changed)
        source = tf_ext.data.DirectorySource(self.folder, records="tfrecord")
        errors = tf_ext.data.ReadErrors()
        data = self._stream("jsonl", source, errors=errors, max_errors=0.5)
        self.assertEqual(self._all(data), [0, 1, 2, 4])
        self.assertEqual(errors.by_reason(), {"empty message": 1})

    def test_latest(self):
        source = tf_ext.data.DirectorySource(self.folder)
        self.assertEqual(source.partitions(), ["."])
        self.assertEqual(source.position(".", "latest"), ["", None])
        self._write("a", 1)
        self.assertEqual(source.position(".", "latest"), ["a", None])

    @parameterized.parameters(
        (["b", 2], "'b' of the partition '.' is gone"),
        (["a", 3], "fewer than the 3 records"),
    )
    def test_files_that_are_gone(self, position, named):
        self._write("a", 1, 2)
        self._write("c", 3)
        data = self._stream()
        self.progress.restore({"positions": {".": position}})
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, f"LostRecordsError: .*{named}"
        ):
            list(data)

    def test_files_that_were_trained_on_may_go(self):
        self._write("a", 1, 2)
        self._write("c", 3)
        self.progress.restore({"positions": {".": ["b", None]}})
        self.assertEqual(self._all(self._stream()), [3])

    @parameterized.parameters(
        (3,), ("a",), (["a"],), ([3, 1],), (["a", 0],), (["", 1],)
    )
    def test_positions_that_are_none(self, position):
        source = tf_ext.data.DirectorySource(self.folder)
        with self.assertRaisesRegex(
            tf_ext.data.SourceError, "must be .name of a file"
        ):
            source.open({".": position}, True)

    @parameterized.parameters(
        ({"pattern": "a/b"}, "pattern"), ({"records": "csv"}, "records")
    )
    def test_arguments(self, changed, named):
        with self.assertRaisesRegex(ValueError, f"`{named}` of Directory"):
            tf_ext.data.DirectorySource(self.folder, **changed)


if __name__ == "__main__":
    absltest.main()
