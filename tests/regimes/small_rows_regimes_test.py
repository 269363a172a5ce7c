# SPDX-License-Identifier: Apache-2.0
"""Small rows get the same bits from any number of shards and replicas."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases import small_row_cases
from cases.small_row_cases import assert_same_bits
from clusters.case_workers import alone
from models.model_building import mirrored_strategy
from models.sharded_tables import shards_on

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "OneProcessTest::test_rows_are_small_come_and_go_and_are_rounded",
    ),
]


@functools.cache
def _expected():
    return small_row_cases.trained(alone())


class OneProcessTest(parameterized.TestCase, tf.test.TestCase):
    def test_rows_are_small_come_and_go_and_are_rounded(self):
        with shards_on(["/device:CPU:0"]):
            large = small_row_cases.make_model("float32", "float32")
        wide = small_row_cases.fit(large)
        for name, (fields, counts) in _expected().items():
            for each in ("rows", "waiting", "evicted"):
                self.assertGreater(counts[each], 20, f"{name} {each}")
            self.assertGreater(counts["admitted"], counts["rows"])
            self.assertEqual(fields.keys(), wide[name][0].keys())
            for field, rows in fields.items():
                values = np.array(list(rows.values()))
                if field in ("weights", "accumulator", "m", "v"):
                    stored = "float16" if field == "weights" else "bfloat16"
                    exact = tf.cast(tf.cast(values, stored), tf.float32)
                    self.assertAllEqual(values, exact)
                    self.assertNotAllEqual(
                        values, list(wide[name][0][field].values())
                    )
                self.assertGreater(len(np.unique(values)), 1, field)

    @parameterized.parameters(2, 5)
    def test_shards(self, shards):
        with shards_on(["/device:CPU:0"] * shards):
            model = small_row_cases.make_model()
        self.assertLen(model.tables[0].rows.shards, shards)
        assert_same_bits([small_row_cases.fit(model)], _expected())

    def test_replicas(self):
        with mirrored_strategy().scope():
            model = small_row_cases.make_model()
        assert_same_bits([small_row_cases.fit(model)], _expected())


if __name__ == "__main__":
    tf.test.main()
