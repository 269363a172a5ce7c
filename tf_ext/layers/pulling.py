"""Reads rows so that their gradient goes to the tables."""

from collections.abc import Sequence

import tensorflow as tf

from tf_ext import ops
from tf_ext._keras import IS_KERAS_3
from tf_ext.regimes import PullRequest, Regime


def pull_differentiable(
    regime: Regime,
    requests: Sequence[PullRequest],
    trainable: bool = True,
    error: tf.Tensor | None = None,
) -> list[tuple[tf.Tensor, tf.Tensor | None]]:
    """Reads rows so that their gradient goes to the tables' shadows.

    Args:
      regime: Regime of the tables.
      requests: list of PullRequest of distinct signs.
      trainable: bool; if False no gradient flows.
      error: string scalar, the error of the batch, or ""; None where it has
        been raised already.

    Returns:
      List of `(weights [n, dim], statistics)`, float32; the statistics are
      `[n, s]`, without a gradient, or None where none are requested.
    """
    pairs = []
    for request, rows in zip(requests, regime.pull(requests, error)):
        dim, statistics = request.table.dim, None
        if request.statistics:
            rows, statistics = rows[:, :dim], rows[:, dim:]
        if trainable and request.table.trainable and regime.trains:
            rows = _attach_gradient(request, rows)
        pairs.append((rows, statistics))
    return pairs


def _attach_gradient(request: PullRequest, pulled: tf.Tensor) -> tf.Tensor:
    shadow, plan = request.table.shadow, request.plan
    counts = request.table.statistics_width > 0
    if counts and plan.counted is None:
        plan.count()
    return ops.route_gradient(
        pulled,
        shadow.value if IS_KERAS_3 else shadow,
        plan.counted if counts else plan.signs,
    )
