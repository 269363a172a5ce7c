# SPDX-License-Identifier: Apache-2.0
"""Programs of all kinds of options together, as users combine them.

What a program does is compared with the same in one process, or with Keras's
layers on dense matrices, through `fit`, `evaluate`, `predict`, `save` and
`load`. A failure prints the program: `Program(regime=...)` of the options that
are not the plain ones.
"""

import functools
import os
import tempfile

import hypothesis
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from clusters.combination_hosts import Hosts
from hypothesis import strategies as st
from oracles.combination_axes import AXES, Program, is_supported, pairwise

from tf_ext._keras import IS_KERAS_3

pytestmark = [
    pytest.mark.process,  # They share processes that run programs.
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "CombinationsTest::test_first_pairs1[0123456789]",
        "CombinationsTest::test_first_pairs[123456789]",
    ),
]

# Of workers, servers, and the same program in one process.
_TOLERANCES = {"float32": 1e-5, "mixed_float16": 2e-2, "mixed_bfloat16": 4e-2}
# Of a model and of what it was loaded from.
_LOADED_TOLERANCE = 1e-6
_COUNT = 20
_MOST_PAIRWISE = 110  # programs that cover all pairs
_SLOW_COUNT = 150

_hosts = Hosts()


@functools.cache
def _pairwise(has_three_workers=True):
    return pairwise(
        IS_KERAS_3,
        lambda p: has_three_workers or p.regime != "three_workers",
    )


def tearDownModule():
    _hosts.close()


def check(program):
    """Runs a program, and compares it.

    Raises:
      AssertionError: it failed, or its numbers are wrong.
    """
    print(program)
    with tempfile.TemporaryDirectory(prefix="tf_ext_combined_") as folder:
        kind = (
            program.regime
            if program.regime in ("two_workers", "three_workers", "servers")
            else "alone"
        )
        text = program.to_json()
        ran = _hosts.start(kind, "run", text, folder)
        # Beside it, on the other processor; loaded by a process that has not
        # made the model.
        expected = _hosts.start("alone again", "run_twin", text)
        [expected], found = expected(), ran()
        for result in found:
            _compare(result, expected, _TOLERANCES[program.precision])
        if program.saved != "none":
            [loaded] = _hosts.start("alone again", "load", text, folder)()
            wanted = {name: found[0][name] for name in loaded}
            tolerance = max(_LOADED_TOLERANCE, _rounding(program))
            _compare(loaded, wanted, tolerance)


def _rounding(program):
    """The tolerance of a loaded model's numbers."""
    return 0.0 if program.precision == "float32" else 2e-3


def _compare(found, expected, tolerance, where=""):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), (where, found, expected)
        for name, value in expected.items():
            _compare(found[name], value, tolerance, f"{where} {name}")
        return
    np.testing.assert_allclose(
        found, expected, rtol=tolerance, atol=tolerance, err_msg=where
    )


class CombinationsTest(parameterized.TestCase):
    @parameterized.parameters(*range(_COUNT))
    def test_first_pairs(self, number):
        # Three workers take long to start.
        check(_pairwise(False)[number])

    @parameterized.parameters(*range(_MOST_PAIRWISE))
    @pytest.mark.slow
    def test_all_pairs(self, number):
        if number >= len(_pairwise()):
            self.skipTest("fewer programs cover all pairs")
        check(_pairwise()[number])

    def test_pairs_meet(self):
        programs = _pairwise()
        self.assertLessEqual(len(programs), _MOST_PAIRWISE)
        pairs = {
            frozenset([(a, x), (b, y)])
            for program in programs
            for a, x in vars(program).items()
            for b, y in vars(program).items()
            if a != b
        }
        print(len(pairs), "pairs in", len(programs), "programs")
        for regime in AXES["regime"]:
            for saved in ("keras", "weights", "checkpoint"):
                pair = frozenset([("regime", regime), ("saved", saved)])
                self.assertIn(pair, pairs)

    @pytest.mark.slow
    @pytest.mark.timeout(7200)
    def test_drawn(self):
        seed = int(os.environ.get("TF_EXT_TEST_SEED", "7"))
        print("seed", seed)

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=_SLOW_COUNT,
            deadline=None,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(
            st.builds(
                Program,
                **{name: st.sampled_from(v) for name, v in AXES.items()},
            )
        )
        def draw(program):
            hypothesis.assume(is_supported(program, IS_KERAS_3))
            check(program)

        draw()


if __name__ == "__main__":
    absltest.main()
