# SPDX-License-Identifier: Apache-2.0
"""Prints what the tasks of a cluster do: `python -m tf_ext.distribute.status`.

It reads the metrics of each task twice, and prints a row for each:

    python -m tf_ext.distribute.status --port=9090   # hosts are of TF_CONFIG
    python -m tf_ext.distribute.status a:9090 b:9090

Tasks serve metrics with `--metrics_port` of `python -m
tf_ext.distribute.server`, and with `tf_ext.utils.serve_metrics`. The status is
0 if all tasks are ready, 1 if one is not or does not answer, and 2 for other
errors.
"""

import argparse
import concurrent.futures
import dataclasses
import http.client
import sys
import time
import typing
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence

from tf_ext import _terminal
from tf_ext._checks import is_finite
from tf_ext.distribute.addresses import split_address, task_addresses
from tf_ext.distribute.cluster import (
    check_cluster_dict,
    parse_json,
    task_from_environment,
)
from tf_ext.distribute.slow_tasks import median_of_others

_PROGRAM = "python -m tf_ext.distribute.status"
_JOBS = ("chief", "ps", "worker")
_TIMEOUT_SECONDS = 5.0
_THREADS = 64
# More than any task has. A page is held in memory.
_MOST_BYTES = 64 << 20
# An owner of rows is slow if its calls take so many times as long as those of
# the others, and their number is not too small to tell.
_SLOW_TIMES = 3.0
_FEWEST_CALLS = 20
_NONE = "-"

# (name of a sample, its labels as sorted pairs) -> value.
_Samples: typing.TypeAlias = dict[
    tuple[str, tuple[tuple[str, str], ...]], float
]


@dataclasses.dataclass(frozen=True)
class _Page:
    """A task's metrics at a time.

    Attributes:
      time: float, of `time.monotonic()`.
      samples: _Samples.
      not_ready: string, why the task is not ready; "" if it is.
    """

    time: float
    samples: _Samples
    not_ready: str

    def total(self, name: str, **labels: str) -> float | None:
        """The sum of a metric over all other labels; None if there is none."""
        wanted = set(labels.items())
        values = [
            value
            for (found, pairs), value in self.samples.items()
            if found == name and wanted <= set(pairs)
        ]
        return sum(values) if values else None

    def label(self, name: str, label: str) -> str:
        """The label of a metric that has one sample; "" without."""
        for found, pairs in self.samples:
            if found == name:
                return dict(pairs).get(label, "")
        return ""

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """The values of a metric by a label."""
        return {
            dict(pairs)[label]: value
            for (found, pairs), value in self.samples.items()
            if found == name and label in dict(pairs)
        }


@dataclasses.dataclass(frozen=True)
class _Task:
    """A task that has answered twice."""

    address: str
    before: _Page
    after: _Page

    @property
    def name(self) -> str:
        return self.after.label("tf_ext_task_info", "task") or self.address

    def rate(self, name: str, **labels: str) -> float | None:
        """By how much a counter grows in a second."""
        grown = self.grown(name, **labels)
        seconds = self.after.time - self.before.time
        return None if grown is None else grown / seconds

    def grown(self, name: str, **labels: str) -> float | None:
        """By how much a counter has grown."""
        after = self.after.total(name, **labels)
        if after is None:
            return None
        # A task that has started again counts from 0.
        return max(0.0, after - (self.before.total(name, **labels) or 0.0))

    def milliseconds(self, op: str) -> float | None:
        """The mean duration of the calls of an op in between."""
        name = "tf_ext_table_op_seconds"
        calls = self.grown(f"{name}_count", op=op)
        seconds = self.grown(f"{name}_sum", op=op)
        return 1000 * seconds / calls if calls and seconds is not None else None


