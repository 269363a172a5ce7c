# SPDX-License-Identifier: Apache-2.0
"""What `fit` asks of callbacks, by what they implement, and which it refuses.

`fit` knows no class of `tf_ext.callbacks`, only these protocols.
"""

import contextlib
import logging
import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext._checks import refuse
from tf_ext._keras import keras
from tf_ext.data.progress import StreamProgress
from tf_ext.recovery.pause import Pause
from tf_ext.recovery.points import Point, SharePositions

_LOG = logging.getLogger("tf_ext")

# Callbacks of Keras that read or write variables alone, and what they miss.
_OF_VARIABLES = {
    "OrbaxCheckpoint": (
        "which does not save rows: use tf_ext.callbacks.TableSnapshot"
    ),
    "SwapEMAWeights": "which does not swap rows",
}


@typing.runtime_checkable
class Resuming(typing.Protocol):
    """A callback that `fit` asks for the point from which to continue."""

    def during_fit(self) -> contextlib.AbstractContextManager[None]:
        """The context of `fit`, in which SIGTERM is a notice if asked for."""

    @property
    def sigterm_received(self) -> bool:
        """Whether SIGTERM has come to this process, if that is a notice."""

    def end_if_preempted(self) -> None:
        """Ends the program after a point, if SIGTERM has come; on all workers.

        Called between steps.
        """

    def tell_sigterm(self, anywhere: bool) -> None:
        """Told with a step whether SIGTERM had come to any worker."""

    def take_streams(
        self,
        streams: Sequence[StreamProgress],
        shares: SharePositions | None = None,
    ) -> None:
        """Told what is trained on, whose positions it saves."""

    def take_pause(self, pause: Pause) -> None:
        """Told what it can wait by, where several steps are under way."""

    def can_resume(self) -> bool:
        """Whether `fit`, which asks, should begin with `resume`."""

    def resume(self, model: keras.Model, epochs: int) -> Point | None:
        """Restores a built model from the newest point, which it returns.

        None if training begins, with what the model has been given. `fit` has
        so many epochs.
        """


@typing.runtime_checkable
class RestoringRows(typing.Protocol):
    """A callback that restores rows wherever its base class restores weights.

    Attributes:
      restores_rows: True.
    """

    restores_rows: bool


def listed(callbacks: typing.Any) -> list[keras.callbacks.Callback]:
    """The callbacks that `fit` is given, as Keras takes them.

    Args:
      callbacks: a callback, a list of them, a CallbackList, or None.
    """
    if callbacks is None:
        return []
    return tf.nest.flatten(getattr(callbacks, "callbacks", callbacks))


def resuming_among(callbacks: typing.Any) -> Resuming | None:
    """The callback that training continues from, or None.

    Args:
      callbacks: as of `listed`.

    Raises:
      ValueError: there are several.
    """
    found = [one for one in listed(callbacks) if isinstance(one, Resuming)]
    if len(found) > 1:
        raise ValueError(
            "Argument `callbacks` of fit must have at most one TableSnapshot, "
            f"to continue from. Received: callbacks={callbacks!r}"
        )
    return found[0] if found else None


def in_order(callbacks: typing.Any) -> typing.Any:
    """The same callbacks, of which one that writes points comes last.

    A point is of what the others have done after its step, too: training that
    continues from it does not do that again.

    Args:
      callbacks: as of `listed`. A CallbackList is changed in place.
    """
    resuming = resuming_among(callbacks)
    if resuming is None:
        return callbacks
    ordered = [one for one in listed(callbacks) if one is not resuming]
    ordered.append(resuming)
    if not hasattr(callbacks, "callbacks"):
        return ordered
    callbacks.callbacks[:] = ordered
    return callbacks


def check_callbacks(callbacks: typing.Any) -> None:
    """Raises ValueError for classes, and callbacks that would leave out rows.

    Args:
      callbacks: as of `listed`.
    """
    resuming = resuming_among(callbacks)
    for callback in listed(callbacks):
        if isinstance(callback, type):
            name = callback.__name__
            allowed = (
                f"instances of callbacks, such as {name}(...), not classes"
            )
            refuse("fit", "callbacks", allowed, callbacks)
        restores = getattr(callback, "restore_best_weights", False)
        if restores and isinstance(callback, RestoringRows):
            if resuming is not None:
                _LOG.warning(
                    "The points of TableSnapshot have the rows of the last "
                    "steps, also the newest one: not those of the best epoch, "
                    "which %s restores when training ends. Save or export the "
                    "model after `fit`.",
                    type(callback).__name__,
                )
        elif restores and isinstance(callback, keras.callbacks.EarlyStopping):
            allowed = (
                "without "
                "keras.callbacks.EarlyStopping(restore_best_weights=True), "
                "which restores variables but not rows: use "
                "tf_ext.callbacks.EarlyStopping with the same arguments"
            )
            refuse("fit", "callbacks", allowed, callbacks)
        of_keras = isinstance(callback, keras.callbacks.BackupAndRestore)
        if of_keras and resuming is not None:
            allowed = (
                "without BackupAndRestore beside TableSnapshot: training would "
                "continue from the state of one and the position of the other"
            )
            refuse("fit", "callbacks", allowed, callbacks)
        for name, reason in _OF_VARIABLES.items():
            if isinstance(callback, getattr(keras.callbacks, name, ())):
                allowed = f"without {name}, {reason}"
                refuse("fit", "callbacks", allowed, callbacks)
