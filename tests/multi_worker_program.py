"""A worker that adds up numbers with the others, step by step."""

import argparse
import json
import os
import time

import tensorflow as tf

import tf_ext
from tf_ext import distribute


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--timeout_seconds", type=float, default=60.0)
    parser.add_argument("--heartbeat_timeout_seconds", type=float, default=30.0)
    parser.add_argument("--version_of_rank_1")
    options = parser.parse_args()
    if options.version_of_rank_1 and '"index": 1' in os.environ["TF_CONFIG"]:
        tf_ext.__version__ = options.version_of_rank_1
    strategy = distribute.multi_worker_strategy(
        timeout_seconds=options.timeout_seconds,
        heartbeat_timeout_seconds=options.heartbeat_timeout_seconds,
    )
    rank = strategy.cluster_resolver.task_id or 0

    @tf.function
    def step():
        return strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.SUM, tf.constant(rank + 1.0)
            )
        )

    with distribute.naming_lost_worker(strategy):
        for number in range(options.steps):
            total = float(strategy.experimental_local_results(step())[0])
            print(f"step {number}", flush=True)
            time.sleep(0.01)
    print(
        json.dumps(
            {
                "rank": rank,
                "total": total,
                "replicas": strategy.num_replicas_in_sync,
            }
        )
    )


if __name__ == "__main__":
    main()
