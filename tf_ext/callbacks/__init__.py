"""Callbacks that save, restore, evict and watch rows, and compute metrics."""

from tf_ext.callbacks.early_stopping import EarlyStopping
from tf_ext.callbacks.evict import Evict
from tf_ext.callbacks.table_snapshot import TableSnapshot
from tf_ext.callbacks.table_stats import TableStats
from tf_ext.callbacks.user_metrics import UserMetrics

__all__ = [
    "EarlyStopping",
    "Evict",
    "TableSnapshot",
    "TableStats",
    "UserMetrics",
]
