# SPDX-License-Identifier: Apache-2.0
"""Names in the directories of recovery points, which hold snapshots.

DIRECTORY/point-0000001200/point.json
DIRECTORY/point-0000001200/table-000/   # a snapshot
DIRECTORY/point-0000001200-end/         # after the end of the epoch
"""

import re
from collections.abc import Sequence

from tf_ext.snapshot.storage import join, storage_of

POINT_FILE = "point.json"
_END = "-end"
_POINT = re.compile(rf"point-([0-9]{{10,}})(?:{_END})?")
_TABLE = re.compile(r"table-([0-9]{3,})")
# How many paths of tables an error names.
_NAMED = 3


def point_directory(step: int) -> str:
    """The name of the directory of a step's point."""
    return f"point-{step:010d}"


def end_directory(point: str) -> str:
    """What takes the place of a point after the end of its step's epoch.

    Args:
      point: string, path or name of the directory of a step's point.
    """
    return point + _END


def table_directory(index: int) -> str:
    """The name of the directory of a table's snapshot, in that of a point."""
    return f"table-{index:03d}"


def point_directories(names: Sequence[str]) -> list[str]:
    """Those of the names that are of points, the oldest first."""
    return _in_order(_POINT, names)


def where_snapshots_are(path: str) -> str:
    """What a directory without a snapshot is instead, as sentences or "".

    Args:
      path: string.
    """
    points = point_directories(_names(path))
    whole = [p for p in points if POINT_FILE in _names(join(path, p))]
    point = join(path, whole[-1]) if whole else path
    names = _names(point)
    if POINT_FILE not in names:
        return ""
    found = "It is a recovery point"
    if whole:
        found = (
            f"It holds recovery points, the newest complete one in {point!r}"
        )
    tables = [join(point, name) for name in _in_order(_TABLE, names)]
    named = ", ".join(map(repr, tables[:_NAMED]))
    more = ", ..." * (len(tables) > _NAMED)
    return f" {found}. Give the path of the snapshot of a table: {named}{more}."


def _names(path: str) -> list[str]:
    try:
        names = storage_of(path).names(path)
    except OSError:
        return []
    # Some file systems mark directories.
    return [name.rstrip("/") for name in names]


def _in_order(pattern: re.Pattern[str], names: Sequence[str]) -> list[str]:
    found = [found for found in map(pattern.fullmatch, names) if found]
    found.sort(key=lambda one: (len(one[1]), one[0]))
    return [one[0] for one in found]
