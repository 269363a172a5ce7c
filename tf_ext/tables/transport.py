"""How rows and gradients travel between layers, optimizer and tables.

Layers and optimizer know this interface alone. Where the shards of a table are
is decided when it is made: one in this process without a strategy or under
OneDeviceStrategy and MirroredStrategy, one on each parameter server under
ParameterServerStrategy.
"""

import collections

import tensorflow as tf

from tf_ext import ops
from tf_ext.distribute.addresses import task_addresses
from tf_ext.distribute.cluster import cluster_of, is_parameter_server
from tf_ext.distribute.strategy import check_cluster

PullRequest = collections.namedtuple(
    "PullRequest", ["table", "unique", "insert"]
)
PullRequest.__doc__ = """Rows wanted.

unique: what `ops.unique_by_shard` returned for `table.rows.num_shards`;
insert: bool or bool scalar tensor, whether absent signs are created.
"""

PushRequest = collections.namedtuple(
    "PushRequest",
    ["table", "signs", "gradients", "hyperparameters", "step"],
)
PushRequest.__doc__ = """Gradients to apply.

signs: int64 [n], distinct; gradients: float32 [n, dim]; hyperparameters:
float64, of the table's rule; step: int64 scalar, counting from 1.
"""


class DirectTransport:
    """Every shard is asked by an op on its own device.

    What crosses the network is then what those ops read and return: signs and
    rows, signs and gradients.
    """

    def pull(self, requests):
        """Rows of each request's unique signs: a list of float32 `[u, dim]`."""
        return [
            table.rows.pull(
                unique.unique, unique.split_sizes, insert, table.dim
            )
            for table, unique, insert in requests
        ]

    def push(self, requests):
        """Updates tables; returns the rows updated, a list of int64 `[]`."""
        updated = []
        for table, signs, gradients, hyperparameters, step in requests:
            signs, gradients, split_sizes = _by_shard(
                signs, gradients, table.rows.num_shards
            )
            updated.append(
                table.rows.push(
                    signs, split_sizes, gradients, hyperparameters, step
                )
            )
        return updated


def get_transport(tables):
    """The transport of some tables.

    Args:
      tables: list of tables that are asked together.

    Raises:
      ValueError: under ParameterServerStrategy, a table that was made outside
        its scope.
    """
    if is_parameter_server(_strategy()):
        for table in tables:
            if "/job:ps/" not in table.rows.shards[0].device:
                raise ValueError(
                    f"Table {table.name!r} was made outside of the scope of "
                    "the ParameterServerStrategy, in the coordinator's "
                    "process. Make it, and the model, under "
                    "`with strategy.scope():`."
                )
    return DirectTransport()


def shard_devices():
    """Where the shards of a table are that is made now: a list of strings.

    Raises:
      NotImplementedError: the strategy in scope is one that tables cannot
        follow.
      RuntimeError: a cluster whose tasks cannot work together.
    """
    strategy = _strategy()
    if is_parameter_server(strategy):
        check_cluster(strategy)
        servers = task_addresses(cluster_of(strategy), ["ps"])
        return [f"{server}/device:CPU:0" for server in servers]
    if strategy is None or isinstance(
        strategy,
        (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy),
    ):
        return [""]
    raise NotImplementedError(
        f"Tables do not work under {type(strategy).__name__} yet: each "
        "process would train rows of its own. Use no strategy, "
        "tf.distribute.OneDeviceStrategy, MirroredStrategy or "
        "ParameterServerStrategy."
    )


def sum_by_sign(signs, gradients, num_shards=1, name=None):
    """Sums gradients of equal signs.

    Args:
      signs: int64 `[n]`.
      gradients: float32 `[n, dim]`.
      num_shards: int, of the table.
      name: optional name of the operations.

    Returns:
      `(signs [u], gradients [u, dim], split_sizes [num_shards])`, by shard and
      then in order of first appearance.
    """
    with tf.name_scope(name or "sum_by_sign"):
        unique, _, inverse, split_sizes = ops.unique_by_shard(signs, num_shards)
        summed = tf.math.unsorted_segment_sum(
            gradients, inverse, tf.size(unique)
        )
        return unique, summed, split_sizes


def _by_shard(signs, gradients, num_shards):
    """Distinct signs and their gradients in the order of the shards."""
    if num_shards == 1:
        return signs, gradients, None
    split_sizes = _known_split_sizes(signs, num_shards)
    if split_sizes is not None:
        return signs, gradients, split_sizes
    return sum_by_sign(signs, gradients, num_shards)


def _known_split_sizes(signs, num_shards):
    """The other output of the op that put `signs` in order, if it did."""
    if tf.executing_eagerly():
        return None
    operation = signs.op
    while operation.type == "Identity":
        operation = operation.inputs[0].op
    if (
        operation.type != ops.UNIQUE_BY_SHARD
        or operation.get_attr("num_shards") != num_shards
    ):
        return None
    return operation.outputs[3]


def _strategy():
    if not tf.distribute.has_strategy():
        return None
    return tf.distribute.get_strategy()
