"""The optimizer of everything but tables, taken over by `Optimizer`."""

from tf_ext._keras import keras
from tf_ext.optimizers.updates import Clipping


def get(identifier):
    """A Keras optimizer from a name, a configuration or an instance.

    Raises:
      ValueError: something else, or an option that tables cannot follow.
    """
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


def serialize(dense, **taken):
    """The configuration of `dense` with what was taken over put back."""
    config = keras.optimizers.serialize(dense)
    config["config"].update(taken)
    return config
