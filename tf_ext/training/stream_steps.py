# SPDX-License-Identifier: Apache-2.0
"""Tells streams which of their batches Keras's `fit` has trained on."""

import contextlib
import inspect
import time
import typing
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext._compat.models import steps_per_execution
from tf_ext._keras import keras
from tf_ext.data.progress import (
    StreamProgress,
    can_be_awaited,
    check_one_to_one,
    streams_of,
)
from tf_ext.regimes import regime_of_model
from tf_ext.regimes.processes import Processes
from tf_ext.training.callback_protocols import (
    Resuming,
    listed,
    resuming_among,
)
from tf_ext.training.collector import sparing_old_objects

# How long a worker waits for its batch before it asks how the others fare.
ROUND_SECONDS = 0.5

# What a worker tells of its next batch; the largest over the workers decides,
# unless one waits for its batch of a stream.
FAILED, HAS_BATCH, ENDED, LATER = 2, 1, 0, -1


def wait_for(
    streams: Sequence[StreamProgress], batches: int, stop: Callable[[], bool]
) -> bool:
    """Waits for batches of each stream.

    Args:
      streams: list of StreamProgress.
      batches: int.
      stop: function that tells whether to give up.

    Returns:
      Whether they are there, or one of the streams has ended.
    """

    def ends() -> bool:
        return any(stream.has_ended for stream in streams)

    return (
        all(one.wait(batches, lambda: stop() or ends()) for one in streams)
        or ends()
    )


def until(seconds: float) -> Callable[[], bool]:
    """A function that tells whether so many seconds have passed since now."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def agree(
    processes: Processes,
    tell: Callable[[], Sequence[int]],
    meanwhile: Callable[[], object] | None,
    told: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.int64]:
    """Waits until no worker waits for its batch, or one of them has failed.

    Args:
      processes: Processes.
      tell: function that waits for this worker's batch, for a round at most if
        there are others; returns numbers, the first of them as above.
      meanwhile: function that all call between two rounds, or None.
      told: what the workers have told already, or None.

    Returns:
      int64 `[workers, n]`, what they told last.
    """
    while told is None or _is_waiting(told):
        mine = tf.constant(tell(), tf.int64)
        told = processes.gather(mine).numpy()
        if meanwhile is not None and _is_waiting(told):
            meanwhile()
    return told


def _is_waiting(told: npt.NDArray[np.int64]) -> bool:
    states = told[:, 0]
    return bool(states.min() == LATER and states.max() != FAILED)


class _Counter(keras.callbacks.Callback):
    """Tells streams of steps, and waits for the batches of each.

    TensorFlow would wait where no signal is answered.

    Args:
      streams: list of StreamProgress.
      resuming: the callback that ends the program on SIGTERM, or None.
      waits: bool.
    """

    def __init__(
        self,
        streams: list[StreamProgress],
        resuming: Resuming | None,
        waits: bool,
    ) -> None:
        super().__init__()
        self._streams = streams
        self._resuming = resuming
        self._waits = waits
        self._first: int | None = None

    def on_train_begin(self, logs: dict[str, typing.Any] | None = None) -> None:
        """Called by Keras, before it begins to read."""
        steps = steps_per_execution(self.model)
        if not self._waits and steps > 1:
            raise ValueError(
                "Argument `x` of fit must not be derived by `take` if "
                "`steps_per_execution` of compile is above 1: in an execution "
                "that ends early it is not known which batches were trained "
                "on. Use `steps_per_epoch` and `epochs` instead. Received: a "
                f"dataset derived by `take`, and steps_per_execution={steps}"
            )
        for stream in self._streams:
            stream.prepare()

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        """Called by Keras, which may begin to read again."""
        self._first = None
        for stream in self._streams:
            if stream.has_ended:
                stream.prepare()

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        """Called by Keras, for an execution of several steps once."""
        if self._first is not None:
            return
        self._first = batch
        if self._waits:
            self._wait(batch)

    def _wait(self, batch: int) -> None:
        batches = steps_per_execution(self.model)
        steps = self.params.get("steps")
        if steps:
            batches = max(1, min(batches, steps - batch))
        processes = regime_of_model(self.model).processes
        resuming = self._resuming

        def stops() -> bool:
            return resuming is not None and resuming.sigterm_received

        def tell() -> list[int]:
            stop = until(ROUND_SECONDS) if processes.count > 1 else stops
            is_ready = wait_for(self._streams, batches, stop)
            return [HAS_BATCH if is_ready else LATER]

        meanwhile = None if resuming is None else resuming.end_if_preempted
        agree(processes, tell, meanwhile)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        """Called by Keras, with the last step of an execution."""
        first = batch if self._first is None else self._first
        self._advance(batch + 1 - first)

    def on_epoch_end(
        self, epoch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        """Called by Keras, also after an execution that the data ended."""
        # What `take` has cut off was not trained on.
        if self._first is not None and self._waits:
            self._advance(steps_per_execution(self.model))

    def _advance(self, steps: int) -> None:
        """Tells streams of an execution, of so many steps if data sufficed."""
        self._first = None
        steps = min(steps, *(stream.noted for stream in self._streams))
        for stream in self._streams:
            stream.advance(steps)


def tell_streams(
    callbacks: typing.Any, data: typing.Any
) -> list[StreamProgress]:
    """Tells the callback that saves the positions of streams which there are.

    Args:
      callbacks: argument of `fit`.
      data: tf.data.Dataset, or anything else that is trained on.

    Returns:
      The StreamProgress of each.

    Raises:
      ValueError: a batch of the data is not one of each stream.
    """
    check_one_to_one(data)
    streams = streams_of(data)
    resuming = resuming_among(callbacks)
    if resuming is not None:
        resuming.take_streams(streams)
    return streams


def check_validation(data: typing.Any, validation: typing.Any) -> None:
    """Raises ValueError if validation reads a stream that training reads.

    Args:
      data: tf.data.Dataset, or anything else that is trained on.
      validation: argument `validation_data` of `fit`.
    """
    if not set(streams_of(data)).isdisjoint(streams_of(validation)):
        raise ValueError(
            "Argument `validation_data` of fit must not read the stream that "
            "`x` reads, where training would go on behind what was validated "
            "with. Make another one with tf_ext.data.stream. Received: "
            f"{validation!r}"
        )


@contextlib.contextmanager
def counting_batches(
    model: keras.Model, given: inspect.BoundArguments
) -> Iterator[None]:
    """The context of Keras's `fit`, whose data may be of streams.

    Args:
      model: tf_ext.Model.
      given: inspect.BoundArguments of `fit`, whose callbacks are extended.
    """
    callbacks: typing.Any = given.arguments.get("callbacks")
    streams = tell_streams(callbacks, given.arguments.get("x"))
    if not streams:
        yield
        return
    # Before a callback that saves positions.
    counter = _Counter(
        streams,
        resuming_among(callbacks),
        can_be_awaited(given.arguments.get("x")),
    )
    own = isinstance(callbacks, keras.callbacks.CallbackList)
    if own:  # Keras has told those in it.
        counter.set_model(model)
        counter.set_params(getattr(callbacks, "params", None) or {})
        callbacks.callbacks.insert(0, counter)
    else:
        given.arguments["callbacks"] = [counter, *listed(callbacks)]
    try:
        with sparing_old_objects(streams):
            yield
    finally:
        if own:
            callbacks.callbacks.remove(counter)
