# SPDX-License-Identifier: Apache-2.0
"""`Optimizer` under Keras 3."""

import contextlib
import types
import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext._compat.optimizers import (
    given_rate,
    key_of,
    with_rate,
    without_replica_sum,
)
from tf_ext._keras import keras
from tf_ext.optimizers import dense as dense_lib
from tf_ext.optimizers import stages
from tf_ext.optimizers.accumulator import TableAccumulators
from tf_ext.optimizers.adapter import Adapter, Rates
from tf_ext.regimes import (
    TableGradient,
    current_step,
    regime_in_scope,
    weigh_own_loss,
)
from tf_ext.tables import shadow

_LossScaleOptimizer = keras.mixed_precision.LossScaleOptimizer
_Schedule = keras.optimizers.schedules.LearningRateSchedule


class Keras3Optimizer(keras.mixed_precision.LossScaleOptimizer):
    """See `tf_ext.optimizers.Optimizer`.

    It is a LossScaleOptimizer so that Keras does not put one around it under
    `mixed_float16`: Keras's makes gradients of tables dense. The scaling here
    is the same, but off unless asked for.
    """

    tf_ext_tables = True

    def __init__(
        self,
        dense: str | keras.optimizers.Optimizer = "rmsprop",
        name: str = "tf_ext_optimizer",
        on_nonfinite: str = "raise",
    ) -> None:
        dense_lib.check_on_nonfinite(on_nonfinite)
        dense = dense_lib.get(dense)
        scaling = {}
        dynamic = isinstance(dense, _LossScaleOptimizer)
        if dynamic:
            scaling = {
                "initial_scale": dense.initial_scale,
                "dynamic_growth_steps": dense.dynamic_growth_steps,
            }
            dense = dense.inner_optimizer
        elif not dense.loss_scale_factor:
            policy = keras.mixed_precision.dtype_policy().name
            dynamic = policy == "mixed_float16"
        dense_lib.refuse_ema(dense)
        # They are summed together with the gradients of tables.
        without_replica_sum(dense)
        factor = dense.loss_scale_factor
        super().__init__(dense, name=name, **scaling)
        self.on_nonfinite = on_nonfinite
        self._dynamic = dynamic
        self._factor = factor
        self._clipping = dense_lib.take_clipping(dense)
        self._initial_learning_rate = dense_lib.initial_learning_rate(dense)
        self._steps = dense.gradient_accumulation_steps
        dense.gradient_accumulation_steps = None
        # Model variables and accumulators, hidden so that Keras does not track
        # them as the optimizer's.
        self._built_for = types.SimpleNamespace(
            variables=[], accumulators={}, keys=frozenset()
        )
        self._table_accumulators: typing.Any = (
            TableAccumulators() if self._steps else None
        )

    def __setattr__(self, name: str, value: typing.Any) -> None:
        # LossScaleOptimizer sets the factor of the optimizer that it wraps to
        # None. Keras would not call a property's setter with an unchanged
        # value.
        if name == "loss_scale_factor" and hasattr(self, "_factor"):
            raise ValueError(
                "tf_ext.optimizers.Optimizer must be outermost: a "
                "LossScaleOptimizer around it would make the gradients of "
                "tables dense. Received: a LossScaleOptimizer around it. Use "
                "tf_ext.optimizers.Optimizer("
                "keras.mixed_precision.LossScaleOptimizer(your_optimizer))."
            )
        super().__setattr__(name, value)

    @property
    def learning_rate(self) -> typing.Any:
        """The rate, of a schedule at the number of batches, as in Keras."""
        inner = self.inner_optimizer
        schedule = self._schedule_of_batches()
        if schedule is None:
            return inner.learning_rate
        return schedule(self._batches(tf.convert_to_tensor(inner.iterations)))

    @learning_rate.setter
    def learning_rate(self, value: typing.Any) -> None:
        self.inner_optimizer.learning_rate = value

    def _schedule_of_batches(self) -> typing.Any:
        """The schedule, if it does not count the wrapped optimizer's steps."""
        rate = given_rate(self.inner_optimizer)
        return rate if self._steps and isinstance(rate, _Schedule) else None

    def _batches(self, iterations: tf.Tensor) -> tf.Tensor:
        """The number of `apply` calls before this one, of that of steps."""
        if not self._steps:
            return iterations
        done = self._micro_step if self.built else 0
        steps = tf.cast(iterations, tf.int64) * self._steps
        return steps + tf.convert_to_tensor(done, tf.int64)

    def _rate_of_batches(self) -> contextlib.AbstractContextManager[None]:
        """In which the wrapped optimizer, which counts steps, has the rate."""
        if self._schedule_of_batches() is None:
            return contextlib.nullcontext()
        return with_rate(self.inner_optimizer, self.learning_rate)

    def enable_dynamic_loss_scale(self) -> None:
        """Turns dynamic loss scaling on; for `Model.compile`."""
        if self._factor is None and not self.built:
            self._dynamic = True

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments."""
        dense = dense_lib.serialize(
            self.inner_optimizer,
            **self._clipping._asdict(),
            loss_scale_factor=self._factor,
            gradient_accumulation_steps=self._steps,
        )
        if self._dynamic:
            dense = keras.optimizers.serialize(
                _LossScaleOptimizer(
                    dense_lib.deserialize(dense),
                    initial_scale=self.initial_scale,
                    dynamic_growth_steps=self.dynamic_growth_steps,
                )
            )
        return {
            "name": self.name,
            "dense": dense,
            "on_nonfinite": self.on_nonfinite,
            "initial_learning_rate": self._initial_learning_rate,
        }

    def build(self, variables: Sequence[typing.Any]) -> None:
        """Makes the slots of all variables but the shadows of tables.

        Raises:
          ValueError: dynamic loss scaling or gradient accumulation under
            ParameterServerStrategy.
        """
        if self.built:
            return
        regime = regime_in_scope()
        regime.placement.check_optimizer(self)
        dense = [v for v in variables if shadow.table_of(v) is None]
        self._make_dynamic_scale()
        if self._steps:
            self._micro_step = self.add_variable(
                (), dtype="int64", name="micro_step"
            )
            accumulators = self.add_optimizer_variables(
                dense, "gradient_accumulator"
            )
            self._built_for.accumulators = {
                key_of(self, v): a for v, a in zip(dense, accumulators)
            }
            tables = [shadow.table_of(v) for v in variables]
            self._table_accumulators.build([t for t in tables if t is not None])
        self.inner_optimizer.build(dense)
        regime.placement.make_counter_exact(self.inner_optimizer.iterations)
        self._built_for.variables = list(variables)
        self._built_for.keys = dense_lib.keys_of(self.inner_optimizer, dense)
        # Skips LossScaleOptimizer, which would build the wrapped optimizer
        # again.
        super(_LossScaleOptimizer, self).build(dense)

    def _make_dynamic_scale(self) -> None:
        """Makes the variables of dynamic loss scaling, if there are none."""
        if not self._dynamic or hasattr(self, "step_counter"):
            return
        self.step_counter = self.add_variable(
            (), dtype="int64", name="step_counter"
        )
        self.dynamic_scale = self.add_variable(
            (),
            dtype="float32",
            initializer=keras.initializers.Constant(self.initial_scale),
            name="dynamic_scale",
        )

    def check_for_servers(self) -> None:
        """Raises ValueError unless ParameterServerStrategy supports it."""
        dense_lib.refuse_skip(self.on_nonfinite)
        if self._steps:
            raise ValueError(
                "Argument `gradient_accumulation_steps` of the optimizer must "
                "be None under ParameterServerStrategy, where gradients of "
                "different workers' steps would be mixed. Received: "
                f"gradient_accumulation_steps={self._steps}. Use larger "
                "batches."
            )
        if self._dynamic:
            raise ValueError(
                "Dynamic loss scaling (of the policy mixed_float16, or of "
                "LossScaleOptimizer) does not work under "
                "ParameterServerStrategy: Keras cannot skip a step there. "
                "Use mixed_bfloat16, or a fixed loss_scale_factor of the "
                "wrapped optimizer."
            )

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """The loss times the loss scale, if there is one.

        In a `train_step` of a model's own, under strategies of several
        replicas, its gradient is also weighted by the replica's samples.
        """
        loss = weigh_own_loss(current_step().weight, loss)
        if self._dynamic:
            # Keras multiplies by the initial scale until it is built: not by
            # that of a checkpoint, by which gradients are divided.
            with tf.init_scope():
                self._make_dynamic_scale()
            loss = tf.convert_to_tensor(loss)
            scale = tf.convert_to_tensor(self.dynamic_scale)
            return loss * tf.cast(scale, loss.dtype)
        return loss if self._factor is None else loss * self._factor

    def apply(
        self,
        grads: Sequence[typing.Any],
        trainable_variables: Sequence[typing.Any] | None = None,
    ) -> None:
        """Updates variables and tables.

        Args:
          grads: list of gradients; `tf.IndexedSlices` for tables.
          trainable_variables: list of their variables.
        """
        grads = list(grads)
        if trainable_variables is None:
            trainable_variables = self._built_for.variables
        variables = list(trainable_variables)
        if not grads:
            return
        if not self.built:
            with tf.init_scope():
                self.build(variables)
        context = tf.distribute.get_replica_context()
        if context is None:
            raise ValueError("apply() must be called in a replica context.")
        dense_lib.check_known(
            self.inner_optimizer,
            self.name,
            self._built_for.keys,
            grads,
            variables,
        )
        if context.num_replicas_in_sync > 1:
            self._refuse_accumulation()
        stages.run(_Adapter(self), grads, variables)

    def _refuse_accumulation(self) -> None:
        if self._steps:
            raise ValueError(
                "Argument `gradient_accumulation_steps` of the optimizer must "
                "be None with several replicas: Keras cannot decide on a step "
                "under tf.distribute. Received: gradient_accumulation_steps="
                f"{self._steps}. Use larger batches."
            )

    def save_own_variables(self, store: typing.Any) -> None:
        """Writes the variables and the accumulated gradients."""
        super().save_own_variables(store)
        if self._table_accumulators is not None:
            self._table_accumulators.save(store)

    def load_own_variables(self, store: typing.Any) -> None:
        """Reads what `save_own_variables` wrote."""
        if self._table_accumulators is not None:
            store = self._table_accumulators.load(store)
        super().load_own_variables(store)


class _Adapter(Adapter):
    """A step of a Keras3Optimizer."""

    def __init__(self, optimizer: Keras3Optimizer) -> None:
        super().__init__(
            optimizer._clipping,
            optimizer._dynamic or optimizer.on_nonfinite == "skip",
        )
        self._optimizer = optimizer
        if optimizer._steps:
            self.accumulation = Accumulation(optimizer)

    def loss_scale(self) -> float | tf.Tensor | None:
        if self._optimizer._dynamic:
            return tf.convert_to_tensor(self._optimizer.dynamic_scale)
        return self._optimizer._factor

    def after_update(self) -> None:
        optimizer = self._optimizer
        if not optimizer._dynamic:
            return
        counter, scale = optimizer.step_counter, optimizer.dynamic_scale
        grown = tf.equal(counter + 1, optimizer.dynamic_growth_steps)
        scale.assign(scale * tf.where(grown, 2.0, 1.0))
        counter.assign(tf.where(grown, tf.zeros((), tf.int64), counter + 1))

    def after_skip(self) -> None:
        optimizer = self._optimizer
        if optimizer._dynamic:
            optimizer.step_counter.assign(0)
            optimizer.dynamic_scale.assign(optimizer.dynamic_scale * 0.5)

    def rates(self) -> Rates:
        optimizer = self._optimizer
        inner = optimizer.inner_optimizer
        iterations = tf.identity(tf.convert_to_tensor(inner.iterations))
        return Rates(
            iterations,
            optimizer._batches(iterations),
            tf.identity(tf.convert_to_tensor(optimizer.learning_rate)),
            dense_lib.learning_rate_factor(
                inner, optimizer._initial_learning_rate
            ),
        )

    def apply_dense(
        self, grads: Sequence[typing.Any], variables: Sequence[typing.Any]
    ) -> None:
        inner = self._optimizer.inner_optimizer
        if variables:
            with self._optimizer._rate_of_batches():
                inner.apply(grads, variables)
        else:
            inner.iterations.assign_add(1)


class Accumulation:
    """Sums of the gradients of a Keras3Optimizer's micro-steps.

    Attributes:
      steps: int, the number of micro-steps per step.
    """

    def __init__(self, optimizer: Keras3Optimizer) -> None:
        self.steps = optimizer._steps
        self._optimizer = optimizer
        self._micro_step = optimizer._micro_step
        self._tables = optimizer._table_accumulators

    def _accumulators(
        self, variables: Sequence[typing.Any]
    ) -> list[typing.Any]:
        of_key = self._optimizer._built_for.accumulators
        return [of_key[key_of(self._optimizer, v)] for v in variables]

    def add(
        self,
        grads: Sequence[typing.Any],
        variables: Sequence[typing.Any],
        tables: Sequence[TableGradient],
    ) -> None:
        """Adds a micro-step: lists, the last one of TableGradient."""
        for accumulator, grad in zip(self._accumulators(variables), grads):
            self._optimizer.assign_add(accumulator, grad)
        self._tables.add(tables)

    def is_complete(self) -> tf.Tensor:
        """Whether this is the last micro-step: bool scalar tensor."""
        # What is restored may have made more of them than this.
        return tf.greater_equal(self._micro_step + 1, self.steps)

    def sums(
        self, variables: Sequence[typing.Any]
    ) -> tuple[list[tf.Tensor], list[TableGradient]]:
        """`(gradients of variables, list of TableGradient)`."""
        grads = [
            tf.convert_to_tensor(accumulator)
            for accumulator in self._accumulators(variables)
        ]
        return grads, self._tables.take()

    def clear(self, variables: Sequence[typing.Any]) -> None:
        """Begins a new step."""
        for accumulator in self._accumulators(variables):
            accumulator.assign(tf.zeros_like(accumulator))
        self._micro_step.assign(0)

    def wait(self) -> None:
        """Counts a micro-step that is not the last one."""
        self._micro_step.assign(self._micro_step + 1)
