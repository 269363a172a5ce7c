# SPDX-License-Identifier: Apache-2.0
"""How far a stream has been trained on.

Batches are read ahead, so positions are noted with each batch as it is made,
and are those of the stream when the batch has been trained on.
"""

import collections
import json
import threading
import time
import typing
from collections.abc import Callable, Iterable, Mapping

import tensorflow as tf

from tf_ext._compat.datasets import batches_changed, parts_of, takes_some
from tf_ext.data.source import Position
from tf_ext.distribute import training_counts


class BatchNote(typing.NamedTuple):
    """What is known of a batch.

    positions: where partitions are read next, of those that it read; records:
    its records; oldest, newest: times of events, or None; messages: how many of
    each partition it was made of, malformed ones included.
    """

    positions: Mapping[str, Position]
    records: int
    oldest: float | None
    newest: float | None
    messages: Mapping[str, int]


class Lag(typing.NamedTuple):
    """How late training was since the last time that somebody asked.

    records: trained; batches: those with times; total, most: seconds from the
    oldest event of a batch to the end of its step, over batches.
    """

    records: int = 0
    batches: int = 0
    total: float = 0.0
    most: float = 0.0


class Reading(typing.Protocol):
    """What makes the batches of a stream."""

    @property
    def follows(self) -> bool:
        """Whether it has no end."""

    @property
    def has_ended(self) -> bool:
        """Whether the iteration that is read makes no more batches."""

    def prepare(self) -> None:
        """Begins an iteration, which TensorFlow's next one goes on with."""

    def pull(self) -> None:
        """Makes a batch of the iteration, if one comes soon."""


class StreamProgress(tf.train.experimental.PythonState):
    r"""Where a stream is, as far as it has been trained on.

    `tf_ext.Model.fit` keeps it, and `tf_ext.callbacks.TableSnapshot` saves it
    with the rows. In a training loop of your own, give it to
    `tf_ext.data.stream`, call `advance` after each step, and save `state()`, or
    the object itself in a `tf.train.Checkpoint`, together with the model. Each
    iteration of the dataset begins where it is.

    Attributes:
      positions: dict from partitions to where each is read next.
      records: int, records of the batches that were trained on by this process.
      event_time: float, seconds since 1970, the time of the newest record that
        was trained on; None if no record had one.

    Example:
      >>> import pathlib, tempfile
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> _ = (folder / "part-0").write_text("1\n2\n3\n4\n5\n")
      >>> progress = tf_ext.data.StreamProgress()
      >>> data = tf_ext.data.stream(
      ...     tf_ext.data.DirectorySource(folder),
      ...     tf_ext.data.Schema([tf_ext.data.Field("x", "float32")]),
      ...     batch_size=2, follow=False, progress=progress)
      >>> for batch in data.take(1):
      ...     print(batch["x"].numpy())
      ...     progress.advance()
      [1. 2.]
      >>> state = progress.state()
      >>> state
      {'positions': {'.': ['part-0', 2]}}
      >>> progress.restore(state)
      >>> next(iter(data))["x"].numpy()
      array([3., 4.], dtype=float32)
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._positions: dict[str, Position] = {}
        # Those that this process reads, of those that it knows.
        self._own: set[str] = set()
        self._iteration: object = None
        self._reading: Reading | None = None
        self._notes: collections.deque[BatchNote] = collections.deque()
        self._records = 0
        self._event_time: float | None = None
        self._lag = Lag()

    @property
    def positions(self) -> dict[str, Position]:
        with self._lock:
            return dict(self._positions)

    @property
    def records(self) -> int:
        return self._records

    @property
    def event_time(self) -> float | None:
        return self._event_time

    def state(self) -> dict[str, typing.Any]:
        """What JSON can hold, for `restore`."""
        return {"positions": self.positions}

    def restore(self, state: Mapping[str, typing.Any]) -> None:
        """Has the next iteration begin elsewhere.

        Args:
          state: dict of `state`.

        Raises:
          ValueError: it is none.
        """
        positions = state.get("positions") if hasattr(state, "get") else None
        if not isinstance(positions, Mapping) or not all(
            isinstance(name, str) for name in positions
        ):
            raise ValueError(
                "Argument `state` of StreamProgress.restore must be what "
                f"`state` returned. Received: state={state!r}"
            )
        with self._lock:
            self._positions = dict(positions)
        self.prepare()

    def serialize(self) -> str:
        """Called by `tf.train.Checkpoint`."""
        return json.dumps(self.state())

    def deserialize(self, string_value: str) -> None:
        """Called by `tf.train.Checkpoint`."""
        self.restore(json.loads(string_value))

    def advance(self, batches: int = 1) -> None:
        """Tells that a number of further batches have been trained on."""
        now = time.time()
        with self._lock:
            for _ in range(min(batches, len(self._notes))):
                note = self._notes.popleft()
                self._positions.update(note.positions)
                self._records += note.records
                lag = self._lag._replace(
                    records=self._lag.records + note.records
                )
                training_counts.add_streamed(note.records, note.newest)
                if note.oldest is not None and note.newest is not None:
                    late = max(0.0, now - note.oldest)
                    lag = Lag(
                        lag.records,
                        lag.batches + 1,
                        lag.total + late,
                        max(lag.most, late),
                    )
                    self._event_time = max(
                        note.newest, self._event_time or note.newest
                    )
                self._lag = lag

    def lag(self) -> Lag:
        """How late training was since this was called last."""
        with self._lock:
            lag, self._lag = self._lag, Lag()
        return lag

    def read_by(self, reading: Reading) -> None:
        """Told what makes the batches."""
        self._reading = reading

    def prepare(self) -> None:
        """Has the stream begin anew, behind what was trained on."""
        with self._lock:
            self._iteration = None
            self._notes.clear()
        if self._reading is not None:
            self._reading.prepare()

    @property
    def has_ended(self) -> bool:
        """Whether no batches are made any more."""
        return self._reading is None or self._reading.has_ended

    @property
    def follows(self) -> bool:
        """Whether the stream has no end."""
        return self._reading is not None and self._reading.follows

    @property
    def noted(self) -> int:
        """How many batches were made and not trained on."""
        return len(self._notes)

    def wait(self, batches: int, stop: Callable[[], bool]) -> bool:
        """Waits in Python, where signals are answered.

        Args:
          batches: int, how many that were not trained on are waited for.
          stop: function that tells whether to give up.

        Returns:
          Whether they are there, or no more will come.
        """
        while True:
            if self.noted >= batches or self.has_ended:
                return True
            if stop():
                return False
            assert self._reading is not None
            self._reading.pull()

    def begin(
        self, first: Mapping[str, Position], own: Iterable[str]
    ) -> object:
        """Begins an iteration, and ends others.

        Args:
          first: positions of partitions that it does not know yet.
          own: the partitions that this process reads.

        Returns:
          The iteration, for `note`.
        """
        with self._lock:
            self._positions = {**first, **self._positions}
            self._own = set(own)
            self._iteration = object()
            self._notes.clear()
            return self._iteration

    def found(self, first: Mapping[str, Position]) -> None:
        """Told of partitions that have appeared, and where they begin."""
        with self._lock:
            self._positions = {**first, **self._positions}
            self._own |= set(first)

    def note(self, iteration: object, note: BatchNote) -> bool:
        """Notes a batch that an iteration has made.

        Returns:
          Whether this is still the stream's last iteration.
        """
        with self._lock:
            if iteration is not self._iteration:
                return False
            self._notes.append(note)
            return True

    def end(self) -> None:
        """Ends the last iteration."""
        self._iteration = None

    def goes_on(self, iteration: object) -> bool:
        """Whether an iteration is the stream's last one."""
        return iteration is self._iteration

    def own_state(self) -> dict[str, typing.Any]:
        """The state, and which of its positions are of this process."""
        with self._lock:
            return {
                "positions": dict(self._positions),
                "own": sorted(self._own),
            }


