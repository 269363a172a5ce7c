# SPDX-License-Identifier: Apache-2.0
"""One training step's gradients, from the tape to tables and variables.

Both Kerases use it, and this file has its stages in their order:

    split       gradients of tables from those of variables
    merge       over replicas and workers: a sum a variable, a sum a sign
    finite      a step that is not finite everywhere is left out, or fails
    unscale     gradients of a scaled loss are divided by the scale
    accumulate  micro-steps are added up, and all but the last one end here
    clip        variables and tables together
    push        each table once; then the wrapped optimizer has its turn

Before `merge` each replica acts alone; from there on all replicas of a process
act together. What differs between the two Kerases is in an `Adapter`.
"""

import dataclasses
import typing
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_ext.ops.exchange import exchange_ops
from tf_ext.optimizers import hyperparameters
from tf_ext.optimizers.adapter import Adapter, Clipping, Rates
from tf_ext.regimes import (
    Carried,
    TableGradient,
    check_finite,
    check_variables,
    current_step,
    nonfinite_error,
    regime_in_scope,
    regime_of_tables,
)
from tf_ext.regimes.exchange import Exchange
from tf_ext.regimes.gradients import map_values
from tf_ext.regimes.step_context import StepContext, StepNumber, after
from tf_ext.regimes.table_interface import Table, TableSlices
from tf_ext.tables import shadow
from tf_ext.tables.sparse_table import SparseTable


