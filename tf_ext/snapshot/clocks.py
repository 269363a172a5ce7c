# SPDX-License-Identifier: Apache-2.0
"""Rows that change while they are absent from pushes, and their clocks.

Files hold such rows as they are stored, with the fields that say up to when
they have been changed, and what has changed them since is in the state that is
saved with them.
"""

import base64
import binascii
import typing
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tf_ext import _core
from tf_ext.snapshot.counting import entries_of

# The fields that rows do not have once they have been caught up.
CLOCK_FIELDS = (_core.SHRUNK_FIELD, _core.CAUGHT_UP_FIELD)

# The saved string with up to when rows are shrunk, and that with what moves
# absent rows.
SHRINKAGE_CLOCK = "shrinkage_clock"
ABSENT_STATE = "absent_state"


class Clocks(typing.NamedTuple):
    """Up to when rows of a table are changed when they are read.

    Attributes:
      shrinkage: int, that of `l2` and `l1`.
      steps: int, the number of pushes.
    """

    shrinkage: int
    steps: int


NO_CLOCKS = Clocks(0, 0)


def encoded(state: bytes) -> str:
    """The core's state of absent rows, as a string."""
    return base64.b64encode(state).decode()


def decoded(text: str) -> bytes:
    """The inverse of `encoded`; raises ValueError."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{ABSENT_STATE} is {text[:80]!r}.") from None


def have_clocks(names: typing.Iterable[str]) -> bool:
    """Whether rows of fields of these names change while they are absent."""
    return any(name in CLOCK_FIELDS for name in names)


def caught_up(
    config: str, rows: npt.NDArray[np.uint8], state: Mapping[str, str]
) -> npt.NDArray[np.uint8]:
    """Rows of files as they were when they were saved.

    Args:
      config: string, the configuration of the table.
      rows: uint8 `[n, row_bytes]`.
      state: dict of strings, what was saved with them.

    Raises:
      KeyError, ValueError: the state is not that of such a table.
    """
    entries = entries_of(config)
    shrinks = "l2" in entries or "l1" in entries
    return _core.catch_up_rows(
        config,
        rows,
        int(state[SHRINKAGE_CLOCK]) if shrinks else 0,
        decoded(state[ABSENT_STATE]) if ABSENT_STATE in state else b"",
    )
