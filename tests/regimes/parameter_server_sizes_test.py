# SPDX-License-Identifier: Apache-2.0
"""Clusters of different sizes, against one process."""

import pytest
import tensorflow as tf
from absl.testing import parameterized
from clusters import parameter_server_util as util
from models.model_building import generator
from models.small_models import batch, compiled, functional, table
from saving_util import contents

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.both_kerases(slow=True),
]

_METRICS = ["AUC", "accuracy"]


class SizesTest(tf.test.TestCase, parameterized.TestCase):
    def data(self):
        # The last batch is a small one.
        features, labels = batch(generator(self), 500)
        return tf.data.Dataset.from_tensor_slices((features, labels)).batch(16)

    @parameterized.named_parameters(
        ("one_worker_one_server", 1, 1),
        ("one_worker_two_servers", 1, 2),
        ("three_workers_three_servers", 3, 3),
    )
    def test_equals_one_process(self, workers, servers):
        cluster = util.Cluster()
        self.addCleanup(cluster.stop)
        cluster.start(workers, servers)
        data = self.data()
        models = []
        for strategy in (tf.distribute.get_strategy(), cluster.strategy):
            with strategy.scope():
                models.append(
                    compiled(functional(table("adagrad")), metrics=_METRICS)
                )
        one, other = (
            model.fit(data, epochs=2, verbose=0, max_inflight_steps=1).history
            for model in models
        )
        for name in one:
            self.assertAllClose(other[name], one[name], 1e-6, 1e-6, msg=name)
        self.assertLen(models[1].tables[0].rows.shards, servers)
        here, there = (contents(model.tables[0]) for model in models)
        for field, rows in here.items():
            self.assertCountEqual(there[field], rows)
            for sign, values in rows.items():
                self.assertAllClose(there[field][sign], values, 1e-6, 1e-6)
        one, other = (
            model.evaluate(data, verbose=0, return_dict=True)
            for model in models
        )
        self.assertAllClose(other, one, 1e-6, 1e-6)


if __name__ == "__main__":
    tf.test.main()
