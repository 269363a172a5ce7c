# SPDX-License-Identifier: Apache-2.0
"""Redis streams as a source of streams."""

import logging
import math
import re
import time
import typing
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tf_ext._checks import is_int, refuse
from tf_ext.data.errors import (
    LostRecordsError,
    SourceError,
    SourceUnavailableError,
)
from tf_ext.data.message_runs import Messages, Run
from tf_ext.data.source import Consumer, Message, Position, Source, Start

try:
    import redis
except ImportError:
    redis = None

_LOG = logging.getLogger("tf_ext")
_OWNER = "RedisSource"
_ID = re.compile(r"\d{1,20}-\d{1,20}")
_FIRST = "0-0"
_NO_KEY = "no such key"
# How long it waits before it asks again, where Redis is away.
_AWAY_SECONDS = 0.5


class RedisSource(Source):
    """Streams of Redis, as a source of `tf_ext.data.stream`.

    Each stream, to which others append by XADD, is a partition. Positions are
    `[id, count]`, of the last entry that was read, and how many the stream had
    up to it. Entries have fields: one is the value of the
    message, one its key, and the others are its headers. They are kept with the
    rows of tables, not in Redis: no consumer group is needed. A Redis that is
    away is waited for; one that refuses the password or the rights raises
    `SourceError`.

    Entries that XTRIM, MAXLEN or XDEL remove before they are read raise
    `LostRecordsError`, if Redis is of version 7, which counts them. Those that
    XDEL removes between others are noticed at the end of the stream.

    It needs redis-py: `pip install 'tf-ext[redis]'`.

    Args:
      streams: string, or list of strings, the keys of streams. Those that do
        not exist yet are empty.
      url: string, as `redis.Redis.from_url` takes it: `redis://host:port/0`,
        `rediss://` with TLS, or `unix://`.
      value: string, the field of an entry that is the message's value.
      key: string, the field that is its key.

    Example:
      >>> source = tf_ext.data.RedisSource(
      ...     ["clicks-0", "clicks-1"], "redis://localhost:6379/0")
      >>> source.partitions()
      ['clicks-0', 'clicks-1']
    """

    def __init__(
        self,
        streams: str | Sequence[str],
        url: str,
        value: str = "value",
        key: str = "key",
    ) -> None:
        if redis is None:
            raise ImportError(
                "tf_ext.data.RedisSource needs redis-py: pip install "
                "'tf-ext[redis]'"
            )
        self._streams = [streams] if isinstance(streams, str) else list(streams)
        names = [one for one in self._streams if isinstance(one, str) and one]
        if not names or len(set(names)) < len(self._streams):
            allowed = "the key of a stream or a list of keys, each once"
            refuse(_OWNER, "streams", allowed, streams)
        for argument, field in (("value", value), ("key", key)):
            if not isinstance(field, str) or not field or value == key:
                allowed = "the name of a field, and not the other one's"
                refuse(_OWNER, argument, allowed, field)
        try:
            self._redis = redis.Redis.from_url(url, decode_responses=False)
        except (AttributeError, TypeError, ValueError) as error:
            refuse(_OWNER, "url", f"an address of Redis: {error}", url)
        self._url = url
        self._value = value.encode()
        self._key = key.encode()

    def __reduce__(self) -> tuple[typing.Any, ...]:
        fields = self._value.decode(), self._key.decode()
        return RedisSource, (self._streams, self._url, *fields)

    def partitions(self) -> list[str]:
        """The keys of the streams."""
        return list(self._streams)

    def position(self, partition: str, start: Start) -> Position:
        """Before the first entry that is left, or behind the last one."""
        try:
            info = _Info.of(self._redis.xinfo_stream(partition))
        except redis.RedisError as error:
            if _NO_KEY in str(error):
                return [_FIRST, 0]
            raise _class_of(error)(
                f"The stream {partition!r} cannot be read: {error}"
            ) from error
        if start == "earliest":
            return [_FIRST, info.removed]
        return [info.last, info.added]

    def open(self, positions: Mapping[str, Position], follow: bool) -> Consumer:
        """Begins to read."""
        for name, position in positions.items():
            if not _is_position(position):
                raise SourceError(
                    f"The position of {name!r} must be [id of an entry, count "
                    f"of entries], but is {position!r}."
                )
        ends = None
        if not follow:
            ends = {
                name: self.position(name, "latest")[0] for name in positions
            }
        return _RedisConsumer(self._redis, positions, ends, self._run)

    def _run(
        self, partition: str, entries: Sequence[typing.Any], before: Position
    ) -> Run:
        ids = [_text(id_) for id_, _ in entries]
        # An entry that was deleted may come as an id alone.
        fields = [some or {} for _, some in entries]
        times = [int(id_.partition("-")[0]) for id_ in ids]
        return Run(
            partition,
            [[id_, count] for count, id_ in enumerate(ids, before[1] + 1)],
            [some.get(self._value, b"") for some in fields],
            [some.get(self._key) for some in fields],
            [self._headers(some) for some in fields],
            np.array(times, np.float64) / 1000,
        )

    def _headers(self, fields: Mapping[bytes, bytes]) -> dict[str, bytes]:
        return {
            name.decode(errors="replace"): text
            for name, text in fields.items()
            if name not in (self._value, self._key)
        }


def _class_of(error: Exception) -> type[SourceError]:
    """The class of the error that tells of one of Redis's."""
    is_away = isinstance(error, redis.ConnectionError | redis.TimeoutError)
    if is_away and not isinstance(error, redis.AuthenticationError):
        return SourceUnavailableError
    return SourceError


