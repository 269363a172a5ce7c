# SPDX-License-Identifier: Apache-2.0
"""Models of synchronous workers are saved, and loaded by any number of them."""

import itertools
import json
import pathlib
import tempfile

import numpy as np
import processes
import pytest
import tensorflow as tf
from clusters import multi_worker_util
from models import small_models

import tf_ext

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "SavingTest::test_saved_by_two_and_loaded_by_three_and_by_one",
    ),
]

_PROGRAM = "multi_worker_saving_program.py"


def _rows(folder, name):
    """The rows that all workers wrote, ordered by sign; removes the files."""
    parts = []
    for path in pathlib.Path(folder).glob(f"{name}.*.npz"):
        with np.load(path) as part:
            parts.append(dict(part))
        path.unlink()
    order = np.argsort(np.concatenate([part["signs"] for part in parts]))
    return {
        field: np.concatenate([part[field] for part in parts])[order]
        for field in parts[0]
    }


def _counters(results, way):
    """The period, and the counters of all workers."""
    [period] = {result[way]["counters"][0] for result in results}
    shares = [result[way]["counters"][1] for result in results]
    return period, sorted(map(tuple, itertools.chain(*shares)))


class SavingTest(tf.test.TestCase):
    def assert_loaded(self, results, folder, saved, rows, counters):
        for way in ("weights", "snapshot", "delta", "checkpoint", "keras"):
            self.assertEqual(_counters(results, way), counters)
            found = _rows(folder, way)
            self.assertCountEqual(found, rows)
            for field in rows:
                self.assertAllEqual(found[field], rows[field], msg=way)
            for result in results:
                self.assertEqual(result[way]["size"], len(rows["signs"]))
                self.assertAllClose(
                    result[way]["predictions"], saved["predictions"], 1e-6
                )

    def test_saved_by_two_and_loaded_by_three_and_by_one(self):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        first, second = multi_worker_util.run_json(_PROGRAM, "save", folder)
        saved = first["saved"]
        counters = _counters([first, second], "saved")
        self.assertGreater(len(counters[1]), 10)
        self.assertLess(min(count for _, count in counters[1]), 0)
        for name in ("predictions", "size"):
            self.assertEqual(second["saved"][name], saved[name])
        self.assertIn("missing", first["error"])
        self.assertIn("Worker 0 could not save", second["error"])
        self.assert_exported(first, second)
        for compacted in (first["compacted"], second["compacted"]):
            self.assertEqual(compacted["free"], [0, 0])
            self.assertEqual(compacted["given_back"], compacted["less"])
            self.assertGreater(compacted["less"], 10_000 * 8 * 4)
        rows = _rows(folder, "saved")
        self.assertGreater(rows["step"].max(), 1)
        self.assertLen(set(rows["signs"].tolist()), saved["size"])
        three = multi_worker_util.run_json(_PROGRAM, "load", folder, workers=3)
        self.assert_loaded(three, folder, saved, rows, counters)
        one = processes.run(_PROGRAM, "load", folder)
        one = json.loads(one.splitlines()[-1])
        self.assert_loaded([one], folder, saved, rows, counters)

    def assert_exported(self, first, second):
        """By the first worker, with all workers' rows."""
        self.assertEqual(first["served"], second["served"])
        for mine, others in zip(
            first["export_errors"], second["export_errors"]
        ):
            self.assertIn(mine.partition(": ")[2], others)
        for index, words in enumerate(("model.keras", "float64", "'items'")):
            self.assertIn(words, first["export_errors"][index])
        features, _ = small_models.batch(np.random.default_rng(0), 300, ids=300)
        loaded = tf.saved_model.load(first["served"])
        served = loaded.serve({k: tf.constant(v) for k, v in features.items()})
        self.assertAllClose(
            served[:, 0], first["saved"]["predictions"], 0, 1e-6
        )
        manifest = tf_ext.serving.read_manifest(first["served"])
        self.assertEqual(manifest["tables"][0]["rows"], first["saved"]["size"])


if __name__ == "__main__":
    tf.test.main()
