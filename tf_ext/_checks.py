# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments, and the form of their errors."""

import math
import numbers
import typing
from collections.abc import Iterable, Mapping


def refuse(
    owner: str, argument: str, allowed: str, value: object
) -> typing.NoReturn:
    """Raises the ValueError of an argument that is not what it must be.

    Args:
      owner: name of the function or class that takes the argument.
      argument: its name.
      allowed: what it must be, without a full stop.
      value: what was received.

    Raises:
      ValueError: always.

    Example:
      >>> from tf_ext import _checks
      >>> _checks.refuse("f", "x", "at least 1", 0)
      Traceback (most recent call last):
        ...
      ValueError: Argument `x` of f must be at least 1. Received: x=0
    """
    raise ValueError(
        f"Argument `{argument}` of {owner} must be {allowed}. "
        f"Received: {argument}={value!r}"
    )


def is_int(value: object) -> typing.TypeGuard[int]:
    """Whether a value is an integer; True and False are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_finite(value: object) -> typing.TypeGuard[float]:
    """Whether a value is a finite real number; True and False are not."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # An integer above all floats.
        return False


def is_fraction(value: object) -> typing.TypeGuard[float]:
    """Whether a value is a number above 0 and at most 1."""
    return is_finite(value) and 0 < value <= 1


def check_mapping(
    owner: str,
    value: object,
    argument: str = "inputs",
    values: str = "features",
) -> None:
    """Raises ValueError unless an argument is a dict of some values."""
    if not isinstance(value, Mapping):
        raise ValueError(
            f"Argument `{argument}` of {owner} must be a dict of {values} by "
            f"key. Received: {argument} of type {type(value).__name__}"
        )


def listed(found: Iterable[str]) -> str:
    """Names, as a text for messages."""
    return ", ".join(sorted(map(repr, found))) or "none"


def check_count(owner: str, argument: str, value: object, least: int) -> None:
    """Raises ValueError unless a value is an integer of at least `least`."""
    if not is_int(value) or value < least:
        refuse(owner, argument, f"an integer of at least {least}", value)


def check_max_bytes_per_second(owner: str, value: object) -> None:
    """Raises ValueError unless it is None or a positive integer."""
    if value is not None and not (is_int(value) and 0 < value < 2**63):
        refuse(
            owner, "max_bytes_per_second", "a positive integer or None", value
        )
