"""Models that hold tables."""

from tf_ext.models.model import Model

__all__ = ["Model"]
