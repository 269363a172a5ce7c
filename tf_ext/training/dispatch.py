# SPDX-License-Identifier: Apache-2.0
"""How `fit`, `evaluate` and `predict` run under each regime.

Regimes do not depend on Keras: `training_of` maps the regime of a model to the
object that runs its training.
"""

import functools
import inspect
import typing
from collections.abc import Callable

import tensorflow as tf

from tf_ext._checks import check_count, refuse
from tf_ext._compat.models import steps_per_execution
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.data import worker_batches
from tf_ext.data.progress import streams_of
from tf_ext.distribute import naming_lost_tasks
from tf_ext.regimes import Regime, SynchronousRegime, regime_of_model
from tf_ext.training import resume
from tf_ext.training.building import wrapped_optimizers
from tf_ext.training.epoch_order import telling_epochs
from tf_ext.training.feeds import Arguments
from tf_ext.training.fit_arguments import (
    FitOptions,
    make_dataset,
    makes_dataset,
)
from tf_ext.training.loop import TrainingLoop
from tf_ext.training.losses import check_losses, check_losses_of_replicas
from tf_ext.training.parameter_servers.loop import ParameterServerLoop
from tf_ext.training.parameter_servers.steps import MOST_UNROLLED
from tf_ext.training.stream_steps import counting_batches
from tf_ext.training.synchronous.checks import check_layers, check_optimizer
from tf_ext.training.synchronous.feed import refuse_stream, worker_dataset
from tf_ext.training.synchronous.loop import SynchronousLoop
from tf_ext.training.synchronous.programs import program_of


class KerasTraining:
    """Keras's own methods.

    Under strategies of several replicas, the steps are weighted: see
    `tf_ext/training/weighting.py`.

    Args:
      model: tf_ext.Model.
      regime: its Regime.
    """

    def __init__(self, model: keras.Model, regime: Regime) -> None:
        self._model = model
        self._regime = regime

    def check_compile(self, optimizer: typing.Any, options: Arguments) -> None:
        """Raises ValueError for options that the regime does not support.

        Args:
          optimizer: a tf_ext.optimizers.Optimizer, a wrapper of one, or None.
          options: dict of the arguments of `compile`.
        """
        if self._regime.num_replicas > 1:
            check_losses_of_replicas(
                options.get("loss"), self._regime.strategy_name
            )

    def after_compile(self) -> None:
        """Called when Keras has compiled the model."""

    def fit(
        self,
        keras_fit: Callable[..., typing.Any],
        given: inspect.BoundArguments,
        options: FitOptions,
    ) -> keras.callbacks.History:
        """Calls `fit`.

        Args:
          keras_fit: the method of the model's Keras class.
          given: inspect.BoundArguments of it.
          options: FitOptions.
        """
        self._check_overlap(options)
        self._make_datasets(given.arguments)
        call = functools.partial(self._call_keras, keras_fit)
        with telling_epochs(given), counting_batches(self._model, given):
            return resume.fit(self._model, call, given)

    def run(
        self,
        keras_method: Callable[..., typing.Any],
        given: inspect.BoundArguments,
    ) -> typing.Any:
        """Calls `evaluate` or `predict`, with arguments as of `fit`."""
        self._make_datasets(given.arguments)
        return self._call_keras(keras_method, *given.args, **given.kwargs)

    def _make_datasets(self, arguments: Arguments) -> None:
        """Calls functions that make the data, of which there is one part."""
        for name in ("x", "validation_data"):
            if makes_dataset(arguments.get(name)):
                arguments[name] = make_dataset(arguments[name])

    def check_one_batch(self, method: str) -> None:
        """Raises ValueError where a single batch cannot be distributed.

        Args:
          method: string, the name of the method called.
        """

    def _check_overlap(self, options: FitOptions) -> None:
        """Raises ValueError if steps should overlap, but cannot."""
        if options.overlap_steps:
            allowed = (
                "False except under ParameterServerStrategy, where updates "
                "travel to other tasks while the next step computes"
            )
            refuse("fit", "overlap_steps", allowed, True)

    def _call_keras(
        self,
        method: Callable[..., typing.Any],
        *args: typing.Any,
        **kwargs: typing.Any,
    ) -> typing.Any:
        return method(*args, **kwargs)


class _LoopTraining(KerasTraining):
    """A TrainingLoop, where Keras's methods do not work."""

    loop_class: type[TrainingLoop[typing.Any]]

    def fit(
        self,
        keras_fit: Callable[..., typing.Any],
        given: inspect.BoundArguments,
        options: FitOptions,
    ) -> keras.callbacks.History:
        self._check_overlap(options)
        return self.run(keras_fit, given, options)

    def run(
        self,
        keras_method: Callable[..., typing.Any],
        given: inspect.BoundArguments,
        *options: FitOptions,
    ) -> typing.Any:
        given.apply_defaults()
        # It keeps traced steps until the model is compiled again.
        if getattr(self._model, "_tf_ext_loop", None) is None:
            self._model._tf_ext_loop = self.loop_class(self._model)
        loop, name = self._model._tf_ext_loop, keras_method.__name__
        with loop.running(name):
            return getattr(loop, name)(given.arguments, *options)

    def check_one_batch(self, method: str) -> None:
        raise ValueError(
            f"{method} does not work under {self._regime.strategy_name}. Use "
            "fit, evaluate or predict with a dataset of one batch, or a "
            "training loop with strategy.run."
        )


