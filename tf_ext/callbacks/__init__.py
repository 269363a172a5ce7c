# SPDX-License-Identifier: Apache-2.0
"""Callbacks that save, restore, evict and watch rows, metrics and data."""

from tf_ext.callbacks.early_stopping import EarlyStopping
from tf_ext.callbacks.evict import Evict
from tf_ext.callbacks.read_error_logs import ReadErrorLogs
from tf_ext.callbacks.stream_logs import StreamLogs
from tf_ext.callbacks.table_snapshot import TableSnapshot
from tf_ext.callbacks.table_stats import TableStats
from tf_ext.callbacks.user_metrics import UserMetrics
from tf_ext.recovery.files import latest_point
from tf_ext.recovery.warm_start import WarmStart, warm_start

__all__ = [
    "EarlyStopping",
    "Evict",
    "ReadErrorLogs",
    "StreamLogs",
    "TableSnapshot",
    "TableStats",
    "UserMetrics",
    "WarmStart",
    "latest_point",
    "warm_start",
]


def __dir__() -> list[str]:
    return sorted(__all__)
