# SPDX-License-Identifier: Apache-2.0
"""The weights that layers have: what a summary and a checkpoint list."""

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tf_ext.layers import ItemFrequency, NegativeSampler, PositionMapping

pytestmark = pytest.mark.both_kerases(slow=True)


class LayerWeightsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (
            lambda: ItemFrequency(7),
            ["step int64 ()", "last_seen int64 (7,)", "interval float32 (7,)"],
            [],
        ),
        (lambda: NegativeSampler(7), ["step int64 ()"], []),
        (
            lambda: PositionMapping(3, 2),
            ["embeddings float32 (3, 2)"],
            ["embeddings float32 (3, 2)"],
        ),
    )
    def test_names_and_types(self, make, all_of_them, trainable):
        layer = make()
        if not layer.built:
            layer.build([None])
        self.assertEqual(
            [_described(one) for one in layer.weights], all_of_them
        )
        self.assertEqual(
            [_described(one) for one in layer.trainable_weights], trainable
        )


def _described(weight):
    name = weight.name.rpartition("/")[2].partition(":")[0]
    return f"{name} {tf.as_dtype(weight.dtype).name} {tuple(weight.shape)}"


if __name__ == "__main__":
    tf.test.main()
