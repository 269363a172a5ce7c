"""The counterpart of `keras.utils` for models with tables."""

from tf_ext.utils.sidecar_evaluator import SidecarEvaluator

__all__ = ["SidecarEvaluator"]
