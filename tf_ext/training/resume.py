# SPDX-License-Identifier: Apache-2.0
"""`fit` that continues from a recovery point of `TableSnapshot`.

Keras can begin with a later epoch but not within one. So the rest of the
interrupted epoch is one call of Keras's `fit` on the remaining data, and the
other epochs are a second call; callbacks see one training.
"""

import contextlib
import inspect
import logging
import typing
from collections.abc import Callable

import tensorflow as tf

from tf_ext._keras import keras
from tf_ext.data.progress import is_endless, streams_of
from tf_ext.recovery.points import Point
from tf_ext.regimes import regime_of_model
from tf_ext.training.building import (
    build_model,
    build_optimizer,
    example_of,
)
from tf_ext.training.callback_protocols import resuming_among
from tf_ext.training.fit_arguments import make_dataset, split_arrays

_LOG = logging.getLogger("tf_ext")


def during_fit(
    given: inspect.BoundArguments,
) -> contextlib.AbstractContextManager[None]:
    """The context of `fit` that its TableSnapshot asks for.

    Args:
      given: inspect.BoundArguments of `fit`.
    """
    resuming = resuming_among(given.arguments.get("callbacks"))
    if resuming is None:
        return contextlib.nullcontext()
    return resuming.during_fit()


def restored_point(model: keras.Model, callbacks: typing.Any) -> Point | None:
    """Restores a built model from the newest point of its TableSnapshot.

    Returns:
      The Point, or None without a callback, without a point, after the first
      call, or after a warm start.
    """
    resuming = resuming_among(callbacks)
    if resuming is None or not resuming.can_resume():
        return None
    return resuming.resume(model)


def fit(
    model: keras.Model,
    keras_fit: Callable[..., typing.Any],
    given: inspect.BoundArguments,
) -> keras.callbacks.History:
    """Calls Keras's `fit`, from a recovery point if there is one.

    Args:
      model: tf_ext.Model.
      keras_fit: the method `fit` of its Keras class.
      given: inspect.BoundArguments of it.
    """
    resuming = resuming_among(given.arguments.get("callbacks"))
    if resuming is None or not resuming.can_resume():
        return keras_fit(*given.args, **given.kwargs)
    given.apply_defaults()
    arguments = split_arrays(given.arguments)
    _build(model, arguments)
    point = resuming.resume(model)
    if point is None:
        return keras_fit(**arguments)
    epochs = arguments["epochs"]
    arguments = {**arguments, "initial_epoch": point.epoch}
    steps = arguments["steps_per_epoch"]
    # If the data continue from epoch to epoch, they do so here as well.
    passed = point.step_in_epoch + (steps or 0) * point.epoch
    # A stream begins where it was.
    skipped = 0 if streams_of(arguments["x"]) else passed
    dataset = _dataset(arguments) if passed else None
    if passed and dataset is None:
        _LOG.warning(
            "The position in data that are neither a dataset nor arrays cannot "
            "be restored: epoch %d starts again.",
            point.epoch,
        )
    if dataset is None:
        tell_position(model, point.path, point.epoch, 0, epochs)
        return keras_fit(**arguments)
    arguments |= {"y": None, "sample_weight": None, "batch_size": None}
    if not point.step_in_epoch:
        tell_position(model, point.path, point.epoch, 0, epochs)
        return keras_fit(**{**arguments, "x": dataset.skip(skipped)})
    return _fit_in_two(model, keras_fit, arguments, point, dataset, skipped)


def tell_position(
    model: keras.Model, path: str, epoch: int, step_in_epoch: int, epochs: int
) -> None:
    """Logs where training continues, as its first worker.

    Args:
      model: tf_ext.Model.
      path: the directory of the recovery point.
      epoch: the epoch that comes next, from 0.
      step_in_epoch: the steps of it that are done.
      epochs: argument of `fit`.
    """
    if regime_of_model(model).processes.rank != 0:
        return
    if epoch >= epochs:
        _LOG.warning(
            "There is nothing left to train: the recovery point %s is at the "
            "end of epoch %d, and `epochs` of fit is %d. To train further, "
            "give more epochs; to start again, give TableSnapshot another "
            "directory.",
            path,
            epoch,
            epochs,
        )
        return
    # Not at the level of information, which Python does not show by default.
    _LOG.warning(
        "Training continues from the recovery point %s: epoch %d of %d, after "
        "%d of its steps.",
        path,
        epoch + 1,
        epochs,
        step_in_epoch,
    )


