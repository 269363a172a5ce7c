# SPDX-License-Identifier: Apache-2.0
"""What functional models keep to themselves is still there."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest

from tf_ext._compat import functional_graphs as graphs
from tf_ext._keras import keras

pytestmark = pytest.mark.both_kerases


def _model():
    """Ids, whose masked embeddings a recurrent layer reads."""
    inputs = keras.Input((3,), dtype="int64", name="x")
    rows = keras.layers.Embedding(5, 2, mask_zero=True)(inputs)
    outputs = keras.layers.GRU(2)(rows)
    return keras.Model({"x": inputs}, {"y": outputs * 2.0})


class CallsTest(absltest.TestCase):
    def test_are_in_order_and_without_masks(self):
        model = _model()
        calls = [
            one
            for one in graphs.calls_of(model)
            # Keras 3 has one for the mask.
            if "equal" not in one.layer.name
        ]
        self.assertEqual(
            [type(one).__name__ for one in [c.layer for c in calls[:3]]],
            ["InputLayer", "Embedding", "GRU"],
        )
        self.assertLen(calls, 4)
        self.assertIsInstance(calls[0], graphs.Call)
        for before, after in itertools.pairwise(calls):
            [symbolic] = after.inputs()
            self.assertIs(symbolic, before.outputs[0])
        self.assertEmpty(graphs.symbolic_in(calls[2].kwargs))
        self.assertIs(calls[3].outputs[0], model.output["y"])

    def test_masks_of_the_user_remain(self):
        inputs = keras.Input((3, 2))
        mask = keras.Input((3,), dtype="bool")
        outputs = keras.layers.GRU(2)(inputs, mask=mask)
        last = graphs.calls_of(keras.Model([inputs, mask], outputs))[-1]
        self.assertIs(last.kwargs["mask"], mask)

    def test_symbolic_tensors(self):
        dense = keras.Input((3,))
        self.assertTrue(graphs.is_symbolic(dense))
        self.assertTrue(graphs.is_dense(dense))
        self.assertFalse(graphs.is_dense(keras.Input((3,), sparse=True)))
        for other in (1.0, None, "x", np.zeros(2), tf.constant(1)):
            self.assertFalse(graphs.is_symbolic(other))
        self.assertEqual(graphs.flat_outputs({"b": [2], "a": 1}), [1, 2])


class VocabularyTest(absltest.TestCase):
    def test_of_lookups(self):
        lookup = keras.layers.StringLookup(
            vocabulary=["b", "a"], mask_token="", num_oov_indices=2
        )
        tokens, indices = graphs.vocabulary_table(lookup)
        self.assertEqual(
            dict(zip(tokens.numpy(), indices.numpy())), {b"b": 3, b"a": 4}
        )
        empty = keras.layers.IntegerLookup()
        self.assertIsNone(graphs.vocabulary_table(empty))


if __name__ == "__main__":
    absltest.main()
