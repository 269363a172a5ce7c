# SPDX-License-Identifier: Apache-2.0
"""The one context that layers have beside their arguments."""

import tensorflow as tf

from tf_ext._batch_source import BatchSource, batch_source, source_with
from tf_ext.ops import unique_by_shard


def _lookup(table, signs, statistics):
    raise AssertionError((table, signs, statistics))


class BatchSourceTest(tf.test.TestCase):
    def test_inner_changes_leave_the_others(self):
        prepared = {}
        with source_with(lookup=_lookup, prepared=prepared):
            with source_with(without_click=frozenset("a")):
                found = batch_source()
                wanted = BatchSource(
                    prepared=prepared,
                    without_click=frozenset("a"),
                    lookup=_lookup,
                )
                self.assertEqual(found, wanted)
            self.assertEqual(batch_source().without_click, frozenset())
            self.assertIs(batch_source().lookup, _lookup)
        self.assertEqual(batch_source(), BatchSource())

    def test_is_as_before_after_an_error(self):
        with self.assertRaisesRegex(KeyError, "stop"):
            with source_with(lookup=_lookup):
                raise KeyError("stop")
        self.assertEqual(batch_source(), BatchSource())

    def test_of_an_unknown_name(self):
        with self.assertRaisesRegex(ValueError, "other"):
            source_with(other=1)

    def test_ops_are_replaced_inside_alone(self):
        signs = tf.constant([7, 7], tf.int64)
        with source_with(lookup=_lookup):
            # Stock ops leave duplicates.
            self.assertAllEqual(unique_by_shard(signs).unique, [7, 7])
        self.assertAllEqual(unique_by_shard(signs).unique, [7])


if __name__ == "__main__":
    tf.test.main()
