# SPDX-License-Identifier: Apache-2.0
"""Metrics of rates and of users on synchronous workers."""

import numpy as np

from cases import metric_cases


def rates(worker):
    return metric_cases.evaluated(worker.strategy, 4_099)


def rates_of_uneven_parts(worker):
    """The first worker has nine rows of ten; the others share the rest."""
    first = metric_cases.ROWS * 9 // 10
    ends = np.linspace(first, metric_cases.ROWS, worker.size).astype(int)
    parts = np.split(np.arange(metric_cases.ROWS), ends)
    return metric_cases.evaluated(worker.strategy, 3_000, parts[worker.rank])


def users(worker):
    return metric_cases.user_metrics(worker.strategy, text=True)
