"""`Optimizer` under Keras 3."""

import types

import tensorflow as tf

from tf_ext._counters import make_exact
from tf_ext._keras import keras
from tf_ext.distribute.cluster import is_parameter_server
from tf_ext.distribute.collectives import collectives_of
from tf_ext.optimizers import dense as dense_lib
from tf_ext.optimizers import updates
from tf_ext.optimizers.accumulator import TableAccumulators
from tf_ext.tables import shadow
from tf_ext.tables.gradients import check_finite

_LossScaleOptimizer = keras.mixed_precision.LossScaleOptimizer


class Keras3Optimizer(_LossScaleOptimizer):
    """See `tf_ext.optimizers.Optimizer`.

    It is a LossScaleOptimizer so that Keras does not put one around it under
    `mixed_float16`: Keras's makes gradients of tables dense. The scaling here
    is the same, but off unless asked for.
    """

    tf_ext_tables = True

    def __init__(
        self, dense="rmsprop", name="tf_ext_optimizer", on_nonfinite="raise"
    ):
        updates.check_on_nonfinite(on_nonfinite)
        dense = dense_lib.get(dense)
        scaling = {}
        dynamic = isinstance(dense, _LossScaleOptimizer)
        if dynamic:
            scaling = {
                "initial_scale": dense.initial_scale,
                "dynamic_growth_steps": dense.dynamic_growth_steps,
            }
            dense = dense.inner_optimizer
        elif _policy_is_mixed_float16() and not dense.loss_scale_factor:
            dynamic = True
        dense_lib.refuse_ema(dense)
        if hasattr(dense, "_all_reduce_sum_gradients"):
            dense._all_reduce_sum_gradients = _sum_over_replicas(dense)
        factor = dense.loss_scale_factor
        super().__init__(dense, name=name, **scaling)
        self.on_nonfinite = on_nonfinite
        self._dynamic = dynamic
        self._factor = factor
        self._clipping = dense_lib.take_clipping(dense)
        self._initial_learning_rate = dense_lib.initial_learning_rate(dense)
        self._steps = dense.gradient_accumulation_steps
        dense.gradient_accumulation_steps = None
        # Model variables and accumulators, where Keras does not track them as
        # the optimizer's own.
        self._built_for = types.SimpleNamespace(
            variables=[], accumulators={}, keys=frozenset()
        )
        self._table_accumulators = TableAccumulators() if self._steps else None

    def __setattr__(self, name, value):
        # LossScaleOptimizer sets the factor of what it wraps to None. Keras
        # would not call a property's setter with the value it has already.
        if name == "loss_scale_factor" and hasattr(self, "_factor"):
            raise ValueError(
                "tf_ext.optimizers.Optimizer must be outermost: a "
                "LossScaleOptimizer around it would make the gradients of "
                "tables dense. Use tf_ext.optimizers.Optimizer("
                "keras.mixed_precision.LossScaleOptimizer(your_optimizer))."
            )
        super().__setattr__(name, value)

    def enable_dynamic_loss_scale(self):
        """Turns dynamic loss scaling on; for `Model.compile`."""
        if self._factor is None and not self.built:
            self._dynamic = True

    def get_config(self):
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
                    keras.optimizers.deserialize(dense),
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

    def build(self, variables):
        """Makes the slots of all variables but the shadows of tables.

        Raises:
          ValueError: dynamic loss scaling or gradient accumulation under
            ParameterServerStrategy.
        """
        if self.built:
            return
        with_servers = is_parameter_server(tf.distribute.get_strategy())
        if with_servers:
            self.check_for_servers()
        dense = [v for v in variables if shadow.table_of(v) is None]
        if self._dynamic:
            self.step_counter = self.add_variable(
                (), dtype="int64", name="step_counter"
            )
            self.dynamic_scale = self.add_variable(
                (),
                dtype="float32",
                initializer=keras.initializers.Constant(self.initial_scale),
                name="dynamic_scale",
            )
        if self._steps:
            self._micro_step = self.add_variable(
                (), dtype="int64", name="micro_step"
            )
            accumulators = self.add_optimizer_variables(
                dense, "gradient_accumulator"
            )
            self._built_for.accumulators = {
                self._var_key(v): a for v, a in zip(dense, accumulators)
            }
            tables = [shadow.table_of(v) for v in variables]
            self._table_accumulators.build([t for t in tables if t is not None])
        self.inner_optimizer.build(dense)
        if with_servers:
            make_exact(self.inner_optimizer.iterations)
        self._built_for.variables = list(variables)
        self._built_for.keys = dense_lib.keys_of(self.inner_optimizer, dense)
        # Past LossScaleOptimizer, which would build the wrapped one again.
        super(_LossScaleOptimizer, self).build(dense)

    def check_for_servers(self):
        """Raises ValueError for what ParameterServerStrategy cannot follow."""
        updates.refuse_skip(self.on_nonfinite)
        if self._steps:
            raise ValueError(
                f"gradient_accumulation_steps={self._steps} does not work "
                "under ParameterServerStrategy: gradients of different "
                "workers' steps would be mixed. Use larger batches."
            )
        if self._dynamic:
            raise ValueError(
                "Dynamic loss scaling (of the policy mixed_float16, or of "
                "LossScaleOptimizer) does not work under "
                "ParameterServerStrategy: Keras cannot leave out a step there. "
                "Use mixed_bfloat16, or a fixed loss_scale_factor of the "
                "wrapped optimizer."
            )

    def scale_loss(self, loss):
        """The loss times the loss scale, if there is one."""
        if self._dynamic:
            return super().scale_loss(loss)
        return loss if self._factor is None else loss * self._factor

    def apply(self, grads, trainable_variables=None):
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
        with updates.after(grads):
            self._apply_in(context, grads, variables)

    def _apply_in(self, context, grads, variables):
        dense, dense_variables, slices = updates.split(grads, variables)
        dense_lib.check_known(
            self.inner_optimizer,
            self.name,
            self._built_for.keys,
            dense_variables,
        )
        if context.num_replicas_in_sync == 1:
            tables = updates.merge(
                [(t, [(g.indices, g.values)]) for t, g in slices]
            )

            def apply_dense(change):
                self._apply_dense(change(dense), dense_variables)

            self._update(dense, dense_variables, tables, apply_dense)
            return
        self._refuse_accumulation()
        collectives = collectives_of(tf.distribute.get_strategy())
        if collectives is None:
            self._apply_mirrored(context, dense, dense_variables, slices)
            return
        dense, tables = updates.sum_over_workers(collectives, dense, slices)
        checks = [] if self._skips else check_finite(tables)
        with tf.control_dependencies(checks):
            context.merge_call(
                lambda strategy, dense: self._update_all(
                    strategy, dense, dense_variables, tables
                ),
                args=(dense,),
            )

    def _apply_mirrored(self, context, dense, dense_variables, slices):
        replicas = context.num_replicas_in_sync
        if dense:
            dense = context.all_reduce(tf.distribute.ReduceOp.SUM, dense)

        def update_all(strategy, dense, signs, values):
            local = strategy.experimental_local_results
            tables = updates.merge(
                [
                    (table, list(zip(local(s), local(v))))
                    for (table, _), s, v in zip(slices, signs, values)
                ]
            )
            # Keras sums over replicas once more.
            self._update_all(
                strategy, dense, dense_variables, tables, 1.0 / replicas
            )

        context.merge_call(
            update_all,
            args=(
                dense,
                [g.indices for _, g in slices],
                [g.values for _, g in slices],
            ),
        )

    def _update_all(self, strategy, dense, variables, tables, factor=None):
        """Updates on all replicas of this process; gradients are summed."""

        def one_replica(grads, change):
            grads = change(grads)
            if factor is not None:
                grads = updates.scale(grads, factor)
            self._apply_dense(grads, variables)

        first = [strategy.experimental_local_results(g)[0] for g in dense]
        self._update(
            first,
            variables,
            tables,
            lambda change: strategy.extended.call_for_each_replica(
                lambda grads: one_replica(grads, change), args=(dense,)
            ),
        )

    def _refuse_accumulation(self):
        if self._steps:
            raise ValueError(
                "gradient_accumulation_steps is not supported with several "
                "replicas: Keras cannot decide on a step under tf.distribute. "
                "Received: gradient_accumulation_steps="
                f"{self._steps}. Use a larger batch instead."
            )

    def _apply_dense(self, grads, variables):
        if variables:
            self.inner_optimizer.apply(grads, variables)
        else:
            self.inner_optimizer.iterations.assign_add(1)

    def _update(self, dense, variables, tables, apply_dense):
        """One step, given gradients summed over replicas."""
        if not self._dynamic:
            self._update_or_skip(dense, variables, tables, apply_dense)
            return

        def finite():
            self._accumulate(
                dense,
                variables,
                tables,
                apply_dense,
                tf.convert_to_tensor(self.dynamic_scale),
            )
            grown = tf.equal(self.step_counter + 1, self.dynamic_growth_steps)
            self.dynamic_scale.assign(
                self.dynamic_scale * tf.where(grown, 2.0, 1.0)
            )
            self.step_counter.assign(
                tf.where(grown, tf.zeros((), tf.int64), self.step_counter + 1)
            )
            return tf.constant(0)

        def skip():
            self.step_counter.assign(0)
            self.dynamic_scale.assign(self.dynamic_scale * 0.5)
            return tf.constant(0)

        tf.cond(updates.all_finite(dense, tables), finite, skip)

    @property
    def _skips(self):
        """Whether a step with a gradient that is not finite is left out."""
        return self._dynamic or self.on_nonfinite == "skip"

    def _update_or_skip(self, dense, variables, tables, apply_dense):
        def update():
            self._accumulate(
                dense, variables, tables, apply_dense, self._factor
            )
            return tf.constant(0)

        if self._skips:
            finite = updates.all_finite(dense, tables)
            tf.cond(finite, update, lambda: tf.constant(0))
        else:
            update()

    def _accumulate(self, dense, variables, tables, apply_dense, scale):
        """Unscales; adds up micro-steps if they are accumulated."""
        factor = None if scale is None else 1.0 / scale
        if not self._steps:
            if factor is not None:
                tables = _scale_tables(tables, factor)
                whole = lambda grads: updates.scale(grads, factor)  # noqa: E731
            else:
                whole = lambda grads: grads  # noqa: E731
            self._apply(whole(dense), tables, apply_dense, whole)
            return
        factor = 1.0 if factor is None else factor
        factor = tf.cast(factor, tf.float32) / self._steps
        accumulators = [
            self._built_for.accumulators[self._var_key(v)] for v in variables
        ]
        for accumulator, grad in zip(
            accumulators, updates.scale(dense, factor)
        ):
            self.assign_add(accumulator, grad)
        self._table_accumulators.add(_scale_tables(tables, factor))

        def whole_step():
            sums = [tf.convert_to_tensor(a) for a in accumulators]
            self._apply(
                sums,
                self._table_accumulators.take(),
                apply_dense,
                lambda _: sums,
            )
            for accumulator in accumulators:
                accumulator.assign(tf.zeros_like(accumulator))
            self._micro_step.assign(0)
            return tf.constant(0)

        def wait():
            self._micro_step.assign(self._micro_step + 1)
            return tf.constant(0)

        tf.cond(tf.equal(self._micro_step + 1, self._steps), whole_step, wait)

    def _apply(self, dense, tables, apply_dense, change):
        """Clips, pushes tables, and applies what `change` makes of dense."""
        clip, tables = updates.clip(self._clipping, dense, tables)
        iterations = tf.identity(
            tf.convert_to_tensor(self.inner_optimizer.iterations)
        )
        rate = tf.identity(
            tf.convert_to_tensor(self.inner_optimizer.learning_rate)
        )
        factor = dense_lib.learning_rate_factor(
            self.inner_optimizer, self._initial_learning_rate
        )
        updates.push(tables, iterations, rate, factor)
        apply_dense(lambda grads: clip(change(grads)))

    def save_own_variables(self, store):
        """Writes the variables, and what waits in accumulators."""
        super().save_own_variables(store)
        if self._table_accumulators is not None:
            self._table_accumulators.save(store)

    def load_own_variables(self, store):
        """Reads what `save_own_variables` wrote."""
        if self._table_accumulators is not None:
            store = self._table_accumulators.load(store)
        super().load_own_variables(store)


def _sum_over_replicas(dense):
    """Keras's sum of gradients over replicas, where that is wanted.

    Keras sums by a `tf.custom_gradient`, and TensorFlow keeps the graph around
    one, and with it the tables, until the process ends: it is left out for one
    replica. Over workers gradients are summed before.

    Args:
      dense: a Keras optimizer.
    """
    keras_sum = type(dense)._all_reduce_sum_gradients

    def sum_over_replicas(grads_and_vars):
        strategy = tf.distribute.get_strategy()
        if (
            strategy.num_replicas_in_sync == 1
            or collectives_of(strategy) is not None
        ):
            return grads_and_vars
        return keras_sum(dense, grads_and_vars)

    return sum_over_replicas


def _policy_is_mixed_float16():
    return keras.mixed_precision.dtype_policy().name == "mixed_float16"


def _scale_tables(tables, factor):
    return [
        t._replace(values=t.values * tf.cast(factor, t.values.dtype))
        for t in tables
    ]
