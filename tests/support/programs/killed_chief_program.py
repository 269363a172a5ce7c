# SPDX-License-Identifier: Apache-2.0
"""A chief that fills a table, and waits: killed_chief_program.py CLUSTER ROWS.

It writes lines of JSON: first the bytes that the table takes on each server;
then, for each line that it reads,

- "size": the number of rows;
- "release": for each server the number and the bytes of all tables that are
  there of this chief's address.
"""

import json
import sys

import tensorflow as tf

import tf_ext
from tf_ext import ops
from tf_ext.distribute.strategy import table_owner
from tf_ext.ops.table import owner_ops

_DIM = 64
_CHUNK = 20_000


def _on_shards(table, function):
    answers = []
    for shard in table.rows.shards:
        with tf.device(shard.device):
            answers.append(function().numpy().tolist())
    return answers


def _bytes(stats):
    stats = dict(zip(ops.TABLE_STATS, stats.numpy(), strict=True))
    return int(stats["slab_bytes"] + stats["index_bytes"])


def main():
    cluster, rows = json.loads(sys.argv[1]), int(sys.argv[2])
    if len(sys.argv) == 3:
        strategy = tf_ext.distribute.parameter_server_strategy(cluster)
    else:
        strategy = tf.distribute.ParameterServerStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(cluster),
                task_type="chief",
                task_id=0,
                rpc_layer="grpc",
            )
        )
    with strategy.scope():
        table = tf_ext.SparseTable("items", _DIM, "adagrad")
    for start in range(0, rows, _CHUNK):
        signs = tf.range(start, min(rows, start + _CHUNK), dtype=tf.int64)
        weights = tf.zeros([tf.size(signs), _DIM])
        table.rows.import_rows(signs, {"weights": weights})
    print(json.dumps([_bytes(stats) for stats in table.rows.stats()]))
    sys.stdout.flush()
    owner, _ = table_owner(strategy)
    for line in sys.stdin:
        if line == "size\n":
            answer = int(table.rows.size())
        else:
            answer = _on_shards(
                table,
                lambda: owner_ops.release_sparse_tables(owner, "none of ours"),
            )
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
