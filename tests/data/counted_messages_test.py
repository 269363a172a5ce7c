# SPDX-License-Identifier: Apache-2.0
"""Messages of streams that are read again count once."""

from unittest import mock

import tensorflow as tf
from absl.testing import absltest, parameterized
from queue_source import Queue

import tf_ext
from tf_ext.data import counted_messages
from tf_ext.data.counted_messages import CountedMessages

_X = tf_ext.data.Schema([tf_ext.data.Field("x", "int64")])


def _stream(queue, progress, batch_size, max_errors, errors=None):
    return tf_ext.data.stream(
        queue,
        _X,
        batch_size=batch_size,
        follow=False,
        max_errors=max_errors,
        errors=errors,
        progress=progress,
    )


class CountsTest(absltest.TestCase):
    def test_what_is_read_again(self):
        counted = CountedMessages()
        counted.begin({"a": 0, "b": 0})
        self.assertEqual(counted.new("a", 10), 10)
        self.assertEqual(counted.new("b", 2), 2)
        counted.end_batch({"a": 4, "b": 2}, {"a": 4, "b": 2})
        counted.end_batch({"a": 8}, {"a": 4})
        counted.begin({"a": 4, "b": 2})
        self.assertEqual(counted.new("a", 5), 0)
        self.assertEqual(counted.new("a", 5), 4)
        self.assertEqual(counted.new("b", 3), 3)
        counted.end_batch({"a": 9}, {"a": 5})
        counted.begin({"a": 9})
        self.assertEqual(counted.new("a", 7), 2)
        # At its beginning, too, before which no batch ended.
        counted.begin({"a": 0})
        self.assertEqual(counted.new("a", 17), 1)

    def test_unknown_positions_are_new(self):
        counted = CountedMessages()
        counted.begin({"a": 0})
        self.assertEqual(counted.new("a", 10), 10)
        counted.begin({"a": 1000})
        self.assertEqual(counted.new("a", 3), 3)
        counted.begin({"a": 1000})
        self.assertEqual(counted.new("a", 4), 1)

    @mock.patch.object(counted_messages, "_BATCHES", 3)
    def test_positions_of_the_last_batches_are_known(self):
        # Of five messages that are read next, those behind the 50th are new;
        # and all, where it is forgotten how many were before them.
        for position, wanted in ((20, 5), (30, 0), (40, 0), (50, 5)):
            counted = CountedMessages()
            counted.begin({"a": 0})
            self.assertEqual(counted.new("a", 50), 50)
            for end in range(10, 51, 10):
                counted.end_batch({"a": end}, {"a": 10})
            counted.begin({"a": position})
            self.assertEqual(counted.new("a", 5), wanted, position)


class StreamTest(parameterized.TestCase):
    @parameterized.parameters(3, 7, 100)
    def test_each_message_counts_once(self, batch_size):
        queue = Queue()
        for name in "ab":
            for n in range(40):
                queue.add(name, b"bad" if n % 10 == 3 else b"%d" % n, None)
        errors = tf_ext.data.ReadErrors()
        progress = tf_ext.data.StreamProgress()
        data = _stream(queue, progress, batch_size, 0.5, errors)
        found = []
        while True:
            batch = next(iter(data.take(1)), None)
            if batch is None:
                break
            found += batch["x"].numpy().tolist()
            progress.advance()
        self.assertLen(found, 72)
        bad = {"records": 40, "reasons": {"bad number": 4}}
        self.assertEqual(errors.state(), {"a": bad, "b": bad})

    def test_a_share_of_what_is_new(self):
        """Malformed messages that are read again and again are not many."""
        queue = Queue()
        queue.add("a", *[b"1"] * 600, *[b"bad"] * 6, *[b"2"] * 1200)
        progress = tf_ext.data.StreamProgress()
        data = _stream(queue, progress, 50, 0.01)
        while next(iter(data.take(1)), None) is not None:
            progress.advance()
        self.assertEqual(progress.records, 1800)

    def test_a_share_is_not_of_what_is_read_again(self):
        queue = Queue()
        queue.add("a", *[b"1"] * 60, *[b"bad"] * 12, b"2")
        progress = tf_ext.data.StreamProgress()
        data = _stream(queue, progress, 10, 0.1)
        for _ in range(5):
            next(iter(data.take(1)))
            progress.advance()
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "12 of the last 73 records"
        ):
            list(data)

    def test_after_a_restart_elsewhere(self):
        queue = Queue()
        queue.add("a", *[b"1", b"bad"] * 20)
        errors = tf_ext.data.ReadErrors()
        progress = tf_ext.data.StreamProgress()
        data = _stream(queue, progress, 4, 0.9, errors)
        states = []
        for _ in data:
            states.append(progress.state())
            progress.advance()
        for state in states:
            progress.restore(state)
            self.assertNotEmpty(list(data))
            self.assertEqual((errors.records, errors.errors), (40, 20))


if __name__ == "__main__":
    absltest.main()
