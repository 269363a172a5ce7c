"""Training of sequences by any number of synchronous workers."""

import numpy as np
import sequence_models
import tensorflow as tf
from multi_worker_cases import export

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


def trained(worker):
    with worker.strategy.scope():
        made = model()
    history = made.fit(dataset(), epochs=2, verbose=0, shuffle=False)
    return {
        "losses": history.history["loss"],
        "variables": made.get_weights(),
        "tables": {"item": export(made.tables[0])},
    }


CASES = ["trained"]
