# SPDX-License-Identifier: Apache-2.0
"""Records joined with others that come later, such as impressions and clicks.

A record is returned when the window of its time has passed, in the order of its
partition. So one position a partition says which records have been returned,
and those that wait are read again after a restart, with what may be of them.
"""

import collections
import contextlib
import logging
import math
import time
import typing
from collections.abc import Callable, Mapping, Sequence

from tf_ext._checks import check_count, is_finite, refuse
from tf_ext.data.source import Consumer, Message, Position, Source, Start

_OWNER = "JoinSource"
_FIRST, _LATER = "first:", "later:"
# After so long a partition of which nothing is known does not hold up the
# others; a pause between two polls counts little.
_IDLE_SECONDS, _POLL_SECONDS = 10.0, 1.0
# How often partitions are listed; where that takes long, it is a tenth of the
# time.
_LIST_SECONDS, _LISTING_SHARE = 1.0, 0.1
# How long a call of `poll` goes on while there is more to read.
_FILLING_SECONDS = 1.0

_LOG = logging.getLogger(__name__)

Id: typing.TypeAlias = Callable[[Message], bytes | None]
_Record = typing.TypeVar("_Record", "_Waiting", "_Later")


class JoinCounts:
    """What a JoinSource has joined, since this process began.

    Later records that are read again after a restart count again.

    Attributes:
      joined: int, records that were returned with a later one.
      alone: int, records that were returned without one.
      late: int, later records that fell out: no record that they belong to
        waited for them until they were given up. It had been returned before,
        as its window had passed, or it never came.
      repeated: int, later ones that only belong to records that had one.
      early: int, records that were returned before their window had passed, as
        more than `most` waited.
    """

    def __init__(self) -> None:
        self.joined = self.alone = self.late = self.repeated = self.early = 0


class JoinSource(Source):
    r"""Records with a label that comes later, as a source of streams.

    Each record of `first`, such as an impression, waits for `window` seconds of
    event time. If a record of `later` with the same id, such as its click, has
    come by then, it is returned with the header "joined" of b"1" and the
    headers of the later one, of several the oldest; otherwise with b"0". The
    label is then a field of the envelope. Everything returned has waited for
    the whole window.

    As in other joins of intervals of time, records belong together by id and
    time alone: a later one that is at most `window` seconds younger than a
    record, or `delay` seconds older, belongs to it. If several records have one
    id, because a producer sent one twice, a later one belongs to each of them.

    Time goes on with the messages' times: up to the earliest of the last ones
    of all partitions. A partition that has nothing more to read has all
    messages up to `delay` seconds ago (`Consumer.read_until`); one that does
    not answer is waited for. A partition that is added while the join runs is
    waited for, too. A message without a time is returned at once.

    Records that wait are read again after a restart, and where a dataset of
    `follow=False` has ended without them: keep both sources for longer than
    the window. Each record of `first` is returned once.

    Args:
      first: Source of the records; not a JoinSource.
      later: Source of what comes later; likewise.
      window: float, seconds.
      id: function from a Message of either to the bytes that tell which belong
        together; None: keys. A message without one is not joined.
      most: int, how many records, and how many later ones, wait at most. The
        oldest are returned early, or fall out, and are counted.
      delay: float, seconds that a message may take to reach its source, and
        by which clocks may differ.

    Attributes:
      counts: tf_ext.data.JoinCounts.

    Example:
      >>> import os, pathlib, tempfile
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> for name, text in (("shown", "a,ann\nb,bob\n"), ("clicks", "b,\n")):
      ...     (folder / name).mkdir()
      ...     _ = (folder / name / "part-0").write_text(text)
      ...     os.utime(folder / name / "part-0", (1e9, 1e9))  # Long ago.
      >>> source = tf_ext.data.JoinSource(
      ...     tf_ext.data.DirectorySource(folder / "shown"),
      ...     tf_ext.data.DirectorySource(folder / "clicks"), window=60.0,
      ...     id=lambda message: message.value.split(b",")[0])
      >>> schema = tf_ext.data.Schema(
      ...     [tf_ext.data.Field("shown"), tf_ext.data.Field("user"),
      ...      tf_ext.data.Field("click", "float32")], label="click")
      >>> data = tf_ext.data.stream(
      ...     source, schema, batch_size=8, follow=False,
      ...     envelope={"click": "header:joined"})
      >>> for features, labels in data:
      ...     print(features["user"].numpy(), labels.numpy())
      [b'ann' b'bob'] [0. 1.]
    """

    def __init__(
        self,
        first: Source,
        later: Source,
        window: float,
        id: Id | None = None,
        most: int = 1_000_000,
        delay: float = 5.0,
    ) -> None:
        for argument, source in (("first", first), ("later", later)):
            # Which positions of a join are still needed is not known outside.
            if not isinstance(source, Source) or isinstance(source, JoinSource):
                allowed = "a tf_ext.data.Source, but not a JoinSource"
                refuse(_OWNER, argument, allowed, source)
        if not is_finite(window) or window <= 0:
            refuse(_OWNER, "window", "a positive finite number", window)
        if id is not None and not callable(id):
            refuse(_OWNER, "id", "a function of a Message, or None", id)
        check_count(_OWNER, "most", most, 1)
        if not is_finite(delay) or delay < 0:
            refuse(_OWNER, "delay", "a finite number of at least 0", delay)
        self._sources = {_FIRST: first, _LATER: later}
        self._window = float(window)
        self._id = id if id is not None else _key
        self._most = most
        self._delay = float(delay)
        self.counts = JoinCounts()

    def partitions(self) -> list[str]:
        """Those of both sources."""
        return [
            side + name
            for side, source in self._sources.items()
            for name in source.partitions()
        ]

    def position(self, partition: str, start: Start) -> Position:
        """As of the source that it belongs to."""
        side, name = _split(partition)
        return self._sources[side].position(name, start)

    def open(self, positions: Mapping[str, Position], follow: bool) -> Consumer:
        """Begins to read both."""
        sides = {}
        for side, source in self._sources.items():
            own = {
                _split(name)[1]: position
                for name, position in positions.items()
                if _split(name)[0] == side
            }
            sides[side] = _Side(source, own, follow, self._delay)
        return _JoinConsumer(
            sides[_FIRST],
            sides[_LATER],
            self._id,
            self._window,
            self._most,
            self._delay,
            self.counts,
        )


