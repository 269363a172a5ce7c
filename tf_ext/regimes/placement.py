# SPDX-License-Identifier: Apache-2.0
"""Where rows and variables are, and what follows from it."""

import typing

import tensorflow as tf

from tf_ext.distribute.cluster import strategy_name
from tf_ext.distribute.collectives import Collectives
from tf_ext.regimes.table_interface import ShardDevices, Table


class CheckedOptimizer(typing.Protocol):
    """What a placement asks of a `tf_ext.optimizers.Optimizer`."""

    def check_for_servers(self) -> None:
        """Raises ValueError unless ParameterServerStrategy supports it."""


class Placement:
    """The placement in one process that reaches all rows; a base class.

    Args:
      strategy: a tf.distribute strategy, or None.

    Attributes:
      strategy: as given.
      has_all: bool, whether this process has all variables and rows of a model.
    """

    has_all = True

    def __init__(self, strategy: tf.distribute.Strategy | None = None) -> None:
        self.strategy = strategy

    def shards(self) -> ShardDevices:
        """The devices of the shards of a new table.

        Raises:
          NotImplementedError: tables do not support the strategy.
          RuntimeError: the tasks of the cluster cannot work together.
        """
        raise NotImplementedError

    def check_table(self, table: Table, workers: Collectives | None) -> None:
        """Raises ValueError if a table was not made for this regime.

        Args:
          table: a table.
          workers: Collectives of the processes that share out its rows.
        """
        # AutoGraph cannot convert a body that is only a docstring.
        del table, workers

    def check_exportable(self, name: str) -> None:
        """Raises ValueError if a SavedModel cannot hold a table's rows.

        Args:
          name: string, the table's name.
        """

    @staticmethod
    def _unexportable(name: str, where: str) -> ValueError:
        return ValueError(
            f"Table {name!r} is {where}, which a SavedModel "
            "does not have. Use tf_ext.serving.export(model, path); or save "
            "the model's weights (save_weights, or tf.train.Checkpoint), load "
            "them into the same model made without a strategy, and export "
            "that."
        )

    def _made_outside(self, table: Table) -> ValueError:
        return ValueError(
            f"Table {table.name!r} was created outside of the scope of the "
            f"{strategy_name(self.strategy)}, for this process alone. Create "
            "it, and the model, under `with strategy.scope():`."
        )

    def check_optimizer(self, optimizer: CheckedOptimizer) -> None:
        """Raises ValueError for options that the regime does not support.

        Args:
          optimizer: a tf_ext.optimizers.Optimizer.
        """

    def check_sizes_change(self, what: str) -> None:
        """Raises NotImplementedError if no step may read such a variable."""
        del what

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
