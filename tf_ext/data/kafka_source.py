# SPDX-License-Identifier: Apache-2.0
"""Topics of Apache Kafka as a source of streams."""

import itertools
import logging
import math
import operator
import time
import typing
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tf_ext._checks import is_finite, is_int, refuse
from tf_ext.data.errors import (
    LostRecordsError,
    SourceError,
    SourceUnavailableError,
)
from tf_ext.data.message_runs import Messages, Run
from tf_ext.data.source import Consumer, Message, Position, Source, Start

try:
    import confluent_kafka
except ImportError:
    confluent_kafka = None

_LOG = logging.getLogger("tf_ext")
_OWNER = "KafkaSource"
_NAME = operator.itemgetter(0)
# Of positions only: nothing joins a group, and nothing is committed.
_CONFIG = {
    "group.id": "tf_ext",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
}
_FIXED = {
    *_CONFIG,
    "bootstrap.servers",
    "enable.partition.eof",
    "group.protocol",
}
# More objects of librdkafka than that leave the processor's cache.
_AT_ONCE = 1024
# How often brokers are asked where partitions end, and how long they may take.
_ASK_SECONDS = 1.0
# Errors by their names: that records are gone, and that others stay.
_GONE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")
# Of questions about topics, those that may be answered later.
_AWAY = (
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "_ALL_BROKERS_DOWN",
    "_TIMED_OUT",
    "_TRANSPORT",
)
_FINAL = (
    "TOPIC_AUTHORIZATION_FAILED",
    "UNKNOWN_TOPIC_OR_PART",
    "_UNKNOWN_PARTITION",
    "_UNKNOWN_TOPIC",
)


