# SPDX-License-Identifier: Apache-2.0
"""The datasets that a dataset reads can be found from it."""

import unittest

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tf_ext._compat import datasets

pytestmark = pytest.mark.both_kerases(slow=True)

_WRAPPERS = {
    "itself": lambda d: d,
    "map": lambda d: d.map(lambda x: x + 1),
    "batch": lambda d: d.batch(2).unbatch(),
    "filter": lambda d: d.filter(lambda x: x > 0),
    "prefetch": lambda d: d.prefetch(tf.data.AUTOTUNE),
    "take": lambda d: d.skip(1).take(2).repeat(2).shard(2, 1),
    "shuffle": lambda d: d.shuffle(3).cache(),
    "options": lambda d: d.with_options(tf.data.Options()),
    "apply": lambda d: d.apply(lambda e: e.enumerate().ignore_errors()),
    "concatenate": lambda d: tf.data.Dataset.range(1).concatenate(d),
    "zip": lambda d: tf.data.Dataset.zip((tf.data.Dataset.range(1), d)),
    "sample": lambda d: tf.data.Dataset.sample_from_datasets([d, d]),
    "flat_map": lambda d: d.flat_map(tf.data.Dataset.range),
}


class PartsTest(parameterized.TestCase):
    def test_what_is_read_for_a_cache(self):
        source = tf.data.Dataset.range(4)
        other = source.map(lambda x: x)
        both = tf.data.Dataset.zip((other.cache().prefetch(1), other))
        for dataset, found in ((other.cache().batch(2), False), (both, True)):
            parts = [*datasets.parts_of(dataset, cached=False)]
            self.assertEqual(any(one is source for one in parts), found)

    @parameterized.named_parameters(*_WRAPPERS.items())
    def test_a_source_is_found_once(self, wrap):
        source = tf.data.Dataset.range(4)
        other = tf.data.Dataset.range(4)
        found = list(datasets.parts_of(wrap(source)))
        self.assertEqual(sum(one is source for one in found), 1)
        self.assertFalse(any(one is other for one in found))

    @parameterized.named_parameters(*_WRAPPERS.items())
    def test_batches_changed(self, wrap):
        """Those of datasets in which another number of elements comes out."""
        source = tf.data.Dataset.range(4)
        found = datasets.batches_changed(
            wrap(source), lambda one: one is source
        )
        keep = ("itself", "map", "prefetch", "options")
        is_kept = any(wrap is _WRAPPERS[name] for name in keep)
        self.assertEqual(found == [], is_kept, found)

    def test_takes_some(self):
        source = tf.data.Dataset.range(4)
        for one in (source, source.map(lambda n: n), source.skip(1)):
            self.assertFalse(datasets.takes_some(one))
        both = tf.data.Dataset.zip(source, source.take(2).map(lambda n: n))
        self.assertTrue(datasets.takes_some(both.prefetch(1)))

    def test_batches_that_stay(self):
        source = tf.data.Dataset.range(4)
        zipped = tf.data.Dataset.zip((source, source.take(2)))
        made = zipped.map(lambda a, b: a + b, num_parallel_calls=2)
        self.assertEmpty(
            datasets.batches_changed(made, lambda one: one is source)
        )

    def test_is_served(self):
        here = tf.data.Dataset.range(4)
        # One that is not there would be asked again for ever.
        dispatcher = tf.data.experimental.service.DispatchServer()
        served = here.apply(
            tf.data.experimental.service.distribute(
                tf.data.experimental.service.ShardingPolicy.OFF,
                dispatcher.target,
            )
        )
        self.assertFalse(datasets.is_served(here.batch(2)))
        self.assertTrue(datasets.is_served(served.batch(2).map(tf.identity)))


if __name__ == "__main__":
    unittest.main()
