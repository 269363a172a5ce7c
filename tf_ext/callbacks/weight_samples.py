# SPDX-License-Identifier: Apache-2.0
"""Norms and histograms of the weights of a sample of rows."""

import typing
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# What a shard's sample is reduced to: it can be sent as JSON, and added up.
Sums: typing.TypeAlias = dict[str, typing.Any]

_ROWS = 4096
_BYTES = 256 << 10

# Eight buckets for each power of ten, the same for all samples, so that those
# of shards can be added up and those of steps compared.
_MAGNITUDES = np.array([float(f"{10 ** (k / 8):.6g}") for k in range(-32, 33)])
_LARGEST = float(np.finfo(np.float32).max)
EDGES = np.concatenate(
    [[-_LARGEST], -_MAGNITUDES[::-1], _MAGNITUDES, [_LARGEST]]
)


def rows_of_sample(dim: int) -> int:
    """The most rows in the sample of a shard whose rows have `dim` weights."""
    return max(1, min(_ROWS, _BYTES // (4 * dim)))


def sums_of(weights: npt.NDArray[np.float32]) -> Sums:
    """Reduces a sample of rows.

    Args:
      weights: float32 `[n, dim]`.
    """
    is_finite = np.isfinite(weights)
    whole = weights[is_finite.all(1)].astype(np.float64)
    norms = np.sqrt(np.einsum("nd,nd->n", whole, whole))
    # Sorted, because looking up the edges is faster than looking up values.
    values = np.sort(weights[is_finite]).astype(np.float64)
    ends = np.searchsorted(values, EDGES[1:-1], "left")
    return {
        "rows": len(weights),
        "nonfinite": int(np.sum(~is_finite)),
        "count": len(values),
        "sum": float(values.sum()),
        "squares": float(values @ values),
        "min": float(values[0]) if len(values) else None,
        "max": float(values[-1]) if len(values) else None,
        "norms": len(norms),
        "norm_sum": float(norms.sum()),
        "norm_max": float(norms.max()) if len(norms) else None,
        "buckets": np.diff(ends, prepend=0, append=len(values)).tolist(),
    }


def add(parts: Sequence[Sums]) -> Sums:
    """The sums of several samples together."""
    combined = {}
    for name in parts[0]:
        values = [part[name] for part in parts if part[name] is not None]
        if name == "buckets":
            combined[name] = np.sum(values, 0).tolist()
        elif name == "min":
            combined[name] = min(values, default=None)
        elif name in ("max", "norm_max"):
            combined[name] = max(values, default=None)
        else:
            combined[name] = sum(values)
    return combined


def described(sums: Sums) -> dict[str, typing.Any]:
    """What a report says of a sample, see `TableStats`."""
    count, norms = sums["count"], sums["norms"]
    mean = sums["sum"] / count if count else None
    return {
        "sampled": sums["rows"],
        "nonfinite": sums["nonfinite"],
        "min": sums["min"],
        "max": sums["max"],
        "mean": mean,
        # Rounding must not make it negative.
        "std": max(0.0, sums["squares"] / count - mean**2) ** 0.5
        if mean is not None
        else None,
        "norm_mean": sums["norm_sum"] / norms if norms else None,
        "norm_max": sums["norm_max"],
    }


def histogram(sums: Sums) -> dict[str, list[float]]:
    """The buckets of a sample, without the empty ones on both sides.

    Returns:
      `{"edges": [...], "counts": [...]}` with an edge more than counts; both
      are empty if there are no weights.
    """
    filled = np.flatnonzero(sums["buckets"])
    if not len(filled):
        return {"edges": [], "counts": []}
    first, end = filled[0], filled[-1] + 1
    return {
        "edges": EDGES[first : end + 1].tolist(),
        "counts": sums["buckets"][first:end],
    }
