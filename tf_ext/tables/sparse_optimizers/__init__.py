# SPDX-License-Identifier: Apache-2.0
"""The update rules of tables.

Each has the formula, hyperparameters, defaults and initial slot values of the
Keras optimizer of the same name (`keras.optimizers`), applied lazily: the
gradients of a sign are summed, and its row is updated once per step; rows that
are not pushed do not change, and weight decay applies to pushed rows only.

A rule that is specified by name has the hyperparameters listed in `get`.
"""

import typing

from tf_ext._keras import keras
from tf_ext.tables.sparse_optimizers.adagrad import (
    SparseAdagrad,
    SparseRowWiseAdagrad,
)
from tf_ext.tables.sparse_optimizers.adam import SparseAdam
from tf_ext.tables.sparse_optimizers.base import SparseOptimizer
from tf_ext.tables.sparse_optimizers.from_keras import convert
from tf_ext.tables.sparse_optimizers.ftrl import SparseFtrl
from tf_ext.tables.sparse_optimizers.lion import SparseLion
from tf_ext.tables.sparse_optimizers.rmsprop import SparseRMSprop
from tf_ext.tables.sparse_optimizers.sgd import SparseSGD

__all__ = [
    "SparseAdagrad",
    "SparseAdam",
    "SparseFtrl",
    "SparseLion",
    "SparseOptimizer",
    "SparseRMSprop",
    "SparseRowWiseAdagrad",
    "SparseSGD",
    "get",
]


_BY_NAME: dict[str, type[SparseOptimizer]] = {
    "sgd": SparseSGD,
    "adagrad": SparseAdagrad,
    "row_wise_adagrad": SparseRowWiseAdagrad,
    "adam": SparseAdam,
    "ftrl": SparseFtrl,
    "rmsprop": SparseRMSprop,
    "lion": SparseLion,
}


def get(identifier: typing.Any, dim: int) -> SparseOptimizer:
    """Returns the update rule for an identifier.

    A name selects hyperparameters that work without tuning for batches of 256
    to 8,192, in training of at least about 50 steps, and depend only on `dim`.
    For dims above 1, with `r` the square root of `dim`:

    - "sgd": `SparseSGD(10.0)`
    - "adagrad": `SparseAdagrad(0.2 / r, 3e-10, epsilon=0.0)`
    - "row_wise_adagrad": `SparseRowWiseAdagrad` with the same arguments
    - "adam": `SparseAdam(0.4 / r)`
    - "ftrl": `SparseFtrl(0.2 / r, initial_accumulator_value=3e-10)`
    - "rmsprop": `SparseRMSprop(0.2 / r, epsilon=1e-15)`
    - "lion": `SparseLion(0.16 / r)`

    For dim 1, a term of a linear model, the learning rate is 0.07 instead of
    0.2 / r, with an initial accumulator value of 1e-6; for Adam, RMSprop and
    Lion it is 0.01, 0.005 and 0.004.

    An object without a learning rate uses the model optimizer's, and has
    Keras's defaults for all other hyperparameters: `SparseAdagrad()` is not
    "adagrad".

    A Keras optimizer is converted to the rule with the same formula, including
    its hyperparameters and its learning rate or schedule:
    `keras.optimizers.Adagrad(0.05)` becomes `SparseAdagrad(0.05)`, and
    `keras.optimizers.Adam()` becomes
    `SparseAdam(0.001, bias_correction="global")`, as Keras counts steps
    globally and not per row. The optimizer's variables are not used.

    Args:
      identifier: a `SparseOptimizer`; one of the names above; a
        `keras.optimizers` SGD, Adagrad, Adam, AdamW, Ftrl, RMSprop or Lion;
        or one of both that was serialized by `keras.saving`.
      dim: int, the number of weights in a row.

    Returns:
      A `SparseOptimizer`.

    Raises:
      ValueError: if `identifier` is none of these; the message lists them.

    Example:
    >>> import tf_ext
    >>> tf_ext.tables.sparse_optimizers.get("adagrad", dim=4).learning_rate
    0.1
    """
    if isinstance(identifier, dict):
        identifier = keras.utils.deserialize_keras_object(identifier)
    if isinstance(identifier, SparseOptimizer):
        return identifier
    if isinstance(identifier, str) and identifier in _BY_NAME:
        return _BY_NAME[identifier].by_name(dim)
    rule = convert(identifier)
    if rule is not None:
        return rule
    raise ValueError(
        "Argument `optimizer` of SparseTable must be a "
        f"tf_ext.optimizers.SparseOptimizer or one of {sorted(_BY_NAME)}, or "
        "a Keras optimizer that has the formula of one. "
        f"Received: optimizer={identifier!r}"
    )
