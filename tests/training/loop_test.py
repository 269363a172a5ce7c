# SPDX-License-Identifier: Apache-2.0
"""`fit` of the loop that is common to all regimes."""

import loop_util
import pytest
import tensorflow as tf
from absl.testing import absltest

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.distribute import training_counts
from tf_ext.recovery.points import Point
from tf_ext.training.fit_arguments import FitOptions

pytestmark = pytest.mark.both_kerases

_FIRST = ["read [1, 2]", ("begin", 0), "trained 2", ("end", 1, {"loss": 2})]
_THEN = ["read [5]", ("begin", 2), "trained 1", ("end", 2, {"loss": 5})]


class FitTest(loop_util.TestCase):
    def test_what_is_called_in_which_order(self):
        before = training_counts.read().steps
        history = self.fit(self.loop([1, 2], [5], num_batches=3), epochs=2)
        epochs = [
            [
                ("epoch begin", epoch),
                f"epoch {epoch}",
                "from 0",
                *_FIRST,
                *_THEN,
                ("epoch end", epoch, {"loss": 5.0}),
            ]
            for epoch in range(2)
        ]
        self.assertEqual(
            self.seen,
            [
                "build",
                ("train begin",),
                *epochs[0],
                *epochs[1],
                "epoch 0",
                ("train end", {"loss": 5.0}),
            ],
        )
        self.assertEqual(history.history, {"loss": [5.0, 5.0]})
        self.assertIs(type(history.history["loss"][0]), float)
        self.assertEqual(history.params["steps"], 3)
        self.assertEqual(history.params["epochs"], 2)
        self.assertEqual(training_counts.read().steps - before, 6)
        if not IS_KERAS_3:
            self.assertEqual(int(self.model._train_counter), 6)

    def test_a_callback_ends_the_steps(self):
        for stop, wanted in (
            (["end", 1], [*_FIRST, ("epoch end", 0, {"loss": 2.0})]),
            (
                ["epoch end", 0],
                [*_FIRST, *_THEN, ("epoch end", 0, {"loss": 5})],
            ),
        ):
            self.seen.clear()
            # Of an earlier call.
            self.model.stop_training = True
            self.fit(
                self.loop([1, 2], [5]),
                loop_util.Seen(self.seen, ("stop_training", stop)),
                epochs=3,
            )
            begin = self.seen.index("from 0") + 1
            self.assertEqual(self.seen[begin:-2], wanted)

    def test_an_epoch_that_is_not_the_first(self):
        history = self.fit(self.loop([1]), initial_epoch=3, epochs=5)
        self.assertEqual(history.epoch, [3, 4])
        self.assertIn("epoch 3", self.seen)
        history = self.fit(self.loop([1]), initial_epoch=5, epochs=5)
        self.assertEqual(history.epoch, [])

    def test_no_data(self):
        with self.assertRaisesRegex(
            ValueError, "`x` of fit must have at least one batch"
        ):
            self.fit(self.loop())
        # Later readers of the data find it as it was.
        self.assertEqual(self.seen[-1], "epoch 0")

    def test_a_stream_has_nothing_new(self):
        made = self.loop([7])
        made.feed.streams = [tf_ext.data.StreamProgress()]

        class Empties(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                made.feed.sent = []

        with self.assertLogs("tf_ext", "WARNING") as logs:
            self.fit(made, loop_util.Seen(self.seen), Empties(), epochs=2)
        [said] = logs.output
        self.assertIn("An epoch had no step", said)
        self.assertIn(("epoch end", 0, {"loss": 7.0}), self.seen)
        self.assertIn(("epoch end", 1), self.seen)
        with self.assertRaisesRegex(ValueError, "at least one batch"):
            self.fit(made, epochs=2)

    def test_validation(self):
        made = self.loop([1])
        self.fit(
            made,
            epochs=2,
            validation_data=tf.data.Dataset.from_tensors(
                (tf.ones([2, 1]), tf.ones([2, 1]))
            ),
            validation_freq=2,
            validation_steps=None,
            validation_batch_size=None,
        )
        [first, second] = (one[2] for one in self.seen if one[0] == "epoch end")
        self.assertEqual(first, {"loss": 1.0})
        self.assertCountEqual(second, ["loss", "val_loss"])

    def test_lists_of_callbacks_are_taken_as_they_are(self):
        callbacks = keras.callbacks.CallbackList(
            [loop_util.Seen(self.seen)], add_history=True, model=self.model
        )
        self.loop([1]).fit(
            self.arguments() | {"callbacks": callbacks}, FitOptions()
        )
        self.assertEqual(self.model.history.history, {"loss": [1.0]})

    def test_the_bar_of_progress(self):
        for verbose, shows in ((0, False), (1, True), (2, True)):
            made = self.loop([1])
            callbacks = made._prepared(
                made.feed, self.arguments(verbose=verbose)
            )
            found = [
                isinstance(one, keras.callbacks.ProgbarLogger)
                for one in callbacks.callbacks
            ]
            self.assertEqual(any(found), shows)
            self.assertEqual(callbacks.params["verbose"], verbose)


class ResumeTest(loop_util.TestCase):
    def point(self, epoch, step):
        return Point(9, epoch, step, "/points/9", logs={"loss": 4.0})

    def resumed(self, point, place=None, num_batches=3, **arguments):
        """What is called until the first step or the end of training."""
        made = self.loop([1, 2], [5], num_batches=num_batches)
        made.feed.place = place
        self.fit(made, loop_util.Resuming(self.seen, point), **arguments)
        begin = self.seen.index(("train begin",)) + 1
        seen = self.seen[begin:]
        return seen[: seen.index("read [1, 2]")] if _FIRST[0] in seen else seen

    def test_without_a_point(self):
        found = self.resumed(None, epochs=4)
        self.assertEqual(
            self.seen[:4],
            ["build", ("streams", (), None), ("resume", 4), ("train begin",)],
        )
        self.assertEqual(found, [("epoch begin", 0), "epoch 0", "from 0"])

    def test_within_an_epoch(self):
        found = self.resumed(self.point(2, 1), epochs=4, initial_epoch=1)
        self.assertEqual(
            found,
            [
                "epoch 2",
                ("go on", 2, 1, 1),
                ("epoch begin", 2),
                "epoch 2",
                "from 1",
            ],
        )
        self.assertIn(("begin", 1), self.seen)
        self.assertIn(("end", 2, {"loss": 2}), self.seen)
        self.assertEqual(self.model.history.epoch, [2, 3])

    def test_before_the_first_epoch_of_a_call(self):
        found = self.resumed(self.point(2, 1), epochs=4, initial_epoch=3)
        self.assertEqual(found[1], ("go on", 2, 1, 2))

    def test_metrics_begin_anew(self):
        ones = tf.ones([2, 1])
        self.model.train_on_batch(ones, 9 * ones)
        self.fit(self.loop([1]))
        self.assertEqual(float(self.model.metrics[0].result()), 0.0)

    def test_at_the_end_of_an_epoch(self):
        """Which the point was not known to be of."""
        found = self.resumed(self.point(1, 3), place=(2, 0), epochs=4)
        self.assertEqual(
            found,
            [
                "epoch 1",
                ("go on", 1, 3, 0),
                ("epoch begin", 1),
                ("epoch end", 1, {"loss": 4.0}),
                ("epoch begin", 2),
                "epoch 2",
                "from 0",
            ],
        )

    def test_between_epochs(self):
        found = self.resumed(self.point(1, 0), epochs=2)
        self.assertEqual(
            found[1:],
            [("go on", 1, 0, 0), ("epoch begin", 1), "epoch 1", "from 0"],
        )
        self.seen.clear()
        # It has been told of the end before the point was written.
        found = self.resumed(self.point(1, 0), place=(2, 0), epochs=3)
        self.assertEqual(
            found[1:],
            [("go on", 1, 0, 0), ("epoch begin", 2), "epoch 2", "from 0"],
        )

    def test_an_epoch_that_had_more_steps(self):
        for steps, first in ((3, 2), (4, 2), (2, 1)):
            self.seen.clear()
            found = self.resumed(self.point(1, steps), epochs=4)
            self.assertEqual(found[-1], f"from {0 if first == 2 else steps}")
            self.assertEqual(self.model.history.epoch[0], first)
        self.seen.clear()
        found = self.resumed(self.point(1, 99), num_batches=None, epochs=4)
        self.assertEqual(found[-1], "from 99")

    def test_nothing_is_left(self):
        for point, epochs in (
            (self.point(3, 0), 3),
            (self.point(5, 2), 3),
            (self.point(2, 3), 3),
        ):
            self.seen.clear()
            with self.assertLogs("tf_ext", "WARNING") as logs:
                found = self.resumed(point, epochs=epochs)
            self.assertIn("nothing left to train", logs.output[0])
            self.assertEqual(found[-2:], ["epoch 0", ("train end",)])
            self.assertEqual(self.model.history.epoch, [])
            reads = [one for one in found if one[0] == "go on"]
            self.assertEqual(reads, [("go on", 2, 3, 0)][point.epoch != 2 :])

    def test_says_where_it_goes_on(self):
        for point, said in (
            (self.point(1, 2), "epoch 2 of 4, after 2 of its steps"),
            (self.point(1, 3), "epoch 3 of 4, after 0 of its steps"),
        ):
            with self.assertLogs("tf_ext", "WARNING") as logs:
                self.resumed(point, epochs=4)
            self.assertIn(f"/points/9: {said}", logs.output[0])

    def test_a_stream_without_news_is_no_error(self):
        made = self.loop()
        made.feed.streams = [tf_ext.data.StreamProgress()]
        with self.assertLogs("tf_ext", "WARNING"):
            self.fit(made, loop_util.Resuming(self.seen, self.point(0, 1)))


if __name__ == "__main__":
    absltest.main()
