# SPDX-License-Identifier: Apache-2.0
"""Points published into a Redis on this machine: time, bytes, memory."""

import pathlib
import tempfile
import time

import numpy as np
from harness import heading, write_json
from redis_process import redis_at

import tf_ext
from tf_ext._keras import keras

_FILL = 1 << 20
# Deltas of a chain, after which a point has all rows.
_DELTAS = 10


def _model(dim):
    inputs = {"id": keras.Input((), dtype="int64", name="id")}
    column = tf_ext.feature_column.category_column("id", hashing="identity")
    table = tf_ext.SparseTable("rows", dim, optimizer="sgd")
    rows = tf_ext.layers.EmbeddingFeatures([column], table)(inputs)
    model = tf_ext.Model(inputs, keras.layers.Dense(1)(rows))
    model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    return model


def publish(args):
    """All rows, then 1 % of them, until a point begins a new chain."""
    print(heading("publish", {"rows": args.rows, "dim": args.dim}))
    print("(rows, seconds, CPU seconds of the publisher, MB sent, memory)")
    rng = np.random.default_rng(0)
    with (
        tempfile.TemporaryDirectory(dir=args.output) as folder,
        redis_at(folder) as (address, client),
    ):
        model = _model(args.dim)
        [table] = model.tables
        for begin in range(0, args.rows, _FILL):
            signs = np.arange(begin, min(begin + _FILL, args.rows))
            table.pull(signs, training=True)
        points = str(pathlib.Path(folder, "points"))
        snapshot = tf_ext.callbacks.TableSnapshot(points, incremental=True)
        sink = tf_ext.serving.RedisSink(address, "benchmark")
        publisher = tf_ext.serving.publish(model, points, sink, every=None)
        for number in range(_DELTAS + 2):
            if number:
                some = rng.choice(args.rows, args.rows // 100, replace=False)
                gradients = rng.normal(size=[len(some), args.dim])
                table.push(some, gradients, learning_rate=0.1)
            model.fit(
                *({"id": np.arange(64)}, np.ones([64, 1])),
                batch_size=64,
                epochs=number + 1,
                initial_epoch=number,
                verbose=0,
                callbacks=[snapshot],
            )
            what = "1 %" if number else "all rows"
            if number > _DELTAS:
                what = "1 %, a new chain"
            _measure(what, publisher, client, args)


def _measure(what, publisher, client, args):
    sent = client.info("stats")["total_net_input_bytes"]
    rows = publisher.published_rows
    begin, cpu = time.perf_counter(), time.process_time()
    publisher.update()
    found = {
        "seconds": time.perf_counter() - begin,
        "cpu": time.process_time() - cpu,
        "sent": client.info("stats")["total_net_input_bytes"] - sent,
        "rows": publisher.published_rows - rows,
        "resident": client.info("memory")["used_memory"],
    }
    print(
        f"{what:18} {found['rows']:12,} rows  {found['seconds']:8.2f}  "
        f"{found['cpu']:8.2f}  {found['sent'] / 1e6:8.1f}  Redis has "
        f"{found['resident'] / 1e6:,.0f} MB"
    )
    about = {"benchmark": "publish", "what": what, "dim": args.dim}
    write_json([about | found], args.json)