def merged(states: Iterable[Mapping[str, typing.Any]]) -> dict[str, typing.Any]:
    """The state of a stream whose partitions several processes read.

    Args:
      states: `own_state` of each.
    """
    positions: dict[str, Position] = {}
    states = list(states)
    for state in states:
        positions.update(state["positions"])
    for state in states:
        positions |= {name: state["positions"][name] for name in state["own"]}
    return {"positions": positions}


def mark(dataset: tf.data.Dataset, progress: StreamProgress) -> tf.data.Dataset:
    """Returns the dataset, which reads a stream."""
    dataset.tf_ext_streams = [progress]
    return dataset


def streams_of(data: typing.Any) -> list[StreamProgress]:
    """The progress of the streams that data read.

    Args:
      data: tf.data.Dataset, or anything else, which has none.
    """
    if not isinstance(data, tf.data.Dataset):
        return []
    return [
        progress
        for part in parts_of(data)
        for progress in getattr(part, "tf_ext_streams", ())
    ]


def can_be_awaited(data: typing.Any) -> bool:
    """Whether each step of data needs a batch of its streams, to the end."""
    return bool(streams_of(data)) and not takes_some(data)


def is_endless(data: typing.Any) -> bool:
    """Whether data are of streams without an end."""
    return can_be_awaited(data) and all(
        stream.follows for stream in streams_of(data)
    )


def check_one_to_one(data: typing.Any) -> None:
    """Raises ValueError if a batch of data is not one of each stream's."""
    if not streams_of(data):
        return
    changed = batches_changed(
        data, lambda part: hasattr(part, "tf_ext_streams")
    )
    if changed:
        raise ValueError(
            "Argument `x` of fit must have a batch for each batch of "
            "tf_ext.data.stream, so that its position is known: derive it by "
            "`map`, `prefetch`, `take` and `with_options` only, and `zip` of "
            f"streams. Received: a dataset derived by {', '.join(changed)}"
        )
