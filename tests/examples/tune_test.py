# SPDX-License-Identifier: Apache-2.0
"""The example that searches a table's parameters."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest
import tensorflow as tf
from paths import ROOT

import tf_ext
from tf_ext._keras import keras

pytestmark = [pytest.mark.both_kerases(slow=True), pytest.mark.slow]

pytest.importorskip("optuna")


class ProgramTest(tf.test.TestCase):
    def test_finds_more_than_the_default(self):
        path = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))
        done = subprocess.run(
            [
                sys.executable,
                str(ROOT / "examples" / "tune.py"),
                *("--samples=20000", "--trials=4", "--models=2"),
                f"--save={path / 'average.keras'}",
            ],
            env={k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        result = json.loads(done.stdout.splitlines()[-1])
        # The best possible is about .84.
        self.assertGreater(result["tuned_auc"], 0.65)
        self.assertGreater(result["averaged_auc"], result["tuned_auc"])
        self.assertIn(result["found"]["rule"], done.stderr)
        model = keras.models.load_model(path / "average.keras")
        self.assertIsInstance(model, tf_ext.Model)
        outputs = model.predict(
            {"user": tf.range(5), "item": tf.range(5)}, verbose=0
        )
        self.assertEqual(outputs.shape, (5, 1))


if __name__ == "__main__":
    tf.test.main()
