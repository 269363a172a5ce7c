# SPDX-License-Identifier: Apache-2.0
"""`fit` that continues from a recovery point of `TableSnapshot`.

Keras can begin with a later epoch but not within one, nor within the data that
epochs share. So the rest of the interrupted epoch is one call of Keras's `fit`,
the epochs on what is left of the data are a second call, and the other epochs
are a third; callbacks see one training.
"""

import contextlib
import inspect
import logging
import typing
from collections.abc import Callable, Iterator

import tensorflow as tf

from tf_ext._compat.models import steps_per_execution
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.data.progress import is_endless, streams_of
from tf_ext.recovery.points import Point
from tf_ext.regimes import regime_of_model
from tf_ext.training.building import (
    build_model,
    build_optimizer,
    example_of,
)
from tf_ext.training.callback_protocols import resuming_among
from tf_ext.training.epoch_ends import end_epoch
from tf_ext.training.fit_arguments import make_dataset, split_arrays
from tf_ext.training.positions import batches_before, batches_of, epochs_of

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


def restored_point(
    model: keras.Model, callbacks: typing.Any, epochs: int
) -> Point | None:
    """Restores a built model from the newest point of its TableSnapshot.

    Args:
      model: tf_ext.Model.
      callbacks: those of `fit`.
      epochs: int, argument of `fit`.

    Returns:
      The Point, or None without a callback, without a point, after the first
      call, or after a warm start.
    """
    resuming = resuming_among(callbacks)
    if resuming is None or not resuming.can_resume():
        return None
    return resuming.resume(model, epochs)


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
    epochs = arguments["epochs"]
    point = resuming.resume(model, epochs)
    if point is None:
        return keras_fit(**arguments)
    first_epoch = min(arguments["initial_epoch"], point.epoch)
    arguments = {**arguments, "initial_epoch": point.epoch}
    steps = arguments["steps_per_epoch"]
    # If the data continue from epoch to epoch, they do so here as well.
    continues = bool(
        point.step_in_epoch or (steps and point.epoch > first_epoch)
    )
    dataset = _dataset(arguments) if continues else None
    if continues and dataset is None:
        _LOG.warning(
            "The position in data that are neither a dataset nor arrays cannot "
            "be restored: epoch %d starts again.",
            point.epoch,
        )
    if dataset is None:
        tell_position(model, point.path, point.epoch, 0, epochs)
        return keras_fit(**arguments)
    if dataset is not arguments["x"] and arguments["shuffle"]:
        _LOG.warning(
            "The order of arrays that `fit` shuffles is not that of the "
            "training that was interrupted: since the data began, some samples "
            "are trained on twice and others not at all. Use `shuffle=False`, "
            "or a dataset with an order that a new process repeats."
        )
    validation_batch = arguments["validation_batch_size"]
    arguments |= {
        "y": None,
        "sample_weight": None,
        "batch_size": None,
        "validation_batch_size": validation_batch or arguments["batch_size"],
    }
    if dataset is not arguments["x"] and steps and not IS_KERAS_3:
        dataset = dataset.repeat(epochs - first_epoch)  # As tf_keras does.
    parts = _Parts(
        dataset,
        steps and _steps_made(model, steps),
        first_epoch,
        point.epoch + bool(point.step_in_epoch),
        steps_per_execution(model),
    )
    is_begun = parts.behind(point.epoch) is not dataset
    if point.epoch < epochs and (point.step_in_epoch or is_begun):
        return _fit_in_parts(model, keras_fit, arguments, point, parts)
    tell_position(model, point.path, point.epoch, 0, epochs)
    return keras_fit(**{**arguments, "x": dataset})


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