class _Waiting:
    """A record of `first` that waits."""

    __slots__ = ("id", "later", "message", "time")

    def __init__(self, message: Message, id_: bytes | None) -> None:
        self.message = message
        self.id = id_
        self.time = -math.inf if message.time is None else message.time
        self.later: _Later | None = None


class _Later:
    """A record of `later`, for as long as records may come that it belongs to.

    Attributes:
      belongs: whether it belongs to a record.
      is_taken: whether it was the oldest that belongs to a record.
    """

    __slots__ = ("belongs", "id", "is_taken", "message")

    def __init__(self, message: Message, id_: bytes | None) -> None:
        self.message = message
        self.id = id_
        self.belongs = self.is_taken = False


class _Side:
    """One of the sources, and up to which time it has been read.

    Args:
      source: Source.
      positions: as of `Source.open`.
      follow: bool, likewise.
      delay: float, as of JoinSource.
    """

    def __init__(
        self,
        source: Source,
        positions: Mapping[str, Position],
        follow: bool,
        delay: float,
    ) -> None:
        # The time at which messages end that are read: what the source has now.
        self._end = math.inf if follow else time.time()
        self._source = source
        self.consumer = source.open(positions, follow)
        self.ended = False
        self._delay = delay
        # Up to which time all messages of each have been read.
        self._until = dict.fromkeys(positions, -math.inf)
        self._all_until = -math.inf
        # Partitions that are added have no messages up to that time.
        self._complete_until = -math.inf if follow else math.inf
        self._next_listing = 0.0
        # Of a consumer that does not know it: seconds of polling, and when each
        # had a message.
        self._is_known = False
        self._polled = 0.0
        self._heard = dict.fromkeys(self._until, 0.0)
        self._last_poll = time.monotonic()

    def poll(self, most: int, seconds: float) -> list[Message]:
        """What comes next."""
        if self.ended:
            return []
        asked = time.time()
        found = self.consumer.poll(most, seconds)
        self._count_polling()
        self.ended = found is None
        for message in found or ():
            if message.time is not None:
                self._read(message.partition, message.time)
                self._heard[message.partition] = self._polled
        known = self.consumer.read_until()
        self._is_known = known is not None
        if known is None:
            known = {}
            if not found:  # Nothing waits in any partition.
                known = dict.fromkeys(self._until, asked)
                self._heard = dict.fromkeys(self._until, self._polled)
        for name, when in known.items():
            self._read(name, min(when, self._end) - self._delay)
        if not self._until:
            self._all_until = asked - self._delay
        # It does not go on while the source is away, which takes long to list.
        if self._partitions_until() > self._complete_until:
            self._look_for_partitions()
        return list(found or ())

    def _read(self, partition: str, until: float) -> None:
        self._until[partition] = max(self._until[partition], until)

    def _look_for_partitions(self) -> None:
        """Notes that there are no new ones; the stream begins to read those."""
        begin = time.monotonic()
        if begin < self._next_listing:
            return
        asked = time.time()
        # One that does not answer is waited for; the stream logs it.
        with contextlib.suppress(Exception):
            if self._until.keys() >= {*self._source.partitions()}:
                self._complete_until = asked - self._delay
        took = time.monotonic() - begin
        self._next_listing = begin + max(_LIST_SECONDS, took / _LISTING_SHARE)

    def _count_polling(self) -> None:
        now = time.monotonic()
        self._polled += min(now - self._last_poll, _POLL_SECONDS)
        self._last_poll = now

    @property
    def until(self) -> float:
        """The time up to which all messages have been read."""
        return min(self._partitions_until(), self._complete_until)

    def _partitions_until(self) -> float:
        """The same of the partitions that are known."""
        since = self._polled - _IDLE_SECONDS
        times = [
            when
            for name, when in self._until.items()
            if self._is_known or self._heard[name] >= since
        ]
        return min(times, default=self._all_until)


