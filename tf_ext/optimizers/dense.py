# SPDX-License-Identifier: Apache-2.0
"""The Keras optimizer that `Optimizer` wraps, for all but tables."""

import typing
from collections.abc import Sequence, Set

import tensorflow as tf

from tf_ext._checks import is_finite
from tf_ext._compat.optimizers import key_of, rate_variable
from tf_ext._keras import keras
from tf_ext.optimizers.adapter import Clipping
from tf_ext.tables import shadow


def get(identifier: typing.Any) -> keras.optimizers.Optimizer:
    """A Keras optimizer from a name, a configuration or an instance.

    Raises:
      ValueError: something else, or an option that tables cannot follow.
    """
    if hasattr(identifier, "optimizers"):
        raise ValueError(
            "Argument `dense` of tf_ext.optimizers.Optimizer must be a single "
            f"optimizer. Received: dense={identifier!r}, composed of several. "
            "Wrap each of them, or the one that updates the tables: "
            f"{type(identifier).__name__}([(tf_ext.optimizers.Optimizer("
            "'adam'), ...), ...])"
        )
    try:
        dense = keras.optimizers.get(identifier)
    except (ValueError, TypeError) as error:
        raise ValueError(_wrong(identifier)) from error
    if not isinstance(dense, keras.optimizers.Optimizer):
        raise ValueError(_wrong(identifier))
    if hasattr(dense, "tf_ext_tables"):
        raise ValueError(
            "Argument `dense` of tf_ext.optimizers.Optimizer must be a Keras "
            f"optimizer that is not wrapped yet. Received: dense={dense!r}"
        )
    return dense


def _wrong(identifier: object) -> str:
    return (
        "Argument `dense` of tf_ext.optimizers.Optimizer must be a "
        "keras.optimizers.Optimizer (not a legacy one) or the name of one. "
        f"Received: dense={identifier!r}"
    )


def refuse_ema(dense: keras.optimizers.Optimizer) -> None:
    """Raises if the optimizer keeps moving averages of the weights."""
    if dense.use_ema:
        raise ValueError(
            "Argument `dense` of tf_ext.optimizers.Optimizer must have "
            "use_ema=False: averages of a table's rows are not kept, so "
            "evaluation would mix averaged variables with current rows. "
            "Received: an optimizer with use_ema=True"
        )


def take_clipping(dense: keras.optimizers.Optimizer) -> Clipping:
    """Moves the clipping of `dense` to its wrapper.

    It must be applied to variables and tables together, and only once.
    """
    clipping = Clipping(dense.clipnorm, dense.global_clipnorm, dense.clipvalue)
    for name in clipping._fields:
        setattr(dense, name, None)
    return clipping


def keys_of(
    dense: keras.optimizers.Optimizer, variables: Sequence[typing.Any]
) -> set[typing.Any]:
    """The set of keys that identify variables in `dense`."""
    return {key_of(dense, variable) for variable in variables}


def check_known(
    dense: keras.optimizers.Optimizer,
    name: str,
    known: Set[typing.Any],
    grads: Sequence[typing.Any],
    variables: Sequence[typing.Any],
) -> None:
    """Raises ValueError for variables that an optimizer was not built on.

    Args:
      dense: the wrapped Keras optimizer.
      name: string, that of the wrapper.
      known: set, `keys_of` the variables that it was built for.
      grads: list of gradients, or None where a variable has none.
      variables: list of variables, shadows of tables among them.
    """
    unknown = [
        getattr(v, "path", v.name)
        for g, v in zip(grads, variables)
        if g is not None
        and shadow.table_of(v) is None
        and key_of(dense, v) not in known
    ]
    if unknown:
        raise ValueError(
            f"The tf_ext.optimizers.Optimizer {name!r} was built for other "
            f"variables: it does not know {unknown[0]!r} and "
            f"{len(unknown) - 1} more. An optimizer belongs to one model: make "
            "one for each. For parts of one model that are trained in turn, "
            "call `optimizer.build` with the variables of all parts first."
        )


def initial_learning_rate(dense: keras.optimizers.Optimizer) -> float | None:
    """The rate that `dense` begins with: a float, or None of a schedule."""
    variable = rate_variable(dense)
    if variable is None:
        return None
    with tf.init_scope():
        return float(tf.convert_to_tensor(variable))


def learning_rate_factor(
    dense: keras.optimizers.Optimizer, initial: float | None
) -> tf.Tensor:
    """The factor of tables' own rates: a float64 scalar tensor.

    Args:
      dense: a Keras optimizer.
      initial: float, the rate that it began with; None for a schedule.

    Returns:
      Its current rate divided by `initial`; 1 if it has a schedule, or began
      with 0.
    """
    variable = rate_variable(dense)
    if variable is None or not initial:
        return tf.constant(1.0, tf.float64)
    rate = tf.cast(tf.convert_to_tensor(variable), tf.float64)
    return rate / tf.constant(initial, tf.float64)


def check_initial_learning_rate(value: typing.Any) -> None:
    """Raises ValueError unless it is a finite number or None."""
    if value is not None and not is_finite(value):
        raise ValueError(
            "The member `initial_learning_rate` of the configuration of a "
            "tf_ext.optimizers.Optimizer must be a finite number or None. "
            f"Received: initial_learning_rate={value!r}"
        )


def check_on_nonfinite(value: object) -> None:
    """Raises ValueError unless it is "raise" or "skip"."""
    if value not in ("raise", "skip"):
        raise ValueError(
            "Argument `on_nonfinite` of tf_ext.optimizers.Optimizer must be "
            f"'raise' or 'skip'. Received: on_nonfinite={value!r}"
        )


def refuse_skip(on_nonfinite: str) -> None:
    """Raises ValueError if steps are to be skipped."""
    if on_nonfinite == "skip":
        raise ValueError(
            "Argument `on_nonfinite` of tf_ext.optimizers.Optimizer must be "
            "'raise' under ParameterServerStrategy, where a step cannot be "
            "skipped as a whole. Received: on_nonfinite='skip'"
        )


def serialize(
    dense: keras.optimizers.Optimizer, **taken: typing.Any
) -> dict[str, typing.Any]:
    """The configuration of `dense`, including the options taken over."""
    config = keras.optimizers.serialize(dense)
    config["config"].update(taken)
    return config


def deserialize(
    config: dict[str, typing.Any],
    custom_objects: dict[str, typing.Any] | None = None,
) -> keras.optimizers.Optimizer:
    """The optimizer of `serialize`."""
    # It changes what it is given.
    made = keras.optimizers.deserialize(dict(config), custom_objects)
    if isinstance(made, str):
        # tf_keras's function does not know all its own optimizers, as Lion.
        made = keras.saving.deserialize_keras_object(config, custom_objects)
    return made
