"""Datasets whose batches several workers share."""

from tf_ext.data.shares import in_step, worker_share

__all__ = ["in_step", "worker_share"]
