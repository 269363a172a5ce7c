# SPDX-License-Identifier: Apache-2.0
"""Finds a model's optimizers, and builds it before the first step."""

import typing

from tf_ext._checks import refuse
from tf_ext._compat.optimizers import parts_of
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.data.worker_batches import blank_batch
from tf_ext.optimizers import Optimizer
from tf_ext.tables import shadow
from tf_ext.tables.find import tables_of

# Of the batch that models are built with.
_SAMPLES = 2


def wrapped_optimizers(optimizer: typing.Any) -> list[Optimizer]:
    """The `tf_ext.optimizers.Optimizer`s in a model's optimizer.

    Args:
      optimizer: such an optimizer, a wrapper of one, or one composed of
        several, its `optimizers`.

    Returns:
      list of Optimizer.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    found = [optimizer, inner, *getattr(optimizer, "optimizers", ())]
    return [one for one in found if isinstance(one, Optimizer)]


def build_model(model: keras.Model, batch: typing.Any) -> None:
    """Makes the variables of a model that has not been built.

    Args:
      model: keras.Model.
      batch: the argument of a step.
    """
    if model.built:
        return
    if IS_KERAS_3 or type(model).call is not keras.Model.call:
        model(keras.utils.unpack_x_y_sample_weight(batch)[0])
        return
    # Models of TensorFlow Recommenders may need it: their loss calls the parts.
    model.compute_loss(batch, training=False)
    model.reset_metrics()
    model.built = True


def build_optimizer(model: keras.Model) -> None:
    """Makes the slots of a compiled model's optimizer."""
    optimizer: typing.Any = getattr(model, "optimizer", None)
    for part, variables in parts_of(optimizer, model.trainable_variables):
        # tf_keras's legacy optimizers make theirs in the first step.
        if hasattr(part, "build"):
            part.build(variables)


def check_composed_optimizer(model: keras.Model) -> None:
    """Raises ValueError unless one optimizer trains each table.

    The composed optimizer itself checks the other variables, but would call a
    table's variable by a name that the user has never seen.

    Args:
      model: keras.Model, compiled with an optimizer.
    """
    optimizer: typing.Any = getattr(model, "optimizer", None)
    if not hasattr(optimizer, "optimizers"):
        return
    try:
        parts = parts_of(optimizer, [])
    except (AttributeError, ValueError):
        return  # Of a layer whose variables are made in the first step.
    trained = [shadow.table_of(v) for _, own in parts for v in own]
    for table in tables_of(model):
        count = sum(one is table for one in trained)
        if table.trainable and count != 1:
            raise ValueError(
                f"Table {table.name!r} is trained by {count or 'none'} of the "
                f"optimizers of {type(optimizer).__name__}. Each trainable "
                "variable and table must be among the variables of exactly one."
            )


def check_jit(jit_compile: typing.Any) -> None:
    """Raises ValueError if `compile` is to use XLA."""
    # "auto" means no to Keras 3, as some ops have no kernel for XLA; tf_keras
    # has no such value, and takes it for True.
    if jit_compile is True or (jit_compile and not IS_KERAS_3):
        allowed = "'auto' or False" if IS_KERAS_3 else "False"
        allowed += ", as XLA cannot compile the ops of tables"
        refuse("compile", "jit_compile", allowed, jit_compile)


def example_of(element_spec: typing.Any) -> typing.Any:
    """A batch of two samples, to build a model with.

    Models that squeeze their inputs, as `tfrs.experimental.models.Ranking`
    does, would lose the dimension of a batch of one sample.

    Args:
      element_spec: nested structure of `tf.TypeSpec` of batches.
    """
    return blank_batch(element_spec, _SAMPLES)
