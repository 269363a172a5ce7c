"""`Optimizer` under tf_keras (`TF_USE_LEGACY_KERAS=1`)."""

import numpy as np
import tensorflow as tf

from tf_ext._keras import keras, running_calls
from tf_ext.distribute.collectives import collectives_of
from tf_ext.optimizers import dense as dense_lib
from tf_ext.optimizers import updates
from tf_ext.tables import shadow
from tf_ext.tables.gradients import TableGradient, check_finite


class TfKerasOptimizer(keras.optimizers.Optimizer):
    """See `tf_ext.optimizers.Optimizer`.

    tf_keras's LossScaleOptimizer goes around it, as around any other: it
    tests the values of slices only, and hands over gradients that are summed
    over replicas already (`skip_gradients_aggregation`).
    """

    tf_ext_tables = True

    def __init__(
        self, dense="rmsprop", name="tf_ext_optimizer", on_nonfinite="raise"
    ):
        updates.check_on_nonfinite(on_nonfinite)
        dense = dense_lib.get(dense)
        if isinstance(dense, keras.mixed_precision.LossScaleOptimizer):
            raise ValueError(
                "Argument `dense` of tf_ext.optimizers.Optimizer is a "
                "LossScaleOptimizer. Under tf_keras it goes around: "
                "LossScaleOptimizer(tf_ext.optimizers.Optimizer(...)); "
                "compile() does that by itself under mixed_float16."
            )
        dense_lib.refuse_ema(dense)
        super().__init__(name=name, weight_decay=None, jit_compile=False)
        self._clipping = dense_lib.take_clipping(dense)
        self._initial_learning_rate = dense_lib.initial_learning_rate(dense)
        self.inner_optimizer = dense
        self.on_nonfinite = on_nonfinite

    def check_for_servers(self):
        """Raises ValueError for what ParameterServerStrategy cannot follow."""
        updates.refuse_skip(self.on_nonfinite)

    def get_config(self):
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
    def iterations(self):
        """Steps made so far: the wrapped optimizer's."""
        return self.inner_optimizer.iterations

    @iterations.setter
    def iterations(self, variable):
        self.inner_optimizer.iterations = variable

    @property
    def learning_rate(self):
        """The wrapped optimizer's rate; tables without one follow it."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value):
        self.inner_optimizer.learning_rate = value

    lr = learning_rate

    @property
    def variables(self):
        """The wrapped optimizer's variables."""
        return self.inner_optimizer.variables

    def build(self, var_list):
        """Makes the slots of all variables but the shadows of tables."""
        if getattr(self, "_built", False):
            return
        dense = [v for v in var_list if shadow.table_of(v) is None]
        self.inner_optimizer.build(dense)
        self._known = dense_lib.keys_of(self.inner_optimizer, dense)
        self._built = True

    def update_step(self, gradient, variable):
        """Not used: the wrapped optimizer's is."""
        raise NotImplementedError

    def apply_gradients(
        self,
        grads_and_vars,
        name=None,
        skip_gradients_aggregation=False,
        **kwargs,
    ):
        """Updates variables and tables.

        Args:
          grads_and_vars: list of `(gradient, variable)`; the gradients of
            tables are `tf.IndexedSlices`.
          name: string, a name scope.
          skip_gradients_aggregation: whether gradients are summed over
            replicas already.
          **kwargs: `experimental_aggregate_gradients`, its old opposite.

        Returns:
          The variable `iterations`.
        """
        if not kwargs.pop("experimental_aggregate_gradients", True):
            skip_gradients_aggregation = True
        if kwargs:
            raise TypeError(f"Unknown arguments: {sorted(kwargs)}")
        grads_and_vars = list(grads_and_vars)
        if not grads_and_vars:
            return self.iterations
        with tf.init_scope():
            self.build([variable for _, variable in grads_and_vars])
        dense_lib.check_known(
            self.inner_optimizer,
            self.name,
            self._known,
            [
                variable
                for gradient, variable in grads_and_vars
                if gradient is not None and shadow.table_of(variable) is None
            ],
        )
        grads = [grad for grad, _ in grads_and_vars]
        with tf.name_scope(name or self.name), updates.after(grads):
            collectives = collectives_of(tf.distribute.get_strategy())
            if collectives is not None:
                self._apply_over_workers(
                    collectives, grads_and_vars, skip_gradients_aggregation
                )
                return self.iterations
            if not skip_gradients_aggregation:
                grads_and_vars = self.aggregate_gradients(grads_and_vars)
            self._apply(grads_and_vars)
        return self.iterations

    def aggregate_gradients(self, grads_and_vars):
        """Sums gradients over replicas.

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
        dense, variables, slices = updates.split(*zip(*grads_and_vars))
        shadows = [
            v
            for g, v in grads_and_vars
            if g is not None and shadow.table_of(v) is not None
        ]
        collectives = collectives_of(tf.distribute.get_strategy())
        if collectives is not None:
            return self._aggregate_over_workers(
                collectives, dense, variables, slices, shadows
            )
        summed = []
        if dense:
            summed = super().aggregate_gradients(list(zip(dense, variables)))

        # TensorFlow's own reduction of slices deadlocks or fails where several
        # are in flight beside dense ones.
        def concatenate(strategy, *columns):
            return tuple(
                tf.concat(strategy.experimental_local_results(column), 0)
                for column in columns
            )

        gathered = []
        if slices:
            columns = [t for _, g in slices for t in (g.values, g.indices)]
            columns = context.merge_call(concatenate, args=tuple(columns))
            gathered = [
                (tf.IndexedSlices(columns[2 * i], columns[2 * i + 1]), v)
                for i, v in enumerate(shadows)
            ]
        return list(summed) + gathered

    def _aggregate_over_workers(
        self, collectives, dense, variables, slices, shadows
    ):
        dense, tables = updates.sum_over_workers(collectives, dense, slices)
        if dense and tables:
            # Whoever looks whether all are finite finds the same everywhere.
            bad = tf.where(updates.all_finite([], tables), 0.0, np.nan)
            dense[0] = updates.map_values(
                lambda v: v + tf.cast(bad, v.dtype), dense[0]
            )
        slices = [
            tf.IndexedSlices(
                t.values, t.signs, tf.constant([1, t.table.dim], tf.int64)
            )
            for t in tables
        ]
        return list(zip(dense + slices, variables + shadows))

    def _apply_over_workers(self, collectives, grads_and_vars, aggregated):
        dense, variables, slices = updates.split(*zip(*grads_and_vars))
        if aggregated:
            tables = _agree(
                collectives,
                [TableGradient(t, g.indices, g.values) for t, g in slices],
            )
        else:
            dense, tables = updates.sum_over_workers(collectives, dense, slices)
        checks = check_finite(tables) if self.on_nonfinite == "raise" else []

        def update_all(strategy, dense):
            _refuse_plain_fit()
            self._update_all(strategy, dense, variables, tables)

        with tf.control_dependencies(checks):
            tf.distribute.get_replica_context().merge_call(
                update_all, args=(dense,)
            )

    def _apply(self, grads_and_vars):
        dense, variables, slices = updates.split(*zip(*grads_and_vars))
        context = tf.distribute.get_replica_context()
        if context is None:
            raise RuntimeError(
                "apply_gradients() must be called in a replica context."
            )
        if context.num_replicas_in_sync == 1:
            tables = updates.merge(
                [(t, [(g.indices, g.values)]) for t, g in slices]
            )
            self._update(
                dense,
                tables,
                lambda clip: self._apply_dense(clip(dense), variables),
            )
            return

        def update_all(strategy, dense, signs, values):
            # Aggregated gradients are the same on every replica.
            first = lambda value: strategy.experimental_local_results(value)[0]  # noqa: E731
            tables = updates.merge(
                [
                    (table, [(first(s), first(v))])
                    for (table, _), s, v in zip(slices, signs, values)
                ]
            )
            self._update_all(strategy, dense, variables, tables)

        context.merge_call(
            update_all,
            args=(
                dense,
                [g.indices for _, g in slices],
                [g.values for _, g in slices],
            ),
        )

    def _update_all(self, strategy, dense, variables, tables):
        """Updates on all replicas of this process; gradients are summed."""
        self._update(
            [strategy.experimental_local_results(grad)[0] for grad in dense],
            tables,
            lambda clip: strategy.extended.call_for_each_replica(
                lambda grads: self._apply_dense(clip(grads), variables),
                args=(dense,),
            ),
        )

    def _apply_dense(self, grads, variables):
        if variables:
            self.inner_optimizer.apply_gradients(
                list(zip(grads, variables)), skip_gradients_aggregation=True
            )
        else:
            self.inner_optimizer.iterations.assign_add(1)

    def _update(self, dense, tables, apply_dense):
        """One step, given gradients summed over replicas."""

        def update():
            self._clip_and_push(dense, tables, apply_dense)
            return tf.constant(0)

        if self.on_nonfinite == "skip":
            finite = updates.all_finite(dense, tables)
            tf.cond(finite, update, lambda: tf.constant(0))
        else:
            update()

    def _clip_and_push(self, dense, tables, apply_dense):
        clip, tables = updates.clip(self._clipping, dense, tables)
        inner = self.inner_optimizer
        # A schedule's rate is only brought up to date by apply_gradients.
        inner._compute_current_learning_rate()
        updates.push(
            tables,
            tf.identity(inner.iterations),
            tf.identity(inner.learning_rate),
            dense_lib.learning_rate_factor(inner, self._initial_learning_rate),
        )
        apply_dense(clip)


def _refuse_plain_fit():
    """Raises RuntimeError under `fit` of a model that is no tf_ext.Model.

    An optimizer does not hear of the model. But what all replicas do together
    runs in the thread that called `fit`, and has its frame.
    """
    for frame in running_calls(("fit",))[:1]:
        model = frame.f_locals.get("self")
        if not hasattr(model, "tf_ext_tables"):
            raise RuntimeError(
                f"fit() of {type(model).__name__}, a Keras model with "
                "tables that is no tf_ext.Model, under "
                "MultiWorkerMirroredStrategy: Keras would add up metrics "
                "that are of all workers already, and give shares of "
                "batches the same weight whatever their sizes. Derive it "
                "from tf_ext.Model first, as `class Ranking(tf_ext.Model, "
                "tfrs.Model)`."
            )


def _agree(collectives, tables):
    """The gradients, with whether those of all workers are finite."""
    if not tables:
        return []
    bad = tf.logical_not(updates.all_finite([], tables))
    anywhere = collectives.gather(tf.cast(bad, tf.int64)[tf.newaxis])
    finite = tf.equal(tf.reduce_max(anywhere), 0)
    return [t._replace(finite=finite) for t in tables]
