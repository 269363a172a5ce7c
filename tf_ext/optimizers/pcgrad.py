# SPDX-License-Identifier: Apache-2.0
"""Gradients of several tasks without their conflicts: PCGrad.

A projected gradient is a weighted sum of the gradients of the tasks, and so is
the sum of all. So only the products of gradients are computed, once; the
projections are arithmetic on `[tasks, tasks]` numbers, in float64.
"""

import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext import ops
from tf_ext._checks import is_int, refuse
from tf_ext.regimes import counted_signs, plan_pull, regime_in_scope
from tf_ext.regimes.plan import plan_of
from tf_ext.regimes.table_interface import Table
from tf_ext.tables import shadow

_Gradient: typing.TypeAlias = "tf.Tensor | tf.IndexedSlices | None"


class _Shared(typing.NamedTuple):
    """The gradients of a variable that several tasks train.

    values: `[tasks, ...]`, zeros for tasks without; indices, dense_shape: those
    of slices, whose rows are `values[task]`, or None.
    """

    values: tf.Tensor
    indices: tf.Tensor | None = None
    dense_shape: tf.Tensor | None = None


def pcgrad(
    tape: tf.GradientTape,
    losses: Sequence[tf.Tensor],
    variables: Sequence[typing.Any],
    seed: int | None = None,
    step: int | tf.Tensor | None = None,
) -> list[_Gradient]:
    """The sum of the tasks' gradients after their conflicts are projected out.

    The gradient `g_i` of each task is projected, for each other task j in turn,
    onto the normal plane of the gradient of that task if they conflict:

        if <p_i, g_j> < 0:  p_i = p_i - <p_i, g_j> / <g_j, g_j> * g_j

    starting from `p_i = g_i`; the result is the sum of all `p_i`. A gradient is
    one vector over all variables that at least two tasks have a gradient of,
    with the rows of tables among them: the gradients of a row from several
    pulls are summed before, and a task that does not use an id has a gradient
    of 0 for its row. All other variables, such as those of a task's own tower,
    have their task's gradient.

    It takes one backward pass a task. Tables with statistics that are read by
    several layers need another one, so that an occurrence of an id counts once.
    Sums of losses that several tasks have in common, such as those of
    regularizers, belong to one task, or are a task of their own.

    Args:
      tape: `tf.GradientTape(persistent=True)`, after its block.
      losses: list of scalar tensors, one per task. With a loss scale, all are
        scaled.
      variables: list of Keras or TensorFlow variables, such as
        `model.trainable_variables`, with the shadows of tables.
      seed: int; the others follow in the order of
        `tf.random.experimental.stateless_shuffle(others, [seed, n])`, with
        `n = step * len(losses) + i` and `others` all tasks but i. None: in the
        order of `losses`, which favors none of two tasks, but can favor one of
        more.
      step: int or integer scalar, such as `optimizer.iterations`; required with
        `seed`.

    Returns:
      List of tensors, `tf.IndexedSlices` or None, one for each variable, to be
      given to `apply_gradients` of `tf_ext.optimizers.Optimizer`.

    Raises:
      ValueError: called under a strategy; no losses; a seed without a step.

    References:
      Algorithm 1 of [Yu et al., 2020](https://arxiv.org/abs/2001.06782).

    Example:
    >>> shared = tf.Variable([1.0, 1.0])
    >>> with tf.GradientTape(persistent=True) as tape:
    ...     losses = [shared[0], shared[1] - shared[0]]
    >>> tf_ext.optimizers.pcgrad(tape, losses, [shared])[0].numpy()
    array([0.5, 1.5], dtype=float32)
    """
    _check(losses, seed, step)
    of_tasks = [_gradients(tape, loss, variables) for loss in losses]
    gradients: list[_Gradient] = []
    shared: dict[int, _Shared] = {}
    for place, variable in enumerate(variables):
        of_variable = [of_task[place] for of_task in of_tasks]
        present = [grad for grad in of_variable if grad is not None]
        gradients.append(present[0] if present else None)
        if len(present) > 1:
            shared[place] = _stacked(tape, losses, variable, of_variable)
    if shared:
        weights = _weights(
            tf.add_n([_products(one.values) for one in shared.values()]),
            len(losses),
            seed,
            step,
        )
        for place, one in shared.items():
            gradients[place] = _weighted_sum(weights, one)
    return gradients


def _gradients(
    tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[typing.Any]
) -> list[_Gradient]:
    try:
        found: list[_Gradient] = tape.gradient(loss, variables)
    except RuntimeError as error:
        if "persistent" not in str(error):
            raise
        allowed = (
            "tf.GradientTape(persistent=True), as each loss takes a backward "
            "pass of its own"
        )
        refuse("pcgrad", "tape", allowed, tape)
    return found


def _check(losses: object, seed: object, step: object) -> None:
    regime = regime_in_scope()
    if regime.strategy is not None:
        raise ValueError(
            "pcgrad must be called without a tf.distribute strategy, because "
            "it needs the gradients of the global batch. Under "
            f"{regime.strategy_name}, a replica or worker has only those of "
            "its own share. Train the sum of the losses, or without a "
            "strategy."
        )
    if not isinstance(losses, (list, tuple)) or not losses:
        refuse("pcgrad", "losses", "a list of at least one loss", losses)
    if seed is not None and not is_int(seed):
        refuse("pcgrad", "seed", "an integer or None", seed)
    if (seed is None) != (step is None):
        refuse("pcgrad", "step", "given if, and only if, seed is", step)


