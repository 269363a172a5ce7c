# SPDX-License-Identifier: Apache-2.0
"""One life of a training with TableSnapshot; `snapshot_restart_test` runs it.

    snapshot_restart_program.py first DIRECTORY   is killed
    snapshot_restart_program.py second DIRECTORY  goes on to the end
    snapshot_restart_program.py whole DIRECTORY   is never killed

The last two write what their models hold to DIRECTORY/<life>_<case>.npz;
cases of the same data share a whole life.
"""

import os
import pathlib
import signal
import sys

import tensorflow as tf

import tf_ext
from programs.restart_program import accumulating, batch, dump, make_model
from tf_ext._keras import IS_KERAS_3, keras

EPOCHS = 3
# Gradients are accumulated, which tf_keras cannot do.
ONLY_KERAS_3 = "accumulated"
STEPS = 7  # of an epoch


def _batches():
    """Arguments of fit: a dataset."""
    return {"x": _dataset()}


def _endless_batches():
    # 18 batches: the position does not follow from the epoch's.
    return {"x": _dataset().repeat(), "steps_per_epoch": 6}


def _unknown_length():
    return {"x": _dataset().filter(lambda *_: True)}


def _dataset():
    features, labels = zip(*map(batch, range(STEPS)))
    features = {"user": [f["user"] for f in features]}
    return tf.data.Dataset.from_tensor_slices((features, list(labels)))


def _arrays():
    features, labels = batch(0)
    return {
        "x": features,
        "y": labels,
        "batch_size": 5,
        "shuffle": False,
    }


def cases():
    """By case: arguments of TableSnapshot, those of fit, the step of the kill.

    Those of fit are made by a function: a process that forks others must not
    have run TensorFlow.
    """
    every = {
        "inside_an_epoch": ({"steps": 5}, _batches, 13),
        "at_the_end_of_an_epoch": ({}, _batches, 10),
        "at_the_last_step_of_an_epoch": ({"steps": 7}, _batches, 10),
        "incremental": ({"steps": 1, "incremental": True}, _batches, 12),
        "endless": ({"steps": 5}, _endless_batches, 14),
        "unknown_length_at_the_last_step": ({"steps": 7}, _unknown_length, 8),
        "arrays": ({"steps": 3}, _arrays, 11),
    }
    if IS_KERAS_3:
        every[ONLY_KERAS_3] = ({"steps": 5}, _batches, 13)
    return every


def whole_of(case):
    """The case whose whole life is that of `case`."""
    own = (ONLY_KERAS_3, "arrays", "endless", "inside_an_epoch")
    return case if case in own else "incremental"


class Kill(keras.callbacks.Callback):
    """Kills the process after a number of steps.

    The last point is complete then, however slow the disk is.
    """

    def __init__(self, step, snapshot):
        super().__init__()
        self.left = step
        self.snapshot = snapshot

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1

    def on_train_batch_begin(self, batch, logs=None):
        if self.left == 0:  # Behind the point of that step.
            self.snapshot._go_on(wait=True)
            os.kill(os.getpid(), signal.SIGKILL)


class Seen(keras.callbacks.Callback):
    """Records callbacks' calls, which must be those of one training."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def on_train_begin(self, logs=None):
        self.calls.append("begin")

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(epoch)

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(f"{self.calls[-1]}"[:1] + f".{batch}")

    def on_train_end(self, logs=None):
        self.calls.append("end")


def _model(case):
    if case == "inside_an_epoch":
        return make_model()  # With all rules.
    dense = accumulating() if case == ONLY_KERAS_3 else None
    return make_model(dense, ["adam_row", "sgd_scheduled"])


def _fit(model, make_arguments, callbacks):
    return model.fit(
        **make_arguments(), epochs=EPOCHS, verbose=0, callbacks=callbacks
    )


def first_life(directory, case):
    child = os.fork()
    if child == 0:
        try:
            _be_killed(directory, case)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, (case, status)


def _be_killed(directory, case):
    options, make_arguments, step = cases()[case]
    snapshot = tf_ext.callbacks.TableSnapshot(
        directory / case, keep=2, **options
    )
    _fit(_model(case), make_arguments, [snapshot, Kill(step, snapshot)])


def second_life(directory, case):
    options, make_arguments, _ = cases()[case]
    snapshot = tf_ext.callbacks.TableSnapshot(
        directory / case, keep=2, **options
    )
    seen = Seen()
    model = _model(case)
    history = _fit(model, make_arguments, [snapshot, seen])
    dump(model, directory / f"second_{case}.npz")
    print(case, *seen.calls, *history.epoch)
    if case != "arrays":
        return
    # The callback goes on with the model as it is.
    before = model.optimizer.iterations.numpy()
    model.fit(**make_arguments(), epochs=1, verbose=0, callbacks=[snapshot])
    assert model.optimizer.iterations.numpy() > before


def whole_life(directory, case):
    if whole_of(case) != case:
        return
    _, make_arguments, _ = cases()[case]
    model = _model(case)
    _fit(model, make_arguments, [])
    dump(model, directory / f"whole_{case}.npz")


def main(life, directory):
    # TensorFlow's own dense kernels give other bits with other threads.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    lives = {"first": first_life, "second": second_life, "whole": whole_life}
    for case in cases():
        lives[life](pathlib.Path(directory), case)


if __name__ == "__main__":
    main(*sys.argv[1:])
