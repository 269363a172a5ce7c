"""Measures cases side by side: alternating, medians, wall and CPU time."""

import json
import pathlib
import platform
import statistics
import sys
import time

import numpy as np


class Case:
    """Something to measure.

    Args:
      name: string.
      run: function without arguments; one repetition. What it computes must be
        done when it returns.
      items: how many keys (rows, samples) a repetition works on.
    """

    def __init__(self, name, run, items):
        self.name = name
        self.run = run
        self.items = items


def measure(cases, repeats, warmup=3):
    """Runs cases in turn, so that noise of the machine hits all alike.

    Args:
      cases: list of Case; the first is the subject, the others its references.
      repeats: int, repetitions of each.
      warmup: int, repetitions before, not counted.

    Returns:
      List of dicts, one a case: medians and spread (half the distance between
      the quartiles) of wall and CPU milliseconds, items per CPU second, and
      `ratio`, the reference's CPU time over the subject's (above 1: the
      subject is faster).
    """
    for case in cases:
        for _ in range(warmup):
            case.run()
    wall = {case.name: [] for case in cases}
    cpu = {case.name: [] for case in cases}
    for _ in range(repeats):
        for case in cases:
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            case.run()
            cpu[case.name].append(1e3 * (time.process_time() - cpu_start))
            wall[case.name].append(1e3 * (time.perf_counter() - wall_start))
    results = []
    for case in cases:
        cpu_ms = statistics.median(cpu[case.name])
        results.append(
            {
                "case": case.name,
                "items": case.items,
                "repeats": repeats,
                "wall_ms": statistics.median(wall[case.name]),
                "wall_spread_ms": _spread(wall[case.name]),
                "cpu_ms": cpu_ms,
                "cpu_spread_ms": _spread(cpu[case.name]),
                "items_per_cpu_s": 1e3 * case.items / cpu_ms,
            }
        )
    for result in results:
        result["ratio"] = result["cpu_ms"] / results[0]["cpu_ms"]
    return results


def _spread(values):
    low, high = np.percentile(values, [25, 75])
    return float(high - low) / 2


def report(benchmark, results, settings, json_path=None):
    """Prints a table and appends JSON lines.

    Args:
      benchmark: string, what was measured.
      results: what `measure` returned.
      settings: dict, the sizes it was measured with.
      json_path: file that lines are appended to, or None.
    """
    said = ", ".join(f"{k}={v}" for k, v in settings.items())
    print(f"\n{benchmark}: {said}")
    print(
        f"  {'case':34} {'CPU ms':>16} {'wall ms':>16} "
        f"{'M items/CPU s':>14} {'CPU ratio':>10}"
    )
    for r in results:
        cpu = f"{r['cpu_ms']:.2f} ±{r['cpu_spread_ms']:.2f}"
        wall = f"{r['wall_ms']:.2f} ±{r['wall_spread_ms']:.2f}"
        print(
            f"  {r['case']:34} {cpu:>16} {wall:>16} "
            f"{r['items_per_cpu_s'] / 1e6:14.2f} {r['ratio']:10.2f}"
        )
    sys.stdout.flush()
    write_json(
        [{"benchmark": benchmark, **settings, **r} for r in results], json_path
    )


def write_json(lines, json_path):
    """Appends dicts to a file of JSON lines, with the machine they are of."""
    if json_path is None:
        return
    with pathlib.Path(json_path).open("a") as file:
        for line in lines:
            file.write(json.dumps({**line, "machine": machine()}) + "\n")


def machine():
    """The processor's name, for the record."""
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def resident_bytes(field="VmRSS"):
    """Memory of this process: VmRSS now, VmHWM at its highest."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {field}")


def zipf(rng, exponent, universe, size):
    """Ids 0 .. universe - 1 with probability about (id + 1) ** -exponent.

    Args:
      rng: numpy.random.Generator.
      exponent: float, above 1.
      universe: int, number of ids.
      size: int or tuple.

    Returns:
      int64 array.
    """
    power = 1 - exponent
    uniform = rng.random(size)
    # The inverse of the continuous distribution on [1, universe + 1).
    ids = ((universe + 1) ** power - 1) * uniform + 1
    return np.minimum(ids ** (1 / power), universe).astype(np.int64) - 1