class _RedisConsumer(Consumer):
    def __init__(
        self,
        client: typing.Any,
        positions: Mapping[str, Position],
        ends: Mapping[str, str] | None,
        run: Callable[[str, Sequence[typing.Any], Position], Run],
    ) -> None:
        self._redis = client
        self._next = dict(positions)
        self._ends = ends
        self._run = run
        self._is_away = False
        # The streams that have moved since a look at what was removed.
        self._unchecked = set(positions)
        self._read_until: dict[str, float] = {}

    def read_until(self) -> Mapping[str, float]:
        """Called by JoinSource."""
        if self._ends is None:
            return self._read_until
        return dict.fromkeys(self._next.keys() - self._unread(), math.inf)

    def _unread(self) -> list[str]:
        """The streams that have entries before where they end."""
        ends = self._ends
        return [
            name
            for name, (last, _) in self._next.items()
            if ends is None or _parts(last) < _parts(ends[name])
        ]

    def poll(self, most: int, seconds: float) -> Sequence[Message] | None:
        """Called by streams."""
        unread = self._unread()
        names = [
            name
            for name in self._next
            if name in unread or name in self._unchecked
        ]
        asked = time.time()
        if not names:
            if self._ends is not None:
                return None
            time.sleep(seconds)
            return []
        each = -(-most // len(names))
        try:
            found = self._read(names, each, seconds)
            self._is_away = False
            self._unchecked -= set(names)
        except redis.RedisError as error:
            if _class_of(error) is not SourceUnavailableError:
                raise SourceError(
                    f"The streams {names} cannot be read: {error}"
                ) from error
            # Also while it loads its data.
            if not self._is_away:
                _LOG.warning("Redis is waited for: %s", error)
            self._is_away = True
            time.sleep(_AWAY_SECONDS)
            return []
        runs = []
        self._read_until |= dict.fromkeys(names, asked)
        for name, entries in found:
            if len(entries) >= each or len(entries) > most:
                del self._read_until[name]  # It may have more.
            entries = entries[:most]
            if self._ends is not None:
                end = _parts(self._ends[name])
                entries = [e for e in entries if _parts(_text(e[0])) <= end]
            if entries:
                runs.append(self._run(name, entries, self._next[name]))
                self._next[name] = runs[-1].positions[-1]
                self._unchecked.add(name)
                most -= len(entries)
        if self._ends is not None and not runs:
            # What is left of them was deleted.
            for name in unread:
                self._next[name] = [self._ends[name], self._next[name][1]]
                self._unchecked.add(name)
            if not unread:
                return None
        return Messages(runs)

    def _read(
        self, names: list[str], most: int, seconds: float
    ) -> list[tuple[str, list[typing.Any]]]:
        """Entries by stream, after a look at what was removed before them."""
        wanted = {name: self._next[name][0] for name in names}
        with self._redis.pipeline(transaction=True) as pipeline:
            for name in names:
                pipeline.xinfo_stream(name)
            pipeline.xread(wanted, most)
            *infos, found = pipeline.execute(raise_on_error=False)
        for name, info in zip(names, infos, strict=True):
            self._check(name, info)
        if isinstance(found, Exception):
            raise found
        if not found and seconds > 0 and self._ends is None:
            # Whatever comes first ends this.
            found = self._redis.xread(wanted, most, int(1000 * seconds) or 1)
        if isinstance(found, dict):  # In RESP3, with pages.
            found = [
                (k, [e for page in v for e in page]) for k, v in found.items()
            ]
        return [(_text(stream), entries) for stream, entries in found]

    def _check(self, name: str, info: typing.Any) -> None:
        """Raises LostRecordsError if entries were removed and not read.

        Those between others are noticed where all that are left were read.
        """
        if isinstance(info, Exception):
            if _NO_KEY not in str(info):
                raise info
            info = {}
        found = _Info.of(info)
        last, count = self._next[name]
        own, end = _parts(last), _parts(found.last)
        is_other = end < own or found.added < count
        has_missed = end == own and found.added > count
        if found.counts and (is_other or has_missed or found.removed > count):
            raise LostRecordsError(
                f"The stream {name!r} does not have the entries behind {last}: "
                f"{count} were trained on, and of {found.added} up to "
                f"{found.last} {found.removed} were removed. Some were removed "
                "before they were trained on, or the stream was made again. To "
                "go on without what is lost, begin with a new directory of "
                "recovery points, with `warm_start`."
            )

    def close(self) -> None:
        """Called by streams; the connection is the source's."""


class _Info(typing.NamedTuple):
    """What Redis tells of a stream.

    last: the id of the last entry; added: how many there have been; removed:
    how many are gone; counts: whether it counts them, as Redis 7 does.
    """

    last: str
    added: int
    removed: int
    counts: bool

    @classmethod
    def of(cls, info: Mapping[str, typing.Any]) -> "_Info":
        added = info.get("entries-added")
        last = _text(info.get("last-generated-id", _FIRST))
        if added is None:
            return cls(last, 0, 0, not info)
        return cls(last, added, added - info["length"], True)


def _is_position(position: object) -> bool:
    return (
        isinstance(position, list)
        and len(position) == 2
        and isinstance(position[0], str)
        and _ID.fullmatch(position[0]) is not None
        and is_int(position[1])
        and 0 <= position[1] < 2**63
    )


def _parts(position: str) -> tuple[int, int]:
    milliseconds, _, number = position.partition("-")
    return int(milliseconds), int(number)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