_Cell: typing.TypeAlias = Callable[[_Task], float | None]
# (heading, format, value) of columns; those that no task has are left out.
_COLUMNS: tuple[tuple[str, str, _Cell], ...] = (
    ("rows", "{:,.0f}", lambda t: t.after.total("tf_ext_table_rows")),
    ("step", "{:,.0f}", lambda t: _step(t)),
    ("steps/s", "{:,.1f}", lambda t: t.rate("tf_ext_steps_total")),
    (
        "records/s",
        "{:,.0f}",
        lambda t: t.rate("tf_ext_stream_records_total"),
    ),
    (
        "pulls/s",
        "{:,.1f}",
        lambda t: t.rate("tf_ext_table_op_seconds_count", op="pull"),
    ),
    ("pull ms", "{:,.2f}", lambda t: t.milliseconds("pull")),
    ("push ms", "{:,.2f}", lambda t: t.milliseconds("push")),
    (
        "ids/s",
        "{:,.0f}",
        lambda t: t.rate("tf_ext_table_op_ids_total", op="pull"),
    ),
    (
        "in flight",
        "{:,.0f}",
        lambda t: t.after.total("tf_ext_steps_in_flight"),
    ),
    ("staleness", "{:,.2f}", lambda t: _staleness(t)),
    ("cores", "{:.2f}", lambda t: t.rate("process_cpu_seconds_total")),
    (
        "GB",
        "{:,.2f}",
        lambda t: _gigabytes(t.after.total("process_resident_memory_bytes")),
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
      arguments: list of strings, the command line. None: this process's.

    Returns:
      int, the status to exit with.
    """
    parser = _terminal.new_parser(
        _PROGRAM,
        "Prints what the tasks of a cluster do, from their metrics.",
        "Without addresses, hosts are those of --cluster or TF_CONFIG, all "
        "with the same --port.",
    )
    parser.add_argument(
        "addresses", nargs="*", help="host:port of the metrics of each task"
    )
    parser.add_argument("--cluster", help='JSON: {"chief": [...], "ps": ...}')
    parser.add_argument(
        "--port", type=int, help="of the metrics, where no addresses are given"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=2.0,
        help="how long to observe: %(default)g by default",
    )
    parser.set_defaults(run=_run)
    return _terminal.run(parser, arguments, (), ())


def _run(options: argparse.Namespace) -> int:
    if not is_finite(options.seconds) or options.seconds <= 0:
        raise ValueError(
            "--seconds must be a positive number. Received: "
            f"--seconds={options.seconds}"
        )
    addresses = _addresses(options)
    _parser()
    before = _pages(addresses)
    time.sleep(options.seconds)
    after = _pages(addresses)
    tasks: list[_Task] = []
    silent: dict[str, str] = {}
    for address in addresses:
        first, second = before[address], after[address]
        if isinstance(second, str):
            silent[address] = second
        elif isinstance(first, str):
            silent[address] = first
        else:
            tasks.append(_Task(address, first, second))
    _print(tasks, silent)
    is_ready = not silent and not any(one.after.not_ready for one in tasks)
    return _terminal.OK if is_ready else _terminal.DAMAGED


def _addresses(options: argparse.Namespace) -> list[str]:
    """Where tasks serve metrics, each once, in the order of the table."""
    if options.addresses:
        for address in options.addresses:
            _check_address(address)
        return list(dict.fromkeys(options.addresses))
    if options.port is None or not 0 < options.port < 65536:
        raise ValueError(
            "--port must be the port of metrics, 1 to 65535, where no "
            f"addresses are given. Received: --port={options.port}"
        )
    if options.cluster is None:
        cluster = task_from_environment().cluster
    else:
        cluster = check_cluster_dict(
            parse_json(options.cluster, "--cluster"), "--cluster"
        )
    hosts = task_addresses(cluster, _JOBS).values()
    return list(
        dict.fromkeys(
            f"{address.rpartition(':')[0]}:{options.port}" for address in hosts
        )
    )


def _check_address(address: str) -> None:
    try:
        host, port = split_address(address)
    except ValueError:
        host, port = "", 0
    if not host or not 0 < port < 65536:
        raise ValueError(
            "Each address must be the host:port of a task's metrics. Received: "
            f"{address}"
        )


def _pages(addresses: Sequence[str]) -> dict[str, "_Page | str"]:
    """The page of each task, or why there is none, as a text."""
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(addresses, pool.map(_page, addresses), strict=True))


def _page(address: str) -> "_Page | str":
    try:
        status, text = _get(f"http://{address}/metrics")
        now = time.monotonic()
        if status != 200:
            return f"answers with the HTTP status {status}"
        samples = _parse(text)
        status, text = _get(f"http://{address}/ready")
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        return f"does not answer: {reason}"
    except ValueError as error:
        return f"does not serve metrics of tf_ext: {error}"
    return _Page(now, samples, "" if status == 200 else text.strip())


def _get(url: str) -> tuple[int, str]:
    """Reads a page that is not in the cache of a proxy: (status, text)."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT_SECONDS) as answer:
            return answer.status, _text(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _text(error)


def _text(answer: typing.Any) -> str:
    data = answer.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"a page of more than {_MOST_BYTES >> 20} MiB")
    return str(data, "utf-8")


def _parse(text: str) -> _Samples:
    """The samples of a page; ValueError if it is not one of tf_ext."""
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
        for family in _parser().text_string_to_metric_families(text)
        for sample in family.samples
    }
    if not any(name == "tf_ext_task_info" for name, _ in samples):
        raise ValueError("there is no tf_ext_task_info among its metrics")
    return samples


def _parser() -> typing.Any:
    try:
        import prometheus_client.parser
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Metrics are read by prometheus_client, which is not installed: "
            "pip install 'tf_ext[metrics]'",
            name="prometheus_client",
        ) from error
    return prometheus_client.parser


