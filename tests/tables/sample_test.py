# SPDX-License-Identifier: Apache-2.0
"""Samples of the rows of a shard."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_ext

pytestmark = pytest.mark.both_kerases(slow=True)

_ROWS = 20_000
_LAST = 2**63 - 1


def _table(rows=_ROWS, **options):
    """A table whose rows hold their signs."""
    table = tf_ext.SparseTable("deep", 2, "sgd", "zeros", **options)
    signs = np.arange(rows)
    weights = np.stack([signs, -signs], 1)
    table.import_rows(signs, {"weights": weights.astype(np.float32)})
    return table


class SampleTest(parameterized.TestCase, tf.test.TestCase):
    # In the middle, where the end comes before enough rows, and at the end.
    @parameterized.parameters(2**61, _LAST - 2**55, _LAST, 0)
    def test_is_of_distinct_rows(self, position):
        [shard] = _table().rows.shards
        found = shard.sample(3000, position).numpy()
        self.assertEqual(found.shape, (3000, 2))
        self.assertLen(set(found[:, 0].tolist()), 3000)
        self.assertAllInRange(found[:, 0], 0, _ROWS - 1)
        self.assertAllEqual(found[:, 1], -found[:, 0])

    def test_is_random(self):
        [shard] = _table().rows.shards
        rng = np.random.default_rng(5)
        picks = rng.integers(1, _LAST, 40)
        found = [set(shard.sample(500, p).numpy()[:, 0]) for p in picks]
        for one in found:
            # 0.4 of the rows within four standard deviations.
            share = np.mean([sign < 0.4 * _ROWS for sign in one])
            self.assertAllClose(share, 0.4, 0, 4 * np.sqrt(0.24 / 500))
        # Of 40 samples of one in 40 rows, those that differ overlap little.
        self.assertGreater(len(set.union(*found)), 0.5 * _ROWS)

    def test_is_the_same_at_the_same_position(self):
        [one] = _table().rows.shards
        [other] = _table().rows.shards
        self.assertAllEqual(one.sample(100, 2**60), other.sample(100, 2**60))

    def test_of_all_rows(self):
        [shard] = _table(300).rows.shards
        found = shard.sample(300, 0).numpy()
        self.assertAllEqual(sorted(found[:, 0]), np.arange(300))
        self.assertEqual(shard.sample(1000, 0).shape, [300, 2])

    def test_of_an_empty_table(self):
        [shard] = tf_ext.SparseTable("deep", 2).rows.shards
        self.assertEqual(shard.sample(10, 0).shape, [0, 2])

    def test_is_float32(self):
        [shard] = _table(50, dtype="float16").rows.shards
        self.assertEqual(shard.sample(10, 2**60).dtype, tf.float32)


if __name__ == "__main__":
    tf.test.main()
