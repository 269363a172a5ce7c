# SPDX-License-Identifier: Apache-2.0
"""`fit`, `evaluate` and `predict` where Keras's own do not work.

This is the part common to all regimes: arguments, epochs, callbacks, logs.
Subclasses send batches to workers and collect the results.
"""

import abc
import contextlib
import logging
import typing
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

from tf_ext._compat.models import is_compiled, start_of_training
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.distribute import naming_lost_tasks, training_counts
from tf_ext.regimes import regime_of_model
from tf_ext.training.callback_protocols import resuming_among
from tf_ext.training.collector import sparing_old_objects
from tf_ext.training.epoch_ends import end_epoch, validate
from tf_ext.training.feeds import Arguments, EpochFeed, Logs, Sent
from tf_ext.training.fit_arguments import FitOptions, split_arrays
from tf_ext.training.resume import restored_point, tell_position

_LOG = logging.getLogger("tf_ext")
_END = object()

# The attributes that callbacks set to end each kind of step.
_STOP = {
    "train": "stop_training",
    "test": "stop_evaluating",
    "predict": "stop_predicting",
}


_Feed = typing.TypeVar("_Feed", bound=EpochFeed)


class TrainingLoop(abc.ABC, typing.Generic[_Feed]):
    """The loop of one compiled model.

    Args:
      model: keras.Model that was made under the scope of a strategy.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._regime = regime_of_model(model)

    @contextlib.contextmanager
    def running(self, method: str) -> Iterator[None]:
        """The context of a call of `fit`, `evaluate` or `predict`.

        Raises:
          tf_ext.distribute.ServerLostError: a parameter server was lost.
          tf_ext.distribute.WorkerLostError: a synchronous worker was lost.
        """
        with naming_lost_tasks(self._regime.strategy):
            self._check_is_compiled(method)
            yield

    def fit(
        self, arguments: Arguments, options: FitOptions
    ) -> keras.callbacks.History:
        """Trains the model.

        Args:
          arguments: dict of all arguments of `keras.Model.fit`.
          options: FitOptions, its further arguments.

        Returns:
          keras.callbacks.History.
        """
        model = self._model
        arguments = split_arrays(arguments)
        feed = self._training_feed(arguments)
        callbacks = self._prepared(
            feed, arguments, epochs=arguments["epochs"], history=True
        )
        resuming = resuming_among(callbacks)
        if resuming is not None:
            resuming.take_streams(feed.streams, feed.shares)
        point = restored_point(model, callbacks, arguments["epochs"])
        model.stop_training = False
        self._begin_training(callbacks)
        epoch, first_step = start_of_training(
            model, arguments["initial_epoch"], feed.num_batches
        )
        if point is not None:
            epoch, first_step = point.epoch, point.step_in_epoch
            # Otherwise the point is in the data of a later `fit`.
            if epoch < arguments["epochs"]:
                feed.tell_epoch(epoch)
                epoch, first_step = feed.go_on(
                    epoch,
                    first_step,
                    min(arguments["initial_epoch"], epoch),
                )
            has_ended = epoch > point.epoch and point.step_in_epoch
            if first_step and first_step >= (feed.num_batches or np.inf):
                # The epoch had more steps when the point was written.
                epoch, first_step = epoch + 1, 0
            tell_position(
                model, point.path, epoch, first_step, arguments["epochs"]
            )
            if has_ended:
                end_epoch(model, arguments, callbacks, point.epoch, point.logs)
        logs = None
        try:
            with sparing_old_objects(feed.streams):
                while epoch < arguments["epochs"] and not model.stop_training:
                    model.reset_metrics()
                    callbacks.on_epoch_begin(epoch)
                    feed.tell_epoch(epoch)
                    logs = self._train_epoch(
                        *(feed, callbacks, first_step, options),
                        is_first=point is None and logs is None,
                    )
                    logs.update(validate(model, arguments, callbacks, epoch))
                    callbacks.on_epoch_end(epoch, logs)
                    epoch, first_step = epoch + 1, 0
        finally:
            feed.tell_epoch(0)  # As other readers find it.
        callbacks.on_train_end(logs)
        return model.history

    def _begun(
        self,
        kind: str,
        feed: _Feed,
        callbacks: keras.callbacks.CallbackList,
        first_step: int = 0,
    ) -> Iterator[Sent]:
        """Yields what an epoch sends until the model is told to stop.

        Args:
          kind: a key of `_STOP`.
          feed: what the steps read.
          callbacks: keras.callbacks.CallbackList.
          first_step: int, steps of this epoch that were made before.
        """
        begin = getattr(callbacks, f"on_{kind}_batch_begin")
        step = first_step
        sends = iter(feed.epoch(first_step))
        # Asked first: of a stream, the next batch may come hours later.
        while not self._is_stopped(kind):
            sent = next(sends, _END)
            if sent is _END:
                return
            begin(step)
            step += feed.steps_in(sent)
            yield sent

    def _is_stopped(self, kind: str) -> bool:
        """Whether a callback has ended the steps of a kind, of `_STOP`."""
        return bool(getattr(self._model, _STOP[kind]))

    def _train_epoch(
        self,
        feed: _Feed,
        callbacks: keras.callbacks.CallbackList,
        first_step: int,
        options: FitOptions,
        is_first: bool,
    ) -> Logs:
        logs = None
        done = first_step
        batches = self._begun("train", feed, callbacks, first_step)
        for steps, logs in self._train_steps(feed, batches, options):
            self._count("_train_counter", steps)
            training_counts.add_steps(steps)
            done += steps
            feed.trained(steps)
            callbacks.on_train_batch_end(done - 1, logs)
        if logs is None:
            if is_first or not feed.streams:
                raise _no_data("fit")
            _LOG.warning("An epoch had no step: the streams have nothing new.")
        return self._epoch_logs(logs or {})

    def evaluate(self, arguments: Arguments) -> typing.Any:
        """Computes the metrics: as `keras.Model.evaluate` returns them.

        Args:
          arguments: dict of all arguments of `keras.Model.evaluate`.
        """
        model = self._model
        feed = self._test_feed(arguments)
        callbacks = self._prepared(feed, arguments)
        model.stop_evaluating = False
        callbacks.on_test_begin()
        model.reset_metrics()
        logs = None
        batches = self._begun("test", feed, callbacks)
        for index, logs in enumerate(self._test_steps(feed, batches)):
            self._count("_test_counter")
            callbacks.on_test_batch_end(index, logs)
        if logs is None:
            raise _no_data("evaluate")
        logs = self._epoch_logs(logs)
        callbacks.on_test_end(logs)
        return logs if arguments["return_dict"] else _in_order(model, logs)

    def predict(self, arguments: Arguments) -> typing.Any:
        """Computes outputs: as `keras.Model.predict` returns them.

        Args:
          arguments: dict of all arguments of `keras.Model.predict`.
        """
        model = self._model
        feed = self._feed(arguments)
        callbacks = self._prepared(feed, arguments)
        model.stop_predicting = False
        callbacks.on_predict_begin()
        outputs = []
        batches = self._begun("predict", feed, callbacks)
        for index, output in enumerate(self._predict_steps(feed, batches)):
            outputs.append(output)
            self._count("_predict_counter")
            callbacks.on_predict_batch_end(index, {"outputs": output})
        if not outputs:
            raise _no_data("predict")
        callbacks.on_predict_end()
        return tf.nest.map_structure(_concatenate, *outputs)

    @abc.abstractmethod
    def _training_feed(self, arguments: Arguments) -> _Feed:
        """The feed of `fit`, from its arguments."""

    @abc.abstractmethod
    def _feed(self, arguments: Arguments) -> _Feed:
        """The feed of `evaluate` and `predict`, from their arguments."""

    def _test_feed(self, arguments: Arguments) -> _Feed:
        """The feed of `evaluate`, if not that of `predict`."""
        return self._feed(arguments)

    @abc.abstractmethod
    def _build(self, feed: _Feed) -> None:
        """Makes variables where Keras would in the first step."""

    @abc.abstractmethod
    def _train_steps(
        self,
        feed: _Feed,
        batches: Iterable[Sent],
        options: FitOptions,
    ) -> Iterator[tuple[int, Logs]]:
        """Yields the number of steps and the logs of each training."""

    @abc.abstractmethod
    def _test_steps(
        self, feed: _Feed, batches: Iterable[Sent]
    ) -> Iterator[Logs | None]:
        """Yields the logs after each batch."""

    @abc.abstractmethod
    def _predict_steps(
        self, feed: _Feed, batches: Iterable[Sent]
    ) -> Iterator[typing.Any]:
        """Yields the outputs for each batch."""

    def _begin_training(self, callbacks: keras.callbacks.CallbackList) -> None:
        callbacks.on_train_begin()

    def _epoch_logs(self, logs: Logs) -> Logs:
        """The logs of an epoch, from those of its last step."""
        return {name: _number(value) for name, value in logs.items()}

    def _verbose(self, verbose: str | int) -> str | int:
        """The effective value of `verbose`."""
        return verbose

    def _prepared(
        self,
        feed: _Feed,
        arguments: Arguments,
        epochs: int = 1,
        history: bool = not IS_KERAS_3,
    ) -> keras.callbacks.CallbackList:
        """Builds the model for a feed; returns the callbacks of the call."""
        self._build(feed)
        callbacks = arguments["callbacks"]
        if isinstance(callbacks, keras.callbacks.CallbackList):
            return callbacks
        verbose = self._verbose(arguments["verbose"])
        return keras.callbacks.CallbackList(
            callbacks,
            add_history=history,
            add_progbar=verbose != 0,
            model=self._model,
            verbose=verbose,
            epochs=epochs,
            steps=feed.num_batches,
        )

    def _count(self, name: str, steps: int = 1) -> None:
        # tf_keras's batch counters, which its TensorBoard callback reads.
        counter = getattr(self._model, name, None)
        if counter is not None:
            counter.assign_add(steps)

    def _check_is_compiled(self, method: str) -> None:
        """Raises if the model was not compiled, or to run eagerly."""
        model = self._model
        compiled = is_compiled(model)
        if not compiled and method != "predict":
            raise ValueError(
                f"The model must be compiled before `{method}`. Call "
                "`model.compile(tf_ext.optimizers.Optimizer(...), loss)` under "
                "the strategy's scope."
            )
        if compiled and model.run_eagerly:
            raise ValueError(
                "Argument `run_eagerly` of compile must be False under "
                f"{self._regime.strategy_name}, whose workers run graphs. "
                "Received: run_eagerly=True"
            )


def _no_data(method: str) -> ValueError:
    return ValueError(
        f"Argument `x` of {method} must have at least one batch, and `steps` "
        "must not be 0. Received: an empty dataset, or steps of 0"
    )


def _number(value: typing.Any) -> typing.Any:
    value = np.asarray(value)
    return float(value) if value.ndim == 0 else value


def _in_order(model: keras.Model, logs: Logs) -> typing.Any:
    """The values of metrics as a list, or the single value."""
    names = model.metrics_names
    if IS_KERAS_3:  # They are nested there.
        names = [
            part.name
            for metric in model.metrics
            for part in getattr(metric, "metrics", [metric])
        ]
    names = [name for name in dict.fromkeys(names) if name in logs]
    names += sorted(set(logs) - set(names))
    values = [logs[name] for name in names]
    return values[0] if len(values) == 1 else values


def _concatenate(*batches: typing.Any) -> typing.Any:
    first = batches[0]
    if isinstance(first, tf.SparseTensor):
        # TensorFlow makes a generator of a tuple, which it cannot count.
        return tf.sparse.concat(0, list(batches))
    if isinstance(first, tf.RaggedTensor):
        return tf.concat(batches, 0)
    if first.shape.rank == 0:
        return np.stack(batches)
    if len({tuple(batch.shape[1:]) for batch in batches}) == 1:
        return np.concatenate(batches)
    return tf.concat([tf.RaggedTensor.from_tensor(b) for b in batches], 0)
