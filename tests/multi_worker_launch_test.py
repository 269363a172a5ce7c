"""Workers on real processes: starting, checking, losing, ending."""

import multi_worker_util as util
import tensorflow as tf
from absl.testing import parameterized


class StartTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(("one", 1), ("two", 2), ("three", 3))
    def test_workers_add_up(self, workers):
        results = util.run_json("multi_worker_program.py", workers=workers)
        self.assertEqual(
            results,
            [
                {
                    "rank": rank,
                    "total": workers * (workers + 1) / 2,
                    "replicas": workers,
                }
                for rank in range(workers)
            ],
        )


if __name__ == "__main__":
    tf.test.main()
