# SPDX-License-Identifier: Apache-2.0
"""Training by any number of workers on the same global batches."""

import json
import pathlib
import tempfile

import numpy as np
import tensorflow as tf
from clusters.case_workers import export
from models.model_building import BatchLosses, id_column
from models.small_models import batch, inputs

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

BATCH, STEPS = 128, 200
RATES = {"sgd": 3.0, "adagrad": 0.02, "adam": 0.01, "ftrl": 0.01}
# So low that the small gradients of a mean over a batch move accumulators.
INITIAL_ACCUMULATOR = 1e-10
RULES = {
    "sgd": tf_ext.optimizers.SparseSGD(RATES["sgd"]),
    "adagrad": tf_ext.optimizers.SparseAdagrad(
        RATES["adagrad"], INITIAL_ACCUMULATOR
    ),
    "adam": tf_ext.optimizers.SparseAdam(RATES["adam"]),
    "ftrl": tf_ext.optimizers.SparseFtrl(
        RATES["ftrl"], initial_accumulator_value=INITIAL_ACCUMULATOR
    ),
}


class GlobalLosses(BatchLosses):
    """Keeps each step's loss of the global batch."""

    def on_train_batch_end(self, batch, logs=None):
        if not IS_KERAS_3:
            # tf_keras adds up a batch's logs over the workers, though each
            # has the mean over all of them.
            logs = self.model.get_metrics_result()
        super().on_train_batch_end(batch, logs)


def make_model(eviction=None, statistics=None, admission=None, **clipping):
    """A model with a table of each rule."""
    uniform = keras.initializers.RandomUniform
    ids = inputs()
    user, items = id_column("user"), id_column("items", "mean")
    tables = {
        rule: tf_ext.SparseTable(
            rule,
            1 if rule == "ftrl" else 4,
            RULES[rule],
            "normal",
            seed=index,
            eviction=eviction,
            statistics=statistics,
            admission=(admission or {}).get(rule),
            unknown="zeros" if rule == "ftrl" else "initial",
        )
        for index, rule in enumerate(RULES)
    }
    features = tf_ext.layers.EmbeddingFeatures(
        {
            table: [items] if rule == "ftrl" else [user, items]
            for rule, table in tables.items()
        }
    )(ids)
    hidden = keras.layers.Dense(
        8, "tanh", kernel_initializer=uniform(-1.0, 1.0, seed=1)
    )(keras.layers.Concatenate()(list(features.values())))
    output = keras.layers.Dense(
        1, "sigmoid", kernel_initializer=uniform(-1.0, 1.0, seed=2)
    )(hidden)
    model = tf_ext.Model(ids, output)
    model.compile(
        tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.2, **clipping)),
        "binary_crossentropy",
    )
    return model


def make_data():
    # The last batch is smaller.
    features, labels = batch(
        np.random.default_rng(0), STEPS * BATCH - 37, ids=300
    )
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(BATCH)


def _train(worker, callbacks=(), **options):
    with worker.strategy.scope():
        model = make_model(**options)
    record = GlobalLosses()
    model.fit(make_data(), epochs=1, callbacks=[record, *callbacks], verbose=0)
    return {
        "losses": record.losses,
        "variables": model.get_weights(),
        "tables": {table.name: export(table) for table in model.tables},
        "stats": {table.name: table.stats() for table in model.tables},
    }


def not_clipped(worker):
    return _train(worker)


def clipped_by_norm(worker):
    return _train(worker, clipnorm=0.05)


def clipped_by_global_norm(worker):
    return _train(worker, global_clipnorm=0.05)


def with_a_rate_of_a_callback(worker):
    scheduler = keras.callbacks.LearningRateScheduler(lambda _: 0.3)
    return _train(worker, [scheduler])


def with_rows_that_come_and_go(worker):
    # Evicts a fourth of the rows each time, which start anew, in two tables
    # after enough occurrences in at most 16 steps.
    policy = tf_ext.admission.Count(8, forget=8)
    evict = tf_ext.callbacks.Evict(steps=25, decay=0.5)
    with tempfile.TemporaryDirectory() as folder:
        reports = tf_ext.callbacks.TableStats(folder, every=50)
        result = _train(
            worker,
            [evict, reports],
            eviction=tf_ext.eviction.Unseen(steps=3),
            statistics=["show"],
            admission=dict.fromkeys(["sgd", "ftrl"], policy),
        )
        file = pathlib.Path(folder) / "tables.jsonl"
        written = file.read_text() if file.exists() else ""
    return {
        **result,
        "evicted": evict.evicted,
        "report": reports.report,
        "written": [json.loads(line) for line in written.splitlines()],
    }


CASES = [
    "not_clipped",
    "clipped_by_norm",
    "clipped_by_global_norm",
    "with_a_rate_of_a_callback",
    "with_rows_that_come_and_go",
]
