"""What a model is compiled with, and its variables before the first step."""

from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.optimizers import Optimizer


def wrapped_optimizers(optimizer):
    """The `tf_ext.optimizers.Optimizer` in what a model is compiled with.

    Args:
      optimizer: one, something around one, or one that is composed of several,
        its `optimizers`.

    Returns:
      list of Optimizer.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    found = [optimizer, inner, *getattr(optimizer, "optimizers", ())]
    return [one for one in found if isinstance(one, Optimizer)]


def build_model(model, batch):
    """Makes the variables of a model, if that was not done before.

    Args:
      model: keras.Model.
      batch: what a step takes.
    """
    if model.built:
        return
    if IS_KERAS_3 or type(model).call is not keras.Model.call:
        model(keras.utils.unpack_x_y_sample_weight(batch)[0])
        return
    # As models of TensorFlow Recommenders may be: their loss calls the parts.
    model.compute_loss(batch, training=False)
    model.reset_metrics()
    model.built = True


def build_optimizer(model):
    """Makes the slots of a compiled model's optimizer."""
    optimizer = getattr(model, "optimizer", None)
    # tf_keras's legacy optimizers, as one that is composed of several, make
    # theirs in the first step.
    if hasattr(optimizer, "build"):
        optimizer.build(model.trainable_variables)
