# SPDX-License-Identifier: Apache-2.0
"""Where the bags of a ragged feature begin and end."""

import numpy as np
import numpy.typing as npt


def row_splits(lengths: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """The row splits `[n + 1]` of bags of lengths `[n]`."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
