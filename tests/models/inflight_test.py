"""How far steps run ahead of one that is late."""

import tensorflow as tf
from absl.testing import absltest

from tf_ext.models import inflight


class _LateFirst:
    """An InFlight whose first step ends when nothing else is under way."""

    def __init__(self, result):
        self._result = result
        self._under_way = []
        self.before_the_first = None
        self._finished = 0

    def schedule(self, step):
        self._under_way.append(step)

    def settle(self):
        late = self.before_the_first is None
        step = self._under_way.pop(late and len(self._under_way) > 1)
        if late and step.batch == 0:
            self.before_the_first = self._finished
        self._finished += 1
        step.run.finish(step, self._result)

    def end(self, run):
        del run


class RunTest(absltest.TestCase):
    def _before_the_first(self, result):
        late = _LateFirst(result)
        run = inflight._Run(late, None, limit=2, repeatable=False)
        self.assertLen(list(run.results(iter(range(50)))), 50)
        return late.before_the_first

    def test_results_that_wait_are_at_most_64_mib_and_one(self):
        for dtype in (tf.float32, tf.float64):
            with self.subTest(dtype.name):
                result = tf.zeros([(16 << 20) // dtype.size], dtype)
                self.assertEqual(self._before_the_first([result]), 4)
                half = result[: len(result) // 2]
                self.assertEqual(self._before_the_first([half, half]), 4)

    def test_steps_without_results_run_ahead(self):
        self.assertEqual(self._before_the_first(None), 49)


if __name__ == "__main__":
    absltest.main()
