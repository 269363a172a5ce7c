# SPDX-License-Identifier: Apache-2.0
"""The interface of regimes: how tables train under a strategy.

There is a regime for each kind of `tf.distribute` strategy. Everything that
depends on the strategy is a method of the regime: the placement of shards, the
exchange of rows and gradients, and how processes agree, fail and save together.
The layers above call these methods; none of them checks which regime it has.
"""

import contextlib
import typing
from collections.abc import Callable, Generator, Mapping, Sequence

import tensorflow as tf

from tf_ext._keras import keras
from tf_ext.distribute.cluster import strategy_name
from tf_ext.ops.exchange import exchange_ops
from tf_ext.regimes import shard_ops
from tf_ext.regimes.batches import gather_replicas
from tf_ext.regimes.gradients import (
    TableGradient,
    gather_slices,
    merge_slices,
    row_updates,
)
from tf_ext.regimes.piggyback import Carried
from tf_ext.regimes.plan import PullRequest
from tf_ext.regimes.replica_weights import ReplicaWeight, weighted
from tf_ext.regimes.table_interface import (
    Chunk,
    Exports,
    Field,
    Parts,
    Placement,
    Table,
    TableSlices,
)

if typing.TYPE_CHECKING:
    from tf_ext.distribute.collectives import Collectives

_T = typing.TypeVar("_T")


class CheckedOptimizer(typing.Protocol):
    """What a regime asks of a `tf_ext.optimizers.Optimizer`."""

    def check_for_servers(self) -> None:
        """Raises ValueError unless ParameterServerStrategy supports it."""


