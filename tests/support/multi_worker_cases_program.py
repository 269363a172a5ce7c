"""A worker that runs cases of modules of the tests, one after another.

Starting workers takes longer than most cases: many share one start. What each
returns, or its traceback, is pickled into a file for each worker.
"""

import argparse
import importlib
import pickle
import traceback

from multi_worker_cases import Failure, Worker

from tf_ext import distribute


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("cases", nargs="+", help="module.function")
    args = parser.parse_args()
    strategy = distribute.multi_worker_strategy()
    worker = Worker(
        strategy,
        strategy.cluster_resolver.task_id,
        strategy.num_replicas_in_sync,
    )
    results = {}
    for name in args.cases:
        print(f"case {name}", flush=True)
        try:
            # Imported late: modules may make tensors.
            module, function = name.split(".")
            case = getattr(importlib.import_module(module), function)
            results[name] = case(worker)
        except Exception:
            results[name] = Failure(traceback.format_exc())
            print(results[name].text, flush=True)
        with open(f"{args.output}.{worker.rank}", "wb") as file:
            pickle.dump(results, file)


if __name__ == "__main__":
    main()
