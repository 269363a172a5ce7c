"""Checks of the arguments that columns have in common."""

import json
import numbers

COMBINERS = ("sum", "mean", "sqrtn", "max")

# The core's names for the same: cc/core/hash_columns.
NAMESPACE_END = "\x1f"
MAX_CROSS_PARTS = 64

_MAX_BUCKET_SIZE = 2**63 - 1


def refuse(function, argument, allowed, value):
    """Raises the sentence that says what is allowed and what was found."""
    raise ValueError(
        f"Argument `{argument}` of {function} must be {allowed}. "
        f"Received: {argument}={value!r}"
    )


def check_text(function, argument, value):
    """A string with something in it."""
    if not isinstance(value, str) or not value:
        refuse(function, argument, "a string that is not empty", value)


def check_namespace(function, value):
    """A string, without what ends the namespace in the text to be hashed."""
    check_text(function, "namespace", value)
    if NAMESPACE_END in value:
        refuse(
            function,
            "namespace",
            f"a string without {NAMESPACE_END!r}, which ends it where it is "
            "hashed",
            value,
        )


def to_bucket_size(function, value):
    """None, or an int that the op takes."""
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, numbers.Integral)
        or not 1 <= value <= _MAX_BUCKET_SIZE
    ):
        refuse(
            function,
            "bucket_size",
            "an int from 1 to 2^63 - 1, or None for unbounded",
            value,
        )
    return int(value)


def identity_text(**entries):
    """Entries that are not None, as a JSON text."""
    return json.dumps({k: v for k, v in entries.items() if v is not None})


def check_combiner(function, value):
    """One of COMBINERS."""
    if value not in COMBINERS:
        refuse(function, "combiner", f"one of {', '.join(COMBINERS)}", value)
