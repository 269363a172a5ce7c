# SPDX-License-Identifier: Apache-2.0
"""Models that begin with the rows of another run, by any number of workers."""

import tempfile

import numpy as np
from clusters.case_workers import export
from models import small_models as small

import tf_ext


def warm_started(worker):
    """Rows and weights of two models: one alike, and one of another rule."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        small.model_with_point(np.random.default_rng(0), folder)
        for rule in ("sgd", "adagrad"):
            with worker.strategy.scope():
                model = small.compiled(small.functional(small.table(rule)))
            found = tf_ext.callbacks.warm_start(model, folder)
            results.append(
                {
                    "rows": export(model.tables[0]),
                    "weights": [v.numpy() for v in model.variables[1:]],
                    "found": (found.rows, found.tables, found.changes),
                }
            )
    return results
