# SPDX-License-Identifier: Apache-2.0
"""A worker that runs cases of modules of the tests, as a test asks for them.

Starting workers takes longer than most cases: many share one start.
"""

import argparse
import importlib

from clusters import tasks
from clusters.case_workers import Worker

from tf_ext import distribute


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="where cases are asked for")
    folder = parser.parse_args().folder
    strategy = distribute.multi_worker_strategy()
    rank = strategy.cluster_resolver.task_id
    worker = Worker(strategy, rank, strategy.num_replicas_in_sync)

    def run(name):
        print(f"case {name}", flush=True)
        # Imported late: modules may make tensors.
        module, _, function = name.rpartition(".")
        return getattr(importlib.import_module(module), function)(worker)

    tasks.run_all(folder, rank, run)


if __name__ == "__main__":
    main()
