# SPDX-License-Identifier: Apache-2.0
"""Gradients of tables: signs and values."""

import typing
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_ext import ops
from tf_ext.ops.exchange import exchange_ops
from tf_ext.regimes import counted_signs
from tf_ext.regimes.plan import PullPlan, plan_of, plan_pull
from tf_ext.regimes.table_interface import Slices, Table, TableSlices

_ADVICE = (
    "Look for NaN and infinity in labels, sample weights and features, lower "
    "the learning rate, clip gradients, or leave such steps out with "
    'on_nonfinite="skip" of tf_ext.optimizers.Optimizer.'
)


class TableGradient(typing.NamedTuple):
    """The gradient of a table's rows in one step.

    Attributes:
      table: SparseTable.
      signs: int64 `[n]`, distinct.
      values: float `[n, dim]`.
      finite: bool scalar, whether the gradients of all workers are finite;
        None if they have not been checked.
      plan: PullPlan of signs in this order, if there is one.
      statistics: float32 `[n, s]`, s the table's `statistics_width`: how often
        each sign occurs in the global batch, and the clicks of these
        occurrences. None without statistics.
      time: int64 scalar, the seconds since 1970 of the step, the same on all
        workers; None if rows do not record it, or devices have clocks of their
        own.
    """

    table: Table
    signs: tf.Tensor
    values: tf.Tensor
    finite: tf.Tensor | None = None
    plan: PullPlan | None = None
    statistics: tf.Tensor | None = None
    time: tf.Tensor | None = None

    def summed_by_sign(self, num_shards: int) -> "TableGradient":
        """The same with sums of equal signs, and a plan for the shards."""
        plan, values, *statistics = sum_by_sign(
            self.signs,
            [self.values, *as_list(self.statistics)],
            num_shards,
        )
        return self._replace(
            signs=plan.signs,
            values=values,
            plan=plan,
            statistics=statistics[0] if statistics else None,
        )


def as_list(statistics: tf.Tensor | None) -> list[tf.Tensor]:
    """Statistics beside other tensors: `[statistics]`, or [] if None."""
    return [] if statistics is None else [statistics]


def from_slices(
    table: Table, indices: tf.Tensor, values: tf.Tensor
) -> TableGradient:
    """The gradient in slices of one or more pulls.

    Args:
      table: SparseTable.
      indices: int64 `[n]`, signs; or as of `counted_signs`.
      values: float `[n, dim]`.

    Returns:
      TableGradient; if it has no plan, signs may repeat.
    """
    plan = plan_of(indices)
    width = table.statistics_width
    if not width:
        return TableGradient(table, indices, values, plan=plan)
    if plan is not None and plan.statistics is not None:
        signs, statistics = plan.signs, plan.statistics[:, :width]
    else:
        signs, statistics = counted_signs.split(indices, width)
        plan = plan and PullPlan(signs)
    return TableGradient(table, signs, values, plan=plan, statistics=statistics)


def to_indices(gradient: TableGradient) -> tf.Tensor:
    """The indices of slices from which `from_slices` makes a gradient."""
    if gradient.statistics is None:
        return gradient.signs
    return counted_signs.join(gradient.signs, gradient.statistics)


def sum_by_sign(
    signs: tf.Tensor,
    values: Sequence[tf.Tensor],
    num_shards: int = 1,
) -> tuple[PullPlan, *tuple[tf.Tensor, ...]]:
    """Sums values of equal signs.

    Args:
      signs: int64 `[n]`.
      values: list of float32 `[n, dim]`.
      num_shards: int, of the table.

    Returns:
      `(plan, *sums [u, dim])`, the PullPlan of the signs first.
    """
    with tf.name_scope("sum_by_sign"):
        plan = plan_pull(signs, num_shards)
        count = tf.size(plan.signs, tf.int64)
        return plan, *(ops.sum_segments(v, plan.inverse, count) for v in values)


def merge_slices(table: Table, pairs: Slices) -> TableGradient:
    """Sums the gradient in slices of one or more pulls by sign.

    Args:
      table: SparseTable.
      pairs: list of `(indices, values)`, as of `from_slices`.

    Returns:
      TableGradient.
    """
    parts = [from_slices(table, *pair) for pair in pairs]
    if len(parts) == 1 and parts[0].plan is not None:
        return parts[0]
    whole = TableGradient(
        table,
        tf.concat([part.signs for part in parts], 0),
        tf.concat([part.values for part in parts], 0),
    )
    if table.statistics_width:
        statistics = tf.concat([part.statistics for part in parts], 0)
        whole = whole._replace(statistics=statistics)
    return whole.summed_by_sign(table.rows.num_shards)


