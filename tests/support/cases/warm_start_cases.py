# SPDX-License-Identifier: Apache-2.0
"""Models that begin with the rows of another run, by any number of workers."""

import contextlib
import os
import shutil
import tempfile

import numpy as np
import tensorflow as tf
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


def warm_started_by_fit(worker):
    """Epochs, rows and weights of `fit`, which begins so and then goes on."""
    results = []
    with tempfile.TemporaryDirectory() as other, _folder(worker) as own:
        small.model_with_point(np.random.default_rng(0), other)
        # The last batch is smaller.
        data = small.batch(np.random.default_rng(1), 61)
        data = tf.data.Dataset.from_tensor_slices(data).batch(16)
        for epochs in (1, 2):
            with worker.strategy.scope():
                model = small.compiled(small.functional(small.table("adagrad")))
            points = tf_ext.callbacks.TableSnapshot(own, warm_start=other)
            history = model.fit(
                data, epochs=epochs, callbacks=[points], verbose=0
            )
            rows = model.tables[0].pull(np.arange(-20, 20)).numpy()
            weights = [v.numpy() for v in model.variables[1:]]
            results.append((history.epoch, rows, weights))
    return results


@contextlib.contextmanager
def _folder(worker):
    """A folder that all workers share."""
    if worker.size == 1:
        with tempfile.TemporaryDirectory() as folder:
            yield folder
        return
    [first, *_] = worker.strategy.cluster_resolver.cluster_spec().as_dict()[
        "worker"
    ]
    name = f"tf_ext_warm_start_{first.replace(':', '_')}"
    path = os.path.join(tempfile.gettempdir(), name)
    yield path
    # All have read it by then: tables are pulled together.
    if worker.rank == 0:
        shutil.rmtree(path)
