# SPDX-License-Identifier: Apache-2.0
"""Synchronous workers that send the ids of a batch a step ahead."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases import multi_worker_ahead_cases as cases
from clusters.case_workers import alone, merge_rows, shared_workers

from tf_ext._keras import IS_KERAS_3

pytestmark = [
    pytest.mark.process("workers"),
    pytest.mark.slow_except("AheadTest::test_as_one_process_several_tables"),
]

_CASES = shared_workers(2)


class AheadTest(parameterized.TestCase, tf.test.TestCase):
    def setUp(self):
        super().setUp()
        if not IS_KERAS_3:
            self.skipTest("tf_keras has a loop of its own")

    @parameterized.named_parameters(
        (name, getattr(cases, name)) for name in cases.AS_ALONE
    )
    def test_as_one_process(self, case):
        results, expected = _CASES[case], case(alone())
        for result in results:
            self.assertAllClose(result["losses"], expected["losses"], rtol=1e-4)
            for one, other in zip(result["variables"], expected["variables"]):
                self.assertAllClose(one, other, rtol=0.0, atol=1e-4)
        for name, fields in expected["tables"].items():
            rows = merge_rows([result["tables"][name] for result in results])
            for field, wanted in fields.items():
                self.assertEqual(rows[field].keys(), wanted.keys())
                self.assertAllClose(
                    np.array([rows[field][sign] for sign in wanted]),
                    np.array(list(wanted.values())),
                    rtol=1e-3,
                    atol=1e-5,
                )

    def test_gradients_take_signs_along(self):
        for result in _CASES[cases.exchanges_of_signs]:
            # Of the first batch, and in a step.
            self.assertEqual(result["several_epochs"], {(1, 1), (1, 0)})
            self.assertEqual(result["computed_ids"], {(1, 1)})
            self.assertEqual(result["frozen_rows"], {(1, 1)})

    def test_signs_fit_what_was_needed(self):
        results = _CASES[cases.widths_of_signs]
        self.assertEqual(results[0], results[1])
        # 40 ids of two workers, and a header.
        [width] = {
            width for key, width in results[0].items() if key[1:] == (4,)
        }
        self.assertBetween(width, 20, 60)

    def test_errors_wait_for_collectives(self):
        for errors, early in _CASES[cases.errors_before_collectives]:
            self.assertGreater(errors, 0)
            self.assertEqual(early, 0)

    def test_error_is_that_of_its_step(self):
        results = _CASES[cases.error_of_a_batch]
        for result in results:
            self.assertIn("Worker 1: The feature 'bought'", result["error"])
            self.assertIn("finite and not negative", result["error"])
            # Nothing is lost of the steps before, nor trained of this one.
            self.assertEqual(result["steps"], (2, 2))
            without_clicks, with_clicks = result["predictions"]
            self.assertEqual(without_clicks.shape, (160, cases.DIM))
            self.assertAllEqual(without_clicks, with_clicks)
        for key, of_two_batches, of_others in (
            ("shows", 1, 0),
            ("later", 2, 1),
        ):
            shows = {k: v for result in results for k, v in result[key].items()}
            expected = {
                80 * rank + i: of_two_batches if i < 32 else of_others
                for rank in (0, 1)
                for i in range(80)
            }
            self.assertEqual(shows, {k: v for k, v in expected.items() if v})


if __name__ == "__main__":
    tf.test.main()