def gather_slices(slices: TableSlices) -> TableSlices:
    """The slices of all replicas; called in a replica's context."""

    # TensorFlow's reduction of slices deadlocks or fails with several in
    # flight beside dense reductions.
    def concatenate(
        strategy: tf.distribute.Strategy,
        signs: list[tf.Tensor],
        values: list[tf.Tensor],
    ) -> list[tf.IndexedSlices]:
        local = strategy.experimental_local_results
        return [
            tf.IndexedSlices(tf.concat(local(v), 0), tf.concat(local(s), 0))
            for s, v in zip(signs, values)
        ]

    gathered = tf.distribute.get_replica_context().merge_call(
        concatenate,
        args=(
            [grad.indices for _, grad in slices],
            [grad.values for _, grad in slices],
        ),
    )
    return [(t, g) for (t, _), g in zip(slices, gathered)]


def check_finite(gradients: Sequence[TableGradient]) -> list[tf.Tensor]:
    """Raises if a gradient is not finite, on all workers alike.

    Args:
      gradients: list of TableGradient.

    Returns:
      List of operations to wait for; empty where nothing has been checked, and
      the push checks.

    Raises:
      tf.errors.InvalidArgumentError: when it runs.
    """
    # Gradients that were sent together have one flag.
    by_flag: dict[int, TableGradient] = {}
    for gradient in gradients:
        if gradient.finite is not None:
            by_flag.setdefault(id(gradient.finite), gradient)
    return [
        exchange_ops.raise_error(
            tf.where(
                gradient.finite,
                "",
                f"Gradients of table {gradient.table.name!r}, or of one that "
                "is updated with it, are not finite on at least one worker; no "
                f"table was changed. {_ADVICE}",
            )
        )
        for gradient in by_flag.values()
    ]


def nonfinite_error(
    variables: Sequence[tuple[str, tf.Tensor]],
    tables: Sequence[TableGradient],
) -> tf.Tensor:
    """What is wrong if the gradient of a variable is not finite.

    Args:
      variables: list of `(name, values of the gradient)`, not empty.
      tables: list of TableGradient, which say which sample it is, if they are
        not finite, either.

    Returns:
      string scalar, empty if those of all variables are finite.
    """

    def look_again() -> tf.Tensor:
        finite = tf.stack(
            [tf.reduce_all(tf.math.is_finite(one)) for _, one in variables]
        )
        parts = [_nonfinite_sign(gradient) for gradient in tables]
        names = tf.boolean_mask([name for name, _ in variables], ~finite)
        parts.append(
            tf.strings.join(
                [
                    "Gradients of these variables are not finite: ",
                    tf.strings.reduce_join(names, separator=", "),
                    ". No variable and no table was changed. " + _ADVICE,
                ]
            )
        )
        return tf.where(tf.reduce_all(finite), "", tf.strings.join(parts))

    return _unless_squares_are_finite(variables, "", look_again)


def check_variables(variables: Sequence[tuple[str, tf.Tensor]]) -> tf.Tensor:
    """Raises if the gradient of a variable is not finite, but not under XLA.

    XLA compiles no other error, and leaves this one out.

    Args:
      variables: list of `(name, values of the gradient)`, not empty.

    Returns:
      Tensor to wait for.

    Raises:
      tf.errors.InvalidArgumentError: when it runs.
    """

    def look_again() -> tf.Tensor:
        checks = [
            tf.raw_ops.Assert(
                condition=tf.reduce_all(tf.math.is_finite(values)),
                data=[
                    f"The gradient of variable {name} is not finite. No "
                    f"variable was changed. {_ADVICE}"
                ],
            )
            for name, values in variables
        ]
        with tf.control_dependencies(checks):
            return tf.constant(0)

    return _unless_squares_are_finite(variables, 0, look_again)


def _unless_squares_are_finite(
    variables: Sequence[tuple[str, tf.Tensor]],
    otherwise: typing.Any,
    look_again: Callable[[], tf.Tensor],
) -> tf.Tensor:
    """`look_again()` if values may not be finite, and `otherwise` if they are.

    A sum of squares is one operation a variable. It may also be infinite if
    they are large.
    """
    squares = [tf.nn.l2_loss(tf.cast(one, tf.float32)) for _, one in variables]
    return tf.cond(
        tf.math.is_finite(tf.add_n(squares)),
        lambda: tf.constant(otherwise),
        look_again,
    )


def _nonfinite_sign(gradient: TableGradient) -> tf.Tensor:
    """Says which sign's gradient is not finite: string scalar, may be empty."""
    finite = tf.reduce_all(tf.math.is_finite(gradient.values), 1)
    signs = tf.boolean_mask(gradient.signs, ~finite)
    count = tf.size(signs)

    def sentence() -> tf.Tensor:
        return tf.strings.join(
            [
                f"Gradients of table {gradient.table.name!r} are not finite "
                "for ",
                tf.strings.as_string(count),
                " signs, of which the first is ",
                tf.strings.as_string(signs[0]),
                ". ",
            ]
        )

    return tf.cond(count > 0, sentence, lambda: tf.constant(""))


def map_values(
    function: Callable[[tf.Tensor], tf.Tensor],
    grad: tf.Tensor | tf.IndexedSlices,
) -> tf.Tensor | tf.IndexedSlices:
    """Applies a function to a gradient's values, slices or not."""
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(
            function(grad.values), grad.indices, grad.dense_shape
        )
    return function(grad)