@dataclasses.dataclass(frozen=True)
class Gradients:
    """Gradients of a step, after their sum over replicas and workers.

    Attributes:
      grads: list of tensors or `tf.IndexedSlices`, those of variables; or of
        distributed values of them where there is a strategy.
      variables: list of Keras or TensorFlow variables.
      tables: list of TableGradient.
      exchange: Exchange of the tables.
      strategy: the tf.distribute.Strategy in whose cross-replica context they
        are; None where there is one replica.
      number: StepNumber of the step, or None.
    """

    grads: list[typing.Any]
    variables: list[typing.Any]
    tables: Sequence[TableGradient]
    exchange: Exchange
    strategy: tf.distribute.Strategy | None = None
    number: StepNumber | None = None

    def of_first_replica(self) -> list[typing.Any]:
        """A list of tensors or slices; those of all replicas are the same."""
        if self.strategy is None:
            return self.grads
        local = self.strategy.experimental_local_results
        return [local(grad)[0] for grad in self.grads]

    def map(self, function: Callable[[tf.Tensor], tf.Tensor]) -> "Gradients":
        """With `function(values)` for the values of those of variables."""

        def mapped(grads: Sequence[typing.Any]) -> list[typing.Any]:
            return [map_values(function, grad) for grad in grads]

        if not self.grads:
            return self
        if self.strategy is None:
            grads = mapped(self.grads)
        else:
            grads = self.strategy.extended.call_for_each_replica(
                mapped, args=(self.grads,)
            )
        return dataclasses.replace(self, grads=grads)

    def map_tables(
        self, function: Callable[[TableGradient], tf.Tensor]
    ) -> "Gradients":
        """With `function(gradient)` for the values of each table's."""
        tables = [t._replace(values=function(t)) for t in self.tables]
        return dataclasses.replace(self, tables=tables)

    def after(self, operations: Sequence[tf.Tensor]) -> "Gradients":
        """The same, which wait for operations."""

        def wait(values: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies(operations):
                return tf.identity(values)

        return self.map(wait).map_tables(lambda t: wait(t.values))

    def scaled(self, factor: tf.Tensor) -> "Gradients":
        """All of them times a scalar."""
        return self.map(lambda values: _times(values, factor)).map_tables(
            lambda t: _times(t.values, factor)
        )

    def apply(self, adapter: Adapter) -> None:
        """Updates the variables on all replicas."""
        if self.strategy is None:
            adapter.apply_dense(self.grads, self.variables)
        else:
            self.strategy.extended.call_for_each_replica(
                lambda grads: adapter.apply_dense(grads, self.variables),
                args=(self.grads,),
            )


def _times(values: tf.Tensor, factor: float | tf.Tensor) -> tf.Tensor:
    return values * tf.cast(factor, values.dtype)


def run(
    adapter: Adapter,
    grads: Sequence[typing.Any],
    variables: Sequence[typing.Any],
    summed: bool = False,
) -> None:
    """Runs all stages on a replica's gradients.

    Args:
      adapter: Adapter.
      grads: list of tensors, `tf.IndexedSlices` or None.
      variables: list of Keras or TensorFlow variables, one each.
      summed: whether gradients are summed over replicas and workers already;
        those of tables are then for the rows that this worker owns.

    Raises:
      ValueError: all gradients are None, or that of a table is dense.
    """
    step = current_step()
    with after(grads):
        dense, variables, slices = split(grads, variables)
        if not regime_in_scope().exchange.merges_replicas:
            exchange = _exchange_of([table for table, _ in slices])
            tables = exchange.merge(
                [(t, [(g.indices, g.values)]) for t, g in slices]
            )
            gradients = Gradients(
                dense, variables, tables, exchange, number=step.number
            )
            step.update(
                [dense, [table.values for table in tables]],
                lambda _: _update_or_skip(adapter, gradients),
            )
        else:
            step.update(
                [dense, [grad for _, grad in slices]],
                lambda carried: _merge_replicas(
                    adapter,
                    dense,
                    variables,
                    slices,
                    summed,
                    step,
                    carried,
                ),
            )


# Split.


def split(
    grads: Sequence[typing.Any], variables: Sequence[typing.Any]
) -> tuple[list[typing.Any], list[typing.Any], TableSlices]:
    """Separates gradients of tables from those of variables.

    Args:
      grads: list of tensors, `tf.IndexedSlices` or None.
      variables: list of Keras or TensorFlow variables, one each.

    Returns:
      `(dense gradients, dense variables, [(table, tf.IndexedSlices)])`,
      without those that are None.

    Raises:
      ValueError: all gradients are None.
    """
    dense: list[typing.Any] = []
    dense_variables: list[typing.Any] = []
    slices: TableSlices = []
    missing = []
    for grad, variable in zip(grads, variables, strict=True):
        table = shadow.table_of(variable)
        if grad is None:
            if table is None:
                missing.append(variable.name)
        elif table is None:
            if isinstance(grad, tf.Tensor):
                # Not every gradient function of TensorFlow sets the static
                # shape.
                grad.set_shape(variable.shape)
            dense.append(grad)
            dense_variables.append(variable)
        else:
            slices.append((table, _as_slices(table, grad)))
    if not dense and not slices:
        raise ValueError(
            "No gradients provided for any variable: the loss depends on none "
            f"of {', '.join(map(shadow.name_of, variables))}. If all layers "
            "are frozen, freeze the tables, too: table.trainable = False."
        )
    if missing:
        tf.get_logger().warning(
            "Gradients do not exist for variables %s when minimizing the loss.",
            missing,
        )
    return dense, dense_variables, slices


def _as_slices(
    table: Table, grad: tf.Tensor | tf.IndexedSlices
) -> tf.IndexedSlices:
    if isinstance(grad, tf.IndexedSlices):
        return grad
    raise ValueError(
        f"The gradient of table {table.name!r} arrived as a dense tensor of "
        f"shape {grad.shape}: something between the tape and the optimizer "
        "converted it (a loss-scaling or clipping wrapper?). Put "
        "tf_ext.optimizers.Optimizer outermost."
    )


# Merge.


def _exchange_of(tables: Sequence[Table]) -> Exchange:
    own = typing.cast(Sequence[SparseTable], tables)
    return (regime_of_tables(own) if own else regime_in_scope()).exchange


def _merge_replicas(
    adapter: Adapter,
    dense: list[typing.Any],
    variables: list[typing.Any],
    slices: TableSlices,
    summed: bool,
    step: StepContext,
    carried: Sequence[Carried],
) -> None:
    """Continues with the sums over replicas, of all workers."""
    exchange = _exchange_of([table for table, _ in slices])
    if not summed:
        dense, slices = exchange.sum_gradients(dense, slices, step.weight)

    def together(
        strategy: tf.distribute.Strategy,
        dense: list[typing.Any],
        indices: list[typing.Any],
        values: list[typing.Any],
    ) -> None:
        local = strategy.experimental_local_results
        # Sums are the same on every replica.
        count = 1 if summed else None
        parts = [
            (table, list(zip(local(i)[:count], local(v)[:count])))
            for (table, _), i, v in zip(slices, indices, values)
        ]
        if summed:
            tables = exchange.merge_summed(parts)
        else:
            dense, tables = exchange.merge_beside(dense, parts, carried)
        gradients = Gradients(
            dense, variables, tables, exchange, strategy, step.number
        )
        checks = []
        if not adapter.skips_nonfinite:
            # An error must not end a sum over workers that is under way.
            with tf.control_dependencies(_values(gradients.of_first_replica())):
                checks = check_finite(tables)
        with tf.control_dependencies(checks):
            _update_or_skip(adapter, gradients)

    indices = [g.indices for _, g in slices]
    values = [g.values for _, g in slices]
    # It is called in another thread.
    tf.distribute.get_replica_context().merge_call(
        together, args=(dense, indices, values)
    )


# Finite.


def _update_or_skip(adapter: Adapter, gradients: Gradients) -> None:
    """Runs the rest of the step, unless it is skipped."""
    if not adapter.skips_nonfinite:
        checks = _check_variables(gradients)
        if gradients.exchange.is_remote:
            # Servers compute what does not need the gradients meanwhile.
            gradients, checks = gradients.after(checks), []
        with tf.control_dependencies(checks):
            _update(adapter, gradients)
        return

    def apply() -> tf.Tensor:
        _update(adapter, gradients)
        adapter.after_update()
        return tf.constant(0)

    def skip() -> tf.Tensor:
        adapter.after_skip()
        return tf.constant(0)

    finite = all_finite(gradients.of_first_replica(), gradients.tables)
    tf.cond(finite, apply, skip)


def all_finite(
    dense: Sequence[typing.Any], tables: Sequence[TableGradient]
) -> tf.Tensor:
    """Whether every gradient value is finite: bool scalar tensor."""
    values = _values(dense)
    values += [t.values for t in tables if t.finite is None]
    finite = [tf.reduce_all(tf.math.is_finite(v)) for v in values]
    finite += [t.finite for t in tables if t.finite is not None]
    return tf.reduce_all(tf.stack(finite))


def _check_variables(gradients: Gradients) -> list[tf.Tensor]:
    """Raises, before anything is changed, if that of a variable is not finite.

    Where it is finite, a push checks that of tables, which is larger, itself.

    Returns:
      List of operations to wait for.

    Raises:
      tf.errors.InvalidArgumentError: when it runs.
    """
    if not gradients.grads:
        return []
    # In Keras 3, the name has no layer.
    names = [getattr(v, "path", v.name) for v in gradients.variables]
    named = list(zip(names, _values(gradients.of_first_replica())))
    if not gradients.tables:  # XLA may compile a step without pushes.
        return [check_variables(named)]
    error = nonfinite_error(named, gradients.tables)
    return [exchange_ops.raise_error(error)]


def _values(dense: Sequence[typing.Any]) -> list[tf.Tensor]:
    return [g.values if isinstance(g, tf.IndexedSlices) else g for g in dense]


def _update(adapter: Adapter, gradients: Gradients) -> None:
    steps = adapter.accumulation and adapter.accumulation.steps
    gradients = _unscale(adapter.loss_scale(), steps, gradients)
    if steps:
        _accumulate(adapter, gradients)
    else:
        _apply(adapter, gradients)


# Unscale.


def _unscale(
    loss_scale: float | tf.Tensor | None,
    steps: int | None,
    gradients: Gradients,
) -> Gradients:
    """Gradients divided by the loss scale and the number of micro-steps.

    Args:
      loss_scale: float, scalar tensor or None.
      steps: int, how many gradients are added up for a mean; or None.
      gradients: Gradients.
    """
    if loss_scale is None and not steps:
        return gradients
    factor = 1.0 if loss_scale is None else 1.0 / loss_scale
    if steps:
        factor = tf.cast(factor, tf.float32) / steps
    return gradients.scaled(factor)


# Accumulate.


def _accumulate(adapter: Adapter, gradients: Gradients) -> None:
    """Adds a micro-step, and continues with the sums if it is the last one."""
    accumulation, variables = adapter.accumulation, gradients.variables
    accumulation.add(gradients.grads, variables, gradients.tables)

    def whole_step() -> tf.Tensor:
        grads, tables = accumulation.sums(variables)
        _apply(
            adapter,
            dataclasses.replace(gradients, grads=grads, tables=tables),
        )
        accumulation.clear(variables)
        return tf.constant(0)

    def wait() -> tf.Tensor:
        accumulation.wait()
        return tf.constant(0)

    tf.cond(accumulation.is_complete(), whole_step, wait)


def _apply(adapter: Adapter, gradients: Gradients) -> None:
    gradients = _clip(adapter.clipping, gradients)
    _push(gradients, adapter.rates())
    gradients.apply(adapter)


# Clip.


def _clip(clipping: Clipping, gradients: Gradients) -> Gradients:
    """Clips gradients of variables and tables together.

    Args:
      clipping: Clipping; at most one is set, with Keras's meaning.
      gradients: Gradients.
    """
    tables = gradients.tables
    if clipping.global_clipnorm:
        limit = clipping.global_clipnorm
        sums = [_square_sum(v) for v in _values(gradients.of_first_replica())]
        if tables:
            sums.append(tf.reduce_sum(_square_sums(gradients)))
        norm = tf.sqrt(sum(sums, tf.zeros([], tf.float64)))
        return gradients.scaled(limit / tf.maximum(norm, limit))
    if clipping.clipnorm:
        limit = clipping.clipnorm
        if tables:
            sums = _square_sums(gradients)
            norms = iter(tf.unstack(tf.sqrt(sums), len(tables)))
            gradients = gradients.map_tables(
                lambda t: _times(
                    t.values, limit / tf.maximum(next(norms), limit)
                )
            )
        return gradients.map(lambda values: tf.clip_by_norm(values, limit))
    if clipping.clipvalue:
        limit = clipping.clipvalue

        def clipped(values: tf.Tensor) -> tf.Tensor:
            return tf.clip_by_value(values, -limit, limit)

        return gradients.map_tables(lambda t: clipped(t.values)).map(clipped)
    return gradients


def _square_sums(gradients: Gradients) -> tf.Tensor:
    """The squared norm of each table's gradient: float64 `[tables]`."""
    sums = [_square_sum(t.values) for t in gradients.tables]
    return gradients.exchange.sum(tf.stack(sums))


def _square_sum(values: tf.Tensor) -> tf.Tensor:
    """The squared norm of values, which may be infinite in their own type."""
    return tf.reduce_sum(tf.square(tf.cast(values, tf.float64)))


# Push.


def _push(gradients: Gradients, rates: Rates) -> None:
    """Pushes to each table once."""
    if not gradients.tables:
        return
    tables = [
        one._replace(values=tf.cast(one.values, tf.float32))
        for one in gradients.tables
    ]
    rules = [typing.cast(SparseTable, one.table).optimizer for one in tables]
    # The time that all workers agree on; None if they need none.
    times = (one.time for one in tables)
    gradients.exchange.push(
        tables,
        hyperparameters.current(rules, rates),
        tf.cast(rates.iterations, tf.int64) + 1,
        next((time for time in times if time is not None), None),
        gradients.number,
    )
