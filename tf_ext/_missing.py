# SPDX-License-Identifier: Apache-2.0
"""The text of a column's `missing`, as the core takes it."""

import numpy as np


def missing_text(missing: str | int | float | None) -> str:
    """The text that is read back as the same number, float or integer.

    Args:
      missing: string, int, float; or None, whose text is empty.
    """
    if missing is None:
        return ""
    if isinstance(missing, float):
        if missing.is_integer():
            return str(int(missing))
        return str(np.float32(missing))
    return str(missing)
