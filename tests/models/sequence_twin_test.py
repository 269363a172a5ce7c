# SPDX-License-Identifier: Apache-2.0
"""A model on sequences against the same on a Keras Embedding, step by step."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import sequence_models as sequences
from models.model_building import (
    BatchLosses,
    generator,
    mirrored_strategy,
    rows_of,
)

from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow,
]

_BATCH_SIZE = 16
_IDS = 30


def _static(initial):
    """The model on an Embedding with `mask_zero`, which is a Keras model."""
    inputs = sequences.inputs()
    embedding = keras.layers.Embedding(_IDS, sequences.DIM, mask_zero=True)
    embedding.build((None,))
    embedding.set_weights([initial])
    history = embedding(inputs["history"])
    item = embedding(inputs["item"])
    made = keras.Model(inputs, sequences.network(history, item))
    made.compile(keras.optimizers.SGD(0.1), sequences.loss())
    return made, embedding


def _fit(model, dataset):
    callback = BatchLosses()
    model.fit(dataset, verbose=0, callbacks=[callback], shuffle=False)
    return callback.losses


class TwinTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("padded", 300, False, None),
        ("ragged", 30, True, None),
        ("two_replicas", 30, False, mirrored_strategy),
    )
    def test_same_training(self, steps, ragged, strategy):
        features, labels = sequences.data(
            generator(self), steps * _BATCH_SIZE, ids=_IDS
        )
        with (strategy or tf.distribute.get_strategy)().scope():
            model = sequences.model(ragged=ragged)
        table = model.tables[0]
        # The row of padding, which the Embedding has, is masked.
        initial = table.pull(np.arange(_IDS)).numpy()
        static, embedding = _static(initial)
        dataset = tf.data.Dataset.from_tensor_slices((features, labels))
        dataset = dataset.batch(_BATCH_SIZE)
        expected = _fit(static, dataset)
        if ragged:
            dataset = dataset.map(sequences.as_ragged)
        losses = _fit(model, dataset)
        self.assertLen(losses, steps)
        self.assertAllClose(losses, expected, rtol=1e-5, atol=1e-6)
        rows = rows_of(table)
        self.assertCountEqual(rows, range(1, _IDS))
        trained = embedding.get_weights()[0]
        self.assertAllClose(
            [rows[sign] for sign in range(1, _IDS)],
            trained[1:],
            rtol=1e-5,
            atol=1e-5,
        )
        moves = np.abs(trained - initial)[1:].max(axis=1)
        self.assertGreater(np.median(moves), 1e-2)


if __name__ == "__main__":
    tf.test.main()
