# SPDX-License-Identifier: Apache-2.0
"""Looks numbers up in sorted ones."""

import typing

import numpy as np
import numpy.typing as npt


def find_sorted(
    numbers: npt.NDArray[typing.Any], wanted: npt.NDArray[typing.Any]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Finds numbers among others.

    Args:
      numbers: array `[n]`, in ascending order.
      wanted: array `[m]`.

    Returns:
      `(places [m], found [m])`: where each is in `numbers`, and whether it is;
      without it, a place is that of a larger number, or `n`.
    """
    places = np.searchsorted(numbers, wanted)
    found = places < len(numbers)
    found[found] = numbers[places[found]] == wanted[found]
    return places, found
