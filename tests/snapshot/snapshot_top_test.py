# SPDX-License-Identifier: Apache-2.0
"""The first rows of a snapshot, against NumPy on exported rows."""

import re

import numpy as np
import pytest
import snapshot_util as util
import tensorflow as tf
from absl.testing import parameterized
from models.small_rows import DTYPES, make_table, train
from oracles import snapshot_files_util as files
from saving_util import TestCase

import tf_ext
from tf_ext.snapshot import top

pytestmark = pytest.mark.slow_tests(
    "TopTest::test_rows_of_a_chain_in_shards[124]",
)


_ALL = 1000  # More rows than any table here has.


def _save_chain(path, table):
    """A full snapshot, and a delta with new, changed and erased rows."""
    train(table, range(400))
    table.save(f"{path}/0", incremental=True)
    train(table, range(350, 500), seed=1, step=7)
    train(table, range(480, 490), seed=2, step=9)
    table.erase(range(5))
    table.save(f"{path}/1", base=f"{path}/0")
    return f"{path}/1"


def _expected(table, by, count):
    """`(signs, values, weights)` by sorting all rows."""
    signs, fields = table.export_rows()
    weights = np.asarray(fields["weights"], np.float64)
    if by == "norm":
        values = np.sqrt(np.square(weights).sum(1))
    else:
        values = np.asarray(fields[by], np.float64).reshape(-1)
    order = sorted(range(len(signs)), key=lambda i: (-values[i], signs[i]))
    first = order[:count]
    return signs[first], values[first], weights[first]


