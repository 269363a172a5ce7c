# SPDX-License-Identifier: Apache-2.0
"""A worker that adds up numbers with the others, step by step."""

import argparse
import json
import os
import signal
import time

import tensorflow as tf

from tf_ext import distribute
from tf_ext.distribute import multi_worker


def _catches(number):
    """Whether this process handles a signal, in Python or beneath it."""
    with open("/proc/self/status", encoding="ascii") as file:
        [caught] = [line for line in file if line.startswith("SigCgt:")]
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--timeout_seconds", type=float, default=60.0)
    parser.add_argument("--heartbeat_timeout_seconds", type=float, default=30.0)
    parser.add_argument("--version_of_rank_1")
    parser.add_argument("--pause_of_rank_1", type=float, default=0.0)
    parser.add_argument("--chief", action="store_true")
    options = parser.parse_args()
    config = json.loads(os.environ["TF_CONFIG"])
    rank = config["task"]["index"]
    if options.version_of_rank_1 and rank == 1:
        multi_worker.__version__ = options.version_of_rank_1
    cluster = None
    if options.chief:
        first, *others = config["cluster"]["worker"]
        cluster = {"chief": [first], "worker": others}
    strategy = distribute.multi_worker_strategy(
        cluster,
        rank if cluster else None,
        timeout_seconds=options.timeout_seconds,
        heartbeat_timeout_seconds=options.heartbeat_timeout_seconds,
    )

    @tf.function
    def step():
        return strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.SUM, tf.constant(rank + 1.0)
            )
        )

    with distribute.naming_lost_tasks(strategy):
        for number in range(options.steps):
            total = float(strategy.experimental_local_results(step())[0])
            print(f"step {number}", flush=True)
            time.sleep(options.pause_of_rank_1 * (rank == 1) or 0.01)
    settings = tf.__internal__.eager_context.get_config().experimental
    result = {
        "rank": rank,
        "total": total,
        "replicas": strategy.num_replicas_in_sync,
        "catches_sigterm": _catches(signal.SIGTERM),
        "heartbeat_ms": settings.coordination_config.heartbeat_timeout_in_ms,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
