# SPDX-License-Identifier: Apache-2.0
"""Columns: how raw features become signs, and how bags of them are combined.

See `tf_ext.hashing` for what the sign of a value is.
"""

from tf_ext.feature_column.age_column import AgeColumn, age_column
from tf_ext.feature_column.bag_blocks import Bags
from tf_ext.feature_column.bags import columns_to_bags
from tf_ext.feature_column.category_column import (
    CategoryColumn,
    category_column,
)
from tf_ext.feature_column.column import Column
from tf_ext.feature_column.crossed_column import CrossedColumn, crossed_column
from tf_ext.feature_column.part import Part
from tf_ext.feature_column.sequence_column import (
    SequenceColumn,
    sequence_category_column,
)
from tf_ext.feature_column.time_column import TimeColumn, time_column

__all__ = [
    "AgeColumn",
    "Bags",
    "CategoryColumn",
    "Column",
    "CrossedColumn",
    "Part",
    "SequenceColumn",
    "TimeColumn",
    "age_column",
    "category_column",
    "columns_to_bags",
    "crossed_column",
    "sequence_category_column",
    "time_column",
]


def __dir__() -> list[str]:
    return sorted(__all__)
