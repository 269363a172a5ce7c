# SPDX-License-Identifier: Apache-2.0
"""Measures cases in turns, in this process and in others.

Modules of another Python import it, so it needs no tf_ext.
"""

import contextlib
import functools
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

import numpy as np


class Case:
    """A case to measure.

    Args:
      name: string.
      run: function without arguments; one repetition, which must be complete
        when it returns.
      items: the number of keys (rows, samples) of a repetition.
      every: int, measured only in every n-th round, for slow references.
      before: function without arguments, which runs unmeasured before each
        repetition; or None.
      pids: list of int, the processes whose CPU time counts. None: this one.
    """

    def __init__(self, name, run, items, every=1, before=None, pids=None):
        self.name = name
        self.run = run
        self.items = items
        self.every = every
        self._before = before
        self._pids = pids

    def time(self):
        """Runs once; returns wall and CPU milliseconds of the processes."""
        if self._before is not None:
            self._before()
        wall_start, cpu_start = time.perf_counter(), cpu_seconds(self._pids)
        self.run()
        cpu = cpu_seconds(self._pids) - cpu_start
        return 1e3 * (time.perf_counter() - wall_start), 1e3 * cpu

    def values(self, repeats, settle):
        """Times of repetitions: `{measure: [values]}`.

        Args:
          repeats: int.
          settle: bool, whether it runs once before, unmeasured.
        """
        if settle:
            self.run()
        wall, cpu = zip(*(self.time() for _ in range(repeats)))
        return {"CPU ms": cpu, "wall ms": wall}


def measure(cases, repeats, warmup=3, settle=True):
    """Runs cases in turn, so that noise of the machine affects all alike.

    Args:
      cases: list of Case; the first is the subject, the others its references.
      repeats: int, repetitions of each.
      warmup: int, unmeasured repetitions before.
      settle: bool, whether a case runs once, unmeasured, right before each
        repetition, so that the processor's caches are as in a loop of its own
        and not as other cases left them.

    Returns:
      List of dicts, one per case: medians and spread (half the distance between
      the quartiles) of wall and CPU milliseconds, items per second of both, and
      `cpu_ratio` and `wall_ratio`, the case's time over the subject's (above
      1: the subject is faster).
    """
    for case in cases:
        for _ in range(warmup if case.every == 1 else min(warmup, 1)):
            case.run()
    times = [[] for _ in cases]
    for i in range(repeats):
        for case, measured in zip(cases, times, strict=True):
            if i % case.every == 0:
                if settle:
                    case.run()
                measured.append(case.time())
    results = [
        summarize(case, np.array(measured))
        for case, measured in zip(cases, times, strict=True)
    ]
    add_ratios(results)
    return results


def add_ratios(results):
    """Adds `cpu_ratio` and `wall_ratio` to results, relative to the first."""
    for result in results:
        for clock in ("cpu", "wall"):
            subject = results[0][f"{clock}_ms"]
            result[f"{clock}_ratio"] = result[f"{clock}_ms"] / subject


def forget(paths):
    """Drops files from the page cache."""
    for path in paths:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cpu_seconds(pids=None):
    """CPU time so far of processes, by default of this one."""
    if pids is None:
        return time.process_time()
    # The number of the clock of a process: clock_getcpuclockid(3).
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def summarize(case, times):
    """The result of `measure` for one case, without ratios.

    Args:
      case: Case.
      times: array `[repeats, 2]`, wall and CPU milliseconds.
    """
    summary = {"case": case.name, "items": case.items, "repeats": len(times)}
    for clock, values in zip(("wall", "cpu"), times.T, strict=True):
        median = statistics.median(values.tolist())
        low, high = np.percentile(values, [25, 75])
        summary[f"{clock}_ms"] = median
        summary[f"{clock}_spread_ms"] = float(high - low) / 2
        # The clock of CPU time may tick too slowly for tiny sizes.
        rate = 1e-3 * case.items / max(median, 1e-6)
        summary[f"million_items_per_{clock}_s"] = rate
    return summary


