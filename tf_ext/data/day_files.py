# SPDX-License-Identifier: Apache-2.0
"""The files of days."""

import datetime
import posixpath
import typing
from collections.abc import Iterable

import tensorflow as tf

from tf_ext._checks import is_int, refuse

_NAME = "list_files"
Day: typing.TypeAlias = str | int | datetime.date


def list_files(
    path: str,
    days: Day | Iterable[Day],
    pattern: str = "{day}/*",
) -> list[str]:
    """The files of one day or of several, for training day by day.

    Files whose names begin with "_" or ".", such as `_SUCCESS`, are left out,
    as other programs leave them beside data.

    Args:
      path: string or path-like, a directory of any file system of TensorFlow.
      days: a day or several: `datetime.date`, strings or integers, each at most
        once.
      pattern: string, which files below `path` are those of a day: a pattern of
        `tf.io.gfile.glob` with a replacement field `{day}`, which is filled in
        as by `str.format`. Dates take the codes of `strftime`, integers those
        of numbers: `"{day:%Y/%m/%d}/part-*"`, `"day_{day:02}.gz"`. Without a
        code, a date is written as 2024-01-31, and so is a `datetime.datetime`.

    Returns:
      List of strings: the paths of the files, sorted by name within a day; the
      days are in the order of `days`. It is the same in every process.

    Raises:
      ValueError: an argument is not as above.
      FileNotFoundError: days without files; the error names them all.

    Example:
      >>> import datetime, pathlib, tempfile
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> for name in ("2024-01-30/part-0", "2024-01-31/part-1",
      ...              "2024-01-31/part-0", "2024-01-31/_SUCCESS"):
      ...     (folder / name).parent.mkdir(exist_ok=True)
      ...     (folder / name).touch()
      >>> files = tf_ext.data.list_files(folder, datetime.date(2024, 1, 31))
      >>> [file.removeprefix(f"{folder}/") for file in files]
      ['2024-01-31/part-0', '2024-01-31/part-1']
      >>> tf_ext.data.list_files(folder, ["2024-01-31", "2024-02-01"])
      Traceback (most recent call last):
        ...
      FileNotFoundError: There are no files of 1 of 2 days: '2024-02-01' ...

    Use it as the source of a dataset:

      >>> dataset = tf.data.Dataset.from_tensor_slices(files).interleave(
      ...     tf.data.TextLineDataset, cycle_length=2)
    """
    root = tf.io.gfile.join(path)
    chosen = _days(days)
    files: list[str] = []
    missing: list[tuple[Day, str]] = []
    for day in chosen:
        place = posixpath.join(root, _filled(pattern, day))
        found = _matching(place)
        files += found
        if not found:
            missing.append((day, place))
    if missing:
        named = ", ".join(f"{_text(day)} ({place})" for day, place in missing)
        raise FileNotFoundError(
            f"There are no files of {len(missing)} of {len(chosen)} days: "
            f"{named}. The argument `days` of list_files must be written as "
            "in the file names, or be dates, which `pattern` formats as "
            "2024-01-31 or by a code such as {day:%Y%m%d}. Check `path`, "
            "too, or wait until the days are complete."
        )
    return files


def _days(days: Day | Iterable[Day]) -> list[Day]:
    given = [days] if isinstance(days, Day) else days
    allowed = "dates, strings or integers, at least one and each at most once"
    if not isinstance(given, Iterable):
        refuse(_NAME, "days", allowed, days)
    chosen = list(given)
    for day in chosen:
        if not (is_int(day) or isinstance(day, str | datetime.date)):
            refuse(_NAME, "days", allowed, days)
    if not chosen or len(set(chosen)) < len(chosen) or "" in chosen:
        refuse(_NAME, "days", allowed, days)
    return chosen


def _filled(pattern: str, day: Day) -> str:
    allowed = "a pattern with a replacement field {day} that fits the days"
    written = _Date(day) if isinstance(day, datetime.date) else day
    try:
        filled = pattern.format(day=written)
        is_constant = filled == pattern.format(day=_Nothing())
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"{allowed}, but for {_text(day)}: {error}"
        refuse(_NAME, "pattern", reason, pattern)
    if is_constant:
        refuse(_NAME, "pattern", allowed, pattern)
    return filled


class _Date:
    """A date, or a time, such as pandas has for days."""

    def __init__(self, day: datetime.date) -> None:
        self._day = day

    def __format__(self, code: str) -> str:
        return format(self._day, code or "%Y-%m-%d")


class _Nothing:
    """A day that is written as nothing, with any code."""

    def __format__(self, code: str) -> str:
        return ""


def _text(day: Day) -> str:
    return str(day) if isinstance(day, datetime.date) else repr(day)


def _matching(place: str) -> list[str]:
    try:
        found = tf.io.gfile.glob(place)
    except tf.errors.NotFoundError:
        return []  # Some file systems say so of a directory that is missing.
    return sorted(
        file
        for file in found
        if not posixpath.basename(file.rstrip("/")).startswith(("_", "."))
    )
