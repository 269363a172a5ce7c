# SPDX-License-Identifier: Apache-2.0
"""What the training of this process counts, for its metrics."""

import dataclasses
import threading
import time
import typing
import weakref


class _Schedules(typing.Protocol):
    under_way: int  # steps that are scheduled and have not ended

    def answer_seconds(self) -> dict[str, float]:
        """How long tasks take to answer, by name."""


class Publishes(typing.Protocol):
    """What metrics read of a `tf_ext.serving.Publisher`."""

    version: int
    step: int
    point_time: float | None
    published_rows: int
    failures: int

    @property
    def lag_seconds(self) -> float:
        """Since when there is a newer point."""


@dataclasses.dataclass(frozen=True)
class Points:
    """Recovery points that this process has written.

    Attributes:
      written: int.
      seconds: float, how long all of them took.
      step: int, the training step of the last one.
      time: float, when it was complete, in seconds since 1970.
      pauses: int, how often training waited for one to begin.
      pause_seconds: float, how long it waited altogether.
    """

    written: int = 0
    seconds: float = 0.0
    step: int = 0
    time: float = 0.0
    pauses: int = 0
    pause_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class TrainingCounts:
    """What `read` returns.

    Attributes:
      steps: int, training steps of `TrainingLoop` that have ended.
      stale_updates: int, those whose staleness is known.
      staleness: float, the sum of their staleness.
      in_flight: int, scheduled steps that have not ended, with parameter
        servers; None without.
      streamed: int, records of streams that were trained on.
      event_time: float, when the newest of them was sent; None if unknown.
      publishers: list of those that publish points.
      points: Points, that this process has written; None before the first is
        complete.
      answer_seconds: dict of task name -> float, how long tasks take to answer
        the chief; of several schedules, the last one that has looked.
    """

    steps: int
    stale_updates: int
    staleness: float
    in_flight: int | None
    streamed: int
    event_time: float | None
    publishers: list[Publishes]
    points: Points | None
    answer_seconds: dict[str, float]


_lock = threading.Lock()
_steps = 0
_stale_updates = 0
_staleness = 0.0
_streamed = 0
_event_time: float | None = None
_points = Points()
_schedules: weakref.WeakSet[typing.Any] = weakref.WeakSet()

_publishers: weakref.WeakSet[typing.Any] = weakref.WeakSet()


def add_steps(steps: int) -> None:
    """Counts training steps that have ended."""
    global _steps
    with _lock:
        _steps += steps


def add_staleness(staleness: float) -> None:
    """Counts the staleness of an update."""
    global _stale_updates, _staleness
    with _lock:
        _stale_updates += 1
        _staleness += staleness


def add_schedule(schedule: _Schedules) -> None:
    """Has the steps of `schedule` counted as in flight, while it exists."""
    _schedules.add(schedule)


def add_publisher(publisher: Publishes) -> None:
    """Has metrics tell of a publisher, while it exists."""
    _publishers.add(publisher)


def remove_publisher(publisher: Publishes) -> None:
    """Has metrics tell of it no more."""
    _publishers.discard(publisher)


def add_streamed(records: int, event_time: float | None) -> None:
    """Counts records of a stream that were trained on.

    Args:
      records: int.
      event_time: float, seconds since 1970, of the newest one; None if unknown.
    """
    global _streamed, _event_time
    with _lock:
        _streamed += records
        if event_time is not None:
            _event_time = max(event_time, _event_time or event_time)


def add_point(step: int, seconds: float) -> None:
    """Counts a recovery point that was written just now.

    Args:
      step: int, its training step.
      seconds: float, how long it took.
    """
    global _points
    with _lock:
        _points = dataclasses.replace(
            _points,
            written=_points.written + 1,
            seconds=_points.seconds + seconds,
            step=step,
            time=time.time(),
        )


def add_point_pause(seconds: float) -> None:
    """Counts that training waited until a recovery point had begun.

    Args:
      seconds: float, how long.
    """
    global _points
    with _lock:
        _points = dataclasses.replace(
            _points,
            pauses=_points.pauses + 1,
            pause_seconds=_points.pause_seconds + seconds,
        )


def read() -> TrainingCounts:
    """The counts since this process began."""
    schedules = list(_schedules)
    in_flight = sum(one.under_way for one in schedules) if schedules else None
    answer_seconds: dict[str, float] = {}
    for one in schedules:
        answer_seconds |= one.answer_seconds()
    with _lock:
        return TrainingCounts(
            _steps,
            _stale_updates,
            _staleness,
            in_flight,
            _streamed,
            _event_time,
            list(_publishers),
            _points if _points.written else None,
            answer_seconds,
        )
