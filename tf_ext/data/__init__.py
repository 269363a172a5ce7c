"""Datasets whose batches several workers share."""

from tf_ext.data.worker_batches import variable_batch_size, worker_share

__all__ = ["variable_batch_size", "worker_share"]
