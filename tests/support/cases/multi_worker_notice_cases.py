# SPDX-License-Identifier: Apache-2.0
"""What a callback is told of a notice of preemption that another worker got."""

import contextlib

import numpy as np
import tensorflow as tf
from models.small_models import batch, functional

from cases.multi_worker_step_cases import optimizer, sum_table
from tf_ext._keras import keras

# The step, from 0, before which the last worker gets the notice.
NOTICE = 2
STEPS = 4


class _Told(keras.callbacks.Callback):
    """As TableSnapshot to `fit`, but writes nothing."""

    during_fit = staticmethod(contextlib.nullcontext)

    def __init__(self, gets_notice):
        super().__init__()
        self.gets_notice = gets_notice
        self.sigterm_received = False
        self.told = []

    def can_resume(self):
        return False

    def resume(self, model):
        raise NotImplementedError

    def take_streams(self, streams, shares=None):
        pass

    def take_pause(self, pause):
        pass

    def end_if_preempted(self):
        pass

    def tell_sigterm(self, anywhere):
        self.told.append(anywhere)

    def on_train_batch_begin(self, batch, logs=None):
        self.sigterm_received = self.gets_notice and batch >= NOTICE


def told_of_sigterm(worker):
    """Whether any worker had the notice, as told with each step."""
    with worker.strategy.scope():
        model = functional(sum_table("told"))
        model.compile(optimizer(0.1), "binary_crossentropy")
    samples = batch(np.random.default_rng(0), 16 * STEPS)
    data = tf.data.Dataset.from_tensor_slices(samples).batch(16)
    callback = _Told(gets_notice=worker.rank == 2)
    model.fit(data, verbose=0, callbacks=[callback])
    return callback.told
