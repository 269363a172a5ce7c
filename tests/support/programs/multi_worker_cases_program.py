# SPDX-License-Identifier: Apache-2.0
"""A worker that runs cases of modules of the tests, as a test asks for them.

Starting workers takes longer than most cases: many share one start. What each
returns, or its traceback, is pickled into a file for each worker.
"""

import argparse
import importlib
import pickle
import time
import traceback

from cases.multi_worker_cases import (
    POLL_SECONDS,
    Failure,
    Worker,
    request_path,
    result_path,
    write,
)

from tf_ext import distribute


def run(name, worker):
    """What a case returns, or its `Failure`; of `module.function`."""
    print(f"case {name}", flush=True)
    try:
        # Imported late: modules may make tensors.
        module, _, function = name.rpartition(".")
        return getattr(importlib.import_module(module), function)(worker)
    except Exception:
        failure = Failure(traceback.format_exc())
        print(failure.text, flush=True)
        return failure


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="where cases are asked for")
    folder = parser.parse_args().folder
    strategy = distribute.multi_worker_strategy()
    worker = Worker(
        strategy,
        strategy.cluster_resolver.task_id,
        strategy.num_replicas_in_sync,
    )
    number = 1
    while True:
        request = request_path(folder, number)
        if not request.exists():
            time.sleep(POLL_SECONDS)
            continue
        result = run(request.read_text(), worker)
        write(result_path(folder, number, worker.rank), pickle.dumps(result))
        number += 1


if __name__ == "__main__":
    main()
