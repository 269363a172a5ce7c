# SPDX-License-Identifier: Apache-2.0
"""What a trained model makes of its columns."""

from tf_ext.analysis.importance import column_importance
from tf_ext.analysis.results import ColumnLoss, Importance

__all__ = ["ColumnLoss", "Importance", "column_importance"]


def __dir__() -> list[str]:
    return sorted(__all__)