class ParameterServerTraining(_LoopTraining):
    """Steps are scheduled on asynchronous workers, in both Kerases."""

    loop_class = ParameterServerLoop

    def check_compile(self, optimizer: typing.Any, options: Arguments) -> None:
        steps = options.get("steps_per_execution") or 1
        if steps != "auto":
            check_count("compile", "steps_per_execution", steps, 1)
        for one in wrapped_optimizers(optimizer):
            self._regime.placement.check_optimizer(one)

    def _check_overlap(self, options: FitOptions) -> None:
        steps = steps_per_execution(self._model)
        if options.overlap_steps and not 2 <= steps <= MOST_UNROLLED:
            raise ValueError(
                "Argument `overlap_steps` of fit must be False unless "
                "`steps_per_execution` of compile is between 2 and "
                f"{MOST_UNROLLED}, as only the steps of an execution overlap. "
                f"Received: overlap_steps=True, steps_per_execution={steps}"
            )


class _Synchronous(KerasTraining):
    """The common part of both Kerases for synchronous steps."""

    def check_compile(self, optimizer: typing.Any, options: Arguments) -> None:
        check_losses(options.get("loss"))
        check_optimizer(optimizer)


class SynchronousTraining(_Synchronous, _LoopTraining):
    """Keras 3, whose `fit` fails on several workers."""

    loop_class = SynchronousLoop


class SynchronousKerasTraining(_Synchronous):
    """tf_keras's own methods, on data that workers share or have each."""

    _regime: SynchronousRegime
    # Whether the `x` of `fit` is this worker's alone.
    _is_own = False

    def fit(
        self,
        keras_fit: Callable[..., typing.Any],
        given: inspect.BoundArguments,
        options: FitOptions,
    ) -> keras.callbacks.History:
        arguments = given.signature.bind(*given.args, **given.kwargs)
        arguments.apply_defaults()
        with naming_lost_tasks(self._regime.strategy):
            self._regime.processes.check_same(
                "fit", lambda: program_of(self._model, arguments.arguments)
            )
        # Once, so that streams go on where they are in each epoch.
        self._is_own = makes_dataset(arguments.arguments["x"])
        if self._is_own:
            _check_epochs(arguments.arguments)
            x, _ = worker_dataset(arguments.arguments, self._regime)
            given.arguments |= {"x": x, "class_weight": None}
        return super().fit(keras_fit, given, options)

    def _make_datasets(self, arguments: Arguments) -> None:
        """Leaves functions to `_call_keras`, where each worker has a part."""

    def after_compile(self) -> None:
        # tf_keras would sum metrics that are of all workers already.
        self._model.distribute_reduction_method = "first"

    def _call_keras(
        self,
        method: Callable[..., typing.Any],
        *args: typing.Any,
        **kwargs: typing.Any,
    ) -> typing.Any:
        given = inspect.signature(method).bind(*args, **kwargs)
        check_layers(self._model)
        is_fit = method.__name__ == "fit"
        for name, steps in (
            ("x", "steps_per_epoch" if is_fit else "steps"),
            ("validation_data", "validation_steps"),
        ):
            data = given.arguments.get(name)
            is_own = makes_dataset(data)
            if is_own:
                data, _ = worker_dataset({"x": data}, self._regime)
            if is_own or (name == "x" and self._is_own):
                given.arguments[name] = self._distributed(data)
                # What tf_keras takes for "to the end" of such data.
                if given.arguments.get(steps) is None:
                    given.arguments[steps] = -1
            elif isinstance(data, tf.data.Dataset):
                if streams_of(data):
                    refuse_stream(data)
                data = worker_batches.variable_batch_size(data)
                given.arguments[name] = worker_batches.auto_sharded(data)
        with naming_lost_tasks(self._regime.strategy):
            return method(*given.args, **given.kwargs)

    def _distributed(self, own: tf.data.Dataset) -> typing.Any:
        """The dataset of all workers, of which each has its own."""
        return self._regime.strategy.distribute_datasets_from_function(
            lambda context: own
        )


def _check_epochs(arguments: Arguments) -> None:
    """Raises ValueError for epochs that tf_keras would leave without data."""
    epochs = arguments["epochs"]
    several = epochs - arguments["initial_epoch"] > 1
    if several and arguments["steps_per_epoch"] is None:
        allowed = (
            "a number of steps where `x` is a function under "
            "MultiWorkerMirroredStrategy with tf_keras, which would read the "
            f"data once in `epochs={epochs}`"
        )
        refuse("fit", "steps_per_epoch", allowed, None)


_TRAINING = {
    "keras": KerasTraining,
    "parameter_servers": ParameterServerTraining,
    "synchronous": SynchronousTraining
    if IS_KERAS_3
    else SynchronousKerasTraining,
}


def training_of(model: keras.Model) -> KerasTraining:
    """The KerasTraining that runs the training of a model.

    Args:
      model: tf_ext.Model.
    """
    regime = regime_of_model(model)
    return _TRAINING[regime.loop](model, regime)
