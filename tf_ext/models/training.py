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
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.data import worker_batches
from tf_ext.distribute import naming_lost_tasks
from tf_ext.models import recommenders, resume
from tf_ext.models.building import wrapped_optimizers
from tf_ext.models.parameter_server_loop import ParameterServerLoop
from tf_ext.models.synchronous_checks import (
    check_layers,
    check_losses,
    check_optimizer,
)
from tf_ext.models.synchronous_loop import SynchronousLoop
from tf_ext.models.training_loop import TrainingLoop
from tf_ext.regimes import (
    LocalRegime,
    ParameterServerRegime,
    Regime,
    SynchronousRegime,
    regime_of_model,
)
from tf_ext.regimes.worker_weight import current_worker_weight, worker_weight


class KerasTraining:
    """Keras's own methods.

    Args:
      model: tf_ext.Model.
      regime: its Regime.
    """

    def __init__(self, model: keras.Model, regime: Regime) -> None:
        self._model = model
        self._regime = regime

    def check_compile(
        self,
        optimizer: typing.Any,
        options: dict[str, typing.Any],
        steps_per_execution: int | str,
    ) -> None:
        """Raises ValueError for options that the regime does not support.

        Args:
          optimizer: a tf_ext.optimizers.Optimizer, a wrapper of one, or None.
          options: dict of the arguments of `compile`.
          steps_per_execution: int or "auto".
        """

    def after_compile(self) -> None:
        """Called when Keras has compiled the model."""

    def fit(
        self,
        keras_fit: Callable[..., typing.Any],
        given: inspect.BoundArguments,
        max_inflight_steps: int | None,
    ) -> keras.callbacks.History:
        """Calls `fit`.

        Args:
          keras_fit: the method of the model's Keras class.
          given: inspect.BoundArguments of it.
          max_inflight_steps: int or None.
        """
        del max_inflight_steps
        call = functools.partial(self._call_keras, keras_fit)
        return resume.fit(self._model, call, given)

    def run(
        self,
        name: str,
        keras_method: Callable[..., typing.Any],
        given: inspect.BoundArguments,
    ) -> typing.Any:
        """Calls `evaluate` or `predict`, with arguments as of `fit`."""
        del name
        return self._call_keras(keras_method, *given.args, **given.kwargs)

    def check_one_batch(self, method: str) -> None:
        """Raises ValueError where a single batch cannot be distributed.

        Args:
          method: string, the name of the method called.
        """

    def train_step(
        self, step: Callable[..., dict[str, typing.Any]], data: typing.Any
    ) -> dict[str, typing.Any]:
        """Calls the train step of the model's Keras class, in a replica.

        Args:
          step: the method.
          data: its argument.
        """
        return step(data)

    def test_step(
        self, step: Callable[..., dict[str, typing.Any]], data: typing.Any
    ) -> dict[str, typing.Any]:
        """Calls the test step, as `train_step` does."""
        return step(data)

    def _call_keras(
        self,
        method: Callable[..., typing.Any],
        *args: typing.Any,
        **kwargs: typing.Any,
    ) -> typing.Any:
        return method(*args, **kwargs)


class _LoopTraining(KerasTraining):
    """A TrainingLoop, where Keras's methods do not work."""

    loop_class: typing.Any = None

    def fit(
        self,
        keras_fit: Callable[..., typing.Any],
        given: inspect.BoundArguments,
        max_inflight_steps: int | None,
    ) -> keras.callbacks.History:
        given.apply_defaults()
        return self._loop().run("fit", given.arguments, max_inflight_steps)

    def run(
        self,
        name: str,
        keras_method: Callable[..., typing.Any],
        given: inspect.BoundArguments,
    ) -> typing.Any:
        given.apply_defaults()
        return self._loop().run(name, given.arguments)

    def check_one_batch(self, method: str) -> None:
        raise ValueError(
            f"{method} does not work under {self._regime.strategy_name}. Use "
            "fit, evaluate or predict with a dataset of one batch, or a "
            "training loop with strategy.run."
        )

    def _loop(self) -> TrainingLoop:
        # It keeps traced steps until the model is compiled again.
        if getattr(self._model, "_tf_ext_loop", None) is None:
            self._model._tf_ext_loop = self.loop_class(self._model)
        return self._model._tf_ext_loop


