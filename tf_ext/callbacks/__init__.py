"""Callbacks that know of tables."""

from tf_ext.callbacks.early_stopping import EarlyStopping

__all__ = ["EarlyStopping"]
