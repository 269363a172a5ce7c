"""Measures one build of tf_ext on request, in the Python where it is installed.

`comparing.py` starts it and calls methods of `_Worker`. It also runs with older
builds, so benchmarks that are compared use only what all builds have.
"""

import argparse
import importlib
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# First, for it fails at once where it is not installed.
import tf_ext  # isort: skip

import remote
import tensorflow as tf


class _Worker:
    """Holds the cases of one benchmark between requests."""

    def start(self, threads):
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)

    def build(self):
        return (
            f"tf_ext {tf_ext.__version__} of "
            f"{os.path.dirname(tf_ext.__file__)}, TensorFlow {tf.__version__}"
        )

    def make(self, module, function, warmup, args):
        """Prepares cases; returns their names."""
        make = getattr(importlib.import_module(module), function)
        self._cases = {
            case.name: case for case in make(argparse.Namespace(**args))
        }
        for case in self._cases.values():
            for _ in range(warmup):
                case.run()
        return list(self._cases)

    def values(self, case, repeats, settle):
        """Measures a case: `{measure: [values]}`."""
        return self._cases[case].values(repeats, settle)


if __name__ == "__main__":
    remote.serve(_Worker())
