# SPDX-License-Identifier: Apache-2.0
"""Training that goes on in another process equals training without a break."""

import pathlib
import tempfile

import numpy as np
import processes
import pytest
import tensorflow as tf
from absl.testing import parameterized
from programs import restart_program

from tf_ext._keras import IS_KERAS_3

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests("RestartTest::*"),
]

_TABLES = tuple(restart_program.rules())


class RestartTest(parameterized.TestCase, tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        temporary = tempfile.TemporaryDirectory(prefix="tf_ext_restart_")
        cls.addClassCleanup(temporary.cleanup)
        cls.directory = pathlib.Path(temporary.name)
        for life in ("first", "second"):
            processes.run("restart_program.py", life, cls.directory)

    def _dump(self, name):
        with np.load(self.directory / f"{name}.npz") as file:
            return dict(file)

    def _assert_same(self, expected, actual, prefix):
        names = [name for name in expected if name.startswith(prefix)]
        self.assertNotEmpty(names)
        self.assertSameElements(
            names, [name for name in actual if name.startswith(prefix)]
        )
        for name in names:
            # Bits, not values: nothing may be lost on the way.
            self.assertEqual(
                expected[name].tobytes(), actual[name].tobytes(), name
            )

    @parameterized.named_parameters(
        (f"{table}_from_{kind}", table, kind)
        for table in _TABLES
        for kind in restart_program.FORMATS
    )
    def test_rows_and_slots_of_(self, table, kind):
        self._assert_same(
            self._dump("first_whole"), self._dump(f"second_{kind}"), f"{table}/"
        )

    @parameterized.named_parameters((k, k) for k in restart_program.FORMATS)
    def test_dense_weights_and_steps_from_(self, kind):
        whole, resumed = self._dump("first_whole"), self._dump(f"second_{kind}")
        self._assert_same(whole, resumed, "dense/")
        self.assertEqual(int(whole["iterations"]), 2 * restart_program.STEPS)
        self._assert_same(whole, resumed, "iterations")

    @parameterized.named_parameters((k, k) for k in restart_program.FORMATS)
    def test_in_the_middle_of_an_accumulated_step_from_(self, kind):
        if not IS_KERAS_3:
            self.skipTest("tf_keras has no gradient_accumulation_steps.")
        whole = self._dump("first_accumulated")
        # 10 micro-steps, 3 a step.
        self.assertEqual(int(whole["iterations"]), 3)
        self._assert_same(whole, self._dump(f"second_accumulated_{kind}"), "")

    def test_fit_with_backup_and_restore(self):
        self._assert_same(
            self._dump("first_backup"), self._dump("second_backup"), ""
        )


if __name__ == "__main__":
    tf.test.main()
