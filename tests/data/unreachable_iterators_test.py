# SPDX-License-Identifier: Apache-2.0
"""Iterators in cycles are freed, but not by their own threads."""

import gc
import weakref
from unittest import mock

import tensorflow as tf
from absl.testing import absltest
from processes import run
from programs.unreachable_iterator_program import Cycle

from tf_ext.data import unreachable_iterators


class UnreachableIteratorsTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        unreachable_iterators.free_in_threads_of_python()

    def test_a_stream_that_collects_its_own_iterator(self):
        found = run("unreachable_iterator_program.py", timeout_seconds=250)
        self.assertEqual(found, "[1, 2]\n")

    def test_is_said_once(self):
        unreachable_iterators.free_in_threads_of_python()
        self.assertEqual(gc.callbacks.count(unreachable_iterators._keep), 1)

    def _garbage(self):
        iterator = iter(tf.data.Dataset.range(3))
        reference = weakref.ref(iterator)
        other = Cycle(iterator)
        return reference, weakref.ref(other)

    def _collect(self, generation=2, python=False):
        with mock.patch.object(
            unreachable_iterators, "is_started_by_python", lambda: python
        ):
            gc.collect(generation)

    def test_other_garbage_is_freed_in_any_thread(self):
        iterator, other = self._garbage()
        self._collect()
        self.assertIsNone(other())
        # What refers to it was freed, so nothing does any more.
        self.assertIsNotNone(iterator())
        self._collect(generation=0, python=True)
        self.assertIsNone(iterator())

    def test_of_each_generation(self):
        for generation in range(3):
            iterator, _ = self._garbage()
            self._collect(generation)
            self.assertIsNotNone(iterator(), generation)
            self._collect(python=True)
            self.assertIsNone(iterator(), generation)

    def test_iterators_in_use_are_not_held(self):
        iterator = iter(tf.data.Dataset.range(3))
        self._collect()
        reference = weakref.ref(iterator)
        del iterator
        self.assertIsNone(reference())


if __name__ == "__main__":
    absltest.main()
