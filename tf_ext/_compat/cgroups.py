# SPDX-License-Identifier: Apache-2.0
"""The limits that Linux sets on the processors of a container."""

import contextlib
import pathlib

_CGROUPS = pathlib.Path("/sys/fs/cgroup")
_GROUPS_OF_PROCESS = pathlib.Path("/proc/self/cgroup")


def cpu_quota() -> float | None:
    """The processors that control groups allow, the least of all levels.

    Python knows those of the machine alone. None without a limit, or without
    control groups. Seen in: Python 3.13.
    """
    found = [
        quota / period
        for quota, period in _quotas()
        if quota > 0 and period > 0
    ]
    return min(found, default=None)


def _quotas() -> list[tuple[int, int]]:
    """(microseconds, of a period) of this process's groups and their parents.

    A container that has a view of its own finds its group at the root.
    """
    unified, cpu = "", ""
    with contextlib.suppress(OSError):
        for line in _GROUPS_OF_PROCESS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                unified = path
            elif "cpu" in controllers.split(","):
                cpu = path
    found = []
    for folder in _upwards(_CGROUPS, unified):
        # Of version 2: "max 100000" or "150000 100000".
        found.append(_numbers(folder / "cpu.max"))
    for folder in _upwards(_CGROUPS / "cpu", cpu):
        quota = _numbers(folder / "cpu.cfs_quota_us")
        found.append(quota + _numbers(folder / "cpu.cfs_period_us"))
    return [(one[0], one[1]) for one in found if len(one) == 2]


def _upwards(root: pathlib.Path, path: str) -> list[pathlib.Path]:
    """A folder of control groups, and all above it up to the root."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [root.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)]


def _numbers(path: pathlib.Path) -> list[int]:
    """The integers in a file; none if it has others, or cannot be read."""
    try:
        return [int(word) for word in path.read_text().split()]
    except (OSError, ValueError):
        return []
