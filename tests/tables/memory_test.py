# SPDX-License-Identifier: Apache-2.0
"""How much memory tables take, while they are saved too, and give back."""

import json
import tempfile

import processes
import pytest
import tensorflow as tf
from absl.testing import parameterized

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "RowTest::*",
    ),
]

_MIB = 1 << 20

# Buffers of one chunk, and what Python and HDF5 keep, whatever the rows.
_FIXED_BYTES = 96 * _MIB

_ROWS = 2_000_000
_MANY_ROWS = 10_000_000
_FEW_ROWS = 100_000


def _measure(what, rows, *rest):
    output = processes.run(
        "memory_program.py", what, rows, *rest, timeout_seconds=900
    )
    line = output.strip().splitlines()[-1]
    print(what, line)
    return json.loads(line)


class RowTest(tf.test.TestCase):
    def _assert_small(self, rows):
        measured = _measure("insert", rows)
        self.assertGreater(measured["rows"], 0.99 * rows)
        self.assertLess(measured["times_raw"], 1.25)
        self.assertLess(measured["bytes_per_empty_table"], _MIB)

    def test_bytes_of_a_row_and_of_an_empty_table(self):
        self._assert_small(_ROWS)

    @pytest.mark.slow
    @pytest.mark.timeout(1000)
    def test_bytes_of_a_row_among_many(self):
        self._assert_small(_MANY_ROWS)


class PeakTest(parameterized.TestCase, tf.test.TestCase):
    def _measure(self, kind, rows):
        with tempfile.TemporaryDirectory(prefix="tf_ext_memory_") as directory:
            return _measure(kind, rows, directory)

    def test_of_saving_and_restoring(self):
        self._assert_small("checkpoint")

    @parameterized.parameters("keras", "weights")
    @pytest.mark.slow
    def test_of_saving_and_restoring_in_other_formats(self, kind):
        self._assert_small(kind)

    def _assert_small(self, kind):
        measured = self._measure(kind, _ROWS)
        for name in measured["times_table"]:
            self.assertLess(
                measured[name], 2.2 * measured["table"] + _FIXED_BYTES, name
            )

    @parameterized.parameters("keras", "weights", "checkpoint")
    @pytest.mark.slow
    @pytest.mark.timeout(1000)
    def test_of_saving_and_restoring_many(self, kind):
        measured = self._measure(kind, _MANY_ROWS)
        for name, times in measured["times_table"].items():
            self.assertLess(times, 2.2, name)


class FreeTest(tf.test.TestCase):
    def test_memory_goes_back_with_the_last_reference(self):
        measured = _measure("free", _ROWS)
        for name, memory in measured.items():
            self.assertGreater(memory["table"], 100 * _MIB)
            self.assertLess(memory["left"], 0.2 * memory["table"], name)

    def test_memory_goes_back_with_each_model_that_was_served(self):
        with tempfile.TemporaryDirectory(prefix="tf_ext_memory_") as directory:
            measured = _measure("serve", _FEW_ROWS, directory)
        size = 72 * _FEW_ROWS  # signs, and 16 weights of each
        growth = measured["left"][-1] - measured["left"][4]
        self.assertLess(growth, 0.5 * size)
        self.assertGreater(measured["table"], size)

    @pytest.mark.slow
    @pytest.mark.timeout(1000)
    def test_memory_goes_back_with_each_export_that_was_served(self):
        rows = 4_000_000
        with tempfile.TemporaryDirectory(prefix="tf_ext_memory_") as directory:
            measured = _measure("stock", rows, directory)
        left = measured["left"]
        self.assertLess(left[-1], 1.02 * left[4])
        # Buffers of chunks and slices, which are less than the rows.
        self.assertLess(measured["export"], 2 * _FIXED_BYTES)


class ChurnTest(tf.test.TestCase):
    """Ids that come and go, of which some get rows and most do not."""

    def _churn(self, steps):
        output = processes.run(
            "churn_program.py", steps, timeout_seconds=60 + steps // 500
        )
        measured = json.loads(output.strip().splitlines()[-1])
        print("churn", measured)
        rows, admitted, evicted = measured["rows"]
        self.assertEqual(rows, admitted - evicted)
        self.assertGreater(evicted, steps)
        for name in ("bytes", "resident"):
            half = len(measured[name]) // 2
            before, after = measured[name][:half], measured[name][half:]
            self.assertLess(max(after), 1.02 * max(before), name)
        self.assertLessEqual(max(measured["probes"]), 4)
        return measured

    def test_memory_is_flat(self):
        self._churn(50_000)

    @pytest.mark.slow
    @pytest.mark.timeout(2500)
    def test_memory_and_look_ups_stay_as_they_are(self):
        seconds = self._churn(1_000_000)["seconds"]
        self.assertLess(min(seconds[-5:]), 1.25 * min(seconds[:5]))


if __name__ == "__main__":
    tf.test.main()
