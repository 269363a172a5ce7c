# SPDX-License-Identifier: Apache-2.0
"""Steps of models whose replicas have different numbers of samples.

What Keras calls a mean over the batch is then one over all replicas' samples,
in gradients and in logs.
"""

import contextlib
import functools
import types
import typing
from collections.abc import Callable, Iterator

import tensorflow as tf

from tf_ext._compat.models import (
    layers_of,
    loss_metrics_of_outputs,
    losses_are_mixed,
)
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.data.worker_batches import batch_size_of
from tf_ext.layers.batch_normalization import BatchNormalization
from tf_ext.layers.in_batch_softmax import InBatchSoftmax
from tf_ext.regimes import (
    Regime,
    ReplicaWeight,
    current_step,
    library_step,
    losses_of_layers,
    regime_of_model,
    step_with,
    weigh_computed_loss,
)
from tf_ext.training import recommenders
from tf_ext.training.losses import losses_add_up


def install(model: keras.Model) -> None:
    """Weights the steps of a model, also those of its own.

    Keras calls these methods by the model's attributes. So what it calls is the
    outermost one, whatever its classes override.

    Args:
      model: tf_ext.Model that trains on several replicas.
    """
    for function in (train_step, test_step, compute_loss):
        name = function.__name__
        if name not in vars(model):
            setattr(model, name, types.MethodType(function, model))


def train_step(model: typing.Any, data: typing.Any) -> typing.Any:
    """The model's step, on a replica."""
    with _in_step(model, data, trains=True) as weight:
        if weight is not None and not IS_KERAS_3:
            _check_moving_averages(model, weight.value)
        logs = type(model).train_step(model, data)
        if weight is not None and not weight.is_applied:
            _check_own_step(model)
    return logs


def test_step(model: typing.Any, data: typing.Any) -> typing.Any:
    """The model's step, on a replica."""
    with _in_step(model, data, trains=False):
        return type(model).test_step(model, data)


def compute_loss(
    model: typing.Any, *args: typing.Any, **kwargs: typing.Any
) -> typing.Any:
    """The model's loss, whose gradient is weighted."""
    loss = type(model).compute_loss(model, *args, **kwargs)
    return (
        loss
        if loss is None
        else weigh_computed_loss(current_step().weight, loss)
    )


def step_of_class(
    model: keras.Model,
    step: Callable[..., dict[str, typing.Any]],
    data: typing.Any,
) -> dict[str, typing.Any]:
    """Calls a step of the model's Keras class, in a replica.

    Args:
      model: tf_ext.Model.
      step: the method, `train_step` or `test_step`.
      data: its argument.
    """
    weight = current_step().weight
    if weight is None:
        return step(data)
    regime = regime_of_model(model)
    of_package = recommenders.is_recommenders_step(step)
    if of_package:
        weight.share_of_losses = functools.partial(
            _share_of_losses, model, regime, weight.value
        )
    with library_step(weight):
        logs = step(data)
    if not of_package:
        return logs
    return recommenders.sum_losses(logs, weight.value, regime.exchange.sum)


def added_losses(
    model: keras.Model, losses: list[tf.Tensor]
) -> list[tf.Tensor]:
    """The losses of a model's layers, as a step on a replica is to see them.

    Args:
      model: tf_ext.Model.
      losses: list of tensors, what Keras has.

    Raises:
      ValueError: some are of other replicas.
    """
    if losses_are_mixed(losses):
        strategy = regime_of_model(model).strategy_name
        raise ValueError(
            f"Layers of {type(model).__name__} must not call `add_loss` under "
            f"{strategy} beside a layer that sums over replicas: Keras 3 mixes "
            "the losses of replicas. Add the loss in `compute_loss` of the "
            "model, or use tf_keras (TF_USE_LEGACY_KERAS=1)."
        )
    return losses_of_layers(current_step().weight, losses)


