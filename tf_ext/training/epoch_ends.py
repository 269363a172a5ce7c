# SPDX-License-Identifier: Apache-2.0
"""What comes after the steps of an epoch."""

from collections.abc import Sequence

from tf_ext._keras import keras
from tf_ext.training.feeds import Arguments, Logs, flat


def validate(
    model: keras.Model,
    arguments: Arguments,
    callbacks: keras.callbacks.CallbackList,
    epoch: int,
) -> Logs:
    """The logs of validation, if it is due after an epoch.

    Args:
      model: tf_ext.Model.
      arguments: dict of all arguments of `keras.Model.fit`, split.
      callbacks: keras.callbacks.CallbackList.
      epoch: int, from 0.
    """
    data = arguments["validation_data"]
    if data is None or not _is_due(epoch, arguments["validation_freq"]):
        return {}
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    batch_size = arguments["validation_batch_size"]
    logs = model.evaluate(
        x=x,
        y=y,
        sample_weight=sample_weight,
        batch_size=None if y is None else batch_size or arguments["batch_size"],
        steps=arguments["validation_steps"],
        callbacks=callbacks,
        return_dict=True,
    )
    return {f"val_{name}": value for name, value in logs.items()}


def end_epoch(
    model: keras.Model,
    arguments: Arguments,
    callbacks: keras.callbacks.CallbackList,
    epoch: int,
    logs: Logs | None = None,
) -> None:
    """Ends an epoch that has no step left.

    Of data of unknown length, a recovery point is not known to be of the last
    step, so what ends the epoch has yet to come.

    Args:
      model: tf_ext.Model.
      arguments: as of `validate`.
      callbacks: keras.callbacks.CallbackList.
      epoch: int, from 0.
      logs: dict, those of its last step; None if it has no step at all.
    """
    model.reset_metrics()
    callbacks.on_epoch_begin(epoch)
    if logs is None:
        logs = flat(model.get_metrics_result())
    logs = logs | validate(model, arguments, callbacks, epoch)
    callbacks.on_epoch_end(epoch, logs)


def _is_due(epoch: int, frequency: int | Sequence[int]) -> bool:
    if isinstance(frequency, int):
        return (epoch + 1) % frequency == 0
    return epoch + 1 in frequency
