# SPDX-License-Identifier: Apache-2.0
"""What comes after the steps of an epoch."""

import inspect
import types
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized

from tf_ext._keras import keras
from tf_ext.data.epochs import Epoch, mark
from tf_ext.training import epoch_ends
from tf_ext.training.epoch_order import telling_epochs

pytestmark = pytest.mark.both_kerases


class ValidateTest(parameterized.TestCase):
    def validate(self, epoch=0, **arguments):
        """The logs, and the arguments of `evaluate` if it is called."""
        evaluate = mock.Mock(return_value={"loss": 3.0, "auc": 0.5})
        given = {
            "validation_data": "x",
            "validation_freq": 1,
            "validation_batch_size": None,
            "validation_steps": None,
            "batch_size": 8,
        }
        logs = epoch_ends.validate(
            types.SimpleNamespace(evaluate=evaluate),
            given | arguments,
            "callbacks",
            epoch,
        )
        if not evaluate.called:
            self.assertEqual(logs, {})
            return None
        self.assertEqual(logs, {"val_loss": 3.0, "val_auc": 0.5})
        [one] = evaluate.mock_calls
        self.assertEqual(one.args, ())
        self.assertIs(one.kwargs.pop("return_dict"), True)
        self.assertEqual(one.kwargs.pop("callbacks"), "callbacks")
        return one.kwargs

    @parameterized.parameters(
        (1, [0, 1, 2, 3, 4, 5]),
        (2, [1, 3, 5]),
        (6, [5]),
        (7, []),
        ([1, 4], [0, 3]),
        ((), []),
    )
    def test_in_some_epochs(self, frequency, due):
        found = [
            epoch
            for epoch in range(6)
            if self.validate(epoch, validation_freq=frequency)
        ]
        self.assertEqual(found, due)
        self.assertIsNone(self.validate(validation_data=None))

    @parameterized.parameters(
        # A dataset has batches; arrays have those of training by default.
        ("x", None, ("x", None, None, None)),
        ("x", 4, ("x", None, None, None)),
        (("x", "y"), None, ("x", "y", None, 8)),
        (("x", "y", "w"), 4, ("x", "y", "w", 4)),
    )
    def test_data_and_batches(self, data, size, wanted):
        found = self.validate(
            validation_data=data, validation_batch_size=size, validation_steps=5
        )
        names = "x", "y", "sample_weight", "batch_size"
        self.assertEqual(found, dict(zip(names, wanted)) | {"steps": 5})


class EpochTest(absltest.TestCase):
    def test_ends_without_a_step(self):
        for logs, wanted in (
            (None, {"auc": 0.5, "a": 1.0, "b": 2.0}),
            ({"loss": 4.0}, {"loss": 4.0}),
        ):
            seen = mock.Mock()
            seen.get_metrics_result.return_value = {
                "auc": 0.5,
                "of_classes": {"a": 1.0, "b": 2.0},
            }
            epoch_ends.end_epoch(seen, {"validation_data": None}, seen, 7, logs)
            calls = [
                (name, args)
                for name, args, _ in seen.mock_calls
                if name != "get_metrics_result"
            ]
            self.assertEqual(
                calls,
                [
                    ("reset_metrics", ()),
                    ("on_epoch_begin", (7,)),
                    ("on_epoch_end", (7, wanted)),
                ],
            )


class OrderTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.epoch = Epoch()
        self.data = mark(tf.data.Dataset.range(2), [self.epoch])

    def given(self, *args):
        def fit(x=None, callbacks=None, steps_per_epoch=None):
            pass

        return inspect.signature(fit).bind(*args)

    def test_data_are_told_as_an_epoch_begins(self):
        own = keras.callbacks.Callback()
        for callbacks in (None, own, [own]):
            given = self.given(self.data, callbacks)
            with self.assertRaises(KeyError), telling_epochs(given):
                teller, *others = given.arguments["callbacks"]
                self.assertEqual(others, [own] if callbacks else [])
                teller.on_epoch_begin(3)
                self.assertEqual(self.epoch.number, 3)
                raise KeyError
            # As other readers find it.
            self.assertEqual(self.epoch.number, 0)

    def test_the_list_of_callbacks_is_as_before(self):
        own = keras.callbacks.Callback()
        listed = keras.callbacks.CallbackList([own])
        given = self.given(self.data, listed)
        with self.assertRaises(KeyError), telling_epochs(given):
            self.assertIs(given.arguments["callbacks"], listed)
            self.assertLen(listed.callbacks, 2)
            listed.on_epoch_begin(2)
            self.assertEqual(self.epoch.number, 2)
            raise KeyError
        self.assertEqual(listed.callbacks, [own])

    def test_other_data(self):
        for args in (
            (self.data, None, 3),
            (tf.data.Dataset.range(2),),
            ([1, 2],),
            (),
        ):
            given = self.given(*args)
            with telling_epochs(given):
                self.assertIsNone(given.arguments.get("callbacks"))


if __name__ == "__main__":
    absltest.main()
