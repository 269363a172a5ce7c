# SPDX-License-Identifier: Apache-2.0
"""Tells the data of Keras's `fit` which epoch they are read for."""

import contextlib
import inspect
import typing
from collections.abc import Iterator

from tf_ext._keras import keras
from tf_ext.data.epochs import epochs_of, tell_epoch
from tf_ext.training.callback_protocols import listed


class _Teller(keras.callbacks.Callback):
    def __init__(self, data: typing.Any) -> None:
        super().__init__()
        self._data = data

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        """Called by Keras, before it reads the epoch's first batch."""
        tell_epoch(self._data, epoch)


@contextlib.contextmanager
def telling_epochs(given: inspect.BoundArguments) -> Iterator[None]:
    """The context of Keras's `fit`, whose data may depend on the epoch.

    Args:
      given: inspect.BoundArguments of `fit`, whose callbacks are extended.
    """
    data = given.arguments.get("x")
    # With `steps_per_epoch`, epochs are parts of one iteration.
    if given.arguments.get("steps_per_epoch") or not epochs_of(data):
        yield
        return
    teller = _Teller(data)
    callbacks: typing.Any = given.arguments.get("callbacks")
    own = isinstance(callbacks, keras.callbacks.CallbackList)
    if own:
        callbacks.callbacks.append(teller)
    else:
        given.arguments["callbacks"] = [teller, *listed(callbacks)]
    try:
        yield
    finally:
        tell_epoch(data, 0)  # As other readers find it.
        if own:
            callbacks.callbacks.remove(teller)