class ParameterServerTraining(_LoopTraining):
    """Steps are scheduled on asynchronous workers, in both Kerases."""

    loop_class = ParameterServerLoop

    def check_compile(
        self,
        optimizer: typing.Any,
        options: dict[str, typing.Any],
        steps_per_execution: int | str,
    ) -> None:
        if steps_per_execution != "auto":
            check_count(
                "compile", "steps_per_execution", steps_per_execution, 1
            )
        for one in wrapped_optimizers(optimizer):
            self._regime.check_optimizer(one)


class _Synchronous(KerasTraining):
    """The common part of both Kerases for synchronous steps."""

    def check_compile(
        self,
        optimizer: typing.Any,
        options: dict[str, typing.Any],
        steps_per_execution: int | str,
    ) -> None:
        check_losses(options.get("loss"))
        check_optimizer(optimizer)

    def train_step(
        self, step: Callable[..., dict[str, typing.Any]], data: typing.Any
    ) -> dict[str, typing.Any]:
        # The loop of Keras 3 has set it, for a batch that may be empty.
        if current_worker_weight() is not None:
            return step(data)
        weight = self._weight(step, data)
        with worker_weight(weight):
            logs = step(data)
        if not recommenders.is_recommenders_step(step):
            return logs
        return recommenders.sum_losses(logs, weight, self._regime.sum)

    def test_step(
        self, step: Callable[..., dict[str, typing.Any]], data: typing.Any
    ) -> dict[str, typing.Any]:
        if recommenders.is_recommenders_step(step):
            return self.train_step(step, data)
        return step(data)

    def _weight(
        self, step: Callable[..., typing.Any], data: typing.Any
    ) -> tf.Tensor:
        """The factor of this worker's loss: a float32 scalar tensor."""
        size = worker_batches.batch_size_of(data)
        if recommenders.loss_is_sum(self._model, step):
            # Gradients of an empty batch may be NaN.
            return tf.cast(size > 0, tf.float32)
        sizes = self._regime.gather(size[tf.newaxis])
        return tf.math.divide_no_nan(
            tf.cast(self._regime.num_processes * size, tf.float32),
            tf.cast(tf.reduce_sum(sizes), tf.float32),
        )


class SynchronousTraining(_Synchronous, _LoopTraining):
    """Keras 3, whose `fit` fails on several workers."""

    loop_class = SynchronousLoop


class SynchronousKerasTraining(_Synchronous):
    """tf_keras's own methods, on data that workers share."""

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
        for name in ("x", "validation_data"):
            data = given.arguments.get(name)
            if isinstance(data, tf.data.Dataset):
                data = worker_batches.variable_batch_size(data)
                given.arguments[name] = worker_batches.auto_sharded(data)
        with naming_lost_tasks(self._regime.strategy):
            return method(*given.args, **given.kwargs)


_TRAINING = {
    LocalRegime: KerasTraining,
    ParameterServerRegime: ParameterServerTraining,
    SynchronousRegime: SynchronousTraining
    if IS_KERAS_3
    else SynchronousKerasTraining,
}


def training_of(model: keras.Model) -> KerasTraining:
    """The KerasTraining that runs the training of a model.

    Args:
      model: tf_ext.Model.
    """
    regime = regime_of_model(model)
    return _TRAINING[type(regime)](model, regime)


def check_max_inflight_steps(value: typing.Any) -> None:
    """Raises ValueError unless it is None or a positive int."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        refuse("fit", "max_inflight_steps", "a positive int or None", value)
