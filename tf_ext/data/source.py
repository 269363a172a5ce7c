# SPDX-License-Identifier: Apache-2.0
"""What a queue implements so that streams read it."""

import abc
import typing
from collections.abc import Mapping, Sequence

# What JSON can hold. It says where a partition is read next.
Position: typing.TypeAlias = typing.Any
Start: typing.TypeAlias = typing.Literal["earliest", "latest"]
_NO_HEADERS: Mapping[str, bytes] = {}


class Message(typing.NamedTuple):
    """A message of a partition of a source.

    Attributes:
      partition: string, its name.
      position: where the partition is read next, behind this message.
      value: bytes, the record. None: there is none, only the position moves.
      key: bytes or None.
      headers: dict from names to bytes.
      time: float, when it was sent, in seconds since 1970; None if unknown.
    """

    partition: str
    position: Position
    value: bytes | None
    key: bytes | None = None
    headers: Mapping[str, bytes] = _NO_HEADERS
    time: float | None = None


class Consumer(abc.ABC):
    """Reads some partitions of a Source, each in its order."""

    @abc.abstractmethod
    def poll(self, most: int, seconds: float) -> Sequence[Message] | None:
        """Returns messages that have not been returned before.

        Args:
          most: int, how many records it may return.
          seconds: float, how long it may wait for the first one.

        Returns:
          List of Messages, empty if none came. None at the end of a source
          that was opened with `follow=False`.

        Raises:
          tf_ext.data.LostRecordsError: the next messages are gone.
          tf_ext.data.SourceError: it cannot be read, and trying again does not
            help. A source that is away for a while is no error: wait for it.
        """

    def read_until(self) -> Mapping[str, float] | None:
        """When partitions that have no further message were looked at.

        `JoinSource` asks after each `poll`, to tell a partition without
        messages from one whose messages have not been returned yet.

        Returns:
          Dict from names of partitions to a time in seconds since 1970: `poll`
          has returned all that they had then. It is infinity at the end of one
          that was opened with `follow=False`. A partition is left out until it
          has been read to its end once. None: not known, as here. Then a `poll`
          that returns nothing means that no partition has more, and a partition
          without messages in ten seconds of polling is not waited for.
        """
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Frees what it holds."""


class Source(abc.ABC):
    """A queue that `tf_ext.data.stream` reads.

    It consists of partitions, and each message has a position in its own.
    Messages of a partition always come in the same order, and stay readable for
    as long as a training may need to read them again after a restart. A queue
    of your own is a subclass, and one of `Consumer`.

    Example:
      >>> class Lines(tf_ext.data.Source):
      ...     def __init__(self, lines):
      ...         self.lines = lines
      ...     def partitions(self):
      ...         return ["all"]
      ...     def position(self, partition, start):
      ...         return 0 if start == "earliest" else len(self.lines)
      ...     def open(self, positions, follow):
      ...         return LinesConsumer(self.lines, positions["all"], follow)
      >>> class LinesConsumer(tf_ext.data.Consumer):
      ...     def __init__(self, lines, next, follow):
      ...         self.lines, self.next, self.follow = lines, next, follow
      ...     def poll(self, most, seconds):
      ...         begin, self.next = self.next, min(
      ...             self.next + most, len(self.lines))
      ...         if begin == self.next:
      ...             return [] if self.follow else None
      ...         return [
      ...             tf_ext.data.Message("all", i + 1, self.lines[i])
      ...             for i in range(begin, self.next)]
      ...     def close(self):
      ...         pass
      >>> source = Lines([b"ann,1", b"bob,2", b"cem,3"])
      >>> schema = tf_ext.data.Schema([
      ...     tf_ext.data.Field("user"), tf_ext.data.Field("score", "float32")])
      >>> for batch in tf_ext.data.stream(
      ...         source, schema, batch_size=2, follow=False):
      ...     print(batch["score"].numpy())
      [1. 2.]
      [3.]
    """

    @abc.abstractmethod
    def partitions(self) -> Sequence[str]:
        """The names of the partitions that there are now, each once.

        Raises:
          tf_ext.data.SourceUnavailableError: the source is away. This and
            `position` and `open` are called again where a stream begins.
        """

    @abc.abstractmethod
    def position(self, partition: str, start: Start) -> Position:
        """Where a partition begins, or is written next.

        Args:
          partition: string, one of `partitions`.
          start: "earliest", the first message that is left; or "latest", behind
            the last one.

        Returns:
          What JSON can hold, for `open`.
        """

    @abc.abstractmethod
    def open(self, positions: Mapping[str, Position], follow: bool) -> Consumer:
        """Begins to read.

        Args:
          positions: dict from the partitions that are read to where each is
            read next: what `position` or a Message said. As it may come from a
            file, check it.
          follow: bool, whether it reads messages that come later, too.
        """