class TopTest(TestCase):
    def setUp(self):
        super().setUp()
        self.snapshot = self.path("x")

    def _fail(self, status, message, *arguments):
        found, out, err = util.run_command("top", *arguments)
        self.assertEqual((found, out), (status, ""), err)
        self.assertRegex(
            err, rf"^python -m tf_ext.snapshot: error: {message}\n$"
        )

    def _lines(self, *arguments):
        status, out, err = util.run_command("top", *arguments)
        self.assertEqual((status, err), (0, ""))
        return [re.split(" {2,}", line.strip()) for line in out.splitlines()]

    @parameterized.parameters(("float32", "float32"), *DTYPES)
    def test_rows_of_a_chain_in_shards(self, *dtypes):
        table = make_table(dtypes, shards=3)
        path = _save_chain(self.path("chain"), table)
        for by in top.ORDERS:
            for count in (1, 20, _ALL):
                found = top.top_rows(path, by, count)
                signs, values, weights = _expected(table, by, count)
                self.assertLen(found.signs, min(count, 495))
                self.assertAllEqual(found.signs, signs)
                self.assertAllClose(found.values, values, 1e-12, 0)
                self.assertAllEqual(found.weights, weights)

    def test_rows_in_many_chunks(self):
        # Ties, of which the smallest signs are first, are in all chunks.
        chunks = [
            {"rows": [(sign, float(sign % 7)) for sign in range(at, at + 50)]}
            for at in range(0, 1000, 50)
        ]
        files.write(self.snapshot, chunks)
        found = top.top_rows(self.snapshot, "norm", 30)
        self.assertAllEqual(found.signs, np.arange(30) * 7 + 6)
        self.assertAllEqual(found.values, np.full(30, 6.0))

    def test_what_is_not_finite_or_very_large(self):
        large = float(np.float32(3e38))
        rows = [(1, -large), (2, 1.0), (-3, np.inf), (4, np.nan), (5, -2.0)]
        files.write(self.snapshot, [{"rows": rows[:2]}, {"rows": rows[2:]}])
        found = top.top_rows(self.snapshot, "norm", 4)
        self.assertAllEqual(found.signs, [-3, 4, 1, 5])
        self.assertAllEqual(found.values, [np.inf, np.nan, large, 2.0])
        self.assertAllEqual(top.top_rows(self.snapshot, "norm", 1).signs, [-3])

    def test_large_float16_weights(self):
        table = make_table(("float16", "float32"))
        train(table, [7])
        weights = np.full([1, 3], 60000.0, np.float32)
        table.import_rows([7], {"weights": weights})
        table.save(self.snapshot)
        found = top.top_rows(self.snapshot, "norm", 1)
        stored = float(np.float16(60000.0))
        self.assertAllClose(found.values, [stored * 3**0.5], 1e-12, 0)

    def test_command(self):
        table = make_table()
        path = _save_chain(self.path("chain"), table)
        heading, *lines = self._lines(path)
        self.assertEqual(heading, ["sign", "norm", "weights"])
        signs, values, weights = _expected(table, "norm", 20)
        self.assertEqual(
            lines,
            [
                [str(sign), f"{value:.6g}", " ".join(f"{w:.4g}" for w in row)]
                for sign, value, row in zip(signs, values, weights)
            ],
        )
        heading, first, *_ = self._lines(path, "--by=last_seen", "--count=3")
        self.assertEqual(heading[1], "last_seen")
        self.assertEqual(first[:2], ["480", "9"])
        self.assertLen(self._lines(path, "--by=show", "--count=3"), 4)

    def test_words(self):
        for by, value, unit, text in (
            ("show", 1234567.0, None, "1,234,567"),
            ("show", 1234.5678, None, "1234.57"),
            ("norm", float("nan"), None, "nan"),
            ("norm", float("inf"), None, "inf"),
            ("last_seen", 12345.0, "step", "12,345"),
            ("last_seen", -1.0, "second", "never"),
            ("last_seen", 0.0, "step", "0"),
            (
                "last_seen",
                86400.0 * 366 + 1,
                "second",
                "2021-01-01 00:00:01 UTC",
            ),
            ("last_seen", 2.0**31 - 1, "second", "2088-01-19 03:14:07 UTC"),
        ):
            self.assertEqual(top.in_words(by, value, unit), text)

    def test_seconds_are_a_time(self):
        table = make_table(eviction=tf_ext.eviction.Unseen(seconds=60))
        table.push([1], np.ones([1, 3]), 1, statistics=np.ones([1, 2]))
        table.pull([2], training=True)
        table.save(self.snapshot)
        _, pushed, pulled = self._lines(self.snapshot, "--by=last_seen")
        self.assertRegex(pushed[1], r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC$")
        self.assertEqual(pulled[:2], ["2", "never"])

    def test_long_rows_are_cut(self):
        table = tf_ext.SparseTable("wide", dim=6, initializer="zeros")
        table.pull([3], training=True)
        table.save(self.snapshot)
        self.assertEqual(
            self._lines(self.snapshot)[1], ["3", "0", "0 0 0 0 ..."]
        )

    def test_no_rows(self):
        table = util.table()
        table.save(self.snapshot)
        self.assertEqual(
            self._lines(self.snapshot), [["sign", "norm", "weights"]]
        )

    def test_errors(self):
        table = util.table(name="deep")
        util.push(table, range(9))
        table.save(self.snapshot)
        for by in ("show", "click", "last_seen"):
            self._fail(
                2,
                "Argument `by` of top must be norm for table 'deep', whose "
                f"rows have .* weights, accumulator: .* Received: by='{by}'",
                *(self.snapshot, f"--by={by}"),
            )
        self._fail(
            2,
            "Argument `count` of top must be an integer of at least 1.*=0",
            *(self.snapshot, "--count=0"),
        )
        self._fail(2, "There is no snapshot in '/none': .*", "/none")
        status, _, err = util.run_command(
            "top", self.snapshot, "--by=accumulator"
        )
        self.assertEqual(status, 2)
        self.assertIn("invalid choice: 'accumulator'", err)
        with self.assertRaisesRegex(ValueError, "`by` of top must be norm"):
            top.top_rows(self.snapshot, "accumulator", 1)

    def test_damage(self):
        table = util.table()
        util.push(table, range(9))
        table.save(self.snapshot)
        (file,) = util.data_files(self.snapshot)
        with open(file, "r+b") as opened:
            opened.seek(100)
            opened.write(b"\xff\xff")
        self._fail(1, rf"{file} is damaged at byte 0: .*", self.snapshot)


if __name__ == "__main__":
    tf.test.main()
