# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that several kinds of columns have."""

import json
import numbers
import typing

from tf_ext._checks import is_int, refuse

COMBINERS = ("sum", "mean", "sqrtn", "max")

# Defined in the core, too: cc/core/hashing/hash_columns.
NAMESPACE_END = "\x1f"
MAX_CROSS_PARTS = 64

_MAX_BUCKET_SIZE = 2**63 - 1


def check_text(function: str, argument: str, value: object) -> None:
    """Raises unless the argument is a non-empty string."""
    if not isinstance(value, str) or not value:
        refuse(function, argument, "a string that is not empty", value)


def check_namespace(function: str, value: typing.Any) -> None:
    """Raises unless it is a string without the separator of namespaces."""
    check_text(function, "namespace", value)
    if NAMESPACE_END in value:
        refuse(
            function,
            "namespace",
            f"a string without {NAMESPACE_END!r}, which marks its end in the "
            "hash",
            value,
        )


def to_bucket_size(function: str, value: int | None) -> int | None:
    """The bucket size as an int that the op takes, or None."""
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


def identity_text(**entries: typing.Any) -> str:
    """Entries that are not None, as a JSON text."""
    return json.dumps({k: v for k, v in entries.items() if v is not None})


def check_combiner(function: str, value: object) -> None:
    """Raises unless the combiner is one of COMBINERS."""
    if value not in COMBINERS:
        refuse(function, "combiner", f"one of {', '.join(COMBINERS)}", value)


def times_fields(
    function: str, column: typing.Any, name: str
) -> dict[str, typing.Any]:
    """The fields that all columns of times have, checked and filled in.

    Args:
      function: string, which the user called.
      column: Column, with these fields as the user gave them.
      name: string, that of a column without one.
    """
    missing = column.missing
    if missing is not None and not is_int(missing):
        refuse(function, "missing", "an int or None", missing)
    if not isinstance(column.optional, bool):
        refuse(function, "optional", "True or False", column.optional)
    check_combiner(function, column.combiner)
    if column.name is not None:
        name = column.name
    check_text(function, "name", name)
    namespace = name if column.namespace is None else column.namespace
    check_namespace(function, namespace)
    return {
        "missing": None if missing is None else int(missing),
        "name": name,
        "namespace": namespace,
    }
