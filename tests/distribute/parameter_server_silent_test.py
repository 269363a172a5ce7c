# SPDX-License-Identifier: Apache-2.0
"""Connecting to a task that accepts calls and answers none.

TensorFlow must not have begun in this process, or its call would keep Python's
lock until the task answers. It cannot be used here afterwards, either.
"""

import time

import pytest
from absl.testing import absltest
from clusters.listeners import Listener, speak_http2

from tf_ext import distribute
from tf_ext.distribute import ports

pytestmark = [pytest.mark.process, pytest.mark.slow]


class SilentTaskTest(absltest.TestCase):
    def test_what_speaks_http2_and_answers_no_call(self):
        listener = Listener(speak_http2)
        self.addCleanup(listener.close)
        [chief] = ports.free_ports(1)
        begin = time.monotonic()
        with self.assertRaisesRegex(
            TimeoutError,
            "When this program connected, one of .*/job:ps/task:0 at "
            f"localhost:.*, /job:worker/task:0 at {listener.address} did not "
            "answer, although something that speaks HTTP/2 listens",
        ):
            distribute.parameter_server_strategy(
                {
                    "chief": [f"127.0.0.1:{chief}"],
                    "worker": [listener.address],
                    "ps": [listener.address.replace("127.0.0.1", "localhost")],
                },
                timeout_seconds=1.0,
            )
        self.assertBetween(time.monotonic() - begin, 9.0, 100.0)


if __name__ == "__main__":
    absltest.main()
