# SPDX-License-Identifier: Apache-2.0
"""Random programs on tables whose rows come and go, and on exact models."""

import random
import tempfile

import hypothesis
import numpy as np
import processes
import pytest
import tensorflow as tf
from absl.testing import parameterized
from hypothesis import strategies as st
from models.sharded_tables import bytes_of_rows
from oracles import random_programs

from tf_ext import admission, eviction

pytestmark = pytest.mark.slow_tests(
    "AdmitAllTest::test_count_of_1_is_as_no_admission[12]",
    "RandomProgramsTest::test_same_rows_to_the_bit[23456789]",
)

_ACTIONS = 100
_POLICIES = list(random_programs.ADMISSIONS)
_SHARDS = [[1, 5, 2], [5, 2, 1]]


_numbers = st.integers(0, 2**32 - 1)


def _actions(**fields):
    """Programs of up to `_ACTIONS` actions."""
    names = [
        name
        for name, count in random_programs.odds(**fields).items()
        for _ in range(count)
    ]
    # None first: it becomes of an action that a failure does not need. Lists of
    # any size would be short.
    action = st.one_of(st.none(), *[_action(names)] * 9)
    return st.lists(action, min_size=_ACTIONS, max_size=_ACTIONS)


def _action(names):
    return st.tuples(st.sampled_from(names), _numbers)


class RandomProgramsTest(tf.test.TestCase, parameterized.TestCase):
    def _folder(self):
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    def _program(self, policy, shards, rng, fields):
        return random_programs.Program(
            rng,
            self._folder(),
            shards,
            random_programs.ADMISSIONS[policy],
            **fields,
            size=60,
            batch=25,
        )

    @parameterized.product(policy=_POLICIES, shards=_SHARDS)
    def test_same_rows_to_the_bit(self, policy, shards):
        rng = np.random.default_rng([1, shards[0], len(policy)])
        fields = {"last_seen": True, "statistics": 2}
        program = self._program(policy, shards, rng, fields)
        program.run(random_programs.random_actions(rng, _ACTIONS, **fields))
        self.assertGreater(program.admitted, 0)
        self.assertGreater(program.evicted, 0)
        if policy == "count_3_forget":
            self.assertGreater(program.forgotten, 0)

    @parameterized.product(
        policy=_POLICIES,
        shards=_SHARDS,
        last_seen=[False, True],
        statistics=[0, 1, 2],
    )
    @pytest.mark.slow
    def test_same_rows_to_the_bit_often(
        self, policy, shards, last_seen, statistics
    ):
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        fields = {"last_seen": last_seen, "statistics": statistics}

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=5,
            deadline=None,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(_numbers, _actions(**fields))
        def run(number, actions):
            rng = np.random.default_rng(number)
            program = self._program(policy, shards, rng, fields)
            program.run([action for action in actions if action is not None])

        run()

    def _run_on_threads(self, seed, programs):
        print(f"seed {seed}")
        printed = processes.run(
            "random_programs_program.py",
            self._folder(),
            seed,
            programs,
            timeout_seconds=60 + 60 * programs,
        )
        self.assertLen(printed.splitlines(), 2 * programs)

    @pytest.mark.slow
    def test_same_rows_on_one_and_four_threads(self):
        self._run_on_threads(0, 2)

    @pytest.mark.slow
    @pytest.mark.timeout(2000)
    def test_same_rows_on_one_and_four_threads_often(self):
        self._run_on_threads(random.randrange(2**32), 30)


class AdmitAllTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(1, 2, 5)
    def test_count_of_1_is_as_no_admission(self, shards):
        """If all that is pulled for training is pushed."""
        counted, plain = (
            random_programs.make_table(shards, policy, "initial", True, 2)
            for policy in (admission.Count(1), None)
        )
        rng = np.random.default_rng(5)
        score = eviction.Score(4, unseen=eviction.Unseen(4), require="all")
        for step in range(1, 30):
            signs = rng.integers(-200, 200, 50)
            gradients = rng.normal(size=[50, 3]).astype(np.float32)
            pulled, updated, evicted = [], [], []
            for table in (counted, plain):
                pulled.append(table.pull(signs, training=True))
                updated.append(table.push(signs, gradients, step=step))
                pulled.append(table.pull(range(-300, 300)))
                if step % 7 == 0:
                    table.decay_statistics(0.7)
                    evicted.append(table.evict(step, score))
                if step % 10 == 0:
                    evicted.append(table.erase(signs[:20]))
            self.assertAllEqual(pulled[0], pulled[2])
            self.assertAllEqual(pulled[1], pulled[3])
            self.assertEqual(updated, [len(set(signs.tolist()))] * 2)
            self.assertEqual(evicted[::2], evicted[1::2])
        self.assertEqual(bytes_of_rows(counted), bytes_of_rows(plain))
        stats = counted.stats()
        self.assertEqual((stats["waiting"], stats["counter_bytes"]), (0, 0))
        self.assertGreater(stats["evicted"], 0)


if __name__ == "__main__":
    tf.test.main()
