# SPDX-License-Identifier: Apache-2.0
"""Messages in columns, which take less time than an object for each."""

import itertools
import math
import operator
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tf_ext.data.source import Message, Position

_PARTITION = operator.attrgetter("partition")


class Run(typing.NamedTuple):
    """Messages of one partition, in their order.

    The columns are of one length, and support slices. `keys`, `headers` and
    `times` are None where no message has any; a time is NaN where it is not
    known.
    """

    partition: str
    positions: Sequence[Position]
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Mapping[str, bytes]] | None = None
    times: npt.NDArray[np.float64] | None = None

    @property
    def records(self) -> int:
        """The number of messages that have a value."""
        return len(self.values) - self.values.count(None)

    def rows(self, begin: int, end: int) -> "Run":
        """The messages between two indices."""
        if begin == 0 and end == len(self.values):
            return self
        columns: list[typing.Any] = [
            None if column is None else column[begin:end] for column in self[1:]
        ]
        return Run(self.partition, *columns)

    def with_values(self) -> "Run":
        """The messages that have a value."""
        kept = [i for i, value in enumerate(self.values) if value is not None]
        columns: list[typing.Any] = [
            None if column is None else [column[i] for i in kept]
            for column in (self.positions, self.values, self.keys, self.headers)
        ]
        columns.append(None if self.times is None else self.times[kept])
        return Run(self.partition, *columns)

    def messages(self) -> Iterator[Message]:
        """Yields each as an object."""
        for index, value in enumerate(self.values):
            key = None if self.keys is None else self.keys[index]
            time = math.nan if self.times is None else float(self.times[index])
            message = Message(
                self.partition,
                self.positions[index],
                value,
                key,
                time=None if math.isnan(time) else time,
            )
            if self.headers is not None:
                message = message._replace(headers=self.headers[index])
            yield message


class Messages(Sequence[Message]):
    """Messages as runs.

    Args:
      runs: Runs; empty ones are left out.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        self.runs = [run for run in runs if len(run.values)]
        self._ends = list(
            itertools.accumulate(len(run.values) for run in self.runs)
        )

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "Messages":
        """The messages that a consumer returned."""
        if isinstance(messages, cls):
            return messages
        groups = itertools.groupby(messages, _PARTITION)
        return cls(_run(name, list(group)) for name, group in groups)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Message]:
        return itertools.chain.from_iterable(
            run.messages() for run in self.runs
        )

    @typing.overload
    def __getitem__(self, index: int) -> Message: ...
    @typing.overload
    def __getitem__(self, index: slice) -> "Messages": ...
    def __getitem__(self, index: int | slice) -> "Message | Messages":
        if isinstance(index, slice):
            begin, end, step = index.indices(len(self))
            if step != 1:
                return Messages.of([self[i] for i in range(begin, end, step)])
            return Messages(self._between(begin, end))
        at = range(len(self))[index]
        return next(iter(self[at : at + 1]))

    def _between(self, begin: int, end: int) -> Iterator[Run]:
        for run, last in zip(self.runs, self._ends, strict=True):
            first = last - len(run.values)
            if first < end and last > begin:
                yield run.rows(max(begin - first, 0), min(end, last) - first)

    @property
    def records(self) -> int:
        """The number of messages that have a value."""
        return sum(run.records for run in self.runs)

    @property
    def positions(self) -> dict[str, Position]:
        """Where partitions are read next, behind these messages."""
        return {run.partition: run.positions[-1] for run in self.runs}

    def with_values(self) -> "Messages":
        """The messages that have a value."""
        return Messages(
            run if run.records == len(run.values) else run.with_values()
            for run in self.runs
        )

    @property
    def values(self) -> list[bytes | None]:
        """The values of all."""
        return list(
            itertools.chain.from_iterable(run.values for run in self.runs)
        )

    @property
    def keys(self) -> list[bytes | None]:
        """The keys of all."""
        found: list[bytes | None] = []
        for run in self.runs:
            found += [None] * len(run.values) if run.keys is None else run.keys
        return found

    def header(self, name: str) -> list[bytes | None]:
        """A header of all; None where there is no such one."""
        found: list[bytes | None] = []
        for run in self.runs:
            if run.headers is None:
                found += [None] * len(run.values)
            else:
                found += [headers.get(name) for headers in run.headers]
        return found

    @property
    def times(self) -> npt.NDArray[np.float64]:
        """The times of all; NaN where it is not known."""
        columns = [
            np.full(len(run.values), np.nan) if run.times is None else run.times
            for run in self.runs
        ]
        return np.concatenate([np.empty(0), *columns])


def _run(partition: str, messages: Sequence[Message]) -> Run:
    return Run(
        partition,
        [one.position for one in messages],
        [one.value for one in messages],
        [one.key for one in messages],
        [one.headers for one in messages],
        np.array([one.time for one in messages], np.float64),
    )
