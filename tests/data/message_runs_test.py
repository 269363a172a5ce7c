# SPDX-License-Identifier: Apache-2.0
"""Messages in columns are the same messages."""

import numpy as np
from absl.testing import absltest, parameterized

from tf_ext.data.message_runs import Messages, Run
from tf_ext.data.source import Message

_MESSAGES = [
    Message("a", 1, b"x", b"k", {"h": b"1"}, 10.0),
    Message("a", 3, None),
    Message("a", 4, b"y", None, {}, 11.5),
    Message("b", ["f", 1], b"z", b"l"),
    Message("a", 5, b""),
    Message("b", ["f", None], None),
]


class MessagesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.messages = Messages.of(_MESSAGES)

    def test_objects(self):
        self.assertSequenceEqual(list(self.messages), _MESSAGES)
        self.assertLen(self.messages, 6)
        self.assertEqual(
            [self.messages[i] for i in range(-6, 6)], 2 * _MESSAGES
        )
        with self.assertRaises(IndexError):
            self.messages[6]
        self.assertIs(Messages.of(self.messages), self.messages)

    def test_slices(self):
        for begin in range(7):
            for end in range(7):
                for step in (None, 2, -1):
                    part = self.messages[begin:end:step]
                    self.assertEqual(list(part), _MESSAGES[begin:end:step])

    def test_none(self):
        none = Messages.of([])
        self.assertEmpty(none)
        self.assertEqual((none.records, none.positions), (0, {}))
        self.assertEqual((none.values, none.keys, none.header("h")), ([],) * 3)
        self.assertEqual(none.times.shape, (0,))

    def test_columns(self):
        self.assertEqual(self.messages.records, 4)
        self.assertEqual(self.messages.positions, {"a": 5, "b": ["f", None]})
        self.assertEqual(
            self.messages.values, [b"x", None, b"y", b"z", b"", None]
        )
        self.assertEqual(
            self.messages.keys, [b"k", None, None, b"l"] + 2 * [None]
        )
        self.assertEqual(self.messages.header("h"), [b"1"] + 5 * [None])
        np.testing.assert_array_equal(
            self.messages.times, [10.0, np.nan, 11.5] + 3 * [np.nan]
        )

    def test_with_values(self):
        self.assertEqual(
            list(self.messages.with_values()),
            [one for one in _MESSAGES if one.value is not None],
        )

    def test_columns_that_no_message_has(self):
        run = Run("c", [7, 8], [b"u", None])
        messages = Messages([run, Run("d", [], [])])
        self.assertLen(messages.runs, 1)
        expected = [Message("c", 7, b"u"), Message("c", 8, None)]
        self.assertEqual(list(messages), expected)
        self.assertEqual(messages.keys, [None, None])
        self.assertEqual(messages.header("h"), [None, None])
        self.assertTrue(np.isnan(messages.times).all())
        self.assertEqual(list(messages.with_values()), expected[:1])
        self.assertEqual(list(messages[1:]), expected[1:])


if __name__ == "__main__":
    absltest.main()