def _print(tasks: Sequence[_Task], silent: Mapping[str, str]) -> None:
    columns = [
        (heading, [_cell(text, value(task)) for task in tasks])
        for heading, text, value in _COLUMNS
    ]
    columns = [one for one in columns if set(one[1]) - {_NONE}]
    rows = [("task", "ready", *(heading for heading, _ in columns))]
    for place, task in enumerate(tasks):
        ready = "no" if task.after.not_ready else "yes"
        rows.append((task.name, ready, *(cells[place] for _, cells in columns)))
    for address in silent:
        rows.append((address, "no", *(_NONE for _ in columns)))
    _terminal.print_columns(rows, left=(0, 1))
    for line in _notes(tasks, silent):
        print(line)


def _cell(text: str, value: float | None) -> str:
    return _NONE if value is None else text.format(value)


def _notes(tasks: Sequence[_Task], silent: Mapping[str, str]) -> list[str]:
    """What the table does not say, a line each."""
    notes = [f"{address} {why}." for address, why in silent.items()]
    for task in tasks:
        if task.after.not_ready:
            notes.append(f"{task.name}: {task.after.not_ready}")
    for task in tasks:
        step = task.after.total("tf_ext_point_step")
        written = task.after.total("tf_ext_point_time_seconds")
        if step is not None and written is not None:
            ago = time.time() - written
            notes.append(
                f"{task.name}: the last recovery point is of step {step:,.0f}, "
                f"{ago:,.0f} s ago."
            )
    for op in ("pull", "push"):
        calls = "tf_ext_table_op_seconds_count"
        times = {
            task.name: milliseconds
            for task in tasks
            if (task.grown(calls, op=op) or 0) >= _FEWEST_CALLS
            and (milliseconds := task.milliseconds(op)) is not None
        }
        notes += _slow(times, f"a {op} takes")
    for task in tasks:
        answers = task.after.by_label("tf_ext_task_answer_seconds", "task")
        notes += _slow(
            {name: 1000 * seconds for name, seconds in answers.items()},
            f"an answer to {task.name} takes",
        )
    return notes


def _slow(milliseconds: Mapping[str, float], what: str) -> list[str]:
    """Notes on tasks that take much longer than the median of the others."""
    notes = []
    for name, value in milliseconds.items():
        usual = median_of_others(milliseconds, name)
        if usual is not None and value >= _SLOW_TIMES * usual and value > 0:
            notes.append(
                f"{name} is slow: {what} {value:,.2f} ms, that of the "
                f"others {usual:,.2f}."
            )
    return notes


def _step(task: _Task) -> float | None:
    steps = task.after.by_label("tf_ext_table_step", "table")
    return max(steps.values(), default=None)


def _staleness(task: _Task) -> float | None:
    updates = task.grown("tf_ext_staleness_steps_count")
    stale = task.grown("tf_ext_staleness_steps_sum")
    return stale / updates if updates and stale is not None else None


def _gigabytes(size: float | None) -> float | None:
    return None if size is None else size / 1e9


if __name__ == "__main__":
    sys.exit(main())
