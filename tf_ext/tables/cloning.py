# SPDX-License-Identifier: Apache-2.0
"""Finds the table of a deserialised layer.

Layers that shared a table share one new table after `load_model` and
`clone_model`; nothing else does: not a second load, not a single `from_config`.
Keras gives every layer a copy of the table's configuration, and does not say
which layers are of one model. The outermost of Keras's calls that make layers
ends with the model: its stack frame keeps the tables.
"""

from collections.abc import Callable

from tf_ext._compat.calls import kept_while_layers_are_made
from tf_ext.tables.sparse_table import SparseTable

_TABLES = "__tf_ext_tables__"


def copy_for(uid: str, make: Callable[[], SparseTable]) -> SparseTable:
    """The copy of table `uid` for the copy of one of its layers.

    Args:
      uid: string that identifies the original table.
      make: function that makes a new table.

    Returns:
      A new table, or the one that another layer of the same model got.
    """
    tables = kept_while_layers_are_made(_TABLES)
    if uid not in tables:
        tables[uid] = make()
    return tables[uid]
