# SPDX-License-Identifier: Apache-2.0
"""`evaluate` and `predict` of the loop that is common to all regimes."""

import loop_util
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.training import loop

pytestmark = pytest.mark.both_kerases

# What is seen of the batches [1, 2] and [5].
_STEPS = [
    "from 0",
    "read [1, 2]",
    ("begin", 0),
    ("end", 0),
    "read [5]",
    ("begin", 2),
    ("end", 1),
]


class EvaluateTest(loop_util.TestCase):
    def test_what_is_called_in_which_order(self):
        made = self.loop([1, 2], [5], num_batches=2)
        self.model.stop_evaluating = True  # Of an earlier call.
        found = made.evaluate(self.arguments(loop_util.Seen(self.seen)))
        self.assertEqual(found["loss"], 5.0)
        self.assertIs(type(found["loss"]), float)
        self.assertEqual(found["of_class"].tolist(), [0, 1])
        seen = [one[:2] if type(one) is tuple else one for one in self.seen]
        self.assertEqual(
            [one for one in seen if one != ("test end",)],
            ["build", ("test begin",), *_STEPS, seen[-1]],
        )
        self.assertEqual(self.seen[-1][0], "test end")
        self.assertEqual(self.seen[-1][1]["loss"], 5.0)
        if not IS_KERAS_3:
            self.assertEqual(int(self.model._test_counter), 2)

    def test_a_callback_ends_the_steps(self):
        made = self.loop([1, 2], [5])
        stop = loop_util.Seen(self.seen, ("stop_evaluating", ["end", 0]))
        found = made.evaluate(self.arguments(stop))
        self.assertEqual(found["loss"], 2.0)
        self.assertNotIn("read [5]", self.seen)

    def test_no_data(self):
        with self.assertRaisesRegex(ValueError, "`x` of evaluate must have"):
            self.loop().evaluate(self.arguments())

    def test_metrics_begin_anew(self):
        self.model.compile(self.model.optimizer, "mse", metrics=["mae"])
        self.model.train_on_batch(tf.ones([2, 1]), tf.ones([2, 1]) * 9)
        self.loop([1]).evaluate(self.arguments())
        results = [float(one.result()) for one in self.model.metrics[:1]]
        self.assertEqual(results, [0.0])

    def test_lists_are_in_the_order_of_metrics(self):
        self.model.compile(self.model.optimizer, "mse", metrics=["mae", "msle"])
        ones = tf.ones([2, 1])
        names = list(self.model.evaluate(ones, ones, return_dict=True))
        self.assertLen(names, 3)
        logs = {"other": 7.0, "a": 6.0}
        logs |= {name: float(i) for i, name in enumerate(names)}
        logs = dict(sorted(logs.items(), reverse=True))
        found = loop._in_order(self.model, logs)
        # Those that are no metrics follow by name.
        self.assertEqual(found, [0.0, 1.0, 2.0, 6.0, 7.0])
        del logs[names[1]]
        found = loop._in_order(self.model, logs)
        self.assertEqual(found, [0.0, 2.0, 6.0, 7.0])
        self.assertEqual(loop._in_order(self.model, {"loss": 3.0}), 3.0)
        found = self.loop([1]).evaluate(self.arguments(return_dict=False))
        self.assertLen(found, 2)


class PredictTest(loop_util.TestCase):
    def test_what_is_called_in_which_order(self):
        made = self.loop([1, 2], [5])
        self.model.stop_predicting = True  # Of an earlier call.
        found = made.predict(self.arguments(loop_util.Seen(self.seen)))
        self.assertEqual(found["own"].tolist(), [1, 2, 5])
        seen = [one[:2] if type(one) is tuple else one for one in self.seen]
        self.assertEqual(
            seen,
            ["build", ("predict begin",), *_STEPS, ("predict end",)],
        )
        ends = [one[2] for one in self.seen if one[0] == "end"]
        # tf_keras flattens them.
        found = [np.array(*tf.nest.flatten(one)).tolist() for one in ends]
        self.assertEqual(found, [[1, 2], [5]])
        if not IS_KERAS_3:
            self.assertEqual(int(self.model._predict_counter), 2)

    def test_a_callback_ends_the_steps(self):
        stop = loop_util.Seen(self.seen, ("stop_predicting", ["end", 0]))
        found = self.loop([1, 2], [5]).predict(self.arguments(stop))
        self.assertEqual(found["own"].tolist(), [1, 2])

    def test_no_data(self):
        with self.assertRaisesRegex(ValueError, "`x` of predict must have"):
            self.loop().predict(self.arguments())

    def test_outputs_are_joined(self):
        ragged = tf.ragged.constant([[1], [2, 3]])
        sparse = tf.sparse.from_dense([[0, 1]])
        for parts, wanted in (
            ([np.float32(1), np.float32(2)], [1, 2]),
            ([np.ones([2, 3]), np.zeros([1, 3])], [[1] * 3] * 2 + [[0] * 3]),
            ([ragged, ragged[:1]], [[1], [2, 3], [1]]),
            # Of batches that are as long as their longest sequence.
            ([tf.ones([2, 1]), tf.ones([1, 3])], [[1], [1], [1] * 3]),
        ):
            found = (
                loop._concatenate(*map(tf.convert_to_tensor, parts))
                if (not isinstance(parts[0], tf.RaggedTensor))
                else loop._concatenate(*parts)
            )
            if isinstance(found, tf.RaggedTensor):
                found = np.array(found.to_list(), object)
            self.assertEqual(found.tolist(), wanted)
        found = loop._concatenate(sparse, sparse)
        dense = tf.sparse.to_dense(found)
        self.assertEqual(dense.numpy().tolist(), [[0, 1]] * 2)


class CompiledTest(loop_util.TestCase):
    def test_models_that_cannot_be_run(self):
        made = self.loop()
        for method in ("fit", "evaluate", "predict"):
            with made.running(method):
                pass
        self.model.compile(self.model.optimizer, "mse", run_eagerly=True)
        for method in ("fit", "evaluate", "predict"):
            with (
                self.assertRaisesRegex(ValueError, "`run_eagerly` of compile"),
                made.running(method),
            ):
                self.fail("It runs.")
        inputs = keras.Input([1])
        made = loop_util.Loop(tf_ext.Model(inputs, inputs), made.feed)
        for method in ("fit", "evaluate"):
            with (
                self.assertRaisesRegex(
                    ValueError, f"must be compiled before `{method}`"
                ),
                made.running(method),
            ):
                self.fail("It runs.")
        with made.running("predict"):
            pass


if __name__ == "__main__":
    absltest.main()
