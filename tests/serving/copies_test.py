# SPDX-License-Identifier: Apache-2.0
"""Copies of models of several processes, which are exported instead of them."""

import numpy as np
import pytest
import tensorflow as tf
from models import small_models as small
from saving_util import TestCase

import tf_ext
from tf_ext._keras import keras
from tf_ext.serving.copies import copy_of
from tf_ext.serving.signature import of_model

pytestmark = pytest.mark.both_kerases(slow=True)

_FEATURES = {"user": np.array(["a", "b"]), "item": np.array([[1], [2]])}


@keras.utils.register_keras_serializable("copies_test")
class Subclassed(tf_ext.Model):
    """Builds its layers when it is called."""

    def __init__(self, use_bias=True, **kwargs):
        super().__init__(**kwargs)
        self.use_bias = use_bias
        self.embed = tf_ext.layers.EmbeddingFeatures(
            [tf_ext.feature_column.category_column(key) for key in _FEATURES],
            small.table(),
        )
        self.top = keras.layers.Dense(2, use_bias=use_bias)

    def get_config(self):
        return {**super().get_config(), "use_bias": self.use_bias}

    def call(self, inputs, training=None):
        return self.top(self.embed(inputs, training=training))


def _copy(model):
    signature = of_model(model, None, _FEATURES)
    return copy_of(model, signature, model.get_weights())


class CopiesTest(TestCase):
    def test_of_a_subclassed_model(self):
        model = Subclassed(use_bias=False)
        model(_FEATURES, training=True)
        copy = _copy(model)
        self.assertIsNot(copy.tables[0], model.tables[0])
        self.assertEqual(copy.tables[0].size(), 0)
        copy.tables[0].import_rows(*model.tables[0].export_rows())
        self.assertAllEqual(copy(_FEATURES), model(_FEATURES))

    def test_of_a_model_without_a_configuration(self):
        class Unknown(Subclassed):
            def get_config(self):
                raise NotImplementedError

        class Other(Subclassed):
            def get_config(self):
                return {"use_bias": True}

        for kind, message in (
            (Unknown, "exported as a copy, which its `get_config`"),
            (Other, "must have the same tables and weights"),
        ):
            model = kind(use_bias=False)
            model(_FEATURES)
            with self.assertRaisesRegex(ValueError, message):
                _copy(model)


if __name__ == "__main__":
    tf.test.main()
