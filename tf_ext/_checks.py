"""Checks of numbers that callers give."""

import math
import numbers


def is_int(value):
    """Whether a value is an integer; True and False are none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_finite(value):
    """Whether a value is a finite real number; True and False are none."""
    return (
        isinstance(value, numbers.Real)
        and not isinstance(value, bool)
        and math.isfinite(value)
    )


def check_max_bytes_per_second(value):
    """Raises ValueError unless it is None or a positive integer."""
    if value is not None and not (is_int(value) and 0 < value < 2**63):
        raise ValueError(
            "Argument `max_bytes_per_second` must be a positive integer or "
            f"None. Received: max_bytes_per_second={value!r}"
        )
