# SPDX-License-Identifier: Apache-2.0
"""Runs dense parts in a process that cannot import tf_ext.

    split_dense_program.py JSON OUT

JSON is a list of `{"version": folder, "inputs": npz}`; OUT.npz gets
"INDEX/OUTPUT" for each case and output.
"""

import json
import pathlib
import sys

sys.modules["tf_ext"] = None

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def main(cases, out):
    """See the module's docstring."""
    results = {}
    for index, case in enumerate(json.loads(pathlib.Path(cases).read_text())):
        loaded = tf.saved_model.load(f"{case['version']}/dense")
        with np.load(case["inputs"]) as inputs:
            outputs = loaded.signatures["serving_default"](
                **{name: tf.constant(inputs[name]) for name in inputs}
            )
        for name, value in outputs.items():
            results[f"{index}/{name}"] = value.numpy()
    np.savez(out, **results)
    assert "_tf_ext_ops" not in pathlib.Path("/proc/self/maps").read_text()


if __name__ == "__main__":
    main(*sys.argv[1:])
