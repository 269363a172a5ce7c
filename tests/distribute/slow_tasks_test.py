# SPDX-License-Identifier: Apache-2.0
"""Which tasks are logged as slow, and how often."""

from absl.testing import absltest, parameterized

from tf_ext.distribute import slow_tasks

_LOGGER = "tf_ext.distribute.slow_tasks"
_SERVERS = [f"/job:ps/task:{i}" for i in range(3)]


class SlowTasksTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.tasks = slow_tasks.SlowTasks(_SERVERS)

    def answer(self, *seconds, times=slow_tasks._ANSWERS):
        """Each task takes so long, several times; returns what is logged."""
        with self.assertLogs(_LOGGER, "INFO") as logs:
            slow_tasks._logger.info("begin")
            for _ in range(times):
                for task, value in zip(_SERVERS, seconds, strict=True):
                    self.tasks.add(task, value)
                self.tasks.log()
        return [record.getMessage() for record in logs.records[1:]]

    def test_names_it_once_with_both_latencies(self):
        [text] = self.answer(0.002, 0.1, 0.003, times=40)
        self.assertStartsWith(
            text,
            "/job:ps/task:1 is slow: it takes 100 ms to answer, the others 2.5 "
            "ms, medians of the last 15 times.",
        )
        self.assertEqual(
            self.tasks.medians(), dict(zip(_SERVERS, (0.002, 0.1, 0.003)))
        )

    def test_is_told_when_it_is_over(self):
        self.answer(0.002, 0.1, 0.003)
        # Half of the answers decide; at the limit, nothing changes.
        self.assertEmpty(self.answer(0.002, 0.015, 0.003, times=30))
        [text] = self.answer(0.002, 0.004, 0.003)
        self.assertEqual(text, "/job:ps/task:1 answers in 4.0 ms again.")
        self.assertLen(self.answer(0.002, 0.1, 0.003), 1)

    @parameterized.parameters(
        ((0.002, 0.019, 0.003), 15),  # As a thread may wait for a processor.
        ((0.05, 0.24, 0.05), 15),  # All are slow.
        ((0.002, 0.1, 0.003), 14),  # Too few answers.
    )
    def test_is_not_named(self, seconds, times):
        self.assertEmpty(self.answer(*seconds, times=times))

    def test_a_single_slow_answer_is_nothing(self):
        self.answer(0.002, 0.002, 0.002)
        self.assertEmpty(self.answer(0.002, 1.5, 0.002, times=7))

    def test_one_task_has_nothing_to_compare_with(self):
        alone = slow_tasks.SlowTasks(_SERVERS[:1])
        self.assertEqual(alone.medians(), {})
        for _ in range(20):
            alone.add(_SERVERS[0], 1.0)
        with self.assertNoLogs(_LOGGER, "INFO"):
            alone.log()


if __name__ == "__main__":
    absltest.main()
