# SPDX-License-Identifier: Apache-2.0
"""The arguments of exports, and their checks."""

import dataclasses
import os
import typing
from collections.abc import Mapping

from tf_ext._checks import is_int, refuse
from tf_ext._keras import keras
from tf_ext.serving.row_dtypes import NAMES
from tf_ext.serving.warmup import MAX_BATCHES
from tf_ext.snapshot.files import Progress

_MAX_VERSION = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The user's arguments; see `tf_ext.serving.export`.

    Attributes:
      function: string, the public function, for errors.
      batches: list of the warm-up batches.
    """

    function: str
    model: keras.Model
    path: str | os.PathLike[str]
    dtype: str
    unknown: str | None
    version: int | None
    warmup: typing.Any
    signature: typing.Any
    progress: Progress | None
    batches: list[typing.Any] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        check_built(self.model, self.function)
        if self.dtype not in NAMES:
            names = ", ".join(map(repr, NAMES))
            refuse(self.function, "dtype", f"one of {names}", self.dtype)
        if self.unknown not in (None, "zeros"):
            refuse(self.function, "unknown", "None or 'zeros'", self.unknown)
        check_version(self.version, self.function)
        several = isinstance(self.warmup, list) and all(
            isinstance(batch, Mapping) for batch in self.warmup
        )
        batches = self.warmup if several else [self.warmup]
        batches = [] if self.warmup is None else batches
        if len(batches) > MAX_BATCHES:
            raise ValueError(
                f"Argument `warmup` of {self.function} must hold at most "
                f"{MAX_BATCHES} batches, the most that a server accepts. "
                f"Received: {len(batches)}"
            )
        object.__setattr__(self, "batches", batches)


def check_version(version: int | None, function: str) -> None:
    """Raises ValueError unless `version` is None or a version number.

    Args:
      version: the user's argument.
      function: string, the name of the public function, for the error.
    """
    if version is not None and not (
        is_int(version) and 1 <= version <= _MAX_VERSION
    ):
        allowed = "an integer from 1 to 2^63 - 1, or None"
        refuse(function, "version", allowed, version)


def check_model(model: typing.Any, function: str) -> None:
    """Raises TypeError unless this is a Keras model.

    Args:
      model: what was passed as one.
      function: string, the name of the public function, for the error.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"Argument `model` of {function} must be a Keras model, and comes "
            f"first. Received: model={model!r}. Load a model that was saved "
            "with keras.models.load_model."
        )


def check_built(model: keras.Model, function: str) -> None:
    """Raises ValueError unless a model is built.

    Args:
      model: keras.Model.
      function: string, the name of the public function, for the error.
    """
    check_model(model, function)
    if not model.built:
        raise ValueError(
            f"Argument `model` of {function} must be built: call it, or train "
            f"it. Received: {model.name!r}, which is not"
        )
