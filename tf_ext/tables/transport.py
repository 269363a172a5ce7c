"""How rows and gradients travel between layers, optimizer and tables.

Layers and optimizer know this interface alone. Where the shards of a table are
is decided when it is made: one in this process without a strategy or under
OneDeviceStrategy and MirroredStrategy, one on each parameter server under
ParameterServerStrategy, one in each worker under MultiWorkerMirroredStrategy.
"""

import collections

import tensorflow as tf

from tf_ext.distribute.addresses import task_addresses
from tf_ext.distribute.cluster import (
    cluster_of,
    is_parameter_server,
    strategy_name,
)
from tf_ext.distribute.collectives import collectives_of
from tf_ext.distribute.strategy import check_cluster, table_owner
from tf_ext.tables.exchange import AllToAllTransport
from tf_ext.tables.gradients import (
    TableGradient,
    from_one_pull,
    sum_by_sign,
    unique_signs_op,
)

Placement = collections.namedtuple(
    "Placement", ["devices", "collectives", "owner"], defaults=[None]
)
Placement.__doc__ = """Where the shards of a table are.

devices: list of strings, of the shards that this process can ask;
collectives: how to reach those in other workers, or None; owner: as of
`tf_ext.distribute.strategy.table_owner`, on parameter servers, or None.
"""

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

    # An error is raised where it is found.
    shares_errors = False

    def pull(self, requests, error=None):
        """Rows of each request's unique signs: a list of float32 `[u, dim]`.

        Args:
          requests: list of PullRequest.
          error: None, because errors are not shared.
        """
        del error
        return [
            table.rows.pull(
                unique.unique, unique.split_sizes, insert, table.dim
            )
            for table, unique, insert in requests
        ]

    def merge(self, parts):
        """One gradient a sign, of all layers, calls and replicas.

        Args:
          parts: list of `(table, [(signs [n], values [n, dim]), ...])`.

        Returns:
          List of TableGradient.
        """
        return [self._merge(table, pairs) for table, pairs in parts]

    def _merge(self, table, pairs):
        if len(pairs) == 1 and from_one_pull(pairs[0][0]):
            return TableGradient(table, *pairs[0])
        signs, values, _ = sum_by_sign(
            tf.concat([signs for signs, _ in pairs], 0),
            tf.concat([values for _, values in pairs], 0),
            table.rows.num_shards,
        )
        return TableGradient(table, signs, values)

    def sum(self, tensor):
        """The sum over processes that have other rows: there are none."""
        return tensor

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
      tables: non-empty list of tables that are asked together.

    Raises:
      ValueError: a table that was made outside of the scope of the strategy
        that it is used under, or under another one than the others.
    """
    strategy = _strategy()
    here = collectives_of(strategy)
    for table in tables:
        rows = table.rows
        if is_parameter_server(strategy):
            if "/job:ps/" not in rows.shards[0].device:
                raise _made_outside(table, strategy)
        elif here is not None and rows.collectives is not here:
            raise _made_outside(table, strategy)
        elif rows.collectives is not tables[0].rows.collectives:
            raise ValueError(
                f"Tables {tables[0].name!r} and {table.name!r} were made under "
                "different strategies. Make all tables of a model under one."
            )
    collectives = tables[0].rows.collectives
    if collectives is None:
        return DirectTransport()
    return AllToAllTransport(collectives)


def _made_outside(table, strategy):
    return ValueError(
        f"Table {table.name!r} was made outside of the scope of the "
        f"{strategy_name(strategy)}, as one of this process alone. Make it, "
        "and the model, under `with strategy.scope():`."
    )


def placement():
    """Where the shards of a table are that is made now: a Placement.

    Raises:
      NotImplementedError: the strategy in scope is one that tables cannot
        follow.
      RuntimeError: a cluster whose tasks cannot work together.
    """
    strategy = _strategy()
    if is_parameter_server(strategy):
        check_cluster(strategy)
        servers = task_addresses(cluster_of(strategy), ["ps"])
        devices = [f"{server}/device:CPU:0" for server in servers]
        return Placement(devices, None, table_owner(strategy))
    if strategy is None or isinstance(
        strategy,
        (
            tf.distribute.MirroredStrategy,
            tf.distribute.MultiWorkerMirroredStrategy,
            tf.distribute.OneDeviceStrategy,
        ),
    ):
        collectives = collectives_of(strategy)
        return Placement(
            ["" if collectives is None else collectives.device], collectives
        )
    raise NotImplementedError(
        f"Tables do not work under {strategy_name(strategy)}: each process "
        "would train rows of its own. Use no strategy, "
        "tf.distribute.OneDeviceStrategy, MirroredStrategy, "
        "MultiWorkerMirroredStrategy or ParameterServerStrategy."
    )


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
    operation = unique_signs_op(signs)
    if operation is None or operation.get_attr("num_shards") != num_shards:
        return None
    return operation.outputs[3]


def _strategy():
    if not tf.distribute.has_strategy():
        return None
    return tf.distribute.get_strategy()