def report(benchmark, results, settings, json_path=None):
    """Prints a table and appends JSON lines.

    Args:
      benchmark: string, its name.
      results: the result of `measure`.
      settings: dict, the settings; `unit` is that of the items.
      json_path: file that lines are appended to, or None.
    """
    unit = settings["unit"]
    said = {k: v for k, v in settings.items() if k != "unit"}
    print(heading(benchmark, said))
    print(
        f"  {'case':32} {'CPU ms':>17} {'wall ms':>17} "
        f"{f'M {unit}/CPU s':>15} {f'M {unit}/s':>13} "
        f"{'CPU ratio':>10} {'wall ratio':>10} {'repeats':>8}"
    )
    for r in results:
        cpu = f"{r['cpu_ms']:.2f} ±{r['cpu_spread_ms']:.2f}"
        wall = f"{r['wall_ms']:.2f} ±{r['wall_spread_ms']:.2f}"
        print(
            f"  {r['case']:32} {cpu:>17} {wall:>17} "
            f"{r['million_items_per_cpu_s']:15.3g} "
            f"{r['million_items_per_wall_s']:13.3g} "
            f"{r['cpu_ratio']:10.2f} {r['wall_ratio']:10.2f} {r['repeats']:8}"
        )
    sys.stdout.flush()
    write_json(
        [{"benchmark": benchmark, **settings, **r} for r in results], json_path
    )


def report_slopes(benchmark, short, long, settings, json_path=None):
    """Prints what an item takes, without what each run takes to begin.

    Args:
      benchmark: string, its name.
      short: results of `measure` for cases with few items.
      long: those of cases of the same names with more items; ratios are to the
        first.
      settings: see `report`.
      json_path: see `report`.
    """
    lines, by_name = [], {few["case"]: few for few in short}
    for many in long:
        few = by_name[many["case"]]
        line = {"case": few["case"], "items": [few["items"], many["items"]]}
        for clock in ("cpu", "wall"):
            times = few[f"{clock}_ms"], many[f"{clock}_ms"]
            each = (times[1] - times[0]) / (many["items"] - few["items"])
            line[f"{clock}_us"] = 1e3 * each
            line[f"{clock}_start_ms"] = times[0] - each * few["items"]
        lines.append(line)
    unit = settings["unit"].removesuffix("s")
    print(f"  the slope of a{'n' * (unit[0] in 'aeiou')} {unit}")
    print(
        f"  {'case':32} {'CPU us':>9} {'wall us':>9} {'CPU ratio':>10} "
        f"{'wall ratio':>10} {'start, CPU ms':>14}"
    )
    for line in lines:
        for clock in ("cpu", "wall"):
            line[f"{clock}_ratio"] = (
                line[f"{clock}_us"] / lines[0][f"{clock}_us"]
            )
        print(
            f"  {line['case']:32} {line['cpu_us']:9.2f} {line['wall_us']:9.2f} "
            f"{line['cpu_ratio']:10.2f} {line['wall_ratio']:10.2f} "
            f"{line['cpu_start_ms']:14.0f}",
            flush=True,
        )
    write_json(
        [{"benchmark": f"{benchmark}_slope", **settings, **x} for x in lines],
        json_path,
    )


def heading(benchmark, settings):
    """The heading of a table of results: settings and machine."""
    said = ", ".join(f"{k}={v}" for k, v in settings.items())
    return f"\n{benchmark}: {said}, machine={machine()}"


def write_json(lines, json_path):
    """Appends dicts, and the machine they are from, to a JSON lines file."""
    if json_path is None:
        return
    with pathlib.Path(json_path).open("a") as file:
        for line in lines:
            file.write(json.dumps({**line, "machine": machine()}) + "\n")


def read_json(json_path):
    """The lines of the file, dicts; an error says how to make one."""
    path = pathlib.Path(json_path or "")
    if not path.is_file():
        raise SystemExit(
            f"There are no results in --json={json_path}: run other benchmarks "
            "with --json=FILE first."
        )
    return [json.loads(line) for line in path.read_text().splitlines()]


@functools.cache
def machine():
    """The processor's name, for the record.

    On virtual machines the name lacks the model ("AMD EPYC"), so family and
    model number are added.
    """
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    first, _, _ = text.partition("\n\n")
    pairs = (line.partition(":") for line in first.splitlines())
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    name = fields.get("model name") or platform.processor()
    numbers = [
        f"{key.removeprefix('cpu ')} {fields[key]}"
        for key in ("cpu family", "model")
        if key in fields
    ]
    details = f" ({' '.join(numbers)})" if numbers else ""
    return f"{name or platform.machine()}{details}"


