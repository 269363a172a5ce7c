# SPDX-License-Identifier: Apache-2.0
"""Datasets of the records of queues."""

import atexit
import collections
import contextlib
import logging
import math
import threading
import time
import typing
from collections.abc import Generator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext._checks import check_count, is_finite, refuse
from tf_ext.data.arrow import require_pyarrow
from tf_ext.data.batches import batches_of
from tf_ext.data.errors import (
    FEWEST_RECORDS,
    Malformed,
    ReadErrors,
    TooManyErrorsError,
    check_max_errors,
    described,
)
from tf_ext.data.formats import Format
from tf_ext.data.join_source import JoinSource
from tf_ext.data.layout import Layout
from tf_ext.data.messages import MessageParser, Records
from tf_ext.data.passes import Window
from tf_ext.data.progress import BatchNote, StreamProgress, mark
from tf_ext.data.reading import Shard, checked_shard
from tf_ext.data.schema import Schema
from tf_ext.data.source import Message, Position, Source, Start

_LOG = logging.getLogger("tf_ext")
_NAME = "stream"
# How many batches are made at once of messages that have come already.
_BATCHES_AT_ONCE = 8
# How long an iteration waits before it asks whether it is to end.
_POLL_SECONDS = 0.1
# How often it looks for new partitions.
_REFRESH_SECONDS = 10.0
# How long the end of the program waits for a source.
_EXIT_SECONDS = 20.0


def stream(
    source: Source,
    schema: Schema,
    format: Format = "csv",
    *,
    batch_size: int,
    max_delay: float = 1.0,
    envelope: Mapping[str, str] | None = None,
    event_time: str | None = None,
    start: Start = "earliest",
    follow: bool = True,
    shard: Shard | None = None,
    max_errors: float = 0.01,
    errors: ReadErrors | None = None,
    progress: StreamProgress | None = None,
) -> tf.data.Dataset:
    r"""Reads a queue of records into batches, without an end.

    `tf_ext.Model.fit` with `tf_ext.callbacks.TableSnapshot` saves the position
    of each partition together with the rows, and a restarted one continues
    there: each record is trained once. docs/streaming.md says what happens in
    each kind of failure. Batches are made in this process, in which the dataset
    may be read by one iteration at a time; one that begins ends the last one,
    and begins behind what `fit` has trained on. Derive other datasets by `map`,
    `prefetch` and `take` only, and `zip` of streams.

    Args:
      source: tf_ext.data.KafkaSource, RedisSource, DirectorySource, or a Source
        of your own.
      schema: tf_ext.data.Schema.
      format: of the messages, as of `tf_ext.data.read`: "csv", "tsv" or a
        tf_ext.data.Csv, a line without a header; "jsonl", an object;
        "tfrecord", a serialized tf.train.Example; or a tf_ext.data.Avro or
        tf_ext.data.Protobuf.
      batch_size: int, the most records of a batch.
      max_delay: float, after how many seconds a batch is made of the records
        that have come, although they are fewer.
      envelope: dict from names of fields of the schema that are not in the
        message's value to where they are: `"key"`, or `"header:NAME"`. They are
        texts, and numbers are written out.
      event_time: string, the field of times (`time=`) by which lag is measured;
        None: when messages were sent.
      start: "earliest" or "latest", where partitions begin when nothing has
        been trained. Partitions that are found later begin at their first
        message.
      follow: bool; with False, the dataset ends at what the source has when an
        iteration begins.
      shard: `(index, count)` or a tf.distribute.InputContext: every `count`-th
        partition, from `index`, of those that there are when an iteration
        begins.
      max_errors: float, the greatest share of malformed records, among the last
        1,000 or more.
      errors: tf_ext.data.ReadErrors that counts them, by partition.
      progress: tf_ext.data.StreamProgress that tells how far training is.

    Returns:
      tf.data.Dataset, of batches as of `tf_ext.data.read`.

    Raises:
      ValueError: an argument is not as above.
      ImportError: without pyarrow.

    Example:
      >>> import pathlib, tempfile
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> _ = (folder / "part-0").write_text(
      ...     '{"user": "ann", "click": 1}\n{"user": "bob", "click": 0}\n')
      >>> schema = tf_ext.data.Schema(
      ...     [tf_ext.data.Field("user"),
      ...      tf_ext.data.Field("click", "float32")], label="click")
      >>> data = tf_ext.data.stream(
      ...     tf_ext.data.DirectorySource(folder), schema, "jsonl",
      ...     batch_size=256, follow=False)
      >>> for features, labels in data:
      ...     print(features["user"].numpy(), labels.numpy())
      [b'ann' b'bob'] [1. 0.]
    """
    if not isinstance(source, Source):
        refuse(_NAME, "source", "a tf_ext.data.Source", source)
    if shard is not None and isinstance(source, JoinSource):
        allowed = "None for a JoinSource, whose partitions belong together"
        refuse(_NAME, "shard", allowed, shard)
    if not isinstance(schema, Schema):
        refuse(_NAME, "schema", "a tf_ext.data.Schema", schema)
    check_count(_NAME, "batch_size", batch_size, 1)
    if not is_finite(max_delay) or max_delay <= 0:
        refuse(_NAME, "max_delay", "a positive finite number", max_delay)
    if start not in typing.get_args(Start):
        refuse(_NAME, "start", '"earliest" or "latest"', start)
    if not isinstance(follow, bool):
        refuse(_NAME, "follow", "True or False", follow)
    check_max_errors(_NAME, max_errors)
    if errors is not None and not isinstance(errors, ReadErrors):
        refuse(_NAME, "errors", "a tf_ext.data.ReadErrors or None", errors)
    if progress is not None and not isinstance(progress, StreamProgress):
        allowed = "a tf_ext.data.StreamProgress or None"
        refuse(_NAME, "progress", allowed, progress)
    times = {f.name for f in schema.used if f.time is not None and not f.bag}
    if event_time is not None and event_time not in times:
        allowed = "None or a field of the schema with `time`"
        refuse(_NAME, "event_time", allowed, event_time)
    if tf.inside_function():
        raise RuntimeError(
            "tf_ext.data.stream reads in the process that calls it, so it must "
            "not be called in a function that TensorFlow traces: give `fit` "
            "the dataset."
        )
    require_pyarrow("tf_ext.data.stream")
    progress = progress if progress is not None else StreamProgress()
    reading = _Stream(
        source,
        MessageParser(schema, format, {} if envelope is None else envelope),
        int(batch_size),
        float(max_delay),
        event_time,
        start,
        follow,
        (0, 1) if shard is None else checked_shard(_NAME, shard),
        max_errors,
        errors if errors is not None else ReadErrors(),
        progress,
    )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    batches = batches_of(
        reading.windows,
        Layout(schema),
        int(batch_size),
        options,
        reading.release,
    )
    return mark(batches, progress)


