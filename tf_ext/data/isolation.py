# SPDX-License-Identifier: Apache-2.0
"""Finds what a step that fails as a whole fails for."""

import typing
from collections.abc import Callable

_T = typing.TypeVar("_T")


def isolate(
    size: int,
    attempt: Callable[[int, int], _T],
    instead: Callable[[int], _T],
    errors: tuple[type[Exception], ...],
) -> tuple[list[_T], list[int]]:
    """Halves a range until what fails is a single item.

    Args:
      size: int, the number of items.
      attempt: function from `(begin, end)` to a result; it raises one of
        `errors` if an item in the range is bad.
      instead: function from the index of a bad item to what stands for it.
      errors: tuple of exceptions.

    Returns:
      `(results, bad)`: the results of ranges, in order, and the indices of bad
      items, which rise. Without items, the result of an empty range.

    Example:
      >>> from tf_ext.data.isolation import isolate
      >>> texts = ["1", "2", "x", "4"]
      >>> isolate(4, lambda b, e: [int(t) for t in texts[b:e]],
      ...     lambda bad: [0], (ValueError,))
      ([[1, 2], [0], [4]], [2])
    """
    if not size:
        return [attempt(0, 0)], []
    results: list[_T] = []
    bad: list[int] = []
    ranges = [(0, size)]
    while ranges:
        begin, end = ranges.pop()
        try:
            results.append(attempt(begin, end))
        except errors:
            if end - begin == 1:
                results.append(instead(begin))
                bad.append(begin)
                continue
            middle = (begin + end) // 2
            ranges += [(middle, end), (begin, middle)]
    return results, bad
