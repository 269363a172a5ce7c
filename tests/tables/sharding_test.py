# SPDX-License-Identifier: Apache-2.0
"""How evenly signs are spread over shards and over the stripes of a shard."""

import numpy as np
import pytest
from absl.testing import absltest, parameterized
from ops_util import table_config

from tf_ext import ops

pytestmark = pytest.mark.slow_tests(
    "SpreadTest::test_is_even[0145]",
)


_COUNT = 1_000_000


class SpreadTest(parameterized.TestCase):
    @parameterized.product(step=[1, 1 << 20], shards=[1, 2, 3, 5])
    def test_is_even(self, step, shards):
        signs = np.arange(_COUNT) * step
        unique, _, _, split_sizes = ops.unique_by_shard(signs, shards)
        sizes = split_sizes.numpy()
        self.assertEqual(sizes.sum(), _COUNT)
        np.testing.assert_allclose(sizes, _COUNT / shards, rtol=0.01)
        for part in np.split(unique.numpy(), np.cumsum(sizes)[:-1]):
            self._assert_even_stripes(part)

    def _assert_even_stripes(self, signs):
        handle = ops.sparse_table_handle(table_config(dim=1))
        ops.sparse_table_pull(handle, signs, training=True, dim=1)
        values = ops.sparse_table_stats(handle).numpy().tolist()
        stats = dict(zip(ops.TABLE_STATS, values, strict=True))
        self.assertEqual(stats["rows"], len(signs))
        mean = stats["rows"] / stats["stripes"]
        # Even to 5 %, or to what a random choice of stripes would leave.
        slack = max(0.05, 3.5 / np.sqrt(mean))
        self.assertLess(stats["max_stripe_rows"], (1 + slack) * mean)
        self.assertGreater(stats["min_stripe_rows"], (1 - slack) * mean)

    @parameterized.parameters(2, 3, 5)
    def test_stripes_of_a_shard_are_as_even_as_of_a_table(self, shards):
        # If shard and stripe came from the same bits, a shard would leave
        # stripes empty.
        unique, _, _, split_sizes = ops.unique_by_shard(
            np.arange(200_000), shards
        )
        first = unique.numpy()[: split_sizes.numpy()[0]]
        self._assert_even_stripes(first)


if __name__ == "__main__":
    absltest.main()
