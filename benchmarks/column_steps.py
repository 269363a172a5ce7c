"""Steps of a model on many columns of ids, dealt out to some tables."""

import numpy as np
import tensorflow as tf
from tensorflow import keras
from wide_deep_steps import BATCH, fit

import tf_ext

_COLUMNS = 26
_DIM = 16
_BATCHES = 64
_IDS = 50_000
_STEPS_AN_EPOCH = 64
_EXPONENT = 1.2


def measure(
    args, strategy, name, tables, pids=None, execution=None, is_finite=False
):
    """Trains on made-up ids; the first epoch, which traces, is excluded.

    Args:
      args: the command line's arguments: `repeats`, the epochs that count;
        `rows` bounds the batches.
      strategy: a tf.distribute strategy.
      name: string, of the result.
      tables: int, the columns' tables.
      pids: list of int, the processes whose CPU time counts. None: this one.
      execution: int, the steps of an execution, whose data workers read; None:
        one, of data that this process reads.
      is_finite: bool, whether the data that workers read end with an epoch.

    Returns:
      The result of `harness.summarize` for a step.
    """
    batches = min(_BATCHES, args.rows // BATCH + 1)
    steps = min(_STEPS_AN_EPOCH, 8 * batches)
    with strategy.scope():
        model = make(tables, execution or 1)

    def data(context=None):
        endless = dataset(batches)
        return endless.take(steps) if is_finite else endless

    return fit(
        model,
        data if execution else data(),
        steps,
        args.repeats,
        name,
        pids,
        is_finite,
    )


def _ids(samples, seed):
    """The ids of a column at a time: int64 `[samples]`."""
    rng = np.random.default_rng(seed)
    for _ in range(_COLUMNS):
        yield np.minimum(rng.zipf(_EXPONENT, samples), _IDS)


def dataset(batches, batch=BATCH, seed=1):
    """Made-up ids and labels in so many batches, for ever."""
    samples = batches * batch
    ids = _ids(samples, seed)
    features = {f"c{i}": column for i, column in enumerate(ids)}
    rng = np.random.default_rng([seed, samples])
    labels = rng.integers(0, 2, samples).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((features, labels))
    return dataset.batch(batch).cache().repeat()


def distinct(batches, batch=BATCH, seed=1):
    """How many distinct ids of all columns a batch has, on average."""
    found = sum(
        len(np.unique(part))
        for column in _ids(batches * batch, seed)
        for part in np.split(column, batches)
    )
    return found / batches


def make(tables, steps_per_execution, dim=_DIM):
    """Makes and compiles the model.

    Args:
      tables: int, the columns' tables.
      steps_per_execution: int.
      dim: int, of the tables.
    """
    columns = [
        tf_ext.feature_column.category_column(f"c{i}") for i in range(_COLUMNS)
    ]
    inputs = {
        f"c{i}": keras.Input((), dtype="int64", name=f"c{i}")
        for i in range(_COLUMNS)
    }
    embedded = tf_ext.layers.EmbeddingFeatures(
        {
            tf_ext.SparseTable(f"t{i}", dim): columns[i::tables]
            for i in range(tables)
        }
    )(inputs)
    hidden = [*embedded.values()]
    hidden = keras.layers.Concatenate()(hidden) if tables > 1 else hidden[0]
    for units in (64, 32):
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    hidden = keras.layers.Dense(1, activation="sigmoid")(hidden)
    model = tf_ext.Model(inputs, hidden)
    model.compile(
        tf_ext.optimizers.Optimizer(keras.optimizers.Adam(0.001)),
        "binary_crossentropy",
        metrics=[keras.metrics.AUC(name="auc")],
        steps_per_execution=steps_per_execution,
    )
    return model
