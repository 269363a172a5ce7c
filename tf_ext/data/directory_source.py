# SPDX-License-Identifier: Apache-2.0
"""A directory of files that grows, as a source of streams."""

import fnmatch
import logging
import math
import os
import posixpath
import time
import typing
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf_ext._checks import is_int, refuse
from tf_ext.data.errors import LostRecordsError, SourceError
from tf_ext.data.lines import read_lines
from tf_ext.data.message_runs import Messages, Run
from tf_ext.data.record_files import masked_crc, read_records
from tf_ext.data.source import Consumer, Message, Position, Source, Start

_LOG = logging.getLogger("tf_ext")
_OWNER = "DirectorySource"
# How often a directory is listed while nothing comes.
_LIST_SECONDS = 1.0
# The partition of files that are in no folder of their own.
_ROOT = "."


class DirectorySource(Source):
    r"""Files that appear in a directory, as a source of `tf_ext.data.stream`.

    Files are read in the order of their names, each once: whoever writes gives
    a file a name behind those of earlier ones, as one that begins with a time,
    and renames it into the directory when it is whole. A file whose name comes
    before one that has been read is too late: it is logged, and not read. What
    is appended to a file that has been read is not seen either. Files may be
    removed once they are trained on. Names that begin with "_" or "." are
    passed over.

    Each folder in the directory is a partition of its own, in which names rise
    independently of others: one for each program that writes. Positions are
    `[name, records]`, the file and how many of its records have been read; None
    for all of them. The time of a record is that of its file.

    Args:
      directory: string or path-like, on any file system of TensorFlow.
      pattern: string, the names of files, with `*`, `?` and `[]`.
      records: "lines", each line is a message; or "tfrecord", each record of a
        TFRecord file. Both may be compressed by gzip.

    Example:
      >>> import pathlib, tempfile
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> _ = (folder / "2026-11-27T10:00.csv").write_text("ann,1\nbob,0\n")
      >>> source = tf_ext.data.DirectorySource(folder, "*.csv")
      >>> source.partitions()
      ['.']
      >>> source.position(".", "latest")
      ['2026-11-27T10:00.csv', None]
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        pattern: str = "*",
        records: str = "lines",
    ) -> None:
        if not isinstance(pattern, str) or not pattern or "/" in pattern:
            allowed = "a pattern of names, without a slash"
            refuse(_OWNER, "pattern", allowed, pattern)
        if records not in ("lines", "tfrecord"):
            refuse(_OWNER, "records", '"lines" or "tfrecord"', records)
        self._directory = os.fspath(directory)
        self._pattern = pattern
        self._read = _lines if records == "lines" else _records

    def partitions(self) -> list[str]:
        """The folders that files are in."""
        names = _listed(self._directory)
        folders = [
            name
            for name in names
            if tf.io.gfile.isdir(posixpath.join(self._directory, name))
        ]
        # Without folders it may be that no file has come yet.
        if len(folders) < len(names) or not folders:
            folders.append(_ROOT)
        return sorted(folders)

    def position(self, partition: str, start: Start) -> Position:
        """Before the first file, or behind the last one."""
        names = [] if start == "earliest" else self.files(partition)
        return [names[-1], None] if names else ["", None]

    def open(self, positions: Mapping[str, Position], follow: bool) -> Consumer:
        """Begins to read."""
        for name, position in positions.items():
            if not _is_position(position):
                raise SourceError(
                    f"The position of {name!r} in {self._directory} must be "
                    "[name of a file, number of records or None], but is "
                    f"{position!r}."
                )
        return _DirectoryConsumer(self, positions, follow)

    def files(self, partition: str) -> list[str]:
        """The names of a partition's files, sorted."""
        folder = self._folder(partition)
        return sorted(
            name
            for name in _listed(folder)
            if fnmatch.fnmatchcase(name, self._pattern)
            and not tf.io.gfile.isdir(posixpath.join(folder, name))
        )

    def runs(self, partition: str, name: str) -> Iterator[Run]:
        """What a file has."""
        path = posixpath.join(self._folder(partition), name)
        try:
            seconds = _modified(path)
            first = 1
            for values in self._read(path):
                numbers = range(first, first + len(values))
                first = numbers.stop
                yield Run(
                    partition,
                    _Places(name, numbers),
                    values,
                    times=np.full(len(values), seconds),
                )
        except (FileNotFoundError, tf.errors.NotFoundError) as error:
            raise LostRecordsError(
                f"{path} was removed before it was read to its end. Remove "
                "files only when they have been trained on."
            ) from error
        yield Run(partition, [[name, None]], [None])

    def _folder(self, partition: str) -> str:
        # Object stores have no folder ".".
        if partition == _ROOT:
            return self._directory
        return posixpath.join(self._directory, partition)


class _Places(Sequence[Position]):
    """Positions behind records of a file."""

    def __init__(self, name: str, numbers: range) -> None:
        self._name = name
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: typing.Any) -> typing.Any:
        found = self._numbers[index]
        if isinstance(found, range):
            return _Places(self._name, found)
        return [self._name, found]


