# SPDX-License-Identifier: Apache-2.0
"""Versions in a Redis on this machine: publishing them, and requests to them.

Requests go to one model, served in all ways, in one process and in turns.
"""

import contextlib
import importlib.util
import pathlib
import subprocess
import tempfile
import time

import numpy as np
import tensorflow as tf
from harness import heading, write_json

import tf_ext
from tf_ext._keras import keras
from tf_ext.distribute.ports import free_ports

_COLUMNS = 26
_FILL = 1 << 20
_SAMPLES = (1, 16, 256)
# Before requests are timed: a server that has run for a while.
_WARM = 200
# Deltas of a chain, after which a point has all rows.
_DELTAS = 10


@contextlib.contextmanager
def redis_at(folder):
    """`(address, client)` of a redis-server without persistence."""
    import redis

    [port] = free_ports(1)
    command = [
        *("redis-server", "--port", str(port), "--bind", "127.0.0.1"),
        *("--dir", folder, "--save", ""),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        client = redis.Redis(port=port)
        try:
            for _ in range(1000):
                with contextlib.suppress(redis.ConnectionError):
                    client.ping()
                    break
                time.sleep(0.01)
            yield f"redis://127.0.0.1:{port}/0", client
        finally:
            server.kill()


def _model(dim):
    columns = [
        tf_ext.feature_column.category_column(f"c{i}", namespace="id")
        for i in range(_COLUMNS)
    ]
    inputs = {
        column.key: keras.Input((), dtype="string", name=column.key)
        for column in columns
    }
    table = tf_ext.SparseTable("bench", dim, "sgd", "normal", seed=1)
    hidden = tf_ext.layers.EmbeddingFeatures(columns, table)(inputs)
    for units in (64, 32):
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    outputs = keras.layers.Dense(1, activation="sigmoid")(hidden)
    model = tf_ext.Model(inputs, outputs)
    model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    return model


def _request(rng, rows, samples):
    """Zipf(1) ids, of which all have a row."""
    ids = (rows ** rng.random([_COLUMNS, samples])).astype(np.int64) - 1
    return {f"c{i}": [str(one) for one in its] for i, its in enumerate(ids)}


def lookup(args):
    """Times requests of several sizes: an export, a follower, Lookups."""
    settings = {"rows": args.rows, "dim": args.dim, "threads": args.threads}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(dir=args.output)
        )
        address, _ = stack.enter_context(redis_at(folder))
        roads = _roads(args, folder, address, stack)
        print(heading("lookup", settings))
        for samples in _SAMPLES:
            _measure(roads, samples, args)


def _roads(args, folder, address, stack):
    """What answers requests, by name."""
    model, points = _model(args.dim), str(pathlib.Path(folder, "points"))
    for first in range(0, args.rows, _FILL):
        ids = np.arange(first, min(first + _FILL, args.rows))
        signs = tf_ext.hashing.hash_category(ids, "id")
        model.tables[0].pull(signs, training=True)
    onnx = importlib.util.find_spec("tf2onnx") is not None
    dense = "onnx" if onnx else "tensorflow"
    one = _request(np.random.default_rng(0), args.rows, 1)
    model.fit(
        *(_tensors(one), np.ones([1, 1])),
        callbacks=[tf_ext.callbacks.TableSnapshot(points)],
        verbose=0,
    )
    exported = tf_ext.serving.export(model, pathlib.Path(folder, "stock"))
    stock = tf.saved_model.load(exported)
    with tf_ext.serving.weights_only():
        served = _model(args.dim)
    follower = tf_ext.serving.follow(served, points, every=None)
    follower.update()
    follow = tf.function(
        lambda features: served(features, training=False),
        reduce_retracing=True,
    )
    sink = tf_ext.serving.RedisSink(address, "benchmark")
    publisher = tf_ext.serving.publish(
        model, points, sink, every=None, onnx=onnx
    )
    publisher.update()
    roads = {
        "export": lambda features: stock.serve(_tensors(features)).numpy(),
        "follow": lambda features: follow(_tensors(features)).numpy(),
    }
    kinds = {
        f"Lookup, {dense}": {"dense": dense},
        f"Lookup, {dense}, no cache": {"dense": dense, "cache_bytes": 0},
        "Lookup, tensorflow": {"dense": "tensorflow"},
    }
    for name, options in kinds.items():
        made = stack.enter_context(
            tf_ext.serving.Lookup(sink, every=None, **options)
        )
        roads[name] = lambda features, made=made: made.predict(features)[
            "output_0"
        ]
    return roads


def _tensors(features):
    return {name: tf.constant(one) for name, one in features.items()}


def _measure(roads, samples, args):
    rng = np.random.default_rng(samples)
    times = {name: [] for name in roads}
    for number in range(_WARM + args.repeats):
        request = _request(rng, args.rows, samples)
        answers = {}
        for name, road in roads.items():
            begin = time.perf_counter()
            answers[name] = road(request)
            seconds = time.perf_counter() - begin
            if number >= _WARM:
                times[name].append(seconds)
        for name, found in answers.items():
            np.testing.assert_allclose(
                found, answers["export"], rtol=0, atol=1e-6, err_msg=name
            )
    for name, its in times.items():
        middle, most = np.percentile(its, [50, 99])
        result = {
            "requests_per_second": len(its) / sum(its),
            "p50": middle,
            "p99": most,
        }
        print(
            f"  {name:26} {samples:4} samples "
            f"{result['requests_per_second']:8.0f} requests/s, p50 "
            f"{1e3 * middle:7.2f} ms, p99 {1e3 * most:7.2f} ms"
        )
        about = {"benchmark": "lookup", "case": name, "samples": samples}
        write_json([about | result], args.json)


def _published_model(dim):
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
        model = _published_model(args.dim)
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
            _measure_version(what, publisher, client, args)


def _measure_version(what, publisher, client, args):
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
