# SPDX-License-Identifier: Apache-2.0
"""What Keras's own methods are given where workers share the data."""

import inspect

import pytest
import tensorflow as tf
from queue_source import Queue

import tf_ext
from tf_ext._keras import keras
from tf_ext.regimes import regime_of_model
from tf_ext.training.dispatch import SynchronousKerasTraining

pytestmark = pytest.mark.both_kerases(slow=True)

_Policy = tf.data.experimental.AutoShardPolicy


def _method(x=None, verbose=1, validation_data=None):
    """A method of Keras that returns its arguments."""
    return x, verbose, validation_data


def _policy(dataset):
    return dataset.options().experimental_distribute.auto_shard_policy


class SynchronousKerasTest(tf.test.TestCase):
    def _run(self, *args, **kwargs):
        model = tf_ext.Model(inputs := keras.Input([1]), inputs)
        training = SynchronousKerasTraining(model, regime_of_model(model))
        given = inspect.signature(_method).bind(*args, **kwargs)
        return training.run(_method, given)

    def test_batches_may_become_smaller_and_are_sharded_by_samples(self):
        batches = tf.data.Dataset.range(6).batch(3, drop_remainder=True)
        x, verbose, validation = self._run(
            batches, 0, validation_data=batches.take(1)
        )
        for found, wanted in (
            (x, [[0, 1, 2], [3, 4, 5]]),
            (
                validation,
                [[0, 1, 2]],
            ),
        ):
            self.assertEqual(found.element_spec.shape.as_list(), [None])
            self.assertEqual(_policy(found), _Policy.DATA)
            self.assertAllEqual(list(found), wanted)
        self.assertEqual(verbose, 0)

    def test_other_data_and_policies_stay(self):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = _Policy.FILE
        by_file = tf.data.Dataset.range(2).batch(1).with_options(options)
        arrays = [1.0], [2.0]
        x, _, validation = self._run(arrays, validation_data=by_file)
        self.assertIs(x, arrays)
        self.assertEqual(_policy(validation), _Policy.FILE)

    def test_streams_are_refused(self):
        schema = tf_ext.data.Schema([tf_ext.data.Field("x", "int64")])
        stream = tf_ext.data.stream(
            Queue(), schema, "csv", batch_size=1, follow=False
        )
        for given in {"x": stream}, {"validation_data": stream}:
            with self.assertRaisesRegex(ValueError, "`x` of fit must be a fun"):
                self._run(**given)


if __name__ == "__main__":
    tf.test.main()
