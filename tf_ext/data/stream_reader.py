# SPDX-License-Identifier: Apache-2.0
"""Reads partitions of a source into windows of records."""

import collections
import contextlib
import logging
import math
import time
from collections.abc import Callable, Generator, Mapping

import numpy as np
import numpy.typing as npt

from tf_ext.data.counted_messages import CountedMessages
from tf_ext.data.errors import (
    FEWEST_RECORDS,
    Malformed,
    ReadErrors,
    TooManyErrorsError,
    described,
)
from tf_ext.data.message_runs import Messages
from tf_ext.data.messages import MessageParser, Records
from tf_ext.data.passes import Window
from tf_ext.data.progress import BatchNote
from tf_ext.data.source import Message, Position, Source
from tf_ext.data.source_waiting import when_available

_LOG = logging.getLogger("tf_ext")
# How long an iteration waits before it asks whether it is to end.
POLL_SECONDS = 0.1
# How often it looks for new partitions.
REFRESH_SECONDS = 10.0


class StreamReader:
    """Makes batches of what a source has, in one iteration at a time.

    Args:
      source: Source.
      parser: MessageParser.
      batch_size: int, the most records of a batch.
      max_delay: float, as of `stream`.
      event_time: string, as of `stream`; or None.
      follow: bool, as of `stream`.
      max_errors: float, as of `stream`.
      errors: ReadErrors.
      batches_at_once: int, how many batches are made at once of messages that
        have come already.
    """

    def __init__(
        self,
        source: Source,
        parser: MessageParser,
        batch_size: int,
        max_delay: float,
        event_time: str | None,
        follow: bool,
        max_errors: float,
        errors: ReadErrors,
        batches_at_once: int,
    ) -> None:
        self._source = source
        self._parser = parser
        self._batch_size = batch_size
        self._max_delay = max_delay
        self._event_time = event_time
        self._follow = follow
        self._share = _Share(max_errors)
        self._counted = CountedMessages()
        self._errors = errors
        self._batches_at_once = batches_at_once

    def windows(
        self,
        positions: Mapping[str, Position],
        note: Callable[[BatchNote], bool],
        goes_on: Callable[[], bool],
        finds_partitions: bool = False,
        again: BatchNote | None = None,
    ) -> Generator[Window, None, None]:
        """Yields a window for one batch or more, empty ones while none comes.

        Args:
          positions: where partitions are read next.
          note: function that is called for each batch before it is yielded;
            whether the iteration goes on.
          goes_on: function that tells whether the iteration goes on.
          finds_partitions: bool, whether partitions that appear later are read.
          again: of the batch that is made first, of the same records; or None.
        """
        read = dict(positions)
        self._counted.begin(read)
        nothing = Window(self._parser.parse([]).part, np.arange(0))
        batch = _Waiting(
            self._batch_size, self._max_delay, self._batches_at_once
        )
        left = _Left()
        if again is not None:
            for window in self._same(read, again, note, goes_on):
                yield nothing if window is None else window
            read |= again.positions
        while True:
            consumer = when_available(
                self._source.open, dict(read), self._follow, goes_on=goes_on
            )
            with contextlib.closing(consumer):
                refresh = time.monotonic() + REFRESH_SECONDS
                ended = False
                while not ended:
                    room = batch.room
                    found = consumer.poll(room, batch.patience)
                    ended = found is None
                    messages = Messages.of(found or ())
                    batch.add(messages)
                    read |= messages.positions
                    if not goes_on():
                        return
                    if ended or batch.is_due(len(messages) < room):
                        window = self._window(batch.take(), left, note)
                        if window is not None:
                            yield window
                    elif not messages:
                        # TensorFlow can end a dataset between two elements.
                        yield nothing
                    if finds_partitions and time.monotonic() > refresh:
                        new = self._new_partitions(read)
                        if new:
                            break
                        refresh = time.monotonic() + REFRESH_SECONDS
            if ended:
                self._share.check(self._errors, at_end=True)
                return
            for name in new:
                read[name] = when_available(
                    self._source.position, name, "earliest", goes_on=goes_on
                )

    def _same(
        self,
        read: Mapping[str, Position],
        again: BatchNote,
        note: Callable[[BatchNote], bool],
        goes_on: Callable[[], bool],
    ) -> Generator[Window | None, None, None]:
        """Yields the batch of a note once more, and None while it waits."""
        missing = dict(again.messages)
        taken: list[Message] = []
        # To its end it may have come since.
        positions = {n: read[n] for n in missing}
        consumer = when_available(
            self._source.open, positions, True, goes_on=goes_on
        )
        with contextlib.closing(consumer):
            while any(missing.values()):
                messages = consumer.poll(self._batch_size, POLL_SECONDS) or ()
                for message in messages:
                    name = message.partition
                    if message.value is not None and missing.get(name):
                        missing[name] -= 1
                        taken.append(message)
                if not goes_on():
                    return
                if not messages:
                    yield None
        # Positions alone may have come behind it before.
        yield self._window(
            Messages.of(taken),
            _Left(),
            lambda one: note(one._replace(positions=again.positions)),
        )

    def _new_partitions(self, read: Mapping[str, Position]) -> list[str]:
        """Partitions that are not read yet."""
        try:
            return sorted(set(self._source.partitions()) - set(read))
        except Exception as error:
            # It is away, which the consumer survives.
            _LOG.warning("Partitions could not be listed: %s", error)
            return []

    def _window(
        self,
        taken: Messages,
        left: "_Left",
        note: Callable[[BatchNote], bool],
    ) -> Window | None:
        """The records of messages; None if there are none.

        Args:
          taken: Messages.
          left: earlier ones without a record, which are moved to the next
            batch.
          note: as of `windows`.
        """
        if not taken:
            return None
        messages = taken.with_values()
        # Of each record: which of `taken` it is.
        places = np.arange(len(taken))
        if len(messages) < len(taken):
            has_none = [value is None for value in taken.values]
            places = np.delete(places, has_none)
        found = self._parser.parse(messages)
        self._count(messages, found)
        times = self._times(messages, found)
        rows = found.part.rows
        read = 0
        for begin in range(0, rows, self._batch_size):
            end = min(begin + self._batch_size, rows)
            last = len(taken)
            if end < rows:
                last = int(places[found.kept[end]])
            known = times[begin:end][~np.isnan(times[begin:end])]
            left.add(taken[read:last])
            one = BatchNote(
                left.positions,
                end - begin,
                float(known.min()) if len(known) else None,
                float(known.max()) if len(known) else None,
                left.messages,
            )
            if not note(one):
                return None
            self._counted.end_batch(left.positions, left.messages)
            left.clear()
            read = last
        left.add(taken[read:])
        return Window(found.part, np.arange(rows)) if rows else None

    def _times(
        self, messages: Messages, found: Records
    ) -> npt.NDArray[np.float64]:
        """The time of each record; NaN if it is not known."""
        if self._event_time is not None:
            values = found.part.dense[self._event_time]
            return np.asarray(values, np.float64)
        return messages.times[found.kept]

    def _count(self, messages: Messages, found: Records) -> None:
        counts = _records(messages)
        new = {n: self._counted.new(n, count) for n, count in counts.items()}
        again = counts - collections.Counter(new)
        first = _behind(messages, again) if again else None
        bad: dict[str, list[Malformed]] = {name: [] for name in counts}
        for row, reason in sorted(found.reasons.items()):
            if first is None or first[row]:
                message = messages[row]
                place = Malformed(message.position, reason)
                bad[message.partition].append(place)
        for name, count in new.items():
            if count:
                self._errors.add(name, count, bad[name], "before position")
        self._share.add(
            sum(new.values()),
            [one.reason for some in bad.values() for one in some],
        )
        self._share.check(self._errors)