class _Stream:
    """What the iterations of a dataset read; arguments as of `stream`."""

    def __init__(
        self,
        source: Source,
        parser: MessageParser,
        batch_size: int,
        max_delay: float,
        event_time: str | None,
        start: Start,
        follow: bool,
        shard: tuple[int, int],
        max_errors: float,
        errors: ReadErrors,
        progress: StreamProgress,
    ) -> None:
        self._source = source
        self._parser = parser
        self._batch_size = batch_size
        self._max_delay = max_delay
        self._event_time = event_time
        self._start = start
        self._follow = follow
        self._shard = shard
        self._errors = errors
        self._share = _Share(max_errors)
        self._progress = progress
        # Held while an iteration is in Python, and how many there are.
        self._running = threading.RLock()
        self._alive = 0
        self._current: _Iteration | None = None
        progress.read_by(self)

    def windows(self) -> Generator[Window, None, None]:
        """Yields a window for each batch, and empty ones while none comes."""
        if not self._alive:
            atexit.register(self._end)
        self._alive += 1
        return self._ending()

    def _ending(self) -> Generator[Window, None, None]:
        with self._running:
            if self._current is None or not self._current.is_left:
                self._current = _Iteration(self._windows())
            current = self._current
            current.is_taken = True
        try:
            while True:
                with self._running:
                    window = current.next()
                if window is None:
                    return
                yield window
        finally:
            # Not waited for: Python may be collecting garbage in a thread that
            # holds another lock. An iteration in use ends by itself.
            if self._running.acquire(blocking=False):
                try:
                    current.close()
                finally:
                    self._running.release()

    @property
    def follows(self) -> bool:
        """Called by StreamProgress."""
        return self._follow

    @property
    def has_ended(self) -> bool:
        """Called by StreamProgress."""
        return self._current is None or self._current.has_ended

    def prepare(self) -> None:
        """Called by StreamProgress, which has ended the last iteration."""
        with self._running:
            if self._current is not None and not self._current.is_taken:
                self._current.close()
            self._current = _Iteration(self._windows())

    def pull(self, seconds: float) -> None:
        """Called by StreamProgress; TensorFlow may pull at the same time."""
        if self._running.acquire(timeout=seconds):
            try:
                if self._current is not None:
                    self._current.pull()
            finally:
                self._running.release()

    def release(self) -> None:
        """Called when nobody holds an iteration of `windows` any more."""
        self._alive -= 1
        if not self._alive:
            atexit.unregister(self._end)

    def _end(self) -> None:
        """Ends the iteration before Python ends.

        TensorFlow's threads could not return from Python later on, and it
        would wait for them.
        """
        self._progress.end()
        if self._running.acquire(timeout=_EXIT_SECONDS):
            self._running.release()
        # One that nobody reads now may stay.
        for _ in range(10):
            if not self._alive:
                return
            time.sleep(_POLL_SECONDS / 2)

    def _windows(self) -> Generator[Window, None, None]:
        known = self._progress.positions
        index, count = self._shard
        names = sorted(self._source.partitions())[index::count]
        # Partitions that appear while a stream is read have not been missed.
        start: Start = "earliest" if known else self._start
        first = {
            name: self._source.position(name, start)
            for name in names
            if name not in known
        }
        iteration = self._progress.begin(first, names)
        read = {name: (known | first)[name] for name in names}
        nothing = Window(self._parser.parse([]).part, np.arange(0))
        batch = _Waiting(self._batch_size, self._max_delay)
        left: dict[str, Position] = {}
        while True:
            consumer = self._source.open(dict(read), self._follow)
            with contextlib.closing(consumer):
                refresh = time.monotonic() + _REFRESH_SECONDS
                ended = False
                while not ended:
                    room = batch.room
                    messages = consumer.poll(room, batch.patience)
                    ended = messages is None
                    read |= batch.add(messages or ())
                    if not self._progress.goes_on(iteration):
                        return
                    if ended or batch.is_due(len(messages or ()) < room):
                        window = self._window(iteration, batch.take(), left)
                        if window is not None:
                            yield window
                    elif not messages:
                        # TensorFlow can end a dataset between two elements.
                        yield nothing
                    if time.monotonic() > refresh:
                        new = self._new_partitions(read)
                        if new:
                            break
                        refresh = time.monotonic() + _REFRESH_SECONDS
            if ended:
                self._share.check(self._errors, at_end=True)
                return
            read |= {n: self._source.position(n, "earliest") for n in new}

    def _new_partitions(self, read: Mapping[str, Position]) -> list[str]:
        """Partitions that are not read yet; none where workers share them."""
        if self._shard != (0, 1) or not self._follow:
            return []
        try:
            return sorted(set(self._source.partitions()) - set(read))
        except Exception as error:
            # It is away, which the consumer survives.
            _LOG.warning("Partitions could not be listed: %s", error)
            return []

    def _window(
        self,
        iteration: object,
        taken: list[Message],
        left: dict[str, Position],
    ) -> Window | None:
        """The records of messages; None if there are none.

        Args:
          iteration: of StreamProgress.
          taken: list of Messages.
          left: positions behind earlier ones without a record, which are moved
            to the next batch.
        """
        if not taken:
            return None
        places = [i for i, one in enumerate(taken) if one.value is not None]
        messages = taken
        if len(places) < len(taken):
            messages = [taken[place] for place in places]
        found = self._parser.parse(messages)
        self._count(messages, found)
        times = self._times(messages, found)
        rows = found.part.rows
        read = 0
        for begin in range(0, rows, self._batch_size):
            end = min(begin + self._batch_size, rows)
            last = len(taken) if end == rows else places[found.kept[end]]
            known = times[begin:end][~np.isnan(times[begin:end])]
            note = BatchNote(
                left | _positions(taken[read:last]),
                end - begin,
                float(known.min()) if len(known) else None,
                float(known.max()) if len(known) else None,
            )
            if not self._progress.note(iteration, note):
                return None
            left.clear()
            read = last
        left |= _positions(taken[read:])
        return Window(found.part, np.arange(rows)) if rows else None

    def _times(
        self, messages: list[Message], found: Records
    ) -> npt.NDArray[np.float64]:
        """The time of each record; NaN if it is not known."""
        if self._event_time is not None:
            values = found.part.dense[self._event_time]
            return np.asarray(values, np.float64)
        times = np.array([message.time for message in messages], np.float64)
        return times[found.kept]

    def _count(self, messages: list[Message], found: Records) -> None:
        bad: dict[str, list[Malformed]] = {}
        for row, reason in sorted(found.reasons.items()):
            place = Malformed(messages[row].position, reason)
            bad.setdefault(messages[row].partition, []).append(place)
        counts = collections.Counter(one.partition for one in messages)
        for name, count in counts.items():
            some = bad.get(name, [])
            self._errors.add(name, None, count, some, "before position")
        self._share.add(len(messages), list(found.reasons.values()))
        self._share.check(self._errors)


