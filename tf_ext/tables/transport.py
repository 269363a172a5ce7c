"""How rows and gradients travel between layers, optimizer and tables.

Layers and optimizer know this interface alone; there is one implementation a
strategy. In one process (no strategy, OneDeviceStrategy, MirroredStrategy)
each table has one shard and nothing travels.
"""

import collections

import tensorflow as tf

from tf_ext import ops

PullRequest = collections.namedtuple(
    "PullRequest", ["table", "signs", "counts", "insert"]
)
PullRequest.__doc__ = """Rows wanted.

signs: int64 [n], distinct; counts: int64 [n], how often each is in the batch;
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


class LocalTransport:
    """All tables in this process."""

    num_shards = 1

    def pull(self, requests):
        """Rows of each request: a list of float32 `[n, dim]`."""
        rows = []
        for table, signs, counts, insert in requests:
            with tf.device(table.shard.device):
                rows.append(
                    ops.sparse_table_pull(
                        table.shard.resource_handle,
                        signs,
                        counts,
                        training=insert,
                        dim=table.dim,
                    )
                )
        return rows

    def push(self, requests):
        """Updates tables; returns the rows updated, a list of int64 `[]`."""
        updated = []
        for table, signs, gradients, hyperparameters, step in requests:
            with tf.device(table.shard.device):
                updated.append(
                    ops.sparse_table_push(
                        table.shard.resource_handle,
                        signs,
                        gradients,
                        hyperparameters=hyperparameters,
                        step=step,
                    )
                )
        return updated


def get_transport():
    """The transport of the strategy in scope.

    Raises:
      NotImplementedError: a strategy of several processes.
    """
    strategy = tf.distribute.get_strategy()
    if tf.distribute.has_strategy() and not isinstance(
        strategy,
        (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy),
    ):
        raise NotImplementedError(
            f"Tables do not work under {type(strategy).__name__} yet: each "
            "process would train rows of its own. Use no strategy, "
            "tf.distribute.OneDeviceStrategy or tf.distribute.MirroredStrategy."
        )
    return LocalTransport()
