# SPDX-License-Identifier: Apache-2.0
"""Some partitions of a stream, which one worker at a time reads."""

import json
import threading
import time
import typing
from collections.abc import Callable

import tensorflow as tf

from tf_ext.data import worker_streams
from tf_ext.data.errors import reading_error
from tf_ext.data.source import Position
from tf_ext.data.worker_streams import (
    ForgottenError,
    Told,
    WorkerReadingError,
)
from tf_ext.distribute.addresses import task_name
from tf_ext.training.parameter_servers.step_numbers import ShareSteps

NAME = tf.TensorSpec([], tf.string)
"""Of the name of a reading."""


class Trained(typing.NamedTuple):
    """A batch that was trained on.

    number: of the batch in its share, from 1; told: what the worker told of it.
    """

    number: int
    told: Told

    def text(self) -> str:
        """As JSON."""
        return json.dumps([self.number, self.told.text()])

    @classmethod
    def of(cls, text: str) -> "Trained":
        """From `text`."""
        number, told = json.loads(text)
        return cls(number, Told.of(told))


class StreamShare(ShareSteps):
    """Some partitions, which one worker at a time reads.

    Args:
      index: int, of the worker that reads them unless it is lost.
      key: string, of no other share.
      text: bytes, of the Made.
      make: function from the name of a reading to its dataset; it runs on the
        worker.
      ask: function that `asking` returned.

    Attributes:
      lock: held while a step of it runs.
      is_lost: bool, whether any worker may read it.
      has_ended: bool, whether there are no data left.
      trained_at: float, `time.monotonic()` of its last step.
      partitions: int, how many it has.
    """

    def __init__(
        self,
        index: int,
        key: str,
        text: bytes,
        make: Callable[[tf.Tensor], tf.data.Dataset],
        ask: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    ) -> None:
        self.index = index
        self.lock = threading.Lock()
        self.is_lost = False
        self.has_ended = False
        self.trained_at = 0.0
        self._key, self._text = key, text
        self._make = make
        self._ask = ask
        self._positions: dict[str, Position] = {}
        # Partitions that it gets before its next step.
        self._added: dict[str, Position] = {}
        self._readings = 0
        self._trained = 0
        self._name = ""
        self._worker: int | None = None
        self._iterator: typing.Any = None
        # Of the batch that comes next, and whether the worker has it.
        self._told: Told | None = None
        self._is_known = False

    @property
    def partitions(self) -> int:
        """How many it has."""
        return len(self._positions) + len(self._added)

    def add(self, name: str, position: Position) -> None:
        """Gives it a further partition; any thread may call it."""
        self._added[name] = position

    def go_on(self) -> None:
        """Reads on, if the data had ended."""
        if self.has_ended:
            self._forget()
            self.has_ended = False

    def is_ready(self, worker: int, seconds: float) -> bool:
        """Whether a batch is there; the worker waits for it at most so long.

        Raises:
          ReadingError: the worker cannot read on.
          tf.errors.OpError: the worker was lost.
        """
        if self._worker != worker or self._added:
            self._forget()
        try:
            if self._iterator is None:
                self._open(worker)
            if self._is_known:
                return True
            name = tf.constant(self._name)
            wait = tf.constant(seconds, tf.float64)
            self._hear(self._ask(name, wait).numpy())
        except ForgottenError:
            self._forget()
        except WorkerReadingError as error:
            raise _reading_error(worker, str(error)) from None
        except BaseException:
            self._lose()
            raise
        return self._is_known

    def _open(self, worker: int) -> None:
        while self._added:
            name, position = self._added.popitem()
            self._positions[name] = position
        self._readings += 1
        self._name = worker_streams.reading_name(self._key, self._readings)
        again = self._told.note if self._begun and self._told else None
        name = tf.constant(self._name)
        worker_streams.open_reading(name, self._text, self._positions, again)
        self._iterator = iter(self._make(name))
        self._worker = worker
        self._is_known = False

    def _hear(self, text: bytes) -> None:
        """Takes what the worker tells of its next batch."""
        found = worker_streams.told(text)
        if isinstance(found, Told):
            # One that is made again is as it was told of first.
            self._told = self._told if self._begun else found
            self._is_known = True
        elif found is not None:
            self.has_ended = True

    def run(self, function: Callable[..., typing.Any]) -> list[typing.Any]:
        """Trains on the batch that is there.

        Args:
          function: step of the iterator, the name of the reading and, with
            `number`, of `Begun.tensor`.

        Returns:
          Its results, and the text of Trained.
        """
        told = typing.cast(Told, self._told)
        numbers = self._numbers(1)
        try:
            first, following, *others = function(
                self._iterator, tf.constant(self._name), *numbers
            )
            first, following = first.numpy(), following.numpy()
        except tf.errors.OutOfRangeError:
            # It was forgotten while nobody trained.
            self._forget()
            return []
        except BaseException:
            self._lose()
            raise
        self._end_step()
        self._positions |= told.note.positions
        self._told, self._is_known = None, False
        self._trained += 1
        self.trained_at = time.monotonic()
        self.is_lost = self.is_lost and self._worker != self.index
        try:
            self._hear(following)
        except (ForgottenError, WorkerReadingError):
            pass  # It is asked again.
        trained = Trained(self._trained, told)
        return [first, *others, trained.text()]

    def _lose(self) -> None:
        """Has another worker go on."""
        self.is_lost = True
        self._forget()

    def _forget(self) -> None:
        """Has it be read anew, from the same positions."""
        self._lose_step()
        self._iterator, self._worker, self._is_known = None, None, False
        if self._begun is None:
            self._told = None


def asking() -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """The function that asks a worker for its next batch."""
    return tf.function(
        lambda name, seconds: worker_streams.tell(name, 0, seconds),
        input_signature=[NAME, tf.TensorSpec([], tf.float64)],
        autograph=False,
    ).get_concrete_function()


def _reading_error(worker: int, text: str) -> Exception:
    where = f"{task_name('worker', worker)} cannot read the stream: "
    found = reading_error(text, where)
    return RuntimeError(where + text) if found is None else found
