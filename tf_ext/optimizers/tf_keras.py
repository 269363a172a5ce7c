# SPDX-License-Identifier: Apache-2.0
"""`Optimizer` under tf_keras (`TF_USE_LEGACY_KERAS=1`)."""

import typing
from collections.abc import Iterable, Sequence

import tensorflow as tf

from tf_ext._compat.calls import model_in_fit
from tf_ext._compat.optimizers import refresh_rate
from tf_ext._keras import keras
from tf_ext.optimizers import dense as dense_lib
from tf_ext.optimizers import stages
from tf_ext.optimizers.adapter import Adapter, Rates
from tf_ext.regimes import current_step, regime_in_scope, weigh_own_loss
from tf_ext.tables import shadow


class TfKerasOptimizer(keras.optimizers.Optimizer):
    """See `tf_ext.optimizers.Optimizer`.

    tf_keras's LossScaleOptimizer goes around it, as around any other: it
    tests the values of slices only, and passes gradients that are summed over
    replicas already (`skip_gradients_aggregation`).
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
        if isinstance(dense, keras.mixed_precision.LossScaleOptimizer):
            raise ValueError(
                "Argument `dense` of tf_ext.optimizers.Optimizer must not be a "
                "LossScaleOptimizer under tf_keras, where it goes around: "
                "LossScaleOptimizer(tf_ext.optimizers.Optimizer(...)), as "
                "compile does under mixed_float16. "
                f"Received: dense={dense!r}"
            )
        dense_lib.refuse_ema(dense)
        super().__init__(name=name, weight_decay=None, jit_compile=False)
        self._clipping = dense_lib.take_clipping(dense)
        self._initial_learning_rate = dense_lib.initial_learning_rate(dense)
        self.inner_optimizer = dense
        self.on_nonfinite = on_nonfinite

    def check_for_servers(self) -> None:
        """Raises ValueError for what ParameterServerStrategy cannot follow."""
        dense_lib.refuse_skip(self.on_nonfinite)

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments."""
        return {
            "name": self.name,
            "dense": dense_lib.serialize(
                self.inner_optimizer, **self._clipping._asdict()
            ),
            "on_nonfinite": self.on_nonfinite,
            "initial_learning_rate": self._initial_learning_rate,
        }

    @property
    def iterations(self) -> tf.Variable:
        """The number of steps so far: that of the wrapped optimizer."""
        return self.inner_optimizer.iterations

    @iterations.setter
    def iterations(self, variable: tf.Variable) -> None:
        self.inner_optimizer.iterations = variable

    @property
    def learning_rate(self) -> typing.Any:
        """The wrapped optimizer's rate; tables without one follow it."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: typing.Any) -> None:
        self.inner_optimizer.learning_rate = value

    lr = learning_rate

    @property
    def variables(self) -> list[tf.Variable]:
        """The wrapped optimizer's variables."""
        return self.inner_optimizer.variables

    def build(self, var_list: Sequence[tf.Variable]) -> None:
        """Makes the slots of all variables but the shadows of tables."""
        if getattr(self, "_built", False):
            return
        dense = [v for v in var_list if shadow.table_of(v) is None]
        self.inner_optimizer.build(dense)
        self._known = dense_lib.keys_of(self.inner_optimizer, dense)
        self._built = True

    def compute_gradients(
        self,
        loss: typing.Any,
        var_list: typing.Any,
        tape: tf.GradientTape | None = None,
    ) -> list[tuple[typing.Any, typing.Any]]:
        """As in tf_keras, for `minimize`.

        In a `train_step` of a model's own, under strategies of several
        replicas, the loss is weighted by the replica's samples.
        """
        weight = current_step().weight
        if callable(loss):
            return super().compute_gradients(
                lambda: weigh_own_loss(weight, loss()), var_list, tape
            )
        if tape is not None:
            with tape:
                loss = weigh_own_loss(weight, loss)
        return super().compute_gradients(loss, var_list, tape)

    def update_step(
        self, gradient: tf.Tensor | tf.IndexedSlices, variable: tf.Variable
    ) -> None:
        """Not used: that of the wrapped optimizer is."""
        raise NotImplementedError

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[typing.Any, typing.Any]],
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        **kwargs: typing.Any,
    ) -> tf.Variable:
        """Updates variables and tables.

        Args:
          grads_and_vars: list of `(gradient, variable)`; the gradients of
            tables are `tf.IndexedSlices`.
          name: string, a name scope.
          skip_gradients_aggregation: whether gradients are summed over
            replicas already.
          **kwargs: `experimental_aggregate_gradients`, the old name of its
            opposite.

        Returns:
          The variable `iterations`.
        """
        if not kwargs.pop("experimental_aggregate_gradients", True):
            skip_gradients_aggregation = True
        if kwargs:
            raise TypeError(
                "Keyword arguments of apply_gradients must be name, "
                "skip_gradients_aggregation or "
                "experimental_aggregate_gradients. Received: "
                f"{', '.join(sorted(kwargs))}"
            )
        grads_and_vars = list(grads_and_vars)
        if not grads_and_vars:
            return self.iterations
        grads, variables = zip(*grads_and_vars)
        with tf.init_scope():
            self.build(variables)
        dense_lib.check_known(
            self.inner_optimizer, self.name, self._known, grads, variables
        )
        context = tf.distribute.get_replica_context()
        if context is None:
            raise RuntimeError(
                "apply_gradients() must be called in a replica context."
            )
        with tf.name_scope(name or self.name):
            regime_in_scope().exchange.check_fit(model_in_fit)
            stages.run(
                _Adapter(self), grads, variables, skip_gradients_aggregation
            )
        return self.iterations

    def aggregate_gradients(
        self, grads_and_vars: Iterable[tuple[typing.Any, typing.Any]]
    ) -> list[tuple[typing.Any, typing.Any]]:
        """Sums gradients over replicas.

        tf_keras's LossScaleOptimizer calls it, checks whether the sums are
        finite, and passes them to `apply_gradients`.

        Args:
          grads_and_vars: list of `(gradient, variable)`.

        Returns:
          List of `(gradient, variable)`, the same on every replica. Slices of
          tables are concatenated, not yet summed by sign.
        """
        grads_and_vars = list(grads_and_vars)
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            return grads_and_vars
        dense, variables, slices = stages.split(*zip(*grads_and_vars))
        dense, slices = regime_in_scope().exchange.sum_everywhere(
            dense, slices, current_step().weight
        )
        shadows = [
            v
            for g, v in grads_and_vars
            if g is not None and shadow.table_of(v) is not None
        ]
        return list(
            zip([*dense, *(grad for _, grad in slices)], [*variables, *shadows])
        )


class _Adapter(Adapter):
    """A step of a TfKerasOptimizer."""

    def __init__(self, optimizer: TfKerasOptimizer) -> None:
        super().__init__(optimizer._clipping, optimizer.on_nonfinite == "skip")
        self._inner = optimizer.inner_optimizer
        self._initial_learning_rate = optimizer._initial_learning_rate

    def rates(self) -> Rates:
        refresh_rate(self._inner)
        iterations = tf.identity(self._inner.iterations)
        return Rates(
            iterations,
            iterations,
            tf.identity(self._inner.learning_rate),
            dense_lib.learning_rate_factor(
                self._inner, self._initial_learning_rate
            ),
        )

    def apply_dense(
        self, grads: Sequence[typing.Any], variables: Sequence[typing.Any]
    ) -> None:
        if variables:
            self._inner.apply_gradients(
                list(zip(grads, variables)), skip_gradients_aggregation=True
            )
        else:
            self._inner.iterations.assign_add(1)
