# SPDX-License-Identifier: Apache-2.0
"""Tells streams which of their batches Keras's `fit` has trained on."""

import contextlib
import inspect
import typing
from collections.abc import Iterator

from tf_ext._keras import keras
from tf_ext.data.progress import StreamProgress, check_one_to_one, streams_of
from tf_ext.training.callback_protocols import listed, resuming_among


class _Counter(keras.callbacks.Callback):
    def __init__(self, streams: list[StreamProgress]) -> None:
        super().__init__()
        self._streams = streams
        self._first: int | None = None

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        """Called by Keras."""
        self._first = None

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        """Called by Keras, for an execution of several steps once."""
        if self._first is None:
            self._first = batch

    def on_train_batch_end(
        self, batch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        """Called by Keras, with the last step of an execution."""
        first = batch if self._first is None else self._first
        self._first = None
        for stream in self._streams:
            stream.advance(batch + 1 - first)


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


@contextlib.contextmanager
def counting_batches(given: inspect.BoundArguments) -> Iterator[None]:
    """The context of Keras's `fit`, whose data may be of streams.

    Args:
      given: inspect.BoundArguments of `fit`, whose callbacks are extended.
    """
    callbacks: typing.Any = given.arguments.get("callbacks")
    streams = tell_streams(callbacks, given.arguments.get("x"))
    if not streams:
        yield
        return
    # Before a callback that saves positions.
    counter = _Counter(streams)
    own = isinstance(callbacks, keras.callbacks.CallbackList)
    if own:
        callbacks.callbacks.insert(0, counter)
    else:
        given.arguments["callbacks"] = [counter, *listed(callbacks)]
    try:
        yield
    finally:
        if own:
            callbacks.callbacks.remove(counter)
