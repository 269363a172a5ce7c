# SPDX-License-Identifier: Apache-2.0
"""Rows of split exports, as a program without TensorFlow finds them."""

import json
import os

import numpy as np
import processes
import tensorflow as tf


def looked_up(folder, version, batch):
    """The rows of a batch, as the dense part takes them.

    Args:
      folder: string, for files of the program.
      version: string, what `export_split` returned.
      batch: dict of lists, the features.

    Returns:
      `{input: tensor}`.
    """
    cases, out = (os.path.join(folder, n) for n in ("cases.json", "out.npz"))
    with open(cases, "w") as file:
        json.dump([{"version": version, "batch": batch}], file)
    processes.run("split_lookup_program.py", cases, out)
    with np.load(out) as found:
        return {
            name.partition("/")[2]: tf.constant(found[name]) for name in found
        }
