# SPDX-License-Identifier: Apache-2.0
"""Parameter servers: tables are on them, steps run on asynchronous workers."""

import typing
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_ext._compat.counters import make_exact
from tf_ext._keras import tf_variable
from tf_ext.distribute.addresses import task_addresses
from tf_ext.distribute.cluster import cluster_of
from tf_ext.distribute.collectives import Collectives
from tf_ext.distribute.strategy import check_cluster, table_owner
from tf_ext.ops.passes.bundle_ops import next_stage
from tf_ext.regimes.exchange import Exchange
from tf_ext.regimes.placement import CheckedOptimizer, Placement
from tf_ext.regimes.plan import PullRequest
from tf_ext.regimes.processes import Processes
from tf_ext.regimes.regime import Regime
from tf_ext.regimes.table_interface import ShardDevices, Table


class ServerPlacement(Placement):
    """A shard of each table on each server, accessed by ops on its device.

    This process is the coordinator, and reaches all shards.
    """

    strategy: tf.distribute.ParameterServerStrategy

    has_all = False

    def shards(self) -> ShardDevices:
        """A shard on the CPU of each server."""
        check_cluster(self.strategy)
        servers = task_addresses(cluster_of(self.strategy), ["ps"])
        return ShardDevices(
            [f"{server}/device:CPU:0" for server in servers],
            table_owner(self.strategy),
        )

    def check_table(self, table: Table, workers: Collectives | None) -> None:
        """Raises ValueError if a table is not on servers."""
        del workers
        if "/job:ps/" not in table.rows.shards[0].device:
            raise self._made_outside(table)

    def check_exportable(self, name: str) -> None:
        """Raises ValueError: the coordinator does not have the rows."""
        raise self._unexportable(name, "on parameter servers")

    def check_optimizer(self, optimizer: CheckedOptimizer) -> None:
        """Raises ValueError for options that need the steps of all workers."""
        optimizer.check_for_servers()

    def check_sizes_change(self, what: str) -> None:
        """Raises NotImplementedError: workers would crash."""
        raise NotImplementedError(
            f"{what} cannot be in a model under ParameterServerStrategy: "
            "TensorFlow's workers crash when a step reads a variable whose "
            "number of elements changes. Call the layer outside of the model, "
            "or load the model in one process and call it there."
        )

    def make_counter_exact(self, variable: typing.Any) -> None:
        """Makes the server add, in one operation."""
        make_exact(variable)

    def move_average(
        self,
        average: typing.Any,
        value: tf.Tensor,
        momentum: float,
        count: tf.Tensor,
    ) -> None:
        """Updates a moving average on its server, in one operation.

        Reading and assigning it, as Keras does, would lose concurrent updates
        of other workers; adding a difference from the value read would apply a
        stale decay, and oscillate or diverge with many workers. TensorFlow's
        proximal step of the quadratic penalty, under the variable's lock, is

            average = (average + rate * value) / (1 + rate)

        which with `1 + rate = 1 / momentum` is the moving average.
        """
        if momentum <= 0:
            super().move_average(average, value, momentum, count)
            return
        dtype = value.dtype
        # Exact in 1 + rate: the average of equal values is that value.
        one = dtype.as_numpy_dtype(1)
        rate = np.divide(one, momentum, dtype=dtype.as_numpy_dtype) - one
        average = tf_variable(average)
        # A variable_partitioner splits a variable into several.
        parts = getattr(average, "variables", [average])
        values = tf.split(value, [part.shape[0] for part in parts])
        for part, value in zip(parts, values, strict=True):
            # Constants are made on the server, not sent.
            with tf.device(part.handle.device):
                tf.raw_ops.ResourceApplyProximalGradientDescent(
                    var=part.handle,
                    alpha=tf.cast(count > 0, dtype),
                    l1=tf.zeros([], dtype),
                    l2=tf.constant(rate, dtype),
                    delta=-rate * value,
                    use_locking=True,
                )


class ServerExchange(Exchange):
    """The exchange by ops on the servers.

    Only their inputs and outputs are sent: signs and rows, signs and gradients.
    """

    is_remote = True

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        super().__init__(strategy)
        self.merges_replicas = self.num_replicas > 1

    def pull(
        self,
        requests: Sequence[PullRequest],
        error: tf.Tensor | None = None,
        after: Sequence[tf.Tensor] = (),
    ) -> list[tf.Tensor]:
        """As in the base class; the worker has rows that have come wait."""
        rows = super().pull(requests, error)
        if not after:
            return rows
        with tf.control_dependencies(after):
            return next_stage(rows)

    def check_gathers(self, what: str) -> None:
        """Raises NotImplementedError: workers do not wait for each other."""
        raise NotImplementedError(
            f"{what} does not work under ParameterServerStrategy, whose "
            "workers do not wait for each other: none of them knows the whole "
            "batch. Use probabilities that are known before training, and the "
            "negatives of each worker's own batch."
        )


def server_regime(strategy: tf.distribute.ParameterServerStrategy) -> Regime:
    """The regime of a ParameterServerStrategy."""
    return Regime(
        "parameter_servers",
        strategy,
        ServerPlacement(strategy),
        ServerExchange(strategy),
        Processes(),
    )
