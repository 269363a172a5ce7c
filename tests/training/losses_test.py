# SPDX-License-Identifier: Apache-2.0
"""Which losses of parts of a batch are means, and which add up."""

import types

from absl.testing import absltest, parameterized

from tf_ext.training import losses


def _of(*reductions):
    return [types.SimpleNamespace(reduction=r, name="own") for r in reductions]


class LossesTest(parameterized.TestCase):
    @parameterized.parameters(
        # Reductions; whether they add up, are means, and may be together.
        ((), False, True, True),
        (("sum",), True, False, True),
        (("none",), True, False, True),
        ((None,), True, False, True),
        (("sum", "none", None), True, False, True),
        (("sum_over_batch_size",), False, True, True),
        (("mean", "auto"), False, True, True),
        (("mean", "sum"), False, False, False),
        (("sum", "auto"), False, False, False),
        (("mean_with_sample_weight",), False, False, False),
        (("sum", "mean_with_sample_weight"), False, False, False),
    )
    def test_reductions(self, reductions, add_up, are_means, may_be):
        given = _of(*reductions)
        self.assertIs(losses.losses_add_up(given), add_up)
        self.assertIs(losses.losses_add_up({"a": given, "b": None}), add_up)
        for allowed, check, said in (
            (are_means, losses.check_losses, "'own' has the reduction"),
            (
                may_be,
                lambda given: losses.check_losses_of_replicas(given, "Own"),
                "all means, or all sums, under Own, ",
            ),
        ):
            if allowed:
                check(given)
                continue
            with self.assertRaisesRegex(ValueError, said):
                check(given)

    def test_names_and_functions_are_means(self):
        for given in ("mse", abs, None, ["mse", abs, None]):
            self.assertFalse(losses.losses_add_up(given))
            losses.check_losses(given)
            losses.check_losses_of_replicas(given, "Own")
        with self.assertRaisesRegex(ValueError, "reductions mean, sum. Use"):
            losses.check_losses_of_replicas(["mse", *_of("sum")], "Own")


if __name__ == "__main__":
    absltest.main()
