# SPDX-License-Identifier: Apache-2.0
"""Converts Keras optimizers to update rules of tables."""

import inspect
import typing

import numpy as np
import tensorflow as tf

from tf_ext._compat.optimizers import given_rate, rate_variable
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.tables.sparse_optimizers.adagrad import SparseAdagrad
from tf_ext.tables.sparse_optimizers.adam import SparseAdam
from tf_ext.tables.sparse_optimizers.base import (
    LearningRate,
    SparseOptimizer,
)
from tf_ext.tables.sparse_optimizers.ftrl import SparseFtrl
from tf_ext.tables.sparse_optimizers.lion import SparseLion
from tf_ext.tables.sparse_optimizers.rmsprop import SparseRMSprop
from tf_ext.tables.sparse_optimizers.sgd import SparseSGD

# For each Keras class, the rule and its arguments that the class does not have.
# Keras's Adam counts steps globally and not per row.
_RULES: dict[
    typing.Any, tuple[type[SparseOptimizer], dict[str, typing.Any]]
] = {
    keras.optimizers.SGD: (SparseSGD, {}),
    keras.optimizers.Adagrad: (SparseAdagrad, {}),
    keras.optimizers.Adam: (SparseAdam, {"bias_correction": "global"}),
    keras.optimizers.AdamW: (SparseAdam, {"bias_correction": "global"}),
    keras.optimizers.Ftrl: (SparseFtrl, {}),
    keras.optimizers.RMSprop: (SparseRMSprop, {}),
    keras.optimizers.Lion: (SparseLion, {}),
}
# Options that belong to the model's optimizer, or that no rule supports.
_REFUSED = {
    "adaptive_epsilon": "no rule of a table varies epsilon by step",
    "amsgrad": "no rule of a table keeps the maximum second moment",
    "use_ema": "tables do not keep averages of their rows",
    "clipnorm": "pass it to the model's optimizer, which clips tables too",
    "clipvalue": "pass it to the model's optimizer, which clips tables too",
    "global_clipnorm": "pass it to the model's optimizer, which clips tables "
    "too",
    "loss_scale_factor": "pass it to the model's optimizer",
    "gradient_accumulation_steps": "pass it to the model's optimizer, which "
    "accumulates gradients of tables too",
}


def convert(optimizer: typing.Any) -> SparseOptimizer | None:
    """Converts a Keras optimizer to the update rule with the same formula.

    Args:
      optimizer: any object.

    Returns:
      A `SparseOptimizer` with the optimizer's hyperparameters, including its
      learning rate or schedule; None if `optimizer` is no Keras optimizer.

    Raises:
      ValueError: if no rule has the optimizer's formula.
    """
    if hasattr(optimizer, "tf_ext_tables"):
        # tf_ext.optimizers.Optimizer is for models; the caller's error for
        # other objects applies.
        return None
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        _refuse_foreign(optimizer)
        return None
    # A subclass may have another formula.
    if type(optimizer) not in _RULES:
        names = ", ".join(sorted(one.__name__ for one in _RULES))
        raise ValueError(
            "Argument `optimizer` of SparseTable must have a formula that "
            f"tables support: that of keras.optimizers.{{{names}}}, not of a "
            f"subclass. Received: optimizer={_named(optimizer)}"
        )
    rule, fixed = _RULES[type(optimizer)]
    config = optimizer.get_config()
    for name, why in _REFUSED.items():
        # In tf_keras some options are attributes, but not in the config.
        found = config.get(name, getattr(optimizer, name, None))
        if found:
            raise ValueError(
                "Argument `optimizer` of SparseTable must be a Keras optimizer "
                f"without {name}: {why}. Received: "
                f"optimizer={_named(optimizer)} with {name}={found!r}"
            )
    names = inspect.signature(rule).parameters.keys() & config.keys()
    options = {name: config[name] for name in names} | fixed
    # Some versions of Keras have 0 as the default, which means none.
    options["weight_decay"] = config.get("weight_decay") or None
    return rule(**options | {"learning_rate": _rate(optimizer)})


def _rate(optimizer: keras.optimizers.Optimizer) -> LearningRate:
    variable = rate_variable(optimizer)
    if variable is not None:
        with tf.init_scope():
            rate = tf.convert_to_tensor(variable).numpy()
        # The variable holds a float32; its shortest decimal representation is
        # the number that the user passed.
        return float(str(np.float32(rate)))
    rate = given_rate(optimizer)
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return rate
    raise ValueError(
        "Argument `optimizer` of SparseTable must have a learning rate that is "
        "a number or a keras.optimizers.schedules.LearningRateSchedule. "
        f"Received: learning_rate={rate!r}"
    )


def _refuse_foreign(optimizer: object) -> None:
    """Raises ValueError for an optimizer of the other Keras or a legacy one."""
    families = {
        (one.__module__.split(".")[0], one.__name__)
        for one in type(optimizer).__mro__
    }
    if families & {
        ("keras", "BaseOptimizer"),
        ("tf_keras", "OptimizerV2"),
        ("tf_keras", "_BaseOptimizer"),
    }:
        mine = "Keras 3" if IS_KERAS_3 else "tf_keras"
        raise ValueError(
            "Argument `optimizer` of SparseTable must be an optimizer of the "
            f"Keras in use, which is {mine} (tf.keras.optimizers), and not a "
            f"legacy one. Received: optimizer={_named(optimizer)}"
        )


def _named(optimizer: object) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__name__}"
