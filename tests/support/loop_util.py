# SPDX-License-Identifier: Apache-2.0
"""A training loop whose steps are numbers, and what is called by it."""

import contextlib

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_ext
from tf_ext._keras import keras
from tf_ext.training import loop
from tf_ext.training.feeds import EpochFeed
from tf_ext.training.fit_arguments import FitOptions


class Feed(EpochFeed):
    """Lists of numbers, of a step each, the same in all epochs."""

    def __init__(self, seen, sent, num_batches=None):
        self.seen = seen
        self.sent = sent
        self.num_batches = num_batches
        self.place = None

    def tell_epoch(self, number):
        self.seen.append(f"epoch {number}")

    def trained(self, steps):
        self.seen.append(f"trained {steps}")

    def epoch(self, first_step=0):
        self.seen.append(f"from {first_step}")
        for numbers in self.sent:
            self.seen.append(f"read {numbers}")
            yield numbers

    def steps_in(self, sent):
        return len(sent)

    def go_on(self, epoch, first_step, initial_epoch=0):
        self.seen.append(("go on", epoch, first_step, initial_epoch))
        return self.place or (epoch, first_step)


class Loop(loop.TrainingLoop):
    def __init__(self, model, feed):
        super().__init__(model)
        self.feed = feed
        self.arguments = []

    def _training_feed(self, arguments):
        return self._feed(arguments)

    def _feed(self, arguments):
        self.arguments.append(arguments)
        return self.feed

    def _build(self, feed):
        feed.seen.append("build")

    def _train_steps(self, feed, batches, options):
        for numbers in batches:
            yield len(numbers), {"loss": tf.constant(numbers[-1])}

    def _test_steps(self, feed, batches):
        for numbers in batches:
            yield {"loss": np.int64(numbers[-1]), "of_class": np.arange(2)}

    def _predict_steps(self, feed, batches):
        for numbers in batches:
            yield {"own": tf.constant(numbers)}


class Seen(keras.callbacks.Callback):
    """Tells what it is told, and may stop the steps of a kind."""

    def __init__(self, seen, stop=None):
        super().__init__()
        self.seen = seen
        self.stop = stop

    def _saw(self, *what):
        *names, logs = what
        self.seen.append((*names, dict(logs)) if logs else (*names,))
        if self.stop is not None and self.stop[1] == names:
            setattr(self.model, self.stop[0], True)

    def on_epoch_begin(self, epoch, logs=None):
        self._saw("epoch begin", epoch, logs)

    def on_epoch_end(self, epoch, logs=None):
        self._saw("epoch end", epoch, logs)


def _of_kind(kind):
    def begin(self, logs=None):
        self._saw(f"{kind} begin", logs)

    def end(self, logs=None):
        self._saw(f"{kind} end", logs)

    def batch_begin(self, batch, logs=None):
        self._saw("begin", batch, logs)

    def batch_end(self, batch, logs=None):
        self._saw("end", batch, logs)

    setattr(Seen, f"on_{kind}_begin", begin)
    setattr(Seen, f"on_{kind}_end", end)
    setattr(Seen, f"on_{kind}_batch_begin", batch_begin)
    setattr(Seen, f"on_{kind}_batch_end", batch_end)


for _kind in ("train", "test", "predict"):
    _of_kind(_kind)


class Resuming(Seen):
    """Continues from a point, or None."""

    sigterm_received = False

    def __init__(self, seen, point):
        super().__init__(seen)
        self.point = point

    def during_fit(self):
        return contextlib.nullcontext()

    def tell_sigterm(self, anywhere):
        pass

    def end_if_preempted(self):
        pass

    def take_streams(self, streams, shares=None):
        self.seen.append(("streams", streams, shares))

    def take_pause(self, pause):
        pass

    def can_resume(self):
        return True

    def resume(self, model, epochs):
        self.seen.append(("resume", epochs))
        return self.point


class TestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.seen = []
        inputs = keras.Input([1])
        self.model = tf_ext.Model(inputs, keras.layers.Dense(1)(inputs))
        self.model.compile(
            tf_ext.optimizers.Optimizer(keras.optimizers.SGD()), "mse"
        )

    def loop(self, *sent, num_batches=None):
        return Loop(self.model, Feed(self.seen, sent, num_batches))

    def arguments(self, *callbacks, **arguments):
        return {
            "x": None,
            "epochs": 1,
            "initial_epoch": 0,
            "verbose": 0,
            "validation_split": 0.0,
            "validation_data": None,
            "return_dict": True,
            "callbacks": [*callbacks],
        } | arguments

    def fit(self, made, *callbacks, **arguments):
        history = made.fit(
            self.arguments(*(callbacks or [Seen(self.seen)]), **arguments),
            FitOptions(),
        )
        self.assertIs(history, self.model.history)
        return history