def _stacked(
    tape: tf.GradientTape,
    losses: Sequence[tf.Tensor],
    variable: typing.Any,
    gradients: Sequence[_Gradient],
) -> _Shared:
    """The gradients of all tasks of one variable, with the same rows."""
    present = [grad for grad in gradients if grad is not None]
    table = shadow.table_of(variable)
    if table is None and any(isinstance(grad, tf.Tensor) for grad in present):
        return _Shared(_with_zeros(gradients, present))
    indices: typing.Any
    values: typing.Any
    if table is None:
        indices, values = _by_row(present)
    elif _of_one_pull(present):
        # It has the statistics of the pull, once.
        indices, values = present[0].indices, [g.values for g in present]
    else:
        counting = (
            [tape.gradient(losses, variable)] if table.statistics_width else []
        )
        indices, values = _by_sign(table, present, counting)
    rows = iter(values)
    by_task = [None if grad is None else next(rows) for grad in gradients]
    return _Shared(
        _with_zeros(by_task, values), indices, present[0].dense_shape
    )


def _with_zeros(
    gradients: Sequence[typing.Any], present: Sequence[typing.Any]
) -> tf.Tensor:
    """Stacks the gradients of all tasks."""
    first = tf.convert_to_tensor(present[0])
    return tf.stack(
        [
            tf.zeros_like(first) if grad is None else tf.convert_to_tensor(grad)
            for grad in gradients
        ]
    )


def _by_row(slices: Sequence[tf.IndexedSlices]) -> typing.Any:
    """`(indices [u], [[u, ...]])`: sums of the slices of equal rows."""
    indices, places = tf.unique(tf.concat([s.indices for s in slices], 0))
    places = tf.split(places, [tf.size(s.indices) for s in slices])
    return indices, [
        tf.math.unsorted_segment_sum(s.values, place, tf.size(indices))
        for s, place in zip(slices, places)
    ]


def _of_one_pull(slices: Sequence[tf.IndexedSlices]) -> bool:
    plans = [plan_of(s.indices) for s in slices]
    return plans[0] is not None and all(plan is plans[0] for plan in plans)


def _by_sign(
    table: Table,
    slices: Sequence[tf.IndexedSlices],
    counting: Sequence[tf.IndexedSlices],
) -> typing.Any:
    """As `_by_row` for a table; its statistics are those of `counting`."""
    width = table.statistics_width
    indices = [one.indices for one in (*slices, *counting)]
    statistics = None
    if width:
        split = [counted_signs.split(one, width) for one in indices]
        indices, statistics = [signs for signs, _ in split], split[-1][1]
    plan = plan_pull(tf.concat(indices, 0), table.rows.num_shards)
    count = tf.size(plan.signs, tf.int64)
    places = tf.split(plan.inverse, [tf.size(signs) for signs in indices])
    values = [
        ops.sum_segments(tf.cast(one.values, tf.float32), place, count)
        for one, place in zip(slices, places)
    ]
    if statistics is None:
        return plan.signs, values
    summed = ops.sum_segments(statistics, places[-1], count)
    return counted_signs.join(plan.signs, summed), values


def _products(values: tf.Tensor) -> tf.Tensor:
    """The scalar products of the tasks' gradients: float64 `[tasks, tasks]`."""
    flat = tf.reshape(values, [values.shape[0], -1])
    flat = tf.cast(flat, tf.float64)
    return tf.matmul(flat, flat, transpose_b=True)


def _weights(
    products: tf.Tensor, tasks: int, seed: int | None, step: typing.Any
) -> tf.Tensor:
    """The weight of each task's gradient in the result: float64 `[tasks]`."""
    total = tf.zeros([tasks], tf.float64)
    for task in range(tasks):
        others: typing.Any = [j for j in range(tasks) if j != task]
        if seed is not None and others:
            number = tf.cast(tf.convert_to_tensor(step), tf.int64) * tasks
            others = tf.unstack(
                tf.random.experimental.stateless_shuffle(
                    tf.constant(others), tf.stack([seed, number + task])
                )
            )
        own = tf.one_hot(task, tasks, dtype=tf.float64)
        for other in others:
            product = tf.reduce_sum(own * products[:, other])
            # NaN goes on to the optimizer, which raises or skips the step.
            factor = tf.math.divide_no_nan(
                tf.minimum(product, 0.0), products[other, other]
            )
            own -= factor * tf.one_hot(other, tasks, dtype=tf.float64)
        total += own
    return total


def _weighted_sum(weights: tf.Tensor, shared: _Shared) -> _Gradient:
    values = shared.values
    total = tf.tensordot(tf.cast(weights, values.dtype), values, 1)
    if shared.indices is None:
        return total
    return tf.IndexedSlices(total, shared.indices, shared.dense_shape)
