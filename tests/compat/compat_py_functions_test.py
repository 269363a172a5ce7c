# SPDX-License-Identifier: Apache-2.0
"""Functions of Python that graphs call by name."""

import gc
import weakref

import numpy as np
import tensorflow as tf
from absl.testing import absltest

from tf_ext._compat import py_functions

_SPECS = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.string)]


class _Counter:
    def count(self, number, text):
        return np.arange(int(number)), text + b"!"


class PyFunctionsTest(absltest.TestCase):
    def _call(self, name):
        @tf.function
        def called(number, text):
            return py_functions.call(name, [number, text], _SPECS)

        function = called.get_concrete_function(
            tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string)
        )
        self.assertEqual(function.output_shapes, [(None,), ()])
        return [
            one.numpy()
            for one in function(tf.constant(3, tf.int64), tf.constant("a"))
        ]

    def test_a_graph_calls_what_has_the_name_when_it_runs(self):
        counter = _Counter()
        alive = weakref.ref(counter)
        py_functions.register("tf_ext_test_count", counter.count)
        del counter
        gc.collect()
        self.assertIsNotNone(alive())
        numbers, text = self._call("tf_ext_test_count")
        self.assertEqual((numbers.tolist(), text), ([0, 1, 2], b"a!"))
        py_functions.register(
            "tf_ext_test_count", lambda number, text: (np.arange(1), b"other")
        )
        self.assertEqual(self._call("tf_ext_test_count")[1], b"other")

    def test_names_that_nobody_registered(self):
        with self.assertRaisesRegex(tf.errors.OpError, "tf_ext_test_other"):
            self._call("tf_ext_test_other")


if __name__ == "__main__":
    absltest.main()
