"""Datasets: files of days, and batches that several workers share."""

from tf_ext.data.day_files import list_files
from tf_ext.data.worker_batches import variable_batch_size, worker_share

__all__ = ["list_files", "variable_batch_size", "worker_share"]
