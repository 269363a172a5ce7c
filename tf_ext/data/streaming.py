# SPDX-License-Identifier: Apache-2.0
"""Datasets of the records of queues."""

import atexit
import collections
import threading
import time
import typing
from collections.abc import Callable, Generator, Mapping

import tensorflow as tf

from tf_ext._checks import check_count, is_finite, refuse
from tf_ext.data.arrow import require_pyarrow
from tf_ext.data.batches import batches_of
from tf_ext.data.errors import ReadErrors, check_max_errors
from tf_ext.data.formats import Format
from tf_ext.data.join_source import JoinSource
from tf_ext.data.layout import Layout
from tf_ext.data.passes import Window
from tf_ext.data.progress import StreamProgress, mark
from tf_ext.data.reading import Shard, checked_shard
from tf_ext.data.schema import Schema
from tf_ext.data.source import Position, Source, Start
from tf_ext.data.source_waiting import always, when_available
from tf_ext.data.stream_reader import POLL_SECONDS, StreamReader
from tf_ext.data.worker_streams import (
    TracedStreamError,
    WorkerContext,
    WorkerStream,
)

_NAME = "stream"
# How many batches are made at once of messages that have come already.
_BATCHES_AT_ONCE = 8
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
    each kind of failure. Batches are made in this process, or on the workers of
    a ParameterServerStrategy if `fit` gets a function that passes its argument
    as `shard`. In a process, the dataset may be read by one iteration at a
    time; one that begins ends the last one, and begins behind what `fit` has
    trained on; so `validation_data` of `fit` needs another. Derive other
    datasets by `map`, `prefetch` and `take` only, and `zip` of streams.

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
        begins. On the workers of a ParameterServerStrategy, also those that
        appear later.
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
    if tf.inside_function() and not isinstance(shard, WorkerContext):
        raise TracedStreamError(
            "tf_ext.data.stream reads in the process that calls it, so it must "
            "not be called in a function that TensorFlow traces: give `fit` "
            "the dataset, or a function that passes its argument as `shard`."
        )
    require_pyarrow("tf_ext.data.stream")
    progress = progress if progress is not None else StreamProgress()
    errors = errors if errors is not None else ReadErrors()
    described = WorkerStream(
        source,
        schema,
        format,
        {} if envelope is None else envelope,
        int(batch_size),
        float(max_delay),
        event_time,
        follow,
        max_errors,
    )
    if isinstance(shard, WorkerContext):
        described.reader(errors)  # Which checks `format` and `envelope`.
        return shard.stream(described, start, progress, errors)
    reading = _Stream(
        source,
        described.reader(errors, _BATCHES_AT_ONCE),
        start,
        follow,
        (0, 1) if shard is None else checked_shard(_NAME, shard),
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
    """What the iterations of a dataset read.

    Args:
      source, start, follow, shard, progress: as of `stream`.
      reader: StreamReader.
    """

    def __init__(
        self,
        source: Source,
        reader: StreamReader,
        start: Start,
        follow: bool,
        shard: tuple[int, int],
        progress: StreamProgress,
    ) -> None:
        self._source = source
        self._reader = reader
        self._start = start
        self._follow = follow
        self._shard = shard
        self._progress = progress
        # Held while an iteration is in Python, and how many there are.
        self._running = threading.RLock()
        self._alive = 0
        self._is_ending = False
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

    def pull(self) -> None:
        """Called by StreamProgress; TensorFlow may pull at the same time."""
        # No time limit: `acquire` could be interrupted after it has succeeded,
        # and nobody would release it.
        with self._running:
            if self._current is not None:
                self._current.pull()

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
        self._is_ending = True
        if self._running.acquire(timeout=_EXIT_SECONDS):
            self._running.release()
        # One that nobody reads now may stay.
        for _ in range(10):
            if not self._alive:
                return
            time.sleep(POLL_SECONDS / 2)

    def _windows(self) -> Generator[Window, None, None]:
        positions, iteration = begin(
            self._progress,
            self._source,
            self._start,
            self._shard,
            lambda: not self._is_ending,
        )
        yield from self._reader.windows(
            positions,
            lambda note: self._progress.note(iteration, note),
            lambda: self._progress.goes_on(iteration),
            # Others would find them, too, where workers share them.
            finds_partitions=self._shard == (0, 1) and self._follow,
        )


def begin(
    progress: StreamProgress,
    source: Source,
    start: Start,
    shard: tuple[int, int] = (0, 1),
    goes_on: Callable[[], bool] = always,
) -> tuple[dict[str, Position], object]:
    """Begins an iteration over partitions.

    Args:
      progress: StreamProgress.
      source: Source.
      start: as of `stream`.
      shard: `(index, count)`, as of `stream`.
      goes_on: function that tells whether a source that is away is waited for.

    Returns:
      Where each is read next, and the iteration, for `StreamProgress.note`.
    """
    index, count = shard
    names = sorted(when_available(source.partitions, goes_on=goes_on))
    names = names[index::count]
    known = progress.positions
    # Partitions that appear while a stream is read have not been missed.
    where: Start = "earliest" if known else start
    first = {
        name: when_available(source.position, name, where, goes_on=goes_on)
        for name in names
        if name not in known
    }
    iteration = progress.begin(first, names)
    return {name: (known | first)[name] for name in names}, iteration


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
