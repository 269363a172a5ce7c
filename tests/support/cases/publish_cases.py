# SPDX-License-Identifier: Apache-2.0
"""Synchronous workers whose points are published by one of them."""

import tempfile

import numpy as np
import tensorflow as tf
from models import small_models as small
from models.model_building import rows_of

import tf_ext
from tf_ext.regimes import regime_of_model


def published(worker):
    """Rows of a worker, `{sign: bytes}`, and of the store on the first one."""
    with worker.strategy.scope():
        model = small.compiled(small.functional(small.table("adam")))
    processes = regime_of_model(model).processes
    folder = processes.from_first(tempfile.mkdtemp())
    snapshot = tf_ext.callbacks.TableSnapshot(folder, incremental=True)
    data = tf.data.Dataset.from_tensor_slices(
        small.batch(np.random.default_rng(1))
    ).batch(16)
    refused = ""
    for epoch in range(1, 4):
        model.fit(
            data,
            epochs=epoch,
            initial_epoch=epoch - 1,
            verbose=0,
            callbacks=[snapshot],
        )
        if worker.rank == 0 and epoch == 1:
            sink = tf_ext.serving.DirectorySink(tempfile.mkdtemp())
            plain = small.functional(small.table("adam"))
            publisher = tf_ext.serving.publish(plain, folder, sink, every=None)
        if worker.rank == 0:
            assert publisher.update()
        processes.gather_json(0)
    try:
        tf_ext.serving.publish(
            model,
            folder,
            tf_ext.serving.DirectorySink(tempfile.mkdtemp()),
            every=None,
        )
    except ValueError as error:
        refused = str(error)
    found = {}
    if worker.rank == 0:
        for signs, rows in sink.read_rows(3, "deep"):
            found |= dict(zip(signs.tolist(), map(bytes, rows), strict=True))
    own = {sign: bytes(row) for sign, row in rows_of(model.tables[0]).items()}
    return own, found, refused
