"""Callbacks that save and restore tables."""

from tf_ext.callbacks.early_stopping import EarlyStopping
from tf_ext.callbacks.evict import Evict
from tf_ext.callbacks.table_snapshot import TableSnapshot

__all__ = ["EarlyStopping", "Evict", "TableSnapshot"]