class _DirectoryConsumer(Consumer):
    def __init__(
        self,
        source: DirectorySource,
        positions: Mapping[str, Position],
        follow: bool,
    ) -> None:
        self._partitions = [
            _Partition(source, name, *position)
            for name, position in positions.items()
        ]
        self._follow = follow
        self._listed = 0.0
        self._listed_until = -math.inf
        self._next = 0

    def read_until(self) -> Mapping[str, float]:
        """Called by JoinSource."""
        if not self._listed:
            return {}
        until = self._listed_until if self._follow else math.inf
        return {
            partition.name: until
            for partition in self._partitions
            if partition.is_read
        }

    def poll(self, most: int, seconds: float) -> Sequence[Message] | None:
        """Called by streams."""
        found = self._waiting(most)
        if found:
            return found
        if not self._listed or self._follow:
            if time.monotonic() - self._listed < _LIST_SECONDS:
                time.sleep(seconds)
                return []
            self._listed_until = time.time()
            for partition in self._partitions:
                partition.look()
            self._listed = time.monotonic()
            return self._waiting(most)
        return None

    def _waiting(self, most: int) -> Messages:
        """Messages of one partition; others have their turn next."""
        count = len(self._partitions)
        for index in range(self._next, self._next + count):
            runs = self._partitions[index % count].take(most)
            if runs:
                self._next = (index + 1) % count
                return Messages(runs)
        return Messages([])

    def close(self) -> None:
        """Called by streams."""
        for partition in self._partitions:
            partition.close()


class _Partition:
    """A partition that is read: behind `skipped` records of the file `last`."""

    def __init__(
        self,
        source: DirectorySource,
        name: str,
        last: str,
        skipped: int | None,
    ) -> None:
        self._source = source
        self.name = name
        self._last = last
        self._skipped = skipped
        self._waiting: list[str] = []
        self._known: set[str] | None = None
        self._runs: Iterator[Run] | None = None
        # Of these the first is returned next.
        self._left: Run | None = None

    @property
    def is_read(self) -> bool:
        """Whether nothing is left of the files that were found."""
        return self._runs is None and not self._waiting

    def look(self) -> None:
        """Finds new files, once nothing is left of those that were found."""
        names = self._source.files(self.name)
        if self._known is None:
            if self._skipped is not None and self._last not in names:
                raise LostRecordsError(
                    f"The file {self._last!r} of the partition {self.name!r} "
                    f"is gone, of which {self._skipped} records had been "
                    "trained on. Put it back, or begin with a new directory "
                    "of recovery points."
                )
            self._known = {name for name in names if name <= self._last}
            if self._skipped is not None:
                self._waiting = [self._last]
        new = [name for name in names if name not in self._known]
        self._known = {*names}
        # Also one that was removed, or not listed for a moment.
        late = [name for name in new if name <= self._last]
        if late:
            _LOG.warning(
                "Files of %r came too late to be read, as %r had come before: "
                "%s. Their names must be behind those of earlier files.",
                self.name,
                self._last,
                late[:10],
            )
        self._waiting += new[len(late) :]

    def take(self, most: int) -> list[Run]:
        """Some of the next messages, of one file."""
        found: list[Run] = []
        while most > 0:
            if self._left is None and self._runs is not None:
                self._left = next(self._runs, None)
                if self._left is None:
                    self._runs = None
            if self._left is not None:
                found.append(self._first(self._left, most))
                most -= len(found[-1].values)
            elif found or not self._waiting:
                break
            else:
                self._begin(self._waiting.pop(0))
        return found

    def _first(self, run: Run, most: int) -> Run:
        count = len(run.values)
        self._left = run.rows(most, count) if count > most else None
        return run.rows(0, min(most, count))

    def _begin(self, name: str) -> None:
        runs = self._source.runs(self.name, name)
        left = self._skipped or 0
        while name == self._last and left:
            run = next(runs)
            if None in run.values:
                raise LostRecordsError(
                    f"The file {name!r} of the partition {self.name!r} "
                    f"has fewer than the {self._skipped} records that had "
                    "been trained on. It must not change."
                )
            left -= len(self._first(run, left).values)
        self._last = name
        self._runs = runs

    def close(self) -> None:
        runs: typing.Any = self._runs
        if runs is not None:
            runs.close()


def _is_position(position: object) -> bool:
    return (
        isinstance(position, list)
        and len(position) == 2
        and isinstance(position[0], str)
        and (
            position[1] is None
            or (is_int(position[1]) and position[1] > 0 and position[0] != "")
        )
    )


def _listed(folder: str) -> list[str]:
    try:
        names = tf.io.gfile.listdir(folder)
    except tf.errors.NotFoundError:
        return []
    except tf.errors.OpError as error:
        raise SourceError(
            f"{folder} cannot be listed: {error.message}"
        ) from error
    kept = [name.rstrip("/") for name in names]
    return [name for name in kept if not name.startswith(("_", "."))]


def _modified(path: str) -> float:
    """When a file was changed last, in seconds since 1970."""
    if "://" not in path:
        # TensorFlow has it in whole seconds.
        return os.stat(path).st_mtime
    return float(tf.io.gfile.stat(path).mtime_nsec) / 1e9


def _lines(path: str) -> Iterator[list[bytes]]:
    for block in read_lines(path):
        data = block.data
        if b"\r" in data:
            data = block.without_returns()
        yield data.split(b"\n")[:-1]


def _records(path: str) -> Iterator[list[bytes]]:
    for data, begins, ends, _ in read_records(path):
        values = []
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            value = data[begin:end]
            crc = int.from_bytes(data[end : end + 4], "little")
            # What the checksum does not fit is malformed: an empty message.
            values.append(value if crc == masked_crc(value) else b"")
        yield values
