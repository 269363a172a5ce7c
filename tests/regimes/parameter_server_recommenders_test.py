# SPDX-License-Identifier: Apache-2.0
"""Models of recommender libraries with parameter servers.

TensorFlow Recommenders' under tf_keras, keras-rs's under Keras 3.
"""

import pytest
import tensorflow as tf
from clusters import parameter_server_util as util
from models.model_building import rows_of

from tf_ext._keras import IS_KERAS_3

pytestmark = [
    pytest.mark.process("shared_cluster"),
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "KerasRsTest::*",
    ),
]

if IS_KERAS_3:
    from models import keras_rs_models
else:
    from models import recommenders_models as models

setUpModule = util.shared


class _RegimeTest(tf.test.TestCase):
    def assert_as_one_process(self, make, data):
        """One step in flight comes to what one process comes to."""
        alone = make()
        with util.shared().strategy.scope():
            spread = make()
        expected = alone.fit(data, epochs=2, verbose=0).history
        found = spread.fit(data, epochs=2, verbose=0, max_inflight_steps=1)
        for key, values in expected.items():
            self.assertAllClose(found.history[key], values, 1e-6, 1e-6, key)
        for one, other in zip(alone.tables, spread.tables, strict=True):
            self.assertAllClose(rows_of(one), rows_of(other), 1e-6, 1e-6)
        # Steps of an evaluation run at the same time, and none is left out.
        found = spread.evaluate(data, return_dict=True, verbose=0)
        expected = alone.evaluate(data, return_dict=True, verbose=0)
        for key in set(expected) - {"loss", "total_loss"}:
            self.assertAllClose(found[key], expected[key], 1e-5, 1e-6, key)


class RecommendersTest(_RegimeTest):
    def setUp(self):
        super().setUp()
        if IS_KERAS_3:
            self.skipTest("TensorFlow Recommenders refuses Keras 3.")

    def test_two_towers(self):
        with util.shared().strategy.scope():
            model = models.make_model()
        # The losses of so few steps jump where steps run at the same time.
        model.fit(
            models.data(),
            epochs=models.EPOCHS,
            verbose=0,
            max_inflight_steps=1,
        )
        metrics = models.evaluate_with_index(model, util.shared().strategy)
        self.assertBetween(metrics[models.TOP_2], 0.95, 1.0)
        self.assertLess(metrics["rmse"], 0.1)

    @pytest.mark.slow
    def test_sums(self):
        self.assert_as_one_process(models.make_model, models.data())

    def test_means(self):
        data = models.clicks_data(batch=79)
        self.assert_as_one_process(models.make_clicks, data)


class KerasRsTest(_RegimeTest):
    def setUp(self):
        super().setUp()
        if not IS_KERAS_3:
            self.skipTest("keras-rs needs Keras 3.")

    @pytest.mark.slow
    def test_list_mle(self):
        self.assert_as_one_process(
            keras_rs_models.make_model, keras_rs_models.data(samples=403)
        )

    def test_asynchronous_steps_learn(self):
        data = keras_rs_models.data()
        with util.shared().strategy.scope():
            model = keras_rs_models.make_model("pairwise_hinge")
        model.fit(data, epochs=12, verbose=0)
        metrics = model.evaluate(data, return_dict=True, verbose=0)
        for name in ("map", "mrr", "ndcg"):
            self.assertBetween(metrics[name], 0.9, 1.0, name)


if __name__ == "__main__":
    tf.test.main()
