"""Callbacks that know of tables."""

from tf_ext.callbacks.early_stopping import EarlyStopping
from tf_ext.callbacks.table_snapshot import TableSnapshot

__all__ = ["EarlyStopping", "TableSnapshot"]
