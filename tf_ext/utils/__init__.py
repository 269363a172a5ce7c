# SPDX-License-Identifier: Apache-2.0
"""The counterpart of `keras.utils` for models with tables; metrics of them."""

from tf_ext.distribute.metrics_server import MetricsServer, serve_metrics
from tf_ext.utils.sidecar_evaluator import SidecarEvaluator

__all__ = ["MetricsServer", "SidecarEvaluator", "serve_metrics"]


def __dir__() -> list[str]:
    return sorted(__all__)
