# SPDX-License-Identifier: Apache-2.0
"""The learning rates of rules that are specified by name.

They were measured by benchmarks/default_rates.py and benchmarks/ctr_models.py:
see docs/learning_rates.md.
"""

import math


def embedding(scale: float, dim: int) -> float:
    """The learning rate for rows of `dim` weights, with `dim` above 1.

    It falls with the square root of `dim`: the weights of a row move together,
    and the initial kernel of the layer above is smaller the more there are.

    Args:
      scale: float, the learning rate times the square root of `dim`.
      dim: int, the number of weights in a row.

    Returns:
      A float.
    """
    return scale / math.sqrt(dim)


def adagrad(dim: int) -> tuple[float, float]:
    """Learning rate and initial accumulator value of Adagrad and similar rules.

    The gradient of a mean loss shrinks with the batch size, and Keras's initial
    accumulator value of 0.1 and epsilon of 1e-7 are far above its square: rows
    would hardly move. The values here are far below what a frequent row
    accumulates with any usual batch size, and just large enough that a row that
    occurs once in a batch of 8,192 does not move as far.

    A row of dim 1 is a term of the logit, whose gradient is not scaled down by
    layers above.

    Args:
      dim: int, the number of weights in a row.

    Returns:
      A pair of floats.
    """
    return (0.07, 1e-6) if dim == 1 else (embedding(0.2, dim), 3e-10)