class Regime:
    """The regime of one process that reaches all shards; a base class.

    Args:
      strategy: a tf.distribute strategy, or None.

    Attributes:
      strategy: the strategy, or None.
      num_processes: int, how many processes hold shards of a table.
      rank: int, the index of this process. The first writes files for all.
      raises_together: bool, whether an error in a batch has to be passed to
        `pull`, which raises it in all processes. Otherwise it is raised where
        it is found.
    """

    num_processes = 1
    rank = 0
    raises_together = False

    # Whether gradients go to the tables.
    trains = True

    # Whether this process has all variables and rows of a model.
    has_all = True

    # Collectives of the workers that share out the rows, or None.
    workers: "Collectives | None" = None

    def __init__(self, strategy: tf.distribute.Strategy | None = None) -> None:
        self.strategy = strategy

    @property
    def strategy_name(self) -> str:
        """The public name of the strategy."""
        return strategy_name(self.strategy)

    @property
    def num_replicas(self) -> int:
        """The number of replicas that compute a step together, an int."""
        return (
            1 if self.strategy is None else self.strategy.num_replicas_in_sync
        )

    def scope(self) -> contextlib.AbstractContextManager[typing.Any]:
        """The strategy's scope, in which variables are made."""
        no_scope = contextlib.nullcontext()
        return no_scope if self.strategy is None else self.strategy.scope()

    @property
    def merges_replicas(self) -> bool:
        """Whether a step that branches must first leave its replica, a bool.

        Keras's optimizers merge replicas by a call that TensorFlow refuses
        within a branch of a replica's graph. Under a MirroredStrategy of any
        kind they do so even if there is only one replica.
        """
        return self.num_replicas > 1

    # Tables

    def placement(self) -> Placement:
        """The placement of the shards of a new table: a Placement.

        Raises:
          NotImplementedError: tables do not support the strategy.
          RuntimeError: the tasks of the cluster cannot work together.
        """
        raise NotImplementedError

    def check_table(self, table: Table) -> None:
        """Raises ValueError if a table was not made for this regime."""
        # AutoGraph cannot convert a body that is only a docstring.
        del table

    def check_exportable(self, label: str) -> None:
        """Raises ValueError if a SavedModel cannot hold a table's rows.

        Args:
          label: string, the table's name.
        """

    @staticmethod
    def _unexportable(label: str, where: str) -> ValueError:
        return ValueError(
            f"Table {label!r} is {where}, which a SavedModel "
            "does not have. Use tf_ext.serving.export(model, path); or save "
            "the model's weights (save_weights, or tf.train.Checkpoint), load "
            "them into the same model made without a strategy, and export "
            "that."
        )

    def _made_outside(self, table: Table) -> ValueError:
        return ValueError(
            f"Table {table.name!r} was created outside of the scope of the "
            f"{self.strategy_name}, for this process alone. Create it, and "
            "the model, under `with strategy.scope():`."
        )

    # The stages of a step: pull, merge, push

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
    ) -> tf.Tensor:
        """Updates tables; returns the rows updated in each, int64 `[n]`.

        Args:
          gradients: list of TableGradient, of float32, that `merge` returned;
            not empty.
          hyperparameters: Hyperparameters of the tables' rules.
          step: int64 scalar, counting from 1.
          time: int64 scalar, in seconds since 1970, for the rows that record
            it. None: the clock of each device that holds such rows.
        """
        updates = row_updates(gradients)
        return shard_ops.push(updates, hyperparameters, step, time)

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum of a float tensor over the processes that push."""
        return tensor

    # Variables

    def total(self, number: tf.Tensor) -> tf.Tensor:
        """The sum of an int64 scalar over replicas, of all processes.

        It is called in a replica's context.
        """
        if self.num_replicas == 1:
            return number
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, number)

    def raise_error(self, error: tf.Tensor) -> tf.Tensor:
        """Raises an InvalidArgumentError that all processes have.

        Args:
          error: string scalar, the same in all processes; "" for none.
        """
        return exchange_ops.raise_error(error)

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

    def check_sizes_change(self, what: str) -> None:
        """Raises NotImplementedError if no step may read such a variable."""
        del what

    def check_fit(self, model_in_fit: Callable[[], keras.Model | None]) -> None:
        """Raises RuntimeError if Keras's `fit` would train a model wrongly.

        It is called in a replica's context.

        Args:
          model_in_fit: function that returns the model whose `fit` is running
            in the thread, or None.
        """
        del model_in_fit

    def check_optimizer(self, optimizer: CheckedOptimizer) -> None:
        """Raises ValueError for options that the regime does not support.

        Args:
          optimizer: a tf_ext.optimizers.Optimizer.
        """

    def make_counter_exact(self, variable: typing.Any) -> None:
        """Makes concurrent additions to a Keras variable lose no update."""
        del variable

    def move_average(
        self,
        average: typing.Any,
        value: tf.Tensor,
        momentum: float,
        count: tf.Tensor,
    ) -> None:
        """Updates a moving average with a batch's value.

        Args:
          average: Keras variable, `[features]`.
          value: tensor of its dtype, `[features]`.
          momentum: float.
          count: `[]`, samples of the batch; with 0 the average is unchanged.
        """
        kept = tf.convert_to_tensor(average)
        moved = kept * momentum + value * (1.0 - momentum)
        average.assign(tf.where(count > 0, moved, kept))

    # Processes

    def gather(self, values: tf.Tensor) -> tf.Tensor:
        """Gathers int64 `[n]` of all processes: `[num_processes, n]`."""
        return values[tf.newaxis]

    def gather_json(self, value: typing.Any) -> list[typing.Any]:
        """Gathers a value of all processes in a list; outside of graphs.

        Args:
          value: a value that JSON can hold.
        """
        return [value]

    def from_first(
        self,
        value: _T,
        encode: Callable[[_T], typing.Any] | None = None,
        decode: Callable[[typing.Any], _T] | None = None,
    ) -> _T:
        """Returns the first process's value on all; outside of graphs.

        Args:
          value: anything.
          encode: function to a value that JSON can hold; None if it is one.
          decode: the inverse function.
        """
        del encode, decode
        return value

    def int_of_first(self, number: int) -> int:
        """Returns the first process's int on all; outside of graphs."""
        return number

    def present(self) -> int | None:
        """The seconds since 1970 to which those of pushes are compared.

        Returns:
          An int, the same on all processes; None for the clock of each device
          that holds rows. It is called outside of graphs.
        """
        return None

    def check_same(
        self, what: str, values: Callable[[], Mapping[str, typing.Any]]
    ) -> None:
        """Raises ValueError unless all processes have the same values.

        Args:
          what: string, what they are of, for the message.
          values: function to a nested dict of what JSON can hold, by the names
            in messages. Nothing is compared if it needs a method that an
            object of the user does not have.
        """
        del what, values

    def together(self, what: str) -> contextlib.AbstractContextManager[None]:
        """A context after which all processes raise if one did.

        Args:
          what: string, what the block does, for the message.
        """
        del what
        return contextlib.nullcontext()

    # Saving

    def file_of_all(
        self, filepath: str
    ) -> contextlib.AbstractContextManager[str]:
        """A context with the path that this process saves a model to.

        All processes enter it at the same time; the file of the first remains.

        Args:
          filepath: string, the path that the user gave.

        Raises:
          RuntimeError: another process failed; its own error says why.
        """
        return contextlib.nullcontext(filepath)

    def chunks(
        self, shards: Sequence[Exports], fields: Sequence[Field], limit: int
    ) -> Generator[Chunk, None, None]:
        """Yields all rows of a table in chunks, on the first process.

        Other processes have to iterate as well, and to close it if they stop
        early; they get no chunks.

        Args:
          shards: list of TableShard, those that this process reaches.
          fields: tuple of Field.
          limit: int, the most rows per chunk.

        Yields:
          `(signs [n], {field: [n, count]})`, NumPy arrays.
        """
        del fields
        for shard in shards:
            cursor = 0
            while cursor >= 0:
                signs, cursor, values = shard.export(cursor, limit)
                cursor = int(cursor)
                yield signs.numpy(), {k: v.numpy() for k, v in values.items()}

    def checkpoint_part(
        self, shard: Exports, fields: Sequence[Field], limit: int
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The part of a shard in this process's checkpoint.

        Args:
          shard: TableShard.
          fields: tuple of Field.
          limit: int, the most rows sent at a time.

        Returns:
          `(signs [n], {field: [n, count]})`.
        """
        del fields, limit
        signs, _, values = shard.export()
        return signs, values