class _Parts:
    """The data of epochs, which may go on from one to the next.

    Keras 3 begins data again where they end. If it does not know their length,
    it finds the end in an epoch that is shorter, and may have no step. tf_keras
    begins them again if it knows that each epoch is all of them; otherwise
    their end is that of training.

    Args:
      dataset: tf.data.Dataset.
      steps: int, the steps of an epoch; None if each is all of the dataset.
      first: int, the epoch that began the dataset.
      at: int, the epoch that comes next, or the one behind that.
      execution: int, the steps of one execution.

    Attributes:
      dataset: as above.
      steps: as above; 0 for None.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        steps: int | None,
        first: int = 0,
        at: int = 0,
        execution: int = 1,
    ) -> None:
        self.dataset = dataset
        self.steps = steps or 0
        self._first = first
        # 0 where epochs do not share it, or its length is not known.
        self._batches = 0
        known = int(dataset.cardinality())
        if steps and not streams_of(dataset):
            self._batches = max(batches_of(dataset, (at - first) * steps), 0)
        self._asked = self._batches
        if self._batches and known == tf.data.UNKNOWN_CARDINALITY:
            # Keras 3 finds the end by an execution without a batch.
            self._asked = (-(-self._batches // execution) + 1) * execution
        self._ends = (
            not IS_KERAS_3 and self._batches > 0 and known != self.steps
        )
        # Whether the rest of data of unknown length is trained on, and the
        # epoch that follows that in which it ended.
        self._is_rest = False
        self._end_of_rest: int | None = None

    def behind(self, epoch: int, steps: int = 0) -> tf.data.Dataset:
        """What is left behind some steps of an epoch, and those before."""
        read = self._before(epoch) + steps
        # A stream begins where it was.
        if not read or streams_of(self.dataset):
            return self.dataset
        return self.dataset.skip(read)

    def _before(self, epoch: int) -> int:
        """How many batches were read before an epoch, since they began."""
        batches = None if self._ends else self._asked
        return batches_before(epoch - self._first, self.steps, batches)

    def of_epochs(
        self, first: int, end: int
    ) -> Iterator[tuple[tf.data.Dataset | None, int, int]]:
        """Yields `(dataset, first epoch, end)` of epochs in one call of Keras.

        Keras begins again what it is given, so what is left of a dataset is a
        call of its own. Call `end_epoch` for each epoch of it. None is an epoch
        that has no step.
        """
        before = self._before(first)
        if self._ends:
            left = max(self._batches - before, 0)
            end = min(end, first + epochs_of(self.steps, left))
        elif self._batches and before:
            in_one = epochs_of(self.steps, self._asked)
            middle = min(end, first + in_one - (first - self._first) % in_one)
            # Keras refuses a call without a step.
            rest = self.behind(first) if before < self._batches else None
            yield rest, first, middle
            first = middle
        elif before and IS_KERAS_3 and not streams_of(self.dataset):
            self._end_of_rest, self._is_rest = None, True
            yield self.behind(first), first, end
            self._is_rest = False
            first = end if self._end_of_rest is None else self._end_of_rest
        if first < end:
            part = self.dataset if IS_KERAS_3 else self.behind(first)
            yield part, first, end

    def end_epoch(self, epoch: int, steps: int) -> bool:
        """Told of an epoch that has ended.

        Returns:
          Whether to end the call, since data of unknown length have ended:
          Keras would take what was left of them for all.
        """
        if not self._is_rest or steps >= self.steps:
            return False
        self._end_of_rest = epoch + 1
        return True


def _fit_in_parts(
    model: keras.Model,
    keras_fit: Callable[..., typing.Any],
    arguments: dict[str, typing.Any],
    point: Point,
    parts: _Parts,
) -> keras.callbacks.History:
    steps, epochs = arguments["steps_per_epoch"], arguments["epochs"]
    done = point.step_in_epoch
    callbacks = _OneTraining(model, arguments, done, parts)
    rest = parts.behind(point.epoch, done)
    is_rest = bool(done) and _is_rest(model, rest, steps and steps - done)
    first_whole = point.epoch + bool(done)
    at = (point.epoch, done) if is_rest else (first_whole, 0)
    tell_position(model, point.path, *at, epochs)
    if is_rest:
        keras_fit(
            **{
                **arguments,
                "x": rest,
                "epochs": min(first_whole, epochs),
                "steps_per_epoch": steps and steps - done,
                "callbacks": callbacks,
            }
        )
    elif done and (not steps or done <= parts.steps):
        model.stop_training = False
        callbacks.on_train_begin()
        end_epoch(model, arguments, callbacks, point.epoch, point.logs)
    callbacks.end_part()
    for stream in streams_of(parts.dataset):
        stream.prepare()
    for part, begin, end in parts.of_epochs(first_whole, epochs):
        if callbacks.stopped:
            break
        if part is None:
            model.stop_training = False
            callbacks.on_train_begin()
            end_epoch(model, arguments, callbacks, begin)
        else:
            keras_fit(
                **{
                    **arguments,
                    "x": part,
                    "initial_epoch": begin,
                    "epochs": end,
                    "callbacks": callbacks,
                }
            )
        callbacks.end_part()
    callbacks.end()
    return model.history


def _steps_made(model: keras.Model, steps: int) -> int:
    """The steps of an epoch; Keras 3 ends the last execution of them."""
    if not IS_KERAS_3:
        return steps
    execution = steps_per_execution(model)
    return -(-steps // execution) * execution


def _is_rest(
    model: keras.Model, rest: tf.data.Dataset, steps: int | None
) -> bool:
    """Whether any worker has something left of an epoch.

    Args:
      model: tf_ext.Model.
      rest: tf.data.Dataset, what is left of its data.
      steps: int, the steps that are left; None: as many as there are data.
    """
    if steps is not None and steps <= 0:
        return False
    # TensorFlow would wait for a stream where no signal is answered.
    mine = is_endless(rest) or next(iter(rest.take(1)), None) is not None
    # Workers may have different data.
    processes = regime_of_model(model).processes
    everywhere = processes.gather(tf.constant([int(mine)], tf.int64))
    return bool(everywhere.numpy().any())


class _OneTraining(keras.callbacks.CallbackList):
    """Callbacks that see several calls of `fit` as one training."""

    def __init__(
        self,
        model: keras.Model,
        arguments: dict[str, typing.Any],
        first_step: int,
        parts: _Parts,
    ) -> None:
        verbose = arguments["verbose"]
        verbose = 1 if verbose == "auto" else verbose
        length = int(parts.dataset.cardinality())
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
        self._parts = parts
        self._steps = 0
        self._begun = False
        self._logs: dict[str, typing.Any] | None = None
        self._ended_part = False
        self.stopped = False

    def end_part(self) -> None:
        """Call it when one of the calls has ended, or is not needed."""
        self._first_step = 0
        if self._ended_part:
            self.model.stop_training = self._ended_part = False
        else:
            self.stopped = self._begun and self.model.stop_training

    def end(self) -> None:
        """Call it when all calls have ended, if there were any."""
        self.on_train_begin()
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
        self._steps = batch + 1

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        self._steps = 0
        super().on_epoch_begin(epoch, logs)

    def on_epoch_end(
        self, epoch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        super().on_epoch_end(epoch, logs)
        ends = self._parts.end_epoch(epoch, self._steps)
        if ends and not self.model.stop_training:
            self.model.stop_training = self._ended_part = True


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
