# SPDX-License-Identifier: Apache-2.0
"""A synchronous worker that trains in a network of its own until it is told.

Usage: cut_workers_program.py NAMESPACE STOP_FILE TIMEOUT_SECONDS

It prints and ends as `cut_training.train` does, for a lost worker.
"""

import sys

from clusters import networks

if __name__ == "__main__":
    # Before there are threads, which stay where they are.
    networks.enter(sys.argv[1])

import tensorflow as tf
from clusters import cut_training

from tf_ext import distribute


class _UntilOneIsTold(cut_training.UntilTold):
    """Ends when a worker sees the file: they look at different times."""

    def is_told(self):
        value = tf.constant([int(super().is_told())], tf.int64)
        regime = self.model.tables[0].rows.regime
        return bool(tf.reduce_max(regime.processes.gather(value)))


def main():
    cut_training.train(
        distribute.multi_worker_strategy(
            heartbeat_timeout_seconds=float(sys.argv[3])
        ),
        _UntilOneIsTold(sys.argv[2]),
        distribute.WorkerLostError,
    )


if __name__ == "__main__":
    main()
