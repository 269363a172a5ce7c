# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a compiled model in clusters of other sizes."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from clusters import parameter_server_util as util
from models import small_models
from models.model_building import generator, number
from models.sharded_tables import counters_of
from models.small_models import Subclassed, compiled, functional, table
from saving_util import TestCase, contents

from tf_ext._keras import keras
from tf_ext.admission import Count

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.both_kerases(slow=True),
]


class CheckpointTest(TestCase, parameterized.TestCase):
    def data(self):
        features, labels = small_models.batch(generator(self), 128)
        return tf.data.Dataset.from_tensor_slices((features, labels)).batch(16)

    def make(self, make, strategy=None):
        with (strategy or tf.distribute.get_strategy()).scope():
            counted = table("adam", admission=Count(9, forget=3))
            model = compiled(make(counted), keras.optimizers.Adam(0.1))
            if make is Subclassed:
                for features, _ in self.data().take(1):
                    model(features)
            model.optimizer.build(model.trainable_variables)
        return model

    def checkpoint(self, model, listed):
        parts = {"model": model}
        if listed:
            parts["optimizer"] = model.optimizer
        return tf.train.Checkpoint(**parts)

    def test_goes_on_in_other_clusters(self):
        options = {"verbose": 0, "max_inflight_steps": 1}
        cases = [(functional, False), (Subclassed, True)]
        paths, expected = {}, {}
        for make, listed in cases:
            model = self.make(make)
            model.fit(self.data(), epochs=2, **options)
            expected[make, listed] = _state(model)
        # From two servers to three and to none.
        for last, sizes in enumerate([(2, 2), (1, 3), None]):
            cluster = util.Cluster()
            if sizes:
                cluster.start(*sizes)
                strategy = cluster.strategy
            else:
                strategy = tf.distribute.get_strategy()
            for case in cases:
                make, listed = case
                model = self.make(make, strategy)
                if last == 0:
                    model.fit(self.data(), **options)
                    paths[case] = self.checkpoint(model, listed).write(
                        self.path("checkpoint")
                    )
                    continue
                self.checkpoint(model, listed).read(
                    paths[case]
                ).assert_consumed()
                self.assertEqual(number(model.optimizer.iterations), 8)
                model.fit(self.data(), **options)
                self.assert_same(_state(model), expected[case])
            cluster.stop()

    def assert_same(self, found, expected):
        for one, two in zip(found[0], expected[0], strict=True):
            self.assertAllClose(one, two, 1e-5, 1e-5)
        # Some wait, and some of them since the period before.
        self.assertEqual(found[2], expected[2])
        self.assertNotEmpty(expected[2][1])
        self.assertLess(min(expected[2][1].values()), 0)
        for field, rows in expected[1].items():
            self.assertCountEqual(found[1][field], rows)
            for sign, values in rows.items():
                self.assertAllClose(found[1][field][sign], values, 1e-5, 1e-5)


def _state(model):
    """Dense weights, slots and iterations; all rows; all counters."""
    optimizer = model.optimizer
    optimizer = getattr(optimizer, "inner_optimizer", None) or optimizer
    slots = optimizer.variables
    slots = slots() if callable(slots) else slots
    head = model.layers[-1].weights
    values = [np.asarray(tf.convert_to_tensor(v)) for v in [*head, *slots]]
    return values, contents(model.tables[0]), counters_of(model.tables[0])


if __name__ == "__main__":
    tf.test.main()
