# SPDX-License-Identifier: Apache-2.0
"""Arguments that tf_ext.serving.follow refuses."""

import sys
import unittest.mock

import pytest
from absl.testing import absltest, parameterized
from models import small_models as small

from tf_ext.serving import follow

pytestmark = pytest.mark.both_kerases(slow=True)


def _model():
    return small.functional(small.table())


class ArgumentsTest(parameterized.TestCase):
    @parameterized.parameters(0, -1, "1", True, float("inf"), float("nan"))
    def test_bad_seconds(self, every):
        with self.assertRaisesRegex(
            ValueError,
            "Argument `every` of tf_ext.serving.follow must be a positive "
            "finite number of seconds, or None. Received: every=",
        ):
            follow(_model(), "/nowhere", every=every)

    def test_no_point_yet(self):
        with self.assertRaisesRegex(
            FileNotFoundError, "There is no recovery point in '/nowhere'. Train"
        ):
            follow(_model(), "/nowhere")

    def test_models_that_workers_hold_together(self):
        module = sys.modules["tf_ext.serving.following"]
        with (
            unittest.mock.patch.object(module, "regime_of_tables") as regime,
            self.assertRaisesRegex(ValueError, "made outside of"),
        ):
            regime.return_value.processes.count = 2
            follow(_model(), "/nowhere")


if __name__ == "__main__":
    absltest.main()
