# SPDX-License-Identifier: Apache-2.0
"""The benchmark of serving runs, at a tiny size."""

import collections
import contextlib
import io
import json
import pathlib
import sys

import pytest
import tensorflow as tf
from paths import ROOT

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(ROOT / "benchmarks"))

import run

pytestmark = pytest.mark.slow


class ServingBenchmarkTest(tf.test.TestCase):
    def test_all_cases(self):
        folder = pathlib.Path(self.get_temp_dir())
        args = run.parse_arguments(
            [
                *("serving", "--rows=1000", "--dim=4", "--repeats=2"),
                f"--json={folder / 'results'}",
                f"--output={folder}",
            ]
        )
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            run.run("serving", args, threads=2)
        lines = [
            json.loads(line)
            for line in (folder / "results").read_text().splitlines()
        ]
        cases = collections.defaultdict(list)
        for line in lines:
            cases[line["benchmark"]].append(line["case"])
        dtypes = ["float32", "float16", "int8"]
        self.assertEqual(
            cases,
            {
                "serving sizes": [*dtypes, "ops"],
                "serving lookups": ["tf.gather", *dtypes] * 3,
                "serving latency": [*dtypes, "ops"] * 2,
                "serving accuracy": ["float32", "float16", "bfloat16", "int8"],
            },
        )
        self.assertIn("largest change of a probability", printed.getvalue())


if __name__ == "__main__":
    tf.test.main()
