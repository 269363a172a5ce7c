# SPDX-License-Identifier: Apache-2.0
"""Recovery points of synchronous workers, written beside training."""

import tempfile

import numpy as np
import tensorflow as tf
from models.small_models import batch, compiled, functional, table
from saving_util import contents

import tf_ext
from tf_ext.recovery import files
from tf_ext.regimes import regime_of_tables
from tf_ext.snapshot import open_snapshot

STEPS = 30


def points_beside_training(worker):
    """This worker's rows after the last step, and what the last point has.

    The intervals are such that points are under way while steps end, and that
    chains begin anew.
    """
    with worker.strategy.scope():
        model = compiled(functional(table("adagrad")))
    samples = batch(np.random.default_rng(0), 16 * STEPS)
    data = tf.data.Dataset.from_tensor_slices(samples).batch(16)
    with tempfile.TemporaryDirectory() as folder:
        processes = regime_of_tables(model.tables).processes
        folder = processes.from_first(folder)
        snapshot = tf_ext.callbacks.TableSnapshot(
            folder, steps=4, seconds=1e-9, incremental=True, keep=99
        )
        model.fit(data, epochs=4, verbose=0, callbacks=[snapshot])
        points = files.list_points(folder)
        saved = open_snapshot(files.table_path(points[-1], 0))
        found = {
            "rows": contents(model.tables[0]),
            "saved": rows_of(saved),
            "kinds": [manifest.kind for _, manifest in saved.chain],
            "steps": [files.read_point(path).step for path in points],
        }
        # No folder goes away before all have read it.
        processes.gather_json(0)
    return found


def rows_of(snapshot):
    """As `contents`, of a snapshot."""
    found = {}
    for signs, fields in snapshot.chunks():
        for name, values in fields.items():
            rows = zip(signs.tolist(), values.tolist(), strict=True)
            found.setdefault(name, {}).update(rows)
    return found
