"""Steps of the Wide & Deep example, under any strategy."""

import pathlib
import sys
import time

import numpy as np
import tensorflow as tf
from harness import Case, cpu_seconds, summarize
from tensorflow import keras

BATCH = 2048
_STEPS_AN_EPOCH = 100
_EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


class EpochTimes(keras.callbacks.Callback):
    """Wall and CPU milliseconds per step of each epoch."""

    def __init__(self, pids, steps):
        super().__init__()
        self._pids = pids
        self._steps = steps
        self.times = []

    def _now(self):
        return np.array([time.perf_counter(), cpu_seconds(self._pids)])

    def on_epoch_begin(self, epoch, logs=None):
        self._start = self._now()

    def on_epoch_end(self, epoch, logs=None):
        self.times.append(1e3 * (self._now() - self._start) / self._steps)


def make(args, strategy=None):
    """Makes the example's model and batches, which are cached.

    Args:
      args: the command line's arguments: `rows` bounds the steps of an epoch.
      strategy: a tf.distribute strategy; None: that of one process.

    Returns:
      `(model, dataset, steps)`: a compiled model, a dataset of one epoch and
      its number of batches.
    """
    # The example's modules import each other by name.
    sys.path.insert(0, str(_EXAMPLES))
    import wide_deep

    steps = min(_STEPS_AN_EPOCH, args.rows // BATCH + 1)
    options = wide_deep.parse_arguments(
        [f"--batch_size={BATCH}", f"--examples={2 * steps * BATCH}"]
    )
    data = wide_deep.load_data(options)
    with (strategy or tf.distribute.get_strategy()).scope():
        wide, deep = wide_deep.make_tables(options)
        model = wide_deep.make_model(data, wide, deep, None)
        wide_deep.compile_model(model, options)
    # Making batches is the program's own work.
    return model, data.train().take(steps).cache(), steps


def measure(args, strategy, name, pids=None):
    """Trains the example's model; the first epoch, which traces, is excluded.

    Args:
      args: the command line's arguments: those of `make`, and `repeats`, the
        epochs that count.
      strategy: a tf.distribute strategy.
      name: string, of the result.
      pids: list of int, the processes whose CPU time counts. None: this one.

    Returns:
      The result of `harness.summarize` for a step.
    """
    model, dataset, steps = make(args, strategy)
    return fit(model, dataset.repeat(), steps, args.repeats, name, pids)


def fit(model, data, steps, repeats, name, pids=None, is_finite=False):
    """Trains a model; the first epoch, which traces, is excluded.

    Args:
      model: a compiled `tf_ext.Model`.
      data: what its `fit` takes, without an end unless `is_finite`.
      steps: int, of an epoch.
      repeats: int, the epochs that count.
      name: string, of the result.
      pids: list of int, the processes whose CPU time counts. None: this one.
      is_finite: bool, whether the data end with an epoch.

    Returns:
      The result of `harness.summarize` for a step.
    """
    epochs = EpochTimes(pids, steps)
    model.fit(
        data,
        epochs=1 + repeats,
        steps_per_epoch=None if is_finite else steps,
        shuffle=False,
        callbacks=[epochs],
        verbose=0,
    )
    return summarize(Case(name, None, BATCH), np.array(epochs.times[1:]))