class _Waiting:
    """Messages that batches are made of when one is full, or old enough."""

    def __init__(
        self, batch_size: int, max_delay: float, batches_at_once: int
    ) -> None:
        self._batch_size = batch_size
        self._batches_at_once = batches_at_once
        self._max_delay = max_delay
        # With those that only move a position.
        self._messages: list[Messages] = []
        self._count = 0  # Of the others.
        self._due = math.inf

    @property
    def room(self) -> int:
        """How many more to ask for: to fill a batch, or several."""
        batches = 1 if self._count < self._batch_size else self._batches_at_once
        return batches * self._batch_size - self._count

    @property
    def patience(self) -> float:
        """How long to wait for the next one, in seconds."""
        if self._count >= self._batch_size:
            return 0.0
        left = self._due - time.monotonic()
        return min(max(left, 0.0), POLL_SECONDS)

    def add(self, messages: Messages) -> None:
        """Adds what a source returned."""
        self._messages.append(messages)
        self._count += messages.records
        if self._count and self._due == math.inf:
            self._due = time.monotonic() + self._max_delay

    def is_due(self, is_all: bool) -> bool:
        """Whether batches are to be made.

        Args:
          is_all: bool, whether the source had no more messages just now.
        """
        if self._count >= self._batch_size and is_all:
            return True
        return self.room <= 0 or time.monotonic() >= self._due

    def take(self) -> Messages:
        """The messages that batches are made of."""
        runs = [run for messages in self._messages for run in messages.runs]
        self._messages = []
        self._count, self._due = 0, math.inf
        return Messages(runs)


class _Left:
    """Messages that are behind the last batch.

    Attributes:
      positions: where their partitions are read next, behind them.
      messages: how many there are of each partition.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begins with none."""
        self.positions: dict[str, Position] = {}
        self.messages: collections.Counter[str] = collections.Counter()

    def add(self, messages: Messages) -> None:
        """Adds messages, which may be positions alone."""
        self.positions |= messages.positions
        self.messages += _records(messages)


def _behind(
    messages: Messages, counts: Mapping[str, int]
) -> npt.NDArray[np.bool_]:
    """Whether each message is behind the first `counts` of its partition."""
    left = collections.Counter(counts)
    behind = np.ones(len(messages), bool)
    for row, message in enumerate(messages):
        if left[message.partition] > 0:
            left[message.partition] -= 1
            behind[row] = False
    return behind


def _records(messages: Messages) -> collections.Counter[str]:
    """The number of messages with a value, by partition."""
    found: collections.Counter[str] = collections.Counter()
    for run in messages.runs:
        found[run.partition] += run.records
    return found


class _Share:
    """The share of malformed records among the last ones."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._records = 0
        self._reasons: dict[str, int] = {}

    def add(self, records: int, reasons: list[str]) -> None:
        """Counts records, and why some are malformed."""
        self._records += records
        for reason in reasons:
            self._reasons[reason] = self._reasons.get(reason, 0) + 1

    def check(self, errors: ReadErrors, at_end: bool = False) -> None:
        """Raises TooManyErrorsError if it is above the greatest share."""
        bad = sum(self._reasons.values())
        least = 0 if at_end else FEWEST_RECORDS
        if bad > self._most * max(self._records, least):
            raise TooManyErrorsError(
                f"{bad} of the last {self._records} records are malformed, a "
                f"share above max_errors={self._most}: "
                f"{described(self._reasons)}. Since the stream began, "
                f"{errors.errors} of {errors.records} were. Correct what "
                "writes them or the schema, or allow a larger share."
            )
        if self._records >= FEWEST_RECORDS:
            self._records, self._reasons = 0, {}
