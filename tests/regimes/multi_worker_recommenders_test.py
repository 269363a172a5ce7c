# SPDX-License-Identifier: Apache-2.0
"""Models of recommender libraries on synchronous workers.

TensorFlow Recommenders' under tf_keras, keras-rs's under Keras 3.
"""

import pytest
import tensorflow as tf
from absl.testing import parameterized
from clusters.case_workers import alone, merge_rows, shared_workers

from tf_ext._keras import IS_KERAS_3

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process("workers"),
    pytest.mark.both_kerases(slow=True),
]

if IS_KERAS_3:
    from cases import keras_rs_cases as cases

    # Of which one process is to come to the same.
    _COMPARED = ["list_mle", "pairwise_hinge"]
else:
    from cases import recommenders_cases as cases
    from models.recommenders_models import TOP_2

    _COMPARED = ["sums", "means"]

_CASES = shared_workers(2)
# keras-rs computes differences of scores, whose rounding errors training
# makes larger.
_TOLERANCE = 1e-5 if IS_KERAS_3 else 1e-6
# A row's first updates are divided by roots of sums of few squares, which makes
# the rounding errors of small gradients larger.
_ROW_TOLERANCE = 1e-5


class RecommendersTest(parameterized.TestCase, tf.test.TestCase):
    def test_two_towers(self):
        if IS_KERAS_3:
            self.skipTest("TensorFlow Recommenders refuses Keras 3.")
        metrics, others = _CASES[cases.trained]
        self.assertEqual(metrics, others)
        self.assertBetween(metrics[TOP_2], 0.95, 1.0)
        self.assertLess(metrics["rmse"], 0.1)

    @parameterized.parameters(*_COMPARED)
    def test_workers_are_as_one_process(self, name):
        case = getattr(cases, name)
        expected, results = case(alone()), _CASES[case]
        losses = expected["history"]["loss"]
        self.assertLess(losses[-1], losses[0])
        for result in results:
            for part in ("history", "metrics", "variables"):
                self._assert_close(result[part], expected[part], part)
        for table, fields in expected["tables"].items():
            rows = merge_rows([result["tables"][table] for result in results])
            self._assert_close(
                rows["weights"], fields["weights"], table, _ROW_TOLERANCE
            )

    def _assert_close(self, one, other, text, tolerance=_TOLERANCE):
        self.assertAllClose(one, other, tolerance, tolerance, text)


if __name__ == "__main__":
    tf.test.main()