def resident_bytes(field="VmRSS"):
    """Resident memory of this process: VmRSS is current, VmHWM the peak."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {field}")


def growth(insert, rows, batch):
    """Memory and time while something grows to `rows` rows.

    Args:
      insert: function of two ints, inserts rows for the keys from the first up
        to, but not including, the second.
      rows: int.
      batch: int, the number of rows inserted at a time.

    Returns:
      Dict of `bytes_a_row`, `peak_bytes_a_row` (of resident memory added) and
      `worst_batch_ms` (wall).
    """
    before = resident_bytes()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # Resets VmHWM.
    worst = 0.0
    for first in range(0, rows, batch):
        start = time.perf_counter()
        insert(first, min(first + batch, rows))
        worst = max(worst, time.perf_counter() - start)
    return {
        "bytes_a_row": (resident_bytes() - before) / rows,
        "peak_bytes_a_row": (resident_bytes("VmHWM") - before) / rows,
        "worst_batch_ms": 1e3 * worst,
    }


class StartError(Exception):
    """The process did not start, or not far enough to receive calls."""


@contextlib.contextmanager
def start(name, python, script, threads, environment=None):
    """Starts a process that `serve`s, and ends it when the context is left.

    Several processes can start at the same time: `Remote.ready` waits for one.

    Args:
      name: string, the name of the process in errors.
      python: string, the path of the Python.
      script: pathlib.Path; modules are imported from its folder.
      threads: int, the number of TensorFlow's threads.
      environment: dict, that of the process. None: that of this process without
        the import path of this Python.

    Yields:
      A Remote.

    Raises:
      StartError: if there is no such Python.
    """
    if environment is None:
        environment = dict(os.environ)
        for variable in ("PYTHONPATH", "PYTHONSAFEPATH"):
            environment.pop(variable, None)
    replies, their_end = os.pipe()
    with tempfile.TemporaryFile("w+") as log, os.fdopen(replies) as replies:
        try:
            process = subprocess.Popen(
                [python, str(script), str(their_end)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                env=environment,
                pass_fds=[their_end],
            )
        except OSError as error:
            raise StartError(str(error)) from None
        finally:
            os.close(their_end)
        try:
            remote = Remote(name, process, replies, log)
            remote.send("start", threads=threads)
            yield remote
        finally:
            process.kill()
            process.wait()


class Remote:
    """The process, once it runs."""

    def __init__(self, name, process, replies, log):
        self.name = name
        self._process = process
        self._replies = replies
        self._log = log

    def ready(self):
        """Waits until the process has started; must be called first.

        Raises:
          StartError: if the process fails to import a module.
        """
        try:
            self.result("start")
        except RuntimeError as error:
            raise StartError(str(error)) from None

    def call(self, method, **arguments):
        """Calls a method of the process; returns its result.

        Raises:
          RuntimeError: if it failed; the message has the process's traceback.
        """
        self.send(method, **arguments)
        return self.result(method)

    def send(self, method, **arguments):
        """Starts a call; `result` must be called next."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([method, arguments]) + "\n")
            self._process.stdin.flush()

    def result(self, method):
        """Waits for the result of the call that was started; see `call`."""
        line = self._replies.readline()
        if not line:
            status = self._process.wait()
            self._log.seek(0)
            raise RuntimeError(
                f"{self.name}'s process ended with status {status} at "
                f"{method}. It wrote last:\n{self._log.read()[-4000:]}"
            )
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(
                f"{self.name} failed at {method}:\n{reply['error']}"
            )
        return reply["result"]


class RemoteCase(Case):
    """A case that a process holds, and measures itself.

    Args:
      remote: Remote, of a `Worker`.
      name: string, its name there, too.
      items: int, as for Case.
    """

    def __init__(self, remote, name, items):
        super().__init__(name, lambda: remote.call("run", case=name), items)
        self._remote = remote

    def time(self):
        return tuple(self._remote.call("time", case=self.name))


def set_threads(threads):
    """Sets TensorFlow's threads, before its first op."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


class Worker:
    """What `serve` calls: holds cases between requests."""

    def __init__(self):
        self._cases = {}

    def start(self, threads):
        set_threads(threads)

    def time(self, case):
        """Wall and CPU milliseconds of one repetition."""
        return self._cases[case].time()

    def run(self, case):
        self._cases[case].run()


def serve(worker):
    """Runs methods of `worker` until standard input ends.

    A request is a line of JSON on standard input, `[method, arguments]`. The
    reply is a line for the file descriptor that the command line names:
    libraries print to standard output.
    """
    with os.fdopen(int(sys.argv[1]), "w") as replies:
        for line in sys.stdin:
            method, arguments = json.loads(line)
            try:
                reply = {"result": getattr(worker, method)(**arguments)}
            except Exception:
                reply = {"error": traceback.format_exc()}
            print(json.dumps(reply), file=replies, flush=True)
