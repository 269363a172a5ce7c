# SPDX-License-Identifier: Apache-2.0
"""Iterators are of the classes, and threads of the kinds, that we know."""

import gc
import threading

import tensorflow as tf
from absl.testing import absltest

from tf_ext._compat import iterators


class IteratorsTest(absltest.TestCase):
    def test_are_found(self):
        data = tf.data.Dataset.range(4)
        replicas = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        both = iter(replicas.experimental_distribute_dataset(data.batch(2)))
        [of_worker] = both._iterators
        one = iter(data)
        found = iterators.iterators_of(0)
        for each in (one, of_worker._iterator):
            self.assertEqual(sum(each is other for other in found), 1)
        gc.collect()  # They are of the oldest generation now.
        self.assertFalse(any(one is each for each in iterators.iterators_of(1)))
        self.assertTrue(any(one is each for each in iterators.iterators_of(2)))

    def test_threads(self):
        found = {}

        def note(name):
            found[name] = iterators.is_started_by_python()

        note("main")
        thread = threading.Thread(target=note, args=["other"])
        thread.start()
        thread.join()

        def generate():
            note("TensorFlow's")
            yield 1

        data = tf.data.Dataset.from_generator(
            generate, output_signature=tf.TensorSpec([], tf.int64)
        )
        for _ in data.prefetch(1):
            pass
        self.assertEqual(
            found, {"main": True, "other": True, "TensorFlow's": False}
        )


if __name__ == "__main__":
    absltest.main()
