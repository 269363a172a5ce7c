# SPDX-License-Identifier: Apache-2.0
"""The exchange of rows and gradients: the stages of a step."""

import typing
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_ext._keras import keras
from tf_ext.ops.exchange import exchange_ops
from tf_ext.regimes import shard_ops
from tf_ext.regimes.batches import gather_replicas
from tf_ext.regimes.carried_words import Carried
from tf_ext.regimes.gradients import (
    TableGradient,
    gather_slices,
    merge_slices,
)
from tf_ext.regimes.plan import (
    PullPlan,
    PullRequest,
    plan_pull,
    shared_signs,
)
from tf_ext.regimes.replica_weights import ReplicaWeight, weighted
from tf_ext.regimes.step_context import StepNumber
from tf_ext.regimes.table_interface import Parts, TableSlices


def num_replicas(strategy: tf.distribute.Strategy | None) -> int:
    """The number of replicas that compute a step together."""
    return 1 if strategy is None else strategy.num_replicas_in_sync


class Exchange:
    """The exchange in one process that reaches all shards; a base class.

    Args:
      strategy: a tf.distribute strategy, or None.

    Attributes:
      strategy: as given.
      num_replicas: int, how many replicas compute a step together.
      merges_replicas: bool, whether a step that branches must first leave its
        replica. Keras's optimizers merge replicas by a call that TensorFlow
        refuses within a branch of a replica's graph. Under a MirroredStrategy
        of any kind they do so even if there is only one replica.
      raises_together: bool, whether an error in a batch has to be passed to
        `pull`, which raises it in all processes. Otherwise it is raised where
        it is found.
      is_remote: bool, whether rows and variables are on other tasks, where
        operations that wait for a worker's begin one message later.
      trains: bool, whether gradients go to the tables.
      shares_rows: bool, whether `pull` reads NaN for ids without a row, of
        tables where these share rows. Otherwise it reads the shared ones.
    """

    raises_together = False
    is_remote = False
    trains = True
    shares_rows = True

    def __init__(self, strategy: tf.distribute.Strategy | None = None) -> None:
        self.strategy = strategy
        self.num_replicas = num_replicas(strategy)
        self.merges_replicas = strategy is not None

    # Tables

    def pull(
        self,
        requests: Sequence[PullRequest],
        error: tf.Tensor | None = None,
        after: Sequence[tf.Tensor] = (),
    ) -> list[tf.Tensor]:
        """Rows of each request's distinct signs, before the batch is pushed.

        Args:
          requests: list of PullRequest.
          error: string scalar, the error of this process, or "", where the
            regime raises together; else None.
          after: list of tensors; where steps overlap, rows are there only when
            these are.

        Returns:
          List of float32 `[u, dim + statistics]`.
        """
        del error, after
        return shard_ops.pull(
            [
                shard_ops.RowsWanted(
                    table.rows,
                    plan.signs,
                    plan.split_sizes,
                    insert,
                    table.dim,
                    statistics,
                )
                for table, plan, insert, statistics in requests
            ]
        )

    def merge(
        self, parts: Parts, carried: Sequence[Carried] = ()
    ) -> list[TableGradient]:
        """Sums gradients by sign over layers, calls, replicas and workers.

        Args:
          parts: list of `(table, [(indices, values [n, dim]), ...])`, of the
            slices as they come from the tape.
          carried: list of Carried, for all processes.

        Returns:
          List of TableGradient, of the signs that this process pushes.
        """
        del carried
        return [merge_slices(table, pairs) for table, pairs in parts]

    def merge_beside(
        self,
        dense: list[tf.Tensor],
        parts: Parts,
        carried: Sequence[Carried] = (),
    ) -> tuple[list[tf.Tensor], list[TableGradient]]:
        """As `merge`, beside what `sum_gradients` has not summed yet.

        Args:
          dense: list of gradients of variables, as `sum_gradients` returned
            them, or distributed values of these.
          parts: as of `merge`.
          carried: as of `merge`.

        Returns:
          `(dense, tables)`: gradients that are summed over all processes, and
          what `merge` returns.
        """
        return dense, self.merge(parts, carried)

    def merge_summed(self, parts: Parts) -> list[TableGradient]:
        """As `merge`, for slices that `sum_everywhere` returned."""
        return self.merge(parts)

    def push(
        self,
        gradients: Sequence[TableGradient],
        hyperparameters: shard_ops.Hyperparameters,
        step: tf.Tensor,
        time: tf.Tensor | None = None,
        number: StepNumber | None = None,
    ) -> tf.Tensor:
        """Updates tables; returns the rows updated in each, int64 `[n]`.

        Args:
          gradients: list of TableGradient, of float32, that `merge` returned;
            not empty.
          hyperparameters: Hyperparameters of the tables' rules.
          step: int64 scalar, counting from 1.
          time: int64 scalar, in seconds since 1970, for the rows that record
            it. None: the clock of each device that holds such rows.
          number: StepNumber, if the step may run again: devices that this push
            of it has updated before stay as they are.
        """
        starts = self._pull_starts(gradients)
        updates = []
        for gradient, its_starts in zip(gradients, starts):
            gradient, split_sizes = _by_shard(gradient)
            updates.append(
                shard_ops.RowsUpdate(
                    gradient.table.rows,
                    gradient.signs,
                    split_sizes,
                    gradient.values,
                    gradient.statistics,
                    its_starts,
                )
            )
        return shard_ops.push(updates, hyperparameters, step, time, number)

    def _pull_starts(
        self, gradients: Sequence[TableGradient]
    ) -> list[shard_ops.Starts | None]:
        """What new rows of each table start from, as of `RowsUpdate`."""
        requests = {
            index: PullRequest(
                one.table,
                plan_pull(
                    shared_signs(one.signs, one.table.shared_rows),
                    one.table.rows.num_shards,
                ),
                insert=False,
            )
            for index, one in enumerate(gradients)
            if one.table.shared_rows
        }
        starts: list[shard_ops.Starts | None] = [None] * len(gradients)
        if requests:
            pulled = self.pull(list(requests.values()))
            for (index, request), rows in zip(requests.items(), pulled):
                starts[index] = shard_ops.Starts(request.plan.signs, rows)
        return starts

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum of a float tensor over the processes that push."""
        return tensor

    # Variables, and samples

    def total(self, number: tf.Tensor) -> tf.Tensor:
        """The sum of an int64 scalar over replicas, of all processes.

        It is called in a replica's context.
        """
        if self.num_replicas == 1:
            return number
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, number)

    def sum_gradients(
        self,
        dense: list[tf.Tensor],
        slices: TableSlices,
        weight: ReplicaWeight | None,
    ) -> tuple[list[tf.Tensor], TableSlices]:
        """Sums gradients over replicas; called in a replica's context.

        Those of a replica without samples may be NaN, and do not count.

        Args:
          dense: list of gradients of variables.
          slices: list of `(table, tf.IndexedSlices)`.
          weight: ReplicaWeight of the step, or None.

        Returns:
          `(dense, slices)`: the sums for variables, unless `merge_beside`
          makes them, and this replica's slices for tables, which it will sum.
        """
        dense, slices = weighted(weight, dense, slices, self.weighted_values)
        if self.num_replicas > 1 and dense:
            context = tf.distribute.get_replica_context()
            dense = context.all_reduce(tf.distribute.ReduceOp.SUM, dense)
        return dense, slices

    def weighted_values(
        self, values: Sequence[tf.Tensor], factor: tf.Tensor
    ) -> list[tf.Tensor]:
        """Tensors times a factor; NaN times 0 is 0.

        Args:
          values: list of float tensors.
          factor: float32 scalar tensor.
        """
        return [
            tf.math.multiply_no_nan(value, tf.cast(factor, value.dtype))
            for value in values
        ]

    def sum_everywhere(
        self,
        dense: list[tf.Tensor],
        slices: TableSlices,
        weight: ReplicaWeight | None,
    ) -> tuple[list[tf.Tensor], TableSlices]:
        """Sums gradients on every replica; called in a replica's context.

        For a wrapper of the optimizer that checks the sums before it passes
        them on.

        Args:
          dense: as of `sum_gradients`.
          slices: as of `sum_gradients`.
          weight: as of `sum_gradients`.

        Returns:
          `(dense, slices)`: the sums, and slices of all replicas, not yet
          summed by sign.
        """
        dense, slices = self.sum_gradients(dense, slices, weight)
        return dense, gather_slices(slices)

    def gather_batch(
        self, tensors: Sequence[tf.Tensor], what: str
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Gathers the shares of a batch; called in a replica's context.

        Args:
          tensors: list of float32 or int64 `[b, ...]`, this replica's samples.
          what: string, what needs them, for the error of a regime that cannot.

        Returns:
          `(gathered, offset)`: list of `[n, ...]`, the samples of all replicas,
          through which the gradients of all replicas' losses flow to where the
          samples are, and int64 scalar, the index of this replica's first one.

        Raises:
          NotImplementedError: as `check_gathers`.
        """
        self.check_gathers(what)
        context = tf.distribute.get_replica_context()
        if self.num_replicas == 1 or context is None:
            return list(tensors), tf.constant(0, tf.int64)
        return gather_replicas(context, tensors)

    def check_gathers(self, what: str) -> None:
        """Raises NotImplementedError where `gather_batch` does not work."""
        del what

    def check_fit(self, model_in_fit: Callable[[], keras.Model | None]) -> None:
        """Raises RuntimeError if Keras's `fit` would train a model wrongly.

        It is called in a replica's context.

        Args:
          model_in_fit: function that returns the model whose `fit` is running
            in the thread, or None.
        """
        del model_in_fit

    def raise_error(self, error: tf.Tensor) -> tf.Tensor:
        """Raises an InvalidArgumentError that all processes have.

        Args:
          error: string scalar, the same in all processes; "" for none.
        """
        return exchange_ops.raise_error(error)


def _by_shard(
    gradient: TableGradient,
) -> tuple[TableGradient, tf.Tensor | None]:
    """`(gradient, split_sizes)` in the order of this process's shards."""
    num_shards = len(gradient.table.rows.shards)
    if num_shards == 1:
        return gradient, None
    plan = gradient.plan
    if plan is None or plan.num_shards != num_shards:
        gradient = gradient.summed_by_sign(num_shards)
    return gradient, typing.cast(PullPlan, gradient.plan).split_sizes
