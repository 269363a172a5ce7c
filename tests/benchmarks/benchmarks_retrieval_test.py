"""The benchmark of retrieval runs, at a tiny size."""

import contextlib
import importlib.util
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


class RetrievalBenchmarkTest(tf.test.TestCase):
    @pytest.mark.slow
    def test_all_cases(self):
        for library in ("keras_rs", "tensorflow_recommenders"):
            if importlib.util.find_spec(library) is None:
                self.skipTest(f"{library} is not installed")
        path = pathlib.Path(self.get_temp_dir(), "results")
        args = run.parse_arguments(
            ["retrieval", "--rows=200", "--repeats=2", f"--json={path}"]
        )
        with contextlib.redirect_stdout(io.StringIO()):
            run.run("retrieval", args, threads=2)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        self.assertEqual(
            [(line["queries"], line["k"], line["case"]) for line in lines],
            [
                (queries, k, case)
                for queries in (1, 16, 256)
                for k in (10, 100)
                for case in (
                    "tf_ext, Keras 3",
                    "keras-rs BruteForceRetrieval, Keras 3",
                    "tf_ext, tf_keras",
                    "TFRS BruteForce, tf_keras",
                )
            ],
        )


if __name__ == "__main__":
    tf.test.main()
