# SPDX-License-Identifier: Apache-2.0
"""Streams that a worker reads, and another process follows.

The process that trains says where the worker begins. The worker reads ahead,
and tells of each batch, before a step trains on it, which messages it has: if
the worker is lost with the step, any worker makes the same batch again.

What a graph calls here by name runs in the process of the worker.
"""

import collections
import contextlib
import json
import pickle
import threading
import time
import typing
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext._checks import refuse
from tf_ext._compat import py_functions
from tf_ext.data.batches import empty
from tf_ext.data.errors import Malformed, ReadErrors, ReadingError
from tf_ext.data.formats import Format
from tf_ext.data.layout import Layout
from tf_ext.data.messages import MessageParser
from tf_ext.data.passes import Window
from tf_ext.data.progress import BatchNote, StreamProgress, mark
from tf_ext.data.schema import Schema
from tf_ext.data.source import Position, Source, Start
from tf_ext.data.stream_reader import POLL_SECONDS, StreamReader

_OPEN = "tf_ext_stream_open"
_NEXT = "tf_ext_stream_next"
_TELL = "tf_ext_stream_tell"
# Batches that are read ahead.
_AHEAD = 2
# A reading that nobody asks for so long has been forgotten.
_FORGOTTEN_SECONDS = 60.0
_END = "end"
_TEXT = tf.TensorSpec([], tf.string)


class WorkerStream(typing.NamedTuple):
    """What a worker reads; as of the arguments of `stream`."""

    source: Source
    schema: Schema
    format: Format
    envelope: Mapping[str, str]
    batch_size: int
    max_delay: float
    event_time: str | None
    follow: bool
    max_errors: float

    def reader(
        self, errors: ReadErrors, batches_at_once: int = 1
    ) -> StreamReader:
        """What makes its batches; the arguments are those of StreamReader."""
        return StreamReader(
            self.source,
            MessageParser(self.schema, self.format, self.envelope),
            self.batch_size,
            self.max_delay,
            self.event_time,
            self.follow,
            self.max_errors,
            errors,
            batches_at_once,
        )


class Told(typing.NamedTuple):
    """What a worker tells of its next batch.

    note: BatchNote; malformed: `(partition, records, [Malformed])`, of the
    messages since the batch before.
    """

    note: BatchNote
    malformed: list[tuple[str, int, list[Malformed]]]

    def text(self) -> str:
        """As JSON."""
        return json.dumps([self.note, self.malformed])

    @classmethod
    def of(cls, text: str) -> "Told":
        """From `text`."""
        note, malformed = json.loads(text)
        return cls(
            BatchNote(*note),
            [
                (name, records, [Malformed(*one) for one in some])
                for name, records, some in malformed
            ],
        )


class TracedStreamError(RuntimeError):
    """`stream` was called in a function that TensorFlow traces."""


class Made(typing.NamedTuple):
    """A stream that a function made for a worker.

    stream: WorkerStream; text: bytes, of it; start, progress, errors: arguments
    of `stream`.
    """

    stream: WorkerStream
    text: bytes
    start: Start
    progress: StreamProgress
    errors: ReadErrors


class WorkerContext(tf.distribute.InputContext):
    """The context of a function whose dataset a worker reads.

    Args:
      workers: int, how many there are.
      worker: int, which of them, from 0.
      name: string tensor, of the reading, which `open_reading` begins.

    Attributes:
      streams: list of Made, the streams that the function made.
    """

    def __init__(self, workers: int, worker: int, name: tf.Tensor) -> None:
        super().__init__(workers, worker, 1)
        self._name = name
        self.streams: list[Made] = []

    def stream(
        self,
        described: WorkerStream,
        start: Start,
        progress: StreamProgress,
        errors: ReadErrors,
    ) -> tf.data.Dataset:
        """The dataset of a worker's part of a stream, in its graph."""
        if type(described.source).__module__ == "__main__":
            allowed = "of a class of a module that workers, too, can import"
            refuse("stream", "source", allowed, described.source)
        try:
            text = pickle.dumps(described)
        except Exception as error:
            raise ValueError(
                "Arguments `source`, `schema` and `format` of stream must be "
                "such that pickle can send them to workers, which read the "
                f"stream. Received: {error}"
            ) from error
        self.streams.append(Made(described, text, start, progress, errors))
        layout = Layout(described.schema)
        signature = [
            tf.TensorSpec([], tf.bool),  # Whether it goes on.
            tf.TensorSpec([None], tf.int64),
            *layout.signature,
        ]

        @tf.autograph.experimental.do_not_convert
        def read(_: tf.Tensor, name: tf.Tensor) -> typing.Any:
            return tuple(py_functions.call(_NEXT, [name], signature))

        @tf.autograph.experimental.do_not_convert
        def batch(
            _: tf.Tensor, order: tf.Tensor, *tensors: tf.Tensor
        ) -> typing.Any:
            return layout.batch(tensors, order)

        names = tf.data.Dataset.from_tensors(self._name).repeat()
        batches = (
            tf.data.Dataset.zip((tf.data.Dataset.counter(), names))
            .map(read)
            .take_while(lambda goes_on, *_: goes_on)
            # TensorFlow can end a dataset between two elements.
            .filter(lambda _, order, *__: tf.size(order) > 0)
            .map(batch)
            .prefetch(1)
        )
        return mark(batches, progress)


