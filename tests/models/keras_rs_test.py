# SPDX-License-Identifier: Apache-2.0
"""keras-rs's interactions, ranking losses and ranking metrics on tables."""

import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import mirrored_strategy, rows_of

from tf_ext._keras import IS_KERAS_3

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "KerasRsTest::test_list_mle",
    ),
]

if IS_KERAS_3:
    from models import keras_rs_models as models


class KerasRsTest(parameterized.TestCase, tf.test.TestCase):
    def setUp(self):
        super().setUp()
        if not IS_KERAS_3:
            self.skipTest("keras-rs needs Keras 3.")

    def _assert_learns(self, loss):
        model = models.make_model(loss)
        untrained = model.evaluate(models.data(), return_dict=True, verbose=0)
        model.fit(models.data(), epochs=12, verbose=0)
        trained = model.evaluate(models.data(), return_dict=True, verbose=0)
        self.assertLess(trained["loss"], 0.7 * untrained["loss"])
        for name in models.METRICS:
            self.assertGreater(trained[name], 1.15 * untrained[name], name)
            if name != "dcg":  # The others are means of at most 1.
                self.assertBetween(trained[name], 0.7, 1.0, name)

    def test_list_mle(self):
        self._assert_learns("list_mle")

    @parameterized.parameters(
        "pairwise_hinge",
        "pairwise_logistic",
        "pairwise_mean_squared",
        "pairwise_soft_zero_one",
    )
    @pytest.mark.slow
    def test_pairwise(self, loss):
        self._assert_learns(loss)

    @pytest.mark.slow
    def test_two_replicas_are_as_one(self):
        trained = []
        for strategy in (tf.distribute.get_strategy(), mirrored_strategy()):
            with strategy.scope():
                model = models.make_model("pairwise_hinge")
            fit = model.fit(models.data(), epochs=2, verbose=0)
            trained.append((fit.history, rows_of(model.tables[0])))
        self.assertAllClose(*trained, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    tf.test.main()
