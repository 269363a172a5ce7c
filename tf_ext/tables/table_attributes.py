# SPDX-License-Identifier: Apache-2.0
"""What the methods of a table find in it, wherever they are defined."""

from tf_ext import eviction as policies
from tf_ext.tables.column_record import ColumnRecord
from tf_ext.tables.rows import TableRows
from tf_ext.tables.sparse_optimizers import SparseOptimizer


class TableAttributes:
    """The attributes of `SparseTable` that its parts use, which it sets."""

    name: str
    uid: str
    rows: TableRows
    optimizer: SparseOptimizer
    eviction: policies.Policy | None
    column_record: ColumnRecord
