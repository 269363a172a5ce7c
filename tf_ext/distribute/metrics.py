# SPDX-License-Identifier: Apache-2.0
"""The metrics of this process, as Prometheus and other scrapers read them."""

import typing
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tf_ext._version import __version__
from tf_ext.distribute import this_task, training_counts
from tf_ext.ops.table import op_counts

_BYTES = {"rows": "slab_bytes", "index": "index_bytes"} | {
    "counters": "counter_bytes"
}
_GAUGES = {
    "rows": ("rows", "Rows of the shard."),
    "free_rows": ("free_rows", "Removed rows whose memory is kept."),
    "waiting": ("waiting_ids", "Ids that are counted for admission."),
}
_TOTALS = {
    "updated": ("updated_rows", "Rows updated, once per push of a row."),
    "admitted": ("admitted_rows", "Rows admitted."),
    "evicted": ("evicted_rows", "Rows evicted."),
    "saturated": (
        "saturated_values",
        "Values limited to the largest finite one of a narrow type.",
    ),
}


def registry(prometheus_client: typing.Any) -> typing.Any:
    """A registry of the metrics of this process.

    Args:
      prometheus_client: the module.

    Returns:
      A `prometheus_client.CollectorRegistry`.
    """
    made = prometheus_client.CollectorRegistry()
    prometheus_client.ProcessCollector(registry=made)
    made.register(_Collector(prometheus_client.core))
    return made


def work_done() -> tuple[int, ...]:
    """Numbers that change whenever this process does anything for a model."""
    counts, training = op_counts.read_counts(), training_counts.read()
    calls = [sum(counts.hashing.calls)]
    for table in counts.tables.values():
        calls += [sum(table.pull.calls), sum(table.push.calls)]
    return training.steps, training.streamed, *calls


