# SPDX-License-Identifier: Apache-2.0
"""Arrays of any layout as arguments of tf_ext._core."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from ops_util import run_python
from paths import PROGRAMS
from programs.hashing_arrays_program import layouts

from tf_ext import _core

pytestmark = pytest.mark.slow_tests(
    "HashedArraysTest::test_signs_or_errors_with__threads",
    "HashedArraysTest::test_signs_or_errors_with_little_memory",
)

_PROGRAM = PROGRAMS / "hashing_arrays_program.py"
_RUN = """
import runpy, sys, warnings
if sys.argv[2] == "warnings":
    warnings.simplefilter("error")
sys.argv = [sys.argv[1], *sys.argv[2:]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class HashedArraysTest(parameterized.TestCase):
    """In processes of their own, which may crash."""

    @parameterized.named_parameters(
        (mode, mode) for mode in ("kinds", "raise", "warnings", "threads")
    )
    def test_signs_or_errors_with_(self, mode):
        self.assertEqual(run_python(_RUN, _PROGRAM, mode), "done\n")

    def test_signs_or_errors_with_little_memory(self):
        refused, done = run_python(_RUN, _PROGRAM, "memory").split()
        self.assertEqual(done, "done")
        self.assertGreater(int(refused), 0)


def _block(path, records):
    """Examples in the format of TFRecord."""
    with tf.io.TFRecordWriter(path) as writer:
        for i in range(records):
            feature = tf.train.Feature(
                int64_list=tf.train.Int64List(value=[i - 2])
            )
            features = tf.train.Features(feature={"a": feature})
            writer.write(
                tf.train.Example(features=features).SerializeToString()
            )
    with open(path, "rb") as file:
        return file.read()


class DecodedRecordsTest(tf.test.TestCase):
    def test_ranges_are_arrays_of_any_layout(self):
        block = _block(self.get_temp_dir() + "/records", 5)
        begins, ends, *_ = _core.split_records(block)
        fields = [("a", "int64", False)]
        for (name, some), (_, others) in zip(
            layouts("ranges", begins), layouts("ranges", ends), strict=True
        ):
            [(values, _)], errors = _core.decode_examples(
                block, some, others, fields
            )
            order = np.searchsorted(begins, some.ravel())
            self.assertEqual(values.tolist(), (order - 2).tolist(), name)
            self.assertEqual(errors.tolist(), [0] * some.size, name)

    def test_ranges_outside_of_the_block_are_refused(self):
        block = _block(self.get_temp_dir() + "/records", 2)
        begins, ends, *_ = _core.split_records(block)
        for some, others in (
            (begins - 1000, ends),
            (begins, ends + 1000),
            (ends, begins),
            (np.array([np.iinfo(np.int64).min]), np.array([0])),
            (np.array([0]), np.array([np.iinfo(np.int64).max])),
        ):
            with self.assertRaisesRegex(ValueError, "within the block"):
                _core.decode_examples(block, some, others, [])
        with self.assertRaisesRegex(ValueError, "of the same size"):
            _core.decode_examples(block, begins, ends[:1], [])
        with self.assertRaises(TypeError):
            _core.decode_examples(block, begins + 0.5, ends, [])


class TextLinesTest(absltest.TestCase):
    def test_ends_are_an_array_of_any_layout(self):
        text = b'"a\n"\nb\n"c""\n'
        ends = _core.line_ends(text)
        self.assertEqual(ends.tolist(), [2, 4, 6, 11])
        self.assertEqual(_core.lines_with_odd_quotes(text).tolist(), [0, 1, 3])
        self.assertEqual(
            _core.wrongly_quoted(text, ends[1:], b",").tolist(), [2]
        )
        for name, some in layouts("ends", ends[1:]):
            same = np.ascontiguousarray(some.ravel(), np.int64)
            self.assertEqual(
                _core.wrongly_quoted(text, some, b",").tolist(),
                _core.wrongly_quoted(text, same, b",").tolist(),
                name,
            )

    def test_arguments(self):
        ends = np.array([1])
        for separator in (b"", b",,"):
            with self.assertRaisesRegex(ValueError, "one byte"):
                _core.wrongly_quoted(b"a\n", ends, separator)
        for text, some in (("a\n", ends), (b"a\n", ends + 0.5)):
            with self.assertRaises(TypeError):
                _core.wrongly_quoted(text, some, b",")
        with self.assertRaises(TypeError):
            _core.line_ends("a\n")


class HashedColumnsTest(absltest.TestCase):
    def test_sizes_of_batches(self):
        hasher = _core.HashedColumns([("ns", 0, False, [(0, 0, None, [])])])
        values = np.array([1, 2])
        splits = np.array([], np.int64)
        with self.assertRaisesRegex(ValueError, "must not be negative"):
            hasher.hash(["id"], [values], [None], [None], -1)
        with self.assertRaisesRegex(ValueError, "id has no row splits"):
            hasher.hash(["id"], [values], [splits], [None], 2)


class SignArraysTest(absltest.TestCase):
    def test_signs_are_arrays_of_any_layout(self):
        signs = np.array([5, -1, 0, 2**62, 7])
        expected = dict(
            zip(signs.tolist(), _core.shard_of(signs, 3), strict=True)
        )
        for name, array in layouts("signs", signs):
            shards = _core.shard_of(array, 3).tolist()
            self.assertEqual(
                shards, [expected[sign] for sign in array.ravel()], name
            )
            added = _core.SignSet()
            added.add(array)
            self.assertLen(added, len(set(array.ravel().tolist())), name)


if __name__ == "__main__":
    absltest.main()