def open_reading(
    name: tf.Tensor,
    text: bytes,
    positions: Mapping[str, Position],
    again: BatchNote | None,
) -> None:
    """Begins a reading, on the device in scope.

    Args:
      name: string tensor, of `reading_name`.
      text: of Made.
      positions: where the partitions that it reads are read next.
      again: of the batch that it makes first, of the same messages; or None.

    Raises:
      WorkerReadingError: the worker cannot read it.
    """
    begin = json.dumps([dict(positions), again])
    # Workers of a later cluster would not know one that is kept.
    opened = tf.function(
        _opened, input_signature=[_TEXT, _TEXT, _TEXT], autograph=False
    )
    found = opened(name, tf.constant(begin), tf.constant(text))
    told(found.numpy())


def _opened(name: tf.Tensor, begin: tf.Tensor, text: tf.Tensor) -> tf.Tensor:
    return py_functions.call(_OPEN, [name, begin, text], [_TEXT])[0]


def tell(name: tf.Tensor, done: int, seconds: float | tf.Tensor) -> tf.Tensor:
    """Asks, in a graph, a worker for its next batch.

    Args:
      name: string tensor, of the reading.
      done: int, how many more batches have been trained on.
      seconds: float or scalar tensor, how long it waits.

    Returns:
      String tensor, for `told`.
    """
    return py_functions.call(
        _TELL,
        [name, tf.constant(done, tf.int64), tf.cast(seconds, tf.float64)],
        [_TEXT],
    )[0]


def told(text: bytes) -> Told | typing.Literal["end"] | None:
    """What a worker said.

    Returns:
      Told; None if it has no batch yet; "end" at the end of its data.

    Raises:
      ForgottenError: it does not know the reading.
      WorkerReadingError: it cannot read on.
    """
    kind, *others = json.loads(text)
    if kind == "batch":
        return Told.of(others[0])
    if kind == "error":
        raise WorkerReadingError(others[0])
    if kind == "forgotten":
        raise ForgottenError
    return "end" if kind == _END else None


class ForgottenError(Exception):
    """A worker does not know a reading: nobody asked for it for long."""


class WorkerReadingError(Exception):
    """A worker cannot read on; the text of its error."""