def _fit_in_two(
    model: keras.Model,
    keras_fit: Callable[..., typing.Any],
    arguments: dict[str, typing.Any],
    point: Point,
    dataset: tf.data.Dataset,
    skipped: int,
) -> keras.callbacks.History:
    steps = arguments["steps_per_epoch"]
    callbacks = _OneTraining(model, arguments, point.step_in_epoch, dataset)
    rest = dataset.skip(skipped) if skipped else dataset
    first_whole = point.epoch + 1
    # TensorFlow would wait for a stream where no signal is answered.
    is_rest = int(
        is_endless(dataset) or next(iter(rest.take(1)), None) is not None
    )
    # Workers may have different data.
    processes = regime_of_model(model).processes
    mine = tf.constant([is_rest], tf.int64)
    is_rest = bool(processes.gather(mine).numpy().any())
    tell_position(
        model,
        point.path,
        *((point.epoch, point.step_in_epoch) if is_rest else (first_whole, 0)),
        arguments["epochs"],
    )
    if is_rest:
        keras_fit(
            **{
                **arguments,
                "x": rest,
                "epochs": min(first_whole, arguments["epochs"]),
                "steps_per_epoch": steps and steps - point.step_in_epoch,
                "callbacks": callbacks,
            }
        )
    callbacks.begin_whole_epochs()
    for stream in streams_of(dataset):
        stream.prepare()
    if first_whole < arguments["epochs"] and not callbacks.stopped:
        if steps and skipped:
            dataset = dataset.skip(first_whole * steps)
        keras_fit(
            **{
                **arguments,
                "x": dataset,
                "initial_epoch": first_whole,
                "callbacks": callbacks,
            }
        )
    callbacks.end()
    return model.history


class _OneTraining(keras.callbacks.CallbackList):
    """Callbacks that see two calls of `fit` as one training."""

    def __init__(
        self,
        model: keras.Model,
        arguments: dict[str, typing.Any],
        first_step: int,
        dataset: tf.data.Dataset,
    ) -> None:
        verbose = arguments["verbose"]
        verbose = 1 if verbose == "auto" else verbose
        length = int(dataset.cardinality())
        super().__init__(
            arguments["callbacks"],
            add_history=True,
            add_progbar=verbose != 0,
            model=model,
            verbose=verbose,
            epochs=arguments["epochs"],
            steps=arguments["steps_per_epoch"]
            or (length if length >= 0 else None),
        )
        self._first_step = first_step
        self._begun = False
        self._logs: dict[str, typing.Any] | None = None
        self.stopped = False

    def begin_whole_epochs(self) -> None:
        """Call it when the first `fit` has ended, or is not needed."""
        self._first_step = 0
        self.stopped = self._begun and self.model.stop_training

    def end(self) -> None:
        """Call it when the second `fit` has ended."""
        if self._begun:
            super().on_train_end(self._logs)

    def on_train_begin(self, logs: dict[str, typing.Any] | None = None) -> None:
        if not self._begun:
            super().on_train_begin(logs)
        self._begun = True

    def on_train_end(self, logs: dict[str, typing.Any] | None = None) -> None:
        self._logs = logs

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        super().on_train_batch_begin(batch + self._first_step, logs)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        super().on_train_batch_end(batch + self._first_step, logs)


def _dataset(arguments: dict[str, typing.Any]) -> tf.data.Dataset | None:
    """The batches of an epoch as a dataset, or None if that is impossible."""
    x = arguments["x"]
    if isinstance(x, tf.data.Dataset):
        return x
    leaves = tf.nest.flatten(x)
    if not leaves or not all(hasattr(leaf, "shape") for leaf in leaves):
        return None
    return make_dataset(
        x,
        arguments["y"],
        arguments["sample_weight"],
        arguments["batch_size"],
        arguments["shuffle"],
        steps=arguments["steps_per_epoch"],
    )


def _build(model: keras.Model, arguments: dict[str, typing.Any]) -> None:
    """Makes the variables that a point is restored into."""
    with regime_of_model(model).scope():
        _build_model(model, arguments)
        build_optimizer(model)


def _build_model(model: keras.Model, arguments: dict[str, typing.Any]) -> None:
    if model.built:
        return
    dataset = _dataset(arguments)
    if dataset is None:
        raise ValueError(
            "A model that continues from a recovery point must be built before "
            "`fit` unless `x` is a dataset or arrays. Received: a model that "
            f"is not built, x={arguments['x']!r}. Call it on a batch first."
        )
    if is_endless(dataset):
        build_model(model, example_of(dataset.element_spec))
    else:
        build_model(model, next(iter(dataset)))