@contextlib.contextmanager
def _in_step(
    model: typing.Any, data: typing.Any, trains: bool
) -> Iterator[typing.Any]:
    """Yields the ReplicaWeight of a step that begins; None within a step."""
    weight = current_step().weight
    with contextlib.ExitStack() as stack:
        if weight is None:
            # The loop of Keras 3's synchronous workers knows it already.
            value = _weight_of(model, data, trains)
            if value is None:
                yield None
                return
            weight = ReplicaWeight(value)
            stack.enter_context(step_with(weight=weight))
        if weight.in_step:
            yield None
            return
        weight.in_step = True
        states = [
            (state, tf.identity(state))
            for metric in loss_metrics_of_outputs(model)
            for state in metric.variables
        ]
        yield weight
        # Keras 3 counts the loss of each replica's share as that of a batch.
        for state, before in states:
            added = tf.convert_to_tensor(state) - before
            added = tf.math.multiply_no_nan(added, weight.value)
            state.assign(before + added)


def _weight_of(
    model: keras.Model, data: typing.Any, trains: bool
) -> tf.Tensor | None:
    """What a replica's loss is multiplied by in a step.

    Args:
      model: tf_ext.Model.
      data: the argument of the step.
      trains: bool, whether the step computes gradients.

    Returns:
      A float32 scalar tensor, the `value` of a ReplicaWeight; None
      if there is one replica.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return None
    regime = regime_of_model(model)
    size = batch_size_of(data)
    has_samples = tf.cast(size > 0, tf.float32)
    if recommenders.is_recommenders_model(model):
        adds_up = recommenders.loss_is_sum(model)
    else:
        adds_up = losses_add_up(model.loss) or not (
            trains or loss_metrics_of_outputs(model)
        )
    if adds_up:
        return has_samples
    return tf.math.divide_no_nan(
        tf.cast(regime.num_replicas * size, tf.float32),
        tf.cast(regime.exchange.total(size), tf.float32),
    )


def _share_of_losses(
    model: keras.Model, regime: Regime, weight: tf.Tensor
) -> tf.Tensor:
    """A replica's share of losses that all of them add up."""
    if not recommenders.loss_is_sum(model):
        return tf.constant(1.0 / regime.num_replicas)
    count = regime.exchange.total(tf.cast(weight > 0, tf.int64))
    return tf.math.divide_no_nan(1.0, tf.cast(count, tf.float32))


def _check_moving_averages(model: keras.Model, weight: tf.Tensor) -> None:
    """Raises InvalidArgumentError where tf_keras would miss updates.

    Its layers average the moving averages of the replicas, of which those
    without samples have not moved. All replicas raise it, as none could go on.
    """
    for layer in layers_of(model):
        if getattr(layer, "synchronized", False):
            message = (
                f"Layer {layer.name!r} of tf_keras does not update its moving "
                "averages on a replica without samples. Use "
                "tf_ext.layers.BatchNormalization, with the same arguments "
                "except for `synchronized`."
            )
            empty = tf.cast(weight <= 0, tf.int64)
            regime = regime_of_model(model)
            fine = regime.exchange.total(empty) == 0
            regime.exchange.raise_error(tf.where(fine, "", message))
            return


def _check_own_step(model: keras.Model) -> None:
    """Raises ValueError if gradients could not be weighted in time."""
    for layer in layers_of(model):
        if (
            isinstance(layer, BatchNormalization)
            or getattr(layer, "synchronized", False)
            or (isinstance(layer, InBatchSoftmax) and layer.global_negatives)
        ):
            raise ValueError(
                f"`train_step` of {type(model).__name__} must weight its loss, "
                f"as layer {layer.name!r} sums over replicas, whose shares of "
                "a batch may differ in size. Compute the loss in "
                "`compute_loss`, and leave the step to tf_ext.Model; or, "
                "inside of the tape, call `loss = "
                "self.optimizer.scale_loss(loss)` in Keras 3, or "
                "`self.optimizer.minimize(loss, variables, tape=tape)` in "
                "tf_keras."
            )
