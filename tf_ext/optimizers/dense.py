"""The optimizer of everything but tables, taken over by `Optimizer`."""

import tensorflow as tf

from tf_ext._checks import is_finite
from tf_ext._keras import keras
from tf_ext.optimizers.updates import Clipping


def get(identifier):
    """A Keras optimizer from a name, a configuration or an instance.

    Raises:
      ValueError: something else, or an option that tables cannot follow.
    """
    if hasattr(identifier, "optimizers"):
        raise ValueError(
            "Argument `dense` of tf_ext.optimizers.Optimizer is composed of "
            "several optimizers, which it cannot follow. Wrap each of them, "
            "or the one that updates the tables: "
            f"{type(identifier).__name__}([(tf_ext.optimizers.Optimizer("
            f"'adam'), ...), ...]). Received: dense={identifier!r}"
        )
    try:
        dense = keras.optimizers.get(identifier)
    except (ValueError, TypeError) as error:
        raise ValueError(_wrong(identifier)) from error
    if not isinstance(dense, keras.optimizers.Optimizer):
        raise ValueError(_wrong(identifier))
    if hasattr(dense, "tf_ext_tables"):
        raise ValueError(
            "Argument `dense` of tf_ext.optimizers.Optimizer is one already. "
            "Wrap the Keras optimizer once."
        )
    return dense


def _wrong(identifier):
    return (
        "Argument `dense` of tf_ext.optimizers.Optimizer must be a "
        "keras.optimizers.Optimizer (not a legacy one) or the name of one. "
        f"Received: dense={identifier!r}"
    )


def refuse_ema(dense):
    """Raises if the optimizer keeps moving averages of the weights."""
    if dense.use_ema:
        raise ValueError(
            "Argument `dense` of tf_ext.optimizers.Optimizer has use_ema=True: "
            "averages of a table's rows are not kept, so evaluation would mix "
            "averaged variables with current rows. Use use_ema=False."
        )


def take_clipping(dense):
    """Moves the clipping of `dense` to its wrapper.

    It has to act on variables and tables together, and only once.
    """
    clipping = Clipping(dense.clipnorm, dense.global_clipnorm, dense.clipvalue)
    for name in clipping._fields:
        setattr(dense, name, None)
    return clipping


def keys_of(dense, variables):
    """What tells variables apart in `dense`, a set."""
    return {dense._var_key(variable) for variable in variables}


def check_known(dense, name, known, variables):
    """Raises ValueError for variables that an optimizer was not built for.

    Args:
      dense: the wrapped Keras optimizer.
      name: string, that of the wrapper.
      known: set, `keys_of` the variables that it was built for.
      variables: list of variables, without shadows of tables.
    """
    unknown = [
        getattr(v, "path", v.name)
        for v in variables
        if dense._var_key(v) not in known
    ]
    if unknown:
        raise ValueError(
            f"The tf_ext.optimizers.Optimizer {name!r} was built for other "
            f"variables: it does not know {unknown[0]!r} and "
            f"{len(unknown) - 1} more. An optimizer belongs to one model: make "
            "one for each. For parts of one model that are trained in turn, "
            "call `optimizer.build` with the variables of all parts first."
        )


def initial_learning_rate(dense):
    """The rate that `dense` begins with: a float, or None of a schedule."""
    variable = _rate_variable(dense)
    if variable is None:
        return None
    with tf.init_scope():
        return float(tf.convert_to_tensor(variable))


def learning_rate_factor(dense, initial):
    """What tables' own rates are multiplied by: a float64 scalar tensor.

    Args:
      dense: a Keras optimizer.
      initial: float, the rate that it began with; None for a schedule.

    Returns:
      Its rate now by `initial`; 1 if it has a schedule, or began with 0.
    """
    variable = _rate_variable(dense)
    if variable is None or not initial:
        return tf.constant(1.0, tf.float64)
    rate = tf.cast(tf.convert_to_tensor(variable), tf.float64)
    return rate / tf.constant(initial, tf.float64)


def check_initial_learning_rate(value):
    """Raises ValueError unless it is a finite number or None."""
    if value is not None and not is_finite(value):
        raise ValueError(
            "`initial_learning_rate` in the configuration of a "
            "tf_ext.optimizers.Optimizer must be a finite number or None. "
            f"Received: initial_learning_rate={value!r}"
        )


def _rate_variable(dense):
    """The variable of the rate, or None of a schedule or a function."""
    # The property `learning_rate` is a variable for schedules, too.
    rate = dense._learning_rate
    return rate if hasattr(rate, "assign") else None


def serialize(dense, **taken):
    """The configuration of `dense` with what was taken over put back."""
    config = keras.optimizers.serialize(dense)
    config["config"].update(taken)
    return config