class _JoinConsumer(Consumer):
    def __init__(
        self,
        first: _Side,
        later: _Side,
        id_: Id,
        window: float,
        most: int,
        delay: float,
        counts: JoinCounts,
    ) -> None:
        self._first = first
        self._later = later
        self._id = id_
        self._window = window
        self._most = most
        self._delay = delay
        self._counts = counts
        # Of each partition of `first`, in order; positions without a record
        # have none.
        self._waiting: dict[str, collections.deque[_Waiting]] = {}
        self._count = 0
        self._by_id: dict[bytes, list[_Waiting]] = {}
        # Later ones by id; and all, in order.
        self._later_by_id: dict[bytes, list[_Later]] = {}
        self._read: dict[str, collections.deque[_Later]] = {}

    def poll(self, most: int, seconds: float) -> Sequence[Message] | None:
        """Called by streams."""
        found: list[Message] = []
        end = time.monotonic() + _FILLING_SECONDS
        # In one pass less may become due than is there.
        has_more = True
        while has_more and len(found) < most:
            has_more = self._read_more(most, seconds)
            found += self._due(most - len(found))
            seconds = 0.0
            if time.monotonic() >= end:
                break
        found += self._positions()
        if found or not self._has_ended():
            return found
        if self._count:
            _LOG.info(
                "%d records wait for the next time that the source is read, as "
                "their window has not passed.",
                self._count,
            )
        return None

    def _read_more(self, most: int, seconds: float) -> bool:
        """Reads both sources; whether there was something."""
        later: list[Message] = []
        if not self._is_ahead():
            waits = seconds if self._first.ended else 0.0
            later = self._later.poll(most, waits)
        for message in later:
            self._take_later(message)
        if later:
            seconds = 0.0  # More may be there.
        # There is room for at least one: `_due` leaves it.
        room = self._most - self._count
        first = self._first.poll(min(most, room), seconds)
        for message in first:
            self._take_first(message)
        return bool(later or first)

    def _is_ahead(self) -> bool:
        """Whether `later` has been read as far as records wait for.

        What is read further would fall out.
        """
        return self._later.until > self._wanted() + self._window

    def _has_ended(self) -> bool:
        return self._first.ended and (self._later.ended or self._is_ahead())

    def _id_of(self, message: Message) -> bytes | None:
        return None if message.value is None else self._id(message)

    def _take_first(self, message: Message) -> None:
        waiting = _Waiting(message, self._id_of(message))
        queue = self._waiting.setdefault(message.partition, collections.deque())
        queue.append(waiting)
        self._count += 1
        if waiting.id is not None:
            self._by_id.setdefault(waiting.id, []).append(waiting)
            for later in self._later_by_id.get(waiting.id, ()):
                self._match(waiting, later)

    def _take_later(self, message: Message) -> None:
        later = _Later(message, self._id_of(message))
        queue = self._read.setdefault(message.partition, collections.deque())
        queue.append(later)
        if later.id is not None:
            self._later_by_id.setdefault(later.id, []).append(later)
            for waiting in self._by_id.get(later.id, ()):
                self._match(waiting, later)

    def _match(self, waiting: _Waiting, later: _Later) -> None:
        """Joins two of the same id if they belong together."""
        when = later.message.time
        if when is not None and waiting.message.time is not None:
            oldest, youngest = -self._delay, self._window
            if not oldest <= when - waiting.time <= youngest:
                return
        later.belongs = True
        known = waiting.later
        if known is None or _time_of(later) < _time_of(known):
            later.is_taken = True
            waiting.later = later

    def _due(self, most: int) -> list[Message]:
        """Records that have waited."""
        until = min(self._first.until, self._later.until)
        found: list[Message] = []
        while len(found) < most:
            queues = [queue for queue in self._waiting.values() if queue]
            if not queues:
                break
            oldest = min(queues, key=lambda queue: queue[0].time)
            end = oldest[0].time + self._window
            # More may come with the time up to which all have been read.
            if end >= until and oldest[0].message.time is not None:
                if self._count < self._most:
                    break
                self._counts.early += 1
            found.append(self._joined(oldest.popleft()))
            self._count -= 1
        return found

    def _joined(self, waiting: _Waiting) -> Message:
        message = waiting.message
        partition = _FIRST + message.partition
        if message.value is None:
            return message._replace(partition=partition)
        _forget(self._by_id, waiting)
        headers = dict(message.headers)
        if waiting.later is not None:
            headers |= waiting.later.message.headers
            self._counts.joined += 1
        else:
            self._counts.alone += 1
        headers["joined"] = b"0" if waiting.later is None else b"1"
        return message._replace(partition=partition, headers=headers)

    def _wanted(self) -> float:
        """The time of the oldest record that waits, or may come."""
        waiting = (queue[0].time for queue in self._waiting.values() if queue)
        # What may come is as young as what has come.
        return min([*waiting, self._first.until])

    def _positions(self) -> list[Message]:
        """Where `later` is read again: before all that records may wait for."""
        oldest = self._wanted() - self._delay
        found = []
        count = sum(map(len, self._read.values()))
        for name, queue in self._read.items():
            last = None
            while queue and (
                queue[0].message.time is None
                or queue[0].message.time < oldest
                or count > self._most
            ):
                later = queue.popleft()
                last = later.message
                count -= 1
                self._give_up(later)
            if last is not None:
                found.append(Message(_LATER + name, last.position, None))
        return found

    def _give_up(self, later: _Later) -> None:
        if later.id is None:
            return
        _forget(self._later_by_id, later)
        if not later.is_taken:
            self._counts.repeated += later.belongs
            self._counts.late += not later.belongs

    def close(self) -> None:
        """Called by streams."""
        self._first.consumer.close()
        self._later.consumer.close()


def _time_of(later: _Later) -> float:
    """Those without a time come first, as they came."""
    return -math.inf if later.message.time is None else later.message.time


def _forget(by_id: dict[bytes, list[_Record]], one: _Record) -> None:
    """Removes a record from those of its id."""
    if one.id is None:
        return
    of_id = by_id[one.id]
    of_id.remove(one)
    if not of_id:
        del by_id[one.id]


def _key(message: Message) -> bytes | None:
    return message.key


def _split(partition: str) -> tuple[str, str]:
    side, name = partition[: len(_FIRST)], partition[len(_FIRST) :]
    return side, name