class _Iteration:
    """Windows that were made, and those that come.

    Args:
      windows: generator of Windows.
    """

    def __init__(self, windows: Generator[Window, None, None]) -> None:
        self._windows = windows
        self._made: collections.deque[Window] = collections.deque()
        # Whether TensorFlow reads it.
        self.is_taken = False
        self.has_ended = False

    @property
    def is_left(self) -> bool:
        """Whether TensorFlow can go on with it."""
        if self.is_taken:
            return False
        return bool(self._made) or not self.has_ended

    def next(self) -> Window | None:
        """The window that comes next; None at the end."""
        return self._made.popleft() if self._made else self._next()

    def pull(self) -> None:
        """Makes a window, for `next`."""
        window = self._next()
        if window is not None and len(window.order):
            self._made.append(window)

    def _next(self) -> Window | None:
        try:
            window = next(self._windows, None)
        except BaseException:
            self.close()
            raise
        self.has_ended = window is None
        return window

    def close(self) -> None:
        """Ends it."""
        self.has_ended = True
        self._made.clear()
        self._windows.close()


class _Waiting:
    """Messages that batches are made of when one is full, or old enough."""

    def __init__(self, batch_size: int, max_delay: float) -> None:
        self._batch_size = batch_size
        self._max_delay = max_delay
        # With those that only move a position.
        self._messages: list[Message] = []
        self._count = 0  # Of the others.
        self._due = math.inf

    @property
    def room(self) -> int:
        """How many more to ask for: to fill a batch, or several."""
        batches = 1 if self._count < self._batch_size else _BATCHES_AT_ONCE
        return batches * self._batch_size - self._count

    @property
    def patience(self) -> float:
        """How long to wait for the next one, in seconds."""
        if self._count >= self._batch_size:
            return 0.0
        left = self._due - time.monotonic()
        return min(max(left, 0.0), _POLL_SECONDS)

    def add(self, messages: Sequence[Message]) -> dict[str, Position]:
        """Adds what a source returned; returns the positions behind it."""
        self._messages += messages
        self._count += len(messages)
        self._count -= [one.value for one in messages].count(None)
        if self._count and self._due == math.inf:
            self._due = time.monotonic() + self._max_delay
        return _positions(messages)

    def is_due(self, is_all: bool) -> bool:
        """Whether batches are to be made.

        Args:
          is_all: bool, whether the source had no more messages just now.
        """
        if self._count >= self._batch_size and is_all:
            return True
        return self.room <= 0 or time.monotonic() >= self._due

    def take(self) -> list[Message]:
        """The messages that batches are made of."""
        taken, self._messages = self._messages, []
        self._count, self._due = 0, math.inf
        return taken


def _positions(messages: Sequence[Message]) -> dict[str, Position]:
    """Where partitions are read next, behind messages."""
    return {one.partition: one.position for one in messages}


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