class _Collecting(ReadErrors):
    """Also keeps what is added, until it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._new: list[tuple[str, int, list[Malformed]]] = []

    def add(
        self,
        file: str,
        records: int,
        malformed: typing.Any,
        unit: str = "line",
    ) -> None:
        super().add(file, records, malformed, unit)
        self._new.append((file, records, list(malformed)))

    def take(self) -> list[tuple[str, int, list[Malformed]]]:
        """What was added since it was last called."""
        new, self._new = self._new, []
        return new


class _Reading:
    """What a worker reads, in a thread, and has read ahead.

    Args:
      stream: WorkerStream.
      positions: as of `begin_text`.
      again: as of `begin_text`.
    """

    def __init__(
        self,
        stream: WorkerStream,
        positions: Mapping[str, Position],
        again: BatchNote | None,
    ) -> None:
        self._stream = stream
        self._layout = Layout(stream.schema)
        self._changed = threading.Condition()
        self._notes: collections.deque[Told] = collections.deque()
        self._batches: collections.deque[list[npt.NDArray[typing.Any]]] = (
            collections.deque()
        )
        self._errors = _Collecting()
        self._error: str | None = None
        self._has_ended = False
        self._asked = time.monotonic()
        self.is_closed = False
        threading.Thread(
            target=self._read,
            args=(positions, again),
            name="tf_ext_stream",
            daemon=True,
        ).start()

    def _read(
        self, positions: Mapping[str, Position], again: BatchNote | None
    ) -> None:
        notes: collections.deque[BatchNote] = collections.deque()

        def note(one: BatchNote) -> bool:
            notes.append(one)
            return self._goes_on()

        try:
            windows = self._stream.reader(self._errors).windows(
                positions, note, self._goes_on, again=again
            )
            with contextlib.closing(windows):
                for window in windows:
                    self._add(window, notes)
        except ReadingError as error:
            self._error = error.as_text()
        except BaseException as error:
            self._error = f"{_name(error)}: {error}"
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _add(
        self, window: Window, notes: "collections.deque[BatchNote]"
    ) -> None:
        size = self._stream.batch_size
        tensors = self._layout.tensors(window.part) if notes else []
        for begin in range(0, len(window.order), size):
            order = window.order[begin : begin + size]
            with self._changed:
                self._batches.append([np.array(True), order, *tensors])
                self._notes.append(Told(notes.popleft(), self._errors.take()))
                self._changed.notify_all()
                while len(self._batches) >= _AHEAD and self._goes_on():
                    self._changed.wait(POLL_SECONDS)

    def _goes_on(self) -> bool:
        if time.monotonic() > self._asked + _FORGOTTEN_SECONDS:
            self.is_closed = True
        return not self.is_closed

    def close(self) -> None:
        """Ends it."""
        self.is_closed = True

    def next(self) -> list[npt.NDArray[typing.Any]]:
        """The next batch; an empty one if it has not come."""
        with self._changed:
            if not self._batches and not self._has_ended:
                self._changed.wait(POLL_SECONDS)
            if self._batches:
                self._changed.notify_all()
                return self._batches.popleft()
            goes_on = not (self._has_ended or self.is_closed)
        tensors = map(empty, self._layout.signature)
        return [np.array(goes_on), np.empty([0], np.int64), *tensors]

    def tell(self, done: int, seconds: float) -> list[str]:
        """What `told` gets, as JSON's list."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._asked = time.monotonic()
            for _ in range(min(done, len(self._notes))):
                self._notes.popleft()
            while not (self._notes or self._has_ended):
                left = deadline - time.monotonic()
                if left <= 0:
                    return ["none"]
                self._changed.wait(left)
            if self._notes:
                return ["batch", self._notes[0].text()]
            if self._error is not None:
                return ["error", self._error]
            return ["forgotten"] if self.is_closed else [_END]


class _Readings:
    """The readings of this process, by their names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, _Reading] = {}

    def open(self, name: bytes, begin: bytes, text: bytes) -> bytes:
        """Begins a reading, and ends older ones of the same share."""
        positions, again = json.loads(begin)
        again = None if again is None else BatchNote(*again)
        try:
            # Whoever can run a graph here can do anything to this process.
            stream = pickle.loads(text)
            reading = _Reading(stream, positions, again)
        except Exception as error:
            return json.dumps(["error", f"{_name(error)}: {error}"]).encode()
        share = _share_of(name.decode())
        with self._lock:
            for other, one in list(self._known.items()):
                if _share_of(other) == share:
                    one.close()
                if one.is_closed:
                    del self._known[other]
            self._known[name.decode()] = reading
        return b'["none"]'

    def next(self, name: bytes) -> list[npt.NDArray[typing.Any]]:
        """The next batch of a reading."""
        reading = self._known.get(name.decode())
        if reading is None:
            raise RuntimeError(f"The stream {name!r} is not read here.")
        return reading.next()

    def tell(self, name: bytes, done: int, seconds: float) -> bytes:
        """What a reading tells of its next batch."""
        reading = self._known.get(name.decode())
        found = ["forgotten"]
        if reading is not None:
            found = reading.tell(int(done), float(seconds))
        return json.dumps(found).encode()


def reading_name(share: str, number: int) -> str:
    """The name of a reading of a share, of which only one is read."""
    return f"{share}#{number}"


def _name(error: BaseException) -> str:
    return type(error).__name__


def _share_of(name: str) -> str:
    return name.rpartition("#")[0]


_READINGS = _Readings()


# Servers import tf_ext, and so this.
py_functions.register(_OPEN, _READINGS.open)
py_functions.register(_NEXT, _READINGS.next)
py_functions.register(_TELL, _READINGS.tell)
