# SPDX-License-Identifier: Apache-2.0
"""Walker's alias table: draws of any distribution in constant time."""

import numpy as np
import numpy.typing as npt

from tf_ext._checks import refuse


def weights_of(
    owner: str, counts: npt.ArrayLike, size: int, power: float
) -> npt.NDArray[np.float64]:
    """Powers of counts `[size]`, up to a factor.

    Raises:
      ValueError: counts of another shape, dtype or range, or only zeros.
    """
    values = np.asarray(counts)
    if values.dtype.kind not in "iuf" or values.shape != (size,):
        allowed = f"numbers of shape {(size,)}, one an id"
        found = f"an array of {values.dtype} {values.shape}"
        refuse(owner, "counts", allowed, found)
    values = values.astype(np.float64)
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        place = int(np.argmax(bad))
        found = f"{values[place]} in place {place}"
        refuse(owner, "counts", "finite and at least 0", found)
    if not values.any():
        refuse(owner, "counts", "above 0 for at least one item", "only zeros")
    return (values / values.max()) ** power


def alias_table(
    probability: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Which share of a place's draws stays there, and where the others go.

    Args:
      probability: float64 `[n]`, up to a factor.

    Returns:
      `(kept, alias)`, both `[n]`.

    Places that lack draws take them from those that have too many, both in
    their order. The one from which the last draws of a place are taken then
    lacks what was too much, and takes it from the next. So what has been taken
    is the sum of what was lacking before, and no place needs a loop.
    """
    total = probability.sum()
    scaled = probability * (len(probability) / total if total else 0.0)
    kept = np.ones(len(scaled))
    alias = np.arange(len(scaled), dtype=np.int64)
    lacking, rich = np.flatnonzero(scaled < 1), np.flatnonzero(scaled >= 1)
    if not len(lacking) or not len(rich):
        return kept, alias
    taken = np.cumsum(1.0 - scaled[lacking])
    given = np.cumsum(scaled[rich] - 1.0)
    # By rounding, the last ones may lack a little more than there is.
    last = len(rich) - 1
    before = np.concatenate([[0.0], taken[:-1]])
    of_lacking = np.minimum(np.searchsorted(given, before, "right"), last)
    kept[lacking], alias[lacking] = scaled[lacking], rich[of_lacking]
    crossing = np.searchsorted(taken, given[:-1])
    inside = crossing < len(taken)
    over = taken[np.minimum(crossing, len(taken) - 1)] - given[:-1]
    kept[rich[:-1]] = np.where(inside, np.clip(1.0 - over, 0.0, 1.0), 1.0)
    alias[rich[:-1]] = rich[1:]
    return kept, alias