class KafkaSource(Source):
    """Topics of Apache Kafka, as a source of `tf_ext.data.stream`.

    Partitions are named `topic/number`, and their positions are offsets. They
    are kept with the rows of tables, not in Kafka: no consumer group is joined,
    and partitions are divided by the argument `shard` of `stream`. Records of
    aborted transactions are not read. Brokers that are away are waited for.

    It needs confluent-kafka: `pip install 'tf-ext[kafka]'`.

    Args:
      topics: string, or list of strings.
      servers: string, `host:port` of one broker or of several, with commas.
      config: dict of further settings of librdkafka, such as those of TLS and
        SASL.
      timeout: float, for how many seconds an answer about topics is waited
        for before it is asked for again.

    Example:
      >>> source = tf_ext.data.KafkaSource(
      ...     ["impressions", "clicks"], "localhost:9092",
      ...     {"fetch.max.bytes": 1 << 20})
      >>> source.topics
      ['impressions', 'clicks']
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        servers: str,
        config: Mapping[str, typing.Any] | None = None,
        timeout: float = 30.0,
    ) -> None:
        if confluent_kafka is None:
            raise ImportError(
                "tf_ext.data.KafkaSource needs confluent-kafka: pip install "
                "'tf-ext[kafka]'"
            )
        self.topics = [topics] if isinstance(topics, str) else list(topics)
        names = [one for one in self.topics if isinstance(one, str) and one]
        if not names or len(set(names)) < len(self.topics):
            allowed = "the name of a topic or a list of names, each once"
            refuse(_OWNER, "topics", allowed, topics)
        if not isinstance(servers, str) or not servers:
            refuse(_OWNER, "servers", "a text host:port", servers)
        if not is_finite(timeout) or timeout <= 0:
            refuse(_OWNER, "timeout", "a positive finite number", timeout)
        config = {} if config is None else config
        fixed = _FIXED.intersection(config) if hasattr(config, "get") else True
        if fixed:
            allowed = f"a dict without {', '.join(sorted(_FIXED))}"
            refuse(_OWNER, "config", allowed, config)
        self._servers = servers
        self._timeout = float(timeout)
        self._config = {"bootstrap.servers": servers, **config, **_CONFIG}
        self._asking: typing.Any = None

    def __getstate__(self) -> dict[str, typing.Any]:
        return {**vars(self), "_asking": None}

    def partitions(self) -> list[str]:
        """All partitions of the topics."""
        names = []
        for topic in self.topics:
            try:
                found = self._asked.list_topics(topic, self._timeout)
            except confluent_kafka.KafkaException as error:
                raise _class_of(error.args[0])(
                    f"The partitions of the topic {topic!r} are not known: "
                    f"{self._servers} answers: {error.args[0].str()}"
                ) from error
            described = found.topics.get(topic)
            if described is None or described.error or not described.partitions:
                reason = described and described.error
                raise _class_of(reason)(
                    f"There is no topic {topic!r} at {self._servers}: "
                    f"{reason.str() if reason else 'it has no partitions'}."
                )
            names += [f"{topic}/{n}" for n in described.partitions]
        return names

    def position(self, partition: str, start: Start) -> Position:
        """The first offset that is left, or the one that comes next."""
        try:
            low, high = self._asked.get_watermark_offsets(
                _partition(partition), self._timeout
            )
        except confluent_kafka.KafkaException as error:
            raise _class_of(error.args[0])(
                f"The offsets of {partition!r} are not known: {self._servers} "
                f"answers: {error.args[0].str()}"
            ) from error
        return low if start == "earliest" else high

    @property
    def _asked(self) -> typing.Any:
        if self._asking is None:
            self._asking = confluent_kafka.Consumer(self._config, logger=_LOG)
        return self._asking

    def open(self, positions: Mapping[str, Position], follow: bool) -> Consumer:
        """Begins to read."""
        for name, position in positions.items():
            if not is_int(position) or not 0 <= position < 2**63:
                raise SourceError(
                    f"The position of {name!r} must be an offset, but is "
                    f"{position!r}."
                )
        config = self._config | {"enable.partition.eof": True}
        return _KafkaConsumer(
            confluent_kafka.Consumer(config, logger=_LOG), positions, follow
        )


class _KafkaConsumer(Consumer):
    def __init__(
        self,
        consumer: typing.Any,
        positions: Mapping[str, Position],
        follow: bool,
    ) -> None:
        self._consumer = consumer
        self._left = set() if follow else set(positions)
        self._follow = follow
        self._trouble: str | None = None
        # Where partitions ended when all of them was returned.
        self._ends = dict.fromkeys(positions, -1)
        self._read_until: dict[str, float] = {}
        self._asked_at = -math.inf
        consumer.assign(
            [_partition(name, offset) for name, offset in positions.items()]
        )

    def poll(self, most: int, seconds: float) -> Sequence[Message] | None:
        """Called by streams."""
        if not (self._follow or self._left):
            return None
        runs: list[Run] = []
        while True:
            size = min(most, _AT_ONCE)
            found = self._consumer.consume(size, seconds)
            runs += self._runs(found)
            most -= len(found)
            if len(found) < size or not most:
                return Messages(runs)
            seconds = 0.0

    def read_until(self) -> Mapping[str, float]:
        """Called by JoinSource; it asks the brokers, at most once a second."""
        if not self._follow:
            ended = self._ends.keys() - self._left
            return dict.fromkeys(ended, math.inf)
        if time.monotonic() - self._asked_at >= _ASK_SECONDS:
            self._ask()
            self._asked_at = time.monotonic()
        return self._read_until

    def _ask(self) -> None:
        asked = time.time()
        wanted = [
            _partition(name, confluent_kafka.OFFSET_END) for name in self._ends
        ]
        try:
            # Of the time -1 Kafka answers the end, of each partition at once.
            found = self._consumer.offsets_for_times(wanted, _ASK_SECONDS)
        except confluent_kafka.KafkaException:
            return  # `poll` tells that they are away.
        for one in found:
            name = f"{one.topic}/{one.partition}"
            if one.error is None and one.offset == self._ends[name]:
                self._read_until[name] = asked

    def _runs(self, found: Sequence[typing.Any]) -> Iterator[Run]:
        errors = [message.error() for message in found]
        begin = 0
        for index, error in enumerate(errors):
            if error is not None:
                yield from self._without_errors(found[begin:index])
                yield from self._of_error(found[index], error)
                begin = index + 1
        yield from self._without_errors(found[begin:])

    def _without_errors(self, found: Sequence[typing.Any]) -> Iterator[Run]:
        if not found:
            return
        self._trouble = None
        partitions = [message.partition() for message in found]
        topics = [message.topic() for message in found]
        names = list(zip(topics, partitions, strict=True))
        if names.count(names[0]) == len(names):
            yield _run(names[0], found)
            return
        groups = itertools.groupby(zip(names, found, strict=True), _NAME)
        for name, group in groups:
            yield _run(name, [message for _, message in group])

    def _of_error(self, message: typing.Any, error: typing.Any) -> list[Run]:
        name = f"{message.topic()}/{message.partition()}"
        if error.name() == "_PARTITION_EOF":
            self._ends[name] = message.offset()
            if name not in self._left:
                return []
            self._left.discard(name)
            self._consumer.pause([_partition(name)])
            # Behind the last record there may be marks of transactions.
            return [Run(name, [message.offset()], [None])]
        if error.name() in _GONE:
            raise LostRecordsError(
                f"The partition {name!r} does not have the record that comes "
                f"next: {error.str()}. It was removed by the topic's retention "
                "before it was trained on, or the topic was made again. To go "
                "on without what is lost, begin with a new directory of "
                "recovery points, with `warm_start`."
            )
        if error.fatal() or error.name() in _FINAL:
            raise SourceError(f"{name} cannot be read: {error.str()}")
        if self._trouble != error.name():
            _LOG.warning("Kafka is waited for: %s", error.str())
        self._trouble = error.name()
        return []

    def close(self) -> None:
        """Called by streams."""
        self._consumer.close()


def _class_of(error: typing.Any) -> type[SourceError]:
    """The class of the error that tells of one of librdkafka's, or None."""
    is_away = error is not None and error.name() in _AWAY
    return SourceUnavailableError if is_away else SourceError


def _run(name: tuple[str, int], found: Sequence[typing.Any]) -> Run:
    unknown = confluent_kafka.TIMESTAMP_NOT_AVAILABLE
    stamps = [message.timestamp() for message in found]
    headers = [message.headers() for message in found]
    return Run(
        f"{name[0]}/{name[1]}",
        [message.offset() + 1 for message in found],
        [message.value() or b"" for message in found],
        [message.key() for message in found],
        [_known(one) for one in headers] if any(headers) else None,
        np.array([np.nan if kind == unknown else ms for kind, ms in stamps])
        / 1000,
    )


def _known(headers: Sequence[tuple[str, bytes | None]]) -> dict[str, bytes]:
    return {name: value for name, value in headers or () if value is not None}


def _partition(name: str, offset: int | None = None) -> typing.Any:
    topic, _, number = name.rpartition("/")
    if offset is None:
        return confluent_kafka.TopicPartition(topic, int(number))
    return confluent_kafka.TopicPartition(topic, int(number), offset)
