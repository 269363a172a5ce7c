# SPDX-License-Identifier: Apache-2.0
"""Streams beside files that have the same events."""

import contextlib
import os
import pathlib
import tempfile
import time
import uuid

import cluster_benchmarks
import numpy as np
import read_benchmarks
from harness import (
    Case,
    cpu_seconds,
    measure,
    report,
    report_slopes,
    write_json,
)
from store_benchmarks import redis_at

import tf_ext

_ROWS = 200_000
# The short epoch has one event of so many.
_SHORT = 4
_BATCH = 1024
_FORMATS = ("csv", "jsonl")
_SENT_AT_ONCE = 1000
_WORKERS = 2


def stream(args):
    """An epoch of `fit` over events of 40 columns, and their reading alone.

    The difference of a long and a short epoch is the time of an event, without
    what each `fit` takes to begin.
    """
    rows = min(args.rows, _ROWS)
    for format in _FORMATS:
        with (
            tempfile.TemporaryDirectory(dir=args.output) as folder,
            contextlib.ExitStack() as stack,
        ):
            datasets = {}
            for count in (rows // _SHORT, rows):
                path = pathlib.Path(folder, f"{count}", "events", "part-0")
                path.parent.mkdir(parents=True)
                read_benchmarks.write_events(path, format, count)
                datasets[count] = _datasets(path, format, args, stack)
            settings = {
                "threads": args.threads,
                "format": format,
                "batch": _BATCH,
                "unit": "events",
            }
            cases = [
                Case(f"{name}, read alone", _reading(make, rows), rows)
                for name, make in datasets[rows].items()
            ]
            for count, some in datasets.items():
                cases += [
                    read_benchmarks.training_case(name, make, count, args.dim)
                    for name, make in some.items()
                ]
            results = measure(cases, args.repeats, warmup=1, settle=False)
            report("stream", results, settings, args.json)
            count = len(datasets[rows])
            short, long = results[count:-count], results[-count:]
            report_slopes("stream", short, long, settings, args.json)


def stream_workers(args):
    """An epoch under parameter servers, by who reads the stream."""
    rows = min(args.rows, _ROWS)
    with (
        tempfile.TemporaryDirectory(dir=args.output) as folder,
        cluster_benchmarks.started(_WORKERS, 1) as (strategy, roles, _),
    ):
        for number in range(2 * _WORKERS):
            path = pathlib.Path(folder, f"{number}", "part-0.csv")
            path.parent.mkdir()
            read_benchmarks.write_events(path, "csv", rows // (2 * _WORKERS))
        with strategy.scope():
            model, _ = read_benchmarks.training_model(args.dim)

        def data(context=None):
            return tf_ext.data.stream(
                tf_ext.data.DirectorySource(folder),
                *(read_benchmarks.schema(), "csv"),
                batch_size=_BATCH,
                follow=False,
                shard=context,
            )

        found = {}
        for _ in range(1 + args.repeats):
            for reader in ("chief", "workers"):
                x = data() if reader == "chief" else data
                before = _now(roles)
                model.fit(x, verbose=0)
                found.setdefault(reader, []).append(_now(roles) - before)
        for reader, times in found.items():
            # The first epoch traces.
            per_event = np.median(times[1:], 0) / rows * 1e6
            line = dict(zip(["wall", *roles], per_event.tolist(), strict=True))
            print(reader, {k: round(v, 1) for k, v in line.items()})
            line = {"benchmark": "stream_workers", "reader": reader, **line}
            write_json([line], args.json)


def _now(roles):
    """Seconds: of wall time, and of CPU time of each role."""
    cpu = [cpu_seconds(pids) for pids in roles.values()]
    return np.array([time.perf_counter(), *cpu])


def _datasets(path, format, args, stack):
    """Functions that return datasets of the events, by what they read."""
    schema = read_benchmarks.schema()
    sources = {"directory": tf_ext.data.DirectorySource(path.parent)}
    lines = path.read_bytes().splitlines()
    address, client = stack.enter_context(redis_at(path.parents[1]))
    for begin in range(0, len(lines), _SENT_AT_ONCE):
        with client.pipeline(transaction=False) as pipe:
            for line in lines[begin : begin + _SENT_AT_ONCE]:
                pipe.xadd("events", {"value": line})
            pipe.execute()
    sources["Redis"] = tf_ext.data.RedisSource("events", address)
    servers = os.environ.get("TF_EXT_KAFKA")
    if servers:
        sources["Kafka"] = _kafka(servers, lines)
    return {
        "files": lambda: tf_ext.data.read(
            *(os.fspath(path), schema, format),
            batch_size=_BATCH,
            threads=args.threads,
        )
    } | {
        name: lambda source=source: tf_ext.data.stream(
            *(source, schema, format), batch_size=_BATCH, follow=False
        )
        for name, source in sources.items()
    }


def _kafka(servers, lines):
    """A new topic with the events."""
    import confluent_kafka

    topic = f"benchmark-{uuid.uuid4().hex}"
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    for number, line in enumerate(lines):
        producer.produce(topic, line)
        if number % _SENT_AT_ONCE == 0:
            producer.flush()
    producer.flush()
    return tf_ext.data.KafkaSource(topic, servers)


def _reading(make, rows):
    def run():
        found = sum(len(labels) for _, labels in make())
        if found != rows:
            raise RuntimeError(f"{found} events were read, not {rows}.")

    return run
