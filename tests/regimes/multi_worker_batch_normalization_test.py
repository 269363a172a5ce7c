# SPDX-License-Identifier: Apache-2.0
"""`layers.BatchNormalization` by several workers, in processes of their own."""

import pytest
from absl.testing import absltest
from clusters import multi_worker_util

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow,
]


class MultiWorkerBatchNormalizationTest(absltest.TestCase):
    def assert_agree(self, workers):
        results = multi_worker_util.run_json(
            "multi_worker_batch_normalization_program.py", workers=workers
        )
        self.assertEqual(
            results,
            [{"rank": rank, "replicas": workers} for rank in range(workers)],
        )

    def test_three_workers_are_as_one_process(self):
        self.assert_agree(3)

    @pytest.mark.slow
    def test_two_workers_are_as_one_process(self):
        self.assert_agree(2)


if __name__ == "__main__":
    absltest.main()
