# SPDX-License-Identifier: Apache-2.0
"""Shape functions, on what no kernel has checked."""

import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from processes import run

from tf_ext import ops

pytestmark = pytest.mark.slow_tests(
    "ShapeFuzzTest::test_random_nodes_are_added_or_refused",
)

_SEED = 20261101


def _run(count, seed):
    """Adds random nodes in a process of its own, which may crash or hang."""
    print(f"seed {seed}")
    return run(
        "shape_fuzz_program.py", seed, count, timeout_seconds=120 + count // 10
    ).splitlines()


class ShapeFuzzTest(absltest.TestCase):
    def test_random_nodes_are_added_or_refused(self):
        _run(300, _SEED)

    @pytest.mark.slow
    def test_many_random_nodes_are_added_or_refused(self):
        *_, never = _run(20_000, _SEED + 1)
        self.assertEqual(never, "never accepted []")


class AttributeLengthsTest(parameterized.TestCase):
    """Lists of attributes that are not as long as those of outputs."""

    @parameterized.named_parameters(
        (f"{dims}_dims_for_{n}", dims, n)
        for dims, n in ((2, 1), (1, 2), (3000, 1), (5, 3))
    )
    def test_unpack_refuses_(self, dims, n):
        def unpack():
            return ops.library().tf_ext_exchange_unpack(
                tf.zeros([2, 5]),
                tf.ones([dims, 2], tf.int64),
                N=n,
                offset=0,
                dims=[1] * dims,
            )

        with self.assertRaisesRegex(
            ValueError, f"dims must have N = {n} values, but has {dims}."
        ):
            tf.function(unpack, autograph=False).get_concrete_function()

    @parameterized.named_parameters(
        ("beyond", 0, 2**62),
        ("negative", -(2**63), 1),
        ("falling", 1, 0),
    )
    def test_cut_bags_refuses_columns_(self, begin, end):
        def cut():
            return ops.library().tf_ext_cut_bags(
                tf.zeros([0], tf.int64),
                tf.zeros([9], tf.int64),
                tf.zeros([0]),
                N=1,
                columns=2,
                begins=[begin],
                ends=[end],
                weighted=[False],
            )

        with self.assertRaisesRegex(
            ValueError,
            r"begins\[0\] and ends\[0\] must be at least 0, not decrease",
        ):
            tf.function(cut, autograph=False).get_concrete_function()


if __name__ == "__main__":
    absltest.main()
