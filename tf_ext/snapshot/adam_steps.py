# SPDX-License-Identifier: Apache-2.0
"""By which step a table of dense Adam corrects the bias of moments.

`m / (1 - beta_1^t)` and `v / (1 - beta_2^t)` are what a step is made of. A
table that moves absent rows has one t for all of them, which is in the state
that is saved with its rows. Moments that come from elsewhere have a t of their
own.
"""

import json
import typing
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tf_ext.snapshot.counting import entries_of

# Of a table whose rows have had different steps: nothing is left to correct,
# and the clock is still far from its end.
LATE = 2**30


def factors(
    config: str,
    step: int,
    before: npt.ArrayLike,
    betas: dict[str, float] | None = None,
) -> dict[str, npt.NDArray[np.float64]]:
    """What moments are multiplied by so that the corrected ones stay.

    Args:
      config: string, the configuration of a table that moves absent rows.
      step: int, its t.
      before: int `[...]`, that of the moments.
      betas: dict of those of the moments, of which some may be missing. Those
        are as of the table.

    Returns:
      Dict by field of rows of float64 `[...]`.
    """
    mine = _betas(entries_of(config))
    theirs = mine | (betas or {})
    # Rows that have made no step have no moments.
    before = np.maximum(np.asarray(before, np.float64), 1)
    return {
        field: (1 - mine[name] ** step) / (1 - theirs[name] ** before)
        for field, name in (("m", "beta_1"), ("v", "beta_2"))
    }


def saved_betas(config: str, state: Mapping[str, str]) -> dict[str, float]:
    """The betas of rows that were saved, as far as they are known.

    Args:
      config: string, the configuration of their table.
      state: dict of strings, what was saved with them.
    """
    return _betas(entries_of(config)) or _betas_of_rule(state)


def _betas(entries: Mapping[str, str]) -> dict[str, float]:
    return {
        name: float(entries[key])
        for name in ("beta_1", "beta_2")
        if (key := f"optimizer.{name}") in entries
    }


def _betas_of_rule(state: Mapping[str, str]) -> dict[str, float]:
    """Those of a rule that may change them, as when it was saved."""
    found: dict[str, typing.Any] = {}
    try:
        saved = json.loads(state["optimizer"])["config"]
        found = {name: float(saved[name]) for name in ("beta_1", "beta_2")}
    except (KeyError, RecursionError, TypeError, ValueError):
        return {}
    return found if all(0 <= one < 1 for one in found.values()) else {}
