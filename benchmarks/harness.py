"""Measures cases in turns: medians of wall and CPU time."""

import functools
import json
import os
import pathlib
import platform
import statistics
import sys
import time

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
