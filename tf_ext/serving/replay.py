# SPDX-License-Identifier: Apache-2.0
"""Compares the outputs of an export with those of the exported model."""

import os
import typing

import numpy as np
import tensorflow as tf

from tf_ext.serving.warmup import SIGNATURE, Arrays, read_warmup

# The largest difference of an output that the rounding of rows can cause.
LIMITS = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2, "int8": 2e-2}


class Difference(typing.NamedTuple):
    """The difference of an export's outputs from those of the exported model.

    Attributes:
      largest: float, the largest difference of any number, relative to the
        model's where that is above 1. Infinite if only one of the two is NaN,
        or if strings differ.
      output: string, the name of the output with that difference.
      batches: int, the number of batches that were replayed.
    """

    largest: float
    output: str
    batches: int


def replay(folder: str | os.PathLike[str]) -> Difference:
    """Loads an export and replays its warm-up batches.

    Args:
      folder: path-like, the folder of a version.

    Returns:
      Difference.
    """
    loaded = tf.saved_model.load(os.fspath(folder))
    serve = loaded.signatures[SIGNATURE]
    batches = read_warmup(folder)
    found = [
        (difference(answer[name], wanted), name)
        for inputs, outputs in batches
        for answer in [_ask(serve, inputs)]
        for name, wanted in outputs.items()
    ]
    largest, output = max(found, default=(0.0, ""))
    return Difference(largest, output, len(batches))


def _ask(serve: typing.Any, inputs: Arrays) -> Arrays:
    answer = serve(**{k: tf.constant(value) for k, value in inputs.items()})
    return {name: value.numpy() for name, value in answer.items()}


def difference(found: typing.Any, wanted: typing.Any) -> float:
    """The largest difference of two arrays; see `Difference`."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    if found.shape != wanted.shape:
        return float("inf")
    if wanted.dtype.kind not in "iufb":
        return 0.0 if np.array_equal(found, wanted) else float("inf")
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(found - wanted) / np.maximum(1, np.abs(wanted))
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    apart = np.where(same, 0, np.where(np.isnan(apart), np.inf, apart))
    return float(apart.max(initial=0))
