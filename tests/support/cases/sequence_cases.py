# SPDX-License-Identifier: Apache-2.0
"""Training of sequences by any number of synchronous workers."""

import numpy as np
import tensorflow as tf
from clusters.case_workers import export
from models import sequence_models

import tf_ext
from cases.multi_worker_step_cases import fit_shares

_STEPS, _BATCH_SIZE = 10, 16


def dataset():
    """Batches of ragged histories; all workers read their part of each."""
    features, labels = sequence_models.data(
        np.random.default_rng(5), _STEPS * _BATCH_SIZE
    )
    data = tf.data.Dataset.from_tensor_slices((features, labels))
    return data.batch(_BATCH_SIZE).map(sequence_models.as_ragged)


def model():
    """A model whose sequences are as long as the longest of a batch."""
    return sequence_models.model(ragged=True, max_length=None)


def trained(worker, change=lambda data: data):
    with worker.strategy.scope():
        made = model()
    data = change(dataset())
    if callable(data):
        losses = fit_shares(worker, made, data, _STEPS, epochs=2)
    else:
        history = made.fit(data, epochs=2, verbose=0, shuffle=False)
        losses = history.history["loss"]
    return {
        "losses": losses,
        "variables": made.get_weights(),
        "tables": {"item": export(made.tables[0])},
    }


def hashed(data):
    """The dataset with hashed columns."""
    columns = sequence_models.columns(max_length=None)
    return tf_ext.data.hash_columns(data, columns)


def trained_on_hashed(worker):
    return trained(worker, hashed)


def trained_on_hashed_parts(worker):
    """By a function, which is given this worker's share of the batches."""
    return trained(
        worker,
        lambda data: (
            lambda context: hashed(
                tf_ext.data.worker_share(
                    data, context.num_input_pipelines, context.input_pipeline_id
                )
            )
        ),
    )
