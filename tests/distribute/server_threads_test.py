# SPDX-License-Identifier: Apache-2.0
"""The threads of a server."""

import os
from unittest import mock

import tensorflow as tf
from absl.testing import absltest, parameterized

from tf_ext.distribute import cpu_limit, ports, server
from tf_ext.distribute.cluster import Task
from tf_ext.ops import process_ops


class ServerThreadsTest(parameterized.TestCase):
    # As many as a container may use processors, or as the environment says.
    @parameterized.parameters((3, "", 3), (3, "5", 0))
    def test_their_number_and_what_they_do_without_work(
        self, processors, environment, expected
    ):
        workers = 7
        [port] = ports.free_ports(1)
        task = Task(
            {
                "chief": ["a:1"],
                "worker": [f"b:{i + 1}" for i in range(workers)],
                "ps": [f"127.0.0.1:{port}"],
            },
            *("ps", 0),
        )
        with (
            mock.patch.dict(os.environ, {cpu_limit.THREADS: environment}),
            mock.patch.object(cpu_limit, "processors", return_value=processors),
            mock.patch.object(tf.distribute, "Server") as made,
        ):
            self.addCleanup(process_ops.set_task, "")
            started = server._start(task)
        self.assertIs(started, made.return_value)
        config = made.call_args.kwargs["config"]
        self.assertEqual(config.inter_op_parallelism_threads, workers + 1)
        self.assertEqual(config.intra_op_parallelism_threads, expected)
        self.assertTrue(config.experimental.disable_thread_spinning)


if __name__ == "__main__":
    absltest.main()