class _Collector:
    """Reads all counts when it is asked; nothing is kept in between.

    Args:
      core: the module `prometheus_client.core`.
    """

    def __init__(self, core: typing.Any) -> None:
        self._core = core

    def collect(self) -> Iterator[typing.Any]:
        """Yields the metrics."""
        yield self._core.InfoMetricFamily(
            "tf_ext_task",
            "Which task of the cluster the process is, and what it runs.",
            {
                "task": this_task.name(),
                "tf_ext": __version__,
                "tensorflow": tf.__version__,
            },
        )
        counts = op_counts.read_counts()
        yield from self._of_ops(counts)
        stats = {
            name: table.stats
            for name, table in counts.tables.items()
            if table.stats is not None
        }
        yield from self._of_rows(stats)
        yield from self._of_training(training_counts.read())

    def _of_ops(self, counts: op_counts.ProcessCounts) -> Iterator[typing.Any]:
        seconds = self._core.HistogramMetricFamily(
            "tf_ext_table_op_seconds",
            "How long pulls and pushes took in this process.",
            labels=["table", "op"],
        )
        ids = self._core.CounterMetricFamily(
            "tf_ext_table_op_ids",
            "Distinct ids of pulls and pushes.",
            labels=["table", "op"],
        )
        step = self._core.GaugeMetricFamily(
            "tf_ext_table_step",
            "The optimizer's step of the latest push.",
            labels=["table"],
        )
        for name, table in counts.tables.items():
            for op, done in (("pull", table.pull), ("push", table.push)):
                self._add_op(seconds, [name, op], done, counts.bounds)
                ids.add_metric([name, op], done.signs)
            if table.step >= 0:
                step.add_metric([name], table.step)
        hashing = self._core.HistogramMetricFamily(
            "tf_ext_hash_seconds",
            "How long the hashing of batches took in this process.",
            labels=[],
        )
        self._add_op(hashing, [], counts.hashing, counts.bounds)
        hashed = self._core.CounterMetricFamily(
            "tf_ext_hash_ids", "Values of features that were hashed to ids."
        )
        hashed.add_metric([], counts.hashing.signs)
        yield from (seconds, ids, step, hashing, hashed)

    def _add_op(
        self,
        family: typing.Any,
        labels: list[str],
        counts: op_counts.OpCounts,
        bounds: list[float],
    ) -> None:
        buckets, total = [], 0
        for bound, calls in zip(
            [*map(str, bounds), "+Inf"], counts.calls, strict=True
        ):
            total += calls
            buckets.append((bound, total))
        family.add_metric(labels, buckets=buckets, sum_value=counts.seconds)

    def _of_rows(
        self, stats: dict[str, dict[str, int]]
    ) -> Iterator[typing.Any]:
        size = self._core.GaugeMetricFamily(
            "tf_ext_table_bytes",
            "Memory of the shard, by what it is for.",
            labels=["table", "part"],
        )
        for table, values in stats.items():
            for part, member in _BYTES.items():
                size.add_metric([table, part], values[member])
        yield size
        for make, members in (
            (self._core.GaugeMetricFamily, _GAUGES),
            (self._core.CounterMetricFamily, _TOTALS),
        ):
            yield from self._by_table(make, members, stats)

    def _by_table(
        self,
        make: Callable[..., typing.Any],
        members: dict[str, tuple[str, str]],
        stats: dict[str, dict[str, int]],
    ) -> Iterator[typing.Any]:
        for member, (name, text) in members.items():
            family = make(f"tf_ext_table_{name}", text, labels=["table"])
            for table, values in stats.items():
                family.add_metric([table], values[member])
            yield family

    def _of_training(
        self, counts: training_counts.TrainingCounts
    ) -> Iterator[typing.Any]:
        if counts.steps or counts.in_flight is not None:
            yield self._core.CounterMetricFamily(
                "tf_ext_steps", "Training steps that have ended.", counts.steps
            )
        if counts.streamed:
            yield self._core.CounterMetricFamily(
                "tf_ext_stream_records",
                "Records of streams that were trained on.",
                counts.streamed,
            )
        if counts.event_time is not None:
            yield self._core.GaugeMetricFamily(
                "tf_ext_stream_event_time_seconds",
                "When the newest record that was trained on was sent.",
                counts.event_time,
            )
        if counts.points is not None:
            yield from self._of_points(counts.points)
        yield from self._of_publishers(counts.publishers)
        if counts.in_flight is not None:
            yield self._core.GaugeMetricFamily(
                "tf_ext_steps_in_flight",
                "Steps that are scheduled on workers and have not ended.",
                counts.in_flight,
            )
            yield self._core.SummaryMetricFamily(
                "tf_ext_staleness_steps",
                "Steps of others between the reads and the update of a step.",
                counts.stale_updates,
                counts.staleness,
            )
            answers = self._core.GaugeMetricFamily(
                "tf_ext_task_answer_seconds",
                "How long a task takes to answer, a median of half a minute.",
                labels=["task"],
            )
            for task, seconds in counts.answer_seconds.items():
                answers.add_metric([task], seconds)
            yield answers

    def _of_points(
        self, points: training_counts.Points
    ) -> Iterator[typing.Any]:
        yield self._core.SummaryMetricFamily(
            "tf_ext_point_seconds",
            "How long recovery points took that this process has written.",
            points.written,
            points.seconds,
        )
        yield self._core.SummaryMetricFamily(
            "tf_ext_point_pause_seconds",
            "How long training waited for these points.",
            points.pauses,
            points.pause_seconds,
        )
        yield self._core.GaugeMetricFamily(
            "tf_ext_point_step",
            "The training step of the last recovery point.",
            points.step,
        )
        yield self._core.GaugeMetricFamily(
            "tf_ext_point_time_seconds",
            "When the last recovery point was complete.",
            points.time,
        )

    def _of_publishers(
        self, publishers: Sequence[training_counts.Publishes]
    ) -> Iterator[typing.Any]:
        # A process has one; of several, what is farthest behind.
        if not publishers:
            return
        gauges = {
            "lag_seconds": (
                "How long there has been a point that is not published.",
                max(one.lag_seconds for one in publishers),
            ),
            "version": (
                "The version that was published last.",
                min(one.version for one in publishers),
            ),
            "step": (
                "The training step of that version.",
                min(one.step for one in publishers),
            ),
        }
        times = [one.point_time for one in publishers if one.point_time]
        if times:
            text = "When the point of that version was written."
            gauges["point_time_seconds"] = (text, min(times))
        for name, (text, value) in gauges.items():
            yield self._core.GaugeMetricFamily(
                f"tf_ext_published_{name}", text, value
            )
        yield self._core.CounterMetricFamily(
            "tf_ext_published_rows",
            "Rows that were published, changed or erased.",
            sum(one.published_rows for one in publishers),
        )
        yield self._core.CounterMetricFamily(
            "tf_ext_publish_failures",
            "Attempts to publish a point that have failed.",
            sum(one.failures for one in publishers),
        )
