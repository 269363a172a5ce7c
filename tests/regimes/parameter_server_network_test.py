# SPDX-License-Identifier: Apache-2.0
"""What training steps send to parameter servers, in bytes on the network."""

import json

import processes
import pytest
import tensorflow as tf
from absl.testing import parameterized

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow_tests("NetworkTest::*"),
]

_SIGN_BYTES = 8
_VALUE_BYTES = 4


class NetworkTest(parameterized.TestCase, tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        output = processes.run("parameter_server_network_program.py")
        results = json.loads(output.splitlines()[-1])
        cls.results = {result["dim"]: result for result in results}

    @parameterized.named_parameters(("dim_1", 1), ("dim_16", 16))
    def test_only_distinct_signs_their_rows_and_gradients_are_sent(self, dim):
        result = self.results[dim]
        distinct = result["distinct"]
        self.assertGreaterEqual(distinct, 20_000)
        self.assertEqual(result["rows"], distinct * result["steps"])
        sent = result["bytes"] - result["stub_bytes"]
        rows_and_gradients = 2 * distinct * dim * _VALUE_BYTES
        signs = distinct * _SIGN_BYTES
        # Pull and push of one step can share the signs that were sent. Less
        # than one copy of each would mean that the counting is wrong.
        self.assertGreaterEqual(sent, rows_and_gradients + signs)
        self.assertLessEqual(sent, 1.1 * (rows_and_gradients + 2 * signs))


if __name__ == "__main__":
    tf.test.main()
