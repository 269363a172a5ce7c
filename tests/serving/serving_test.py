# SPDX-License-Identifier: Apache-2.0
"""Exported models predict in other processes what they did when trained.

Through Python's loader, and through TensorFlow's C++ loader, which is that of
TensorFlow Serving.
"""

import json
import pathlib
import tempfile

import numpy as np
import processes
import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases import rule_cases
from paths import ROOT

pytestmark = pytest.mark.slow

_README = ROOT / "README.md"


class ServingTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        directory = tempfile.TemporaryDirectory(prefix="tf_ext_serving_")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    @parameterized.named_parameters(
        ("keras_3", "0", "tensorflow", "nesterov_schedule"),
        ("tf_keras", "1", "tf_ext", "ftrl_own_rate"),
    )
    def test_quick_start_and_some_rules_of_(self, legacy, order, case):
        self._export(legacy, _README, case, "adam_no_rate_again")
        self._assert_served(order, 4)

    @parameterized.named_parameters(
        (f"{name}_with_{rate}", legacy, rate)
        for name, legacy in (("keras_3", "0"), ("tf_keras", "1"))
        for rate in ("own_rate", "schedule", "no_rate")
    )
    @pytest.mark.slow
    @pytest.mark.timeout(1800)
    def test_every_rule_of_(self, legacy, rate):
        cases = [f"{name}_{rate}" for name, _, _ in rule_cases.CASES]
        self._export(legacy, *cases)
        self._assert_served("tensorflow", len(cases))

    def _export(self, legacy, *what):
        processes.run(
            "serving_export_program.py",
            self.directory,
            *what,
            timeout_seconds=900,
            TF_USE_LEGACY_KERAS=legacy,
        )

    def _assert_served(self, order, count):
        """All exports predict what they did, in both loaders."""
        paths = sorted(self.directory.glob("*.json"))
        self.assertLen(paths, count)
        processes.run(
            "serving_load_program.py", order, *paths, timeout_seconds=900
        )
        cases = [json.loads(path.read_text()) for path in paths]
        self._assert_served_by_sessions(cases)

    def _assert_served_by_sessions(self, cases):
        # Each model twice: sessions of one process share no rows.
        cases = [*cases, *cases]
        plan = [
            {
                "path": case["path"],
                "feeds": {
                    case["feeds"][key]: value
                    for key, value in case["features"].items()
                },
                "fetch": case["fetch"],
            }
            for case in cases
        ]
        plan_path = self.directory / "plan"
        plan_path.write_text(json.dumps(plan))
        results = self.directory / "results.npz"
        processes.run("cpp_session_program.py", plan_path, results)
        with np.load(results) as outputs:
            self.assertLen(outputs, len(cases))
            for index, case in enumerate(cases):
                np.testing.assert_allclose(
                    outputs[str(index)],
                    case["expected"],
                    rtol=0,
                    atol=1e-6,
                    err_msg=case["path"],
                )
