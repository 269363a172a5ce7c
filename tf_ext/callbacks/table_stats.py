# SPDX-License-Identifier: Apache-2.0
"""Reports statistics of tables while they train."""

import itertools
import json
import os
import posixpath
import time
import typing

import numpy as np
import tensorflow as tf

from tf_ext._checks import check_count, refuse
from tf_ext.callbacks import weight_samples
from tf_ext.callbacks.every_steps import EverySteps
from tf_ext.regimes import Regime, regime_of_tables
from tf_ext.snapshot.storage import normalised
from tf_ext.tables.find import tables_of
from tf_ext.tables.sparse_table import SparseTable

FILE = "tables.jsonl"
# Of `SparseTable.stats`: what is reported as it is, the latter ones also by
# what they grew since the report before.
_STATES = ("rows", "bytes", "free_rows", "waiting", "counter_bytes")
_TOTALS = ("updated", "admitted", "evicted", "saturated")

_Stats: typing.TypeAlias = dict[str, int]
_Report: typing.TypeAlias = dict[str, typing.Any]


class TableStats(EverySteps):
    """Reports the state of all tables to TensorBoard and as JSON lines.

    A report follows each step of the optimizer that reaches or passes a
    multiple of `every`: rows, memory, what was inserted, updated, admitted and
    evicted, and norms and a histogram of weights, by table and shard. A restart
    appends to the same files. docs/rows.md lists the members of a report, and
    shows a plot of them.

    Weights are those of a random sample of at most 4,096 rows of each shard, or
    256 KiB of weights if that is less; another sample in each report, and the
    same one when training is repeated. The sample of a shard that has no more
    rows is all of them. Statistics cost about 2 ns a row, because they include
    a walk over the index.

    Callbacks act in the order of their list: put this one behind
    `tf_ext.callbacks.Evict` to see what is left. Under ParameterServerStrategy
    the coordinator asks all servers, while steps may continue. Under
    MultiWorkerMirroredStrategy every worker needs the callback, and the first
    worker writes.

    Args:
      log_dir: string or path-like, a directory on any file system of
        TensorFlow. It is created. Reports are lines of `tables.jsonl`, and
        summaries of TensorBoard with tags `tables/<table>/<member>`.
      every: int, at least 1, the number of steps between reports.

    Attributes:
      report: dict, the last report; None before the first.

    Raises:
      ValueError: if an argument is invalid; or, at the first report, if the
        model has no table.

    Example:
    >>> import json, pathlib, tempfile
    >>> ids = keras.Input([1], dtype="int64", name="id")
    >>> column = tf_ext.feature_column.category_column("id", hashing="identity")
    >>> user = tf_ext.SparseTable("user", dim=4)
    >>> rows = tf_ext.layers.EmbeddingFeatures([column], user)({"id": ids})
    >>> model = tf_ext.Model({"id": ids}, keras.layers.Dense(1)(rows))
    >>> model.compile(tf_ext.optimizers.Optimizer("adam"), "mse")
    >>> folder = tempfile.mkdtemp()
    >>> stats = tf_ext.callbacks.TableStats(folder, every=10)
    >>> x = {"id": tf.reshape(tf.range(200, dtype=tf.int64) % 50, [-1, 1])}
    >>> _ = model.fit(x, tf.ones([200, 1]), batch_size=10, shuffle=False,
    ...     verbose=0, callbacks=[stats])
    >>> for line in (pathlib.Path(folder) / "tables.jsonl").open():
    ...     report = json.loads(line)
    ...     [table] = report["tables"]
    ...     print(report["step"], table["table"], table["rows"],
    ...         table["interval"]["inserted"], table["interval"]["updated"])
    10 user 50 50 100
    20 user 50 0 100
    """

    def __init__(
        self, log_dir: str | os.PathLike[str], every: int = 1000
    ) -> None:
        if not isinstance(log_dir, (str, os.PathLike)) or not os.fspath(
            log_dir
        ):
            refuse("TableStats", "log_dir", "a path of a directory", log_dir)
        check_count("TableStats", "every", every, 1)
        super().__init__(every)
        self.log_dir = normalised(log_dir)
        self.every = int(every)
        self.report: _Report | None = None
        self._writer: tf.summary.SummaryWriter | None = None
        # Of the report before, or of the beginning of training, by table.
        self._before: dict[str, list[_Stats]] = {}
        self._step_before = 0

    def begin(self, step: int) -> None:
        """Notes the counts that the first report is compared to."""
        # A model that is not built may not have all of its tables yet.
        self._note(step, self._stats(tables_of(self.model)))

    def on_train_end(self, logs: dict[str, typing.Any] | None = None) -> None:
        """Called by Keras."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def act(self, step: int, logs: dict[str, typing.Any]) -> None:
        """Writes a report."""
        tables = tables_of(self.model)
        if not tables:
            raise ValueError(
                "The model of TableStats must have a table. Received: "
                f"{self.model!r}"
            )
        regime = regime_of_tables(tables)
        stats = self._stats(tables)
        samples = _samples(tables, stats, step, regime)
        report: _Report = {"step": step, "time": round(time.time(), 3)}
        if "staleness" in logs:
            report["staleness"] = float(logs["staleness"])
        report["tables"] = [
            self._of_table(table, stats[table.uid], parts, step)
            for table, parts in zip(tables, samples, strict=True)
        ]
        self._note(step, stats)
        self.report = report
        # Other workers must not wait for one whose disk is full.
        with regime.processes.together("TableStats"):
            if regime.processes.rank == 0:
                self._write(report, [weight_samples.add(s) for s in samples])

    @staticmethod
    def _stats(tables: list[SparseTable]) -> dict[str, list[_Stats]]:
        return {
            table.uid: [
                {**shard, "in_rows": shard["rows"] * shard["row_bytes"]}
                for shard in table.shard_stats()
            ]
            for table in tables
        }

    def _note(self, step: int, stats: dict[str, list[_Stats]]) -> None:
        self._before, self._step_before = stats, step

    def _of_table(
        self,
        table: SparseTable,
        shards: list[_Stats],
        samples: list[weight_samples.Sums],
        step: int,
    ) -> _Report:
        """The member of a report that is about a table."""
        steps = step - self._step_before
        before = self._before.get(table.uid, [])
        if len(before) != len(shards):
            before = [{}] * len(shards)
        whole = weight_samples.add(samples)
        return {
            "table": table.name,
            **_numbers(_sum(shards), _sum(before), steps),
            "weights": {
                **weight_samples.described(whole),
                "histogram": weight_samples.histogram(whole),
            },
            "shards": [
                {
                    **_numbers(shard, earlier, steps),
                    "weights": weight_samples.described(sums),
                }
                for shard, earlier, sums in zip(
                    shards, before, samples, strict=True
                )
            ],
        }

    def _write(
        self, report: _Report, samples: list[weight_samples.Sums]
    ) -> None:
        tf.io.gfile.makedirs(self.log_dir)
        _append_line(
            posixpath.join(self.log_dir, FILE),
            json.dumps(report, allow_nan=False),
        )
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(
                self.log_dir, filename_suffix=".tables"
            )
        with self._writer.as_default():
            tf.summary.experimental.write_raw_pb(
                _summary(report, samples), step=report["step"]
            )
        self._writer.flush()


def _samples(
    tables: list[SparseTable],
    stats: dict[str, list[_Stats]],
    step: int,
    regime: Regime,
) -> list[list[weight_samples.Sums]]:
    """The sums of samples of all shards, by table."""
    mine: list[list[weight_samples.Sums]] = []
    for table in tables:
        limit = weight_samples.rows_of_sample(table.dim)
        mine.append([])
        for index, shard in enumerate(
            table.rows.shards, table.rows.first_shard
        ):
            position = 0
            if stats[table.uid][index]["rows"] > limit:
                rng = np.random.default_rng((step, index))
                position = int(rng.integers(1, 2**63 - 1))
            weights = shard.sample(limit, position).numpy()
            mine[-1].append(weight_samples.sums_of(weights))
    everyone = regime.processes.gather_json(mine)
    return [
        list(itertools.chain.from_iterable(parts))
        for parts in zip(*everyone, strict=True)
    ]


def _sum(shards: list[_Stats]) -> _Stats:
    return {name: sum(shard[name] for shard in shards) for name in shards[0]}


def _numbers(stats: _Stats, before: _Stats, steps: int) -> _Report:
    """What a report says of the statistics of a table or shard."""
    return {
        **{name: stats[name] for name in _STATES},
        "load": stats["in_rows"] / max(1, stats["bytes"]),
        **{name: stats[name] for name in _TOTALS},
        "interval": _interval(stats, before, steps),
    }


def _interval(stats: _Stats, before: _Stats, steps: int) -> _Report | None:
    """What happened since the report before; None if that is not known."""
    if not before:
        return None
    grown = {name: stats[name] - before[name] for name in _TOTALS}
    if min(grown.values()) < 0:
        return None  # A server was replaced, and counts anew.
    inserted = max(0, stats["rows"] - before["rows"] + grown["evicted"])
    updated = grown["updated"]
    hits = max(0.0, 1 - inserted / updated) if updated else None
    return {
        "steps": steps,
        "inserted": inserted,
        **grown,
        "updated_per_step": updated / steps,
        "hits": hits,
    }


def _append_line(path: str, line: str) -> None:
    """Appends to a file whose last line may be torn by a kill."""
    begin = ""
    if tf.io.gfile.exists(path):
        with tf.io.gfile.GFile(path, "rb") as file:
            size = file.size()
            file.seek(max(0, size - 1))
            begin = "" if file.read(1) in (b"", b"\n") else "\n"
    with tf.io.gfile.GFile(path, "a") as file:
        file.write(f"{begin}{line}\n")


def _summary(report: _Report, samples: list[weight_samples.Sums]) -> bytes:
    """A report for TensorBoard, a serialized Summary.

    TensorBoard's own functions would take an op and much time for each number,
    and all weights of a histogram.
    """
    summary = tf.compat.v1.Summary()
    if "staleness" in report:
        summary.value.add(
            tag="tables/staleness", simple_value=report["staleness"]
        )
    for table, sums in zip(report["tables"], samples, strict=True):
        prefix = f"tables/{table['table']}"
        _add_numbers(summary, prefix, table)
        if len(table["shards"]) > 1:
            for index, shard in enumerate(table["shards"]):
                _add_numbers(summary, f"{prefix}/shard_{index}", shard)
        buckets = weight_samples.histogram(sums)
        edges, counts = buckets["edges"], buckets["counts"]
        if counts:
            columns = np.stack([edges[:-1], edges[1:], counts], 1)
            added = summary.value.add(tag=f"{prefix}/weights/histogram")
            added.metadata.plugin_data.plugin_name = "histograms"
            added.metadata.data_class = 2  # TENSOR of TensorFlow's DataClass
            added.tensor.CopyFrom(tf.make_tensor_proto(columns, tf.float64))
    return summary.SerializeToString()


def _add_numbers(summary: typing.Any, prefix: str, report: _Report) -> None:
    for name, value in report.items():
        if isinstance(value, dict):
            _add_numbers(summary, f"{prefix}/{name}", value)
        elif isinstance(value, (int, float)):
            summary.value.add(tag=f"{prefix}/{name}", simple_value=value)
