# SPDX-License-Identifier: Apache-2.0
"""A table with as many rows as users have, in one process."""

import json
import tempfile

import processes
import pytest
import tensorflow as tf

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow,
]

_ROWS = 150_000_000
_TIMEOUT_SECONDS = 3600


class ScaleTest(tf.test.TestCase):
    def _measure(self, rows):
        with tempfile.TemporaryDirectory(prefix="tf_ext_scale_") as folder:
            output = processes.run(
                "scale_program.py",
                *(rows, folder),
                timeout_seconds=_TIMEOUT_SECONDS,
            )
        print(output)
        return json.loads(output.strip().splitlines()[-1])

    def test_rows_survive_all_stages(self):
        # The program itself checks rows and counts.
        measured = self._measure(200_000)
        self.assertLen(measured["stages"], 6)

    @pytest.mark.slow
    @pytest.mark.timeout(_TIMEOUT_SECONDS + 60)
    def test_memory_of_many_rows(self):
        measured = self._measure(_ROWS)
        for name, stage in measured["stages"].items():
            self.assertLess(stage["times_raw"], 1.25, name)


if __name__ == "__main__":
    tf.test.main()
