# SPDX-License-Identifier: Apache-2.0
"""Sends itself SIGTERM, as process 1 of a namespace, and says if it is alive.

Usage: process_1_program.py KIND, "none" for a program without tf_ext.
"""

import os
import signal
import sys
import tempfile


def _chief():
    from tf_ext import distribute
    from tf_ext.distribute import ports

    found = ports.free_ports(3)
    hosts = [[f"127.0.0.1:{port}"] for port in found]
    cluster = dict(zip(("chief", "worker", "ps"), hosts, strict=True))
    try:
        distribute.parameter_server_strategy(cluster, timeout_seconds=0.1)
    except TimeoutError:
        print("nobody answers", flush=True)


def _worker():
    from tf_ext import distribute
    from tf_ext.distribute import ports

    [port] = ports.free_ports(1)
    distribute.multi_worker_strategy({"worker": [f"127.0.0.1:{port}"]}, 0)


def _evaluator():
    import numpy as np
    from models.small_models import batch, compiled, functional, table

    import tf_ext

    model = compiled(functional(table()))
    features, _ = batch(np.random.default_rng(0))
    with tempfile.TemporaryDirectory() as folder:
        evaluator = tf_ext.utils.SidecarEvaluator(
            model, features, folder, timeout_seconds=0.0
        )
        try:
            evaluator.start()
        except TimeoutError:
            print("no point", flush=True)


def _own_handler():
    signal.signal(signal.SIGTERM, lambda *_: print("handled", flush=True))
    _chief()


_KINDS = {
    "none": lambda: None,
    "chief": _chief,
    "worker": _worker,
    "evaluator": _evaluator,
    "own_handler": _own_handler,
}


def main():
    assert os.getpid() == 1, os.getpid()
    _KINDS[sys.argv[1]]()
    os.kill(1, signal.SIGTERM)
    print("alive", flush=True)


if __name__ == "__main__":
    main()
