# SPDX-License-Identifier: Apache-2.0
"""What steps of TensorFlow Recommenders' models do differently from Keras's.

They are recognized by the names of their modules: tf_ext does not depend on
that package.
"""

import typing
from collections.abc import Callable

import tensorflow as tf

from tf_ext._keras import keras

_PACKAGE = "tensorflow_recommenders"

# What a step returns besides the results of metrics.
_LOSSES = ("loss", "regularization_loss", "total_loss")


def is_recommenders_step(step: Callable[..., typing.Any]) -> bool:
    """Whether a train or test step is one of `tfrs.Model`.

    Such a step calls the model's `compute_loss`, and returns the loss itself,
    where Keras's returns metrics alone.

    Args:
      step: the method of a model.
    """
    return _is_of_package(step)


def is_recommenders_model(model: keras.Model) -> bool:
    """Whether a model is derived from `tfrs.Model`.

    Args:
      model: keras.Model.
    """
    return any(_is_of_package(base) for base in type(model).__mro__)


def loss_is_sum(model: keras.Model) -> bool:
    """Whether the losses of parts of a batch add up to that of the batch.

    So do the sums that `compute_loss` of a `tfrs.Model` has to return under
    strategies of several replicas. The loss of
    `tfrs.experimental.models.Ranking`, which has its own `compute_loss`, is
    the mean over a part, divided by the number of replicas, as Keras's is.

    Args:
      model: keras.Model that is derived from `tfrs.Model`.
    """
    return not _is_of_package(type(model).compute_loss)


def sum_losses(
    logs: dict[str, typing.Any],
    weight: tf.Tensor,
    add_up: Callable[[tf.Tensor], tf.Tensor],
) -> dict[str, typing.Any]:
    """The logs of a step whose losses are those of all workers.

    Args:
      logs: dict that the step returned: metrics, which are of all workers
        already, and losses of this replica's part of the batch.
      weight: float32 scalar tensor, by which the loss is multiplied.
      add_up: function that sums a tensor over the workers. Keras does so over
        the replicas of one.
    """
    names = [name for name in _LOSSES if name in logs]
    weighted = [
        tf.math.multiply_no_nan(tf.cast(logs[name], tf.float32), weight)
        for name in names
    ]
    sums = tf.unstack(add_up(tf.stack(weighted)), len(names))
    return {**logs, **dict(zip(names, sums))}


def with_metrics(
    model: keras.Model,
    logs: dict[str, typing.Any],
    metrics: dict[str, typing.Any],
) -> dict[str, typing.Any]:
    """The logs of a `tfrs.Model`, with other values of its metrics.

    Args:
      model: keras.Model; the logs of others are returned as they are.
      logs: dict of metrics and losses.
      metrics: dict of metrics.
    """
    if not is_recommenders_model(model):
        return logs
    return {
        name: value if name in _LOSSES else metrics.get(name, value)
        for name, value in logs.items()
    }


def _is_of_package(function_or_class: typing.Any) -> bool:
    return function_or_class.__module__.partition(".")[0] == _PACKAGE
