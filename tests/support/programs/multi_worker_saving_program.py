# SPDX-License-Identifier: Apache-2.0
"""A worker that saves and loads a model, alone or with others.

With `save` it trains a model and saves it in every way; with `load` it loads
what was saved. It writes the rows that it owns beside.
"""

import argparse
import json
import os

import numpy as np
import tensorflow as tf
from models.sharded_tables import counters_of
from models.small_models import batch, compiled, functional, table

import tf_ext
from tf_ext import distribute, serving
from tf_ext._keras import keras


def make_data(samples):
    features, labels = batch(np.random.default_rng(0), samples, ids=300)
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(100)


def make_model():
    # Adam's rows have a field of int32, too; weights are of 2 bytes.
    counted = table(
        "adam",
        admission=tf_ext.admission.Count(8, forget=3),
        dtype="float16",
    )
    model = functional(counted)
    return compiled(model, keras.optimizers.Adam(0.1))


def write_rows(model, path):
    signs, fields = model.tables[0].export_rows()
    np.savez(path, signs=signs, **fields)


def counters(model):
    """`[period, [[sign, count], ...]]` of this worker's shard."""
    period, counts = counters_of(model.tables[0])
    return [period, sorted(counts.items())]


def compact(table, rank):
    """Rows come, go and give their memory back, each worker its shard."""
    others = np.arange(10_000, 30_000)
    weights = np.ones([len(others), table.dim], np.float32)
    table.import_rows(others, {"weights": weights})
    table.erase(others)
    before = table.shard_stats()
    given_back = table.compact()
    after = table.shard_stats()
    return {
        "free": [shard["free_rows"] for shard in after],
        "given_back": given_back,
        "less": before[rank]["bytes"] - after[rank]["bytes"],
    }


def save(model, folder, rank):
    model.tables[0].save(f"{folder}/base", incremental=True)
    model.fit(make_data(1000), epochs=1, verbose=0)
    model.save_weights(f"{folder}/model.weights.h5")
    model.save(f"{folder}/model.keras")
    compacted = compact(model.tables[0], rank)
    model.tables[0].save(f"{folder}/delta", base=f"{folder}/base")
    model.tables[0].save(f"{folder}/snapshot")
    # TensorFlow's rule: what others than the chief write is thrown away.
    name = "checkpoint" if rank == 0 else f"temporary{rank}"
    tf.train.Checkpoint(model=model).write(f"{folder}/{name}")
    try:
        model.save_weights(f"{folder}/missing/model.weights.h5")
        error = None
    except (OSError, RuntimeError, tf.errors.OpError) as caught:
        error = f"{type(caught).__name__}: {caught}"
    # A file is in the way, no such type, half a batch; then it works.
    ways = [
        (f"{folder}/model.keras", {}),
        (f"{folder}/served", {"dtype": "float64"}),
        (f"{folder}/served", {"warmup": {"user": np.zeros(3, np.int64)}}),
    ]
    errors = []
    for path, options in ways:
        try:
            serving.export(model, path, **options)
        except (OSError, RuntimeError, ValueError) as caught:
            errors.append(f"{type(caught).__name__}: {caught}")
    served = serving.export(model, f"{folder}/served")
    return {
        "error": error,
        "export_errors": errors,
        "served": served,
        "compacted": compacted,
    }


def load(make, folder, way):
    model = make()
    if way == "weights":
        model.load_weights(f"{folder}/model.weights.h5")
    elif way == "snapshot":
        model.load_weights(f"{folder}/model.weights.h5")
        table = model.tables[0]
        table.erase(table.export_rows()[0][:1])
        table.load(f"{folder}/snapshot")
    elif way == "delta":
        model.load_weights(f"{folder}/model.weights.h5")
        table = model.tables[0]
        table.load(f"{folder}/base", in_place=True)
        table.apply_delta(f"{folder}/delta")
    elif way == "checkpoint":
        checkpoint = tf.train.Checkpoint(model=model)
        checkpoint.read(f"{folder}/checkpoint").expect_partial()
    else:
        model = keras.models.load_model(f"{folder}/model.keras")
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["save", "load"])
    parser.add_argument("folder")
    args = parser.parse_args()
    strategy, rank = tf.distribute.get_strategy(), 0
    if "TF_CONFIG" in os.environ:
        strategy = distribute.multi_worker_strategy()
        rank = strategy.cluster_resolver.task_id
    found = {}
    with strategy.scope():
        if args.action == "save":
            models = {"saved": make_model()}
        else:
            models = {
                way: load(make_model, args.folder, way)
                for way in (
                    "weights",
                    "snapshot",
                    "delta",
                    "checkpoint",
                    "keras",
                )
            }
    if args.action == "save":
        found = save(models["saved"], args.folder, rank)
    for name, model in models.items():
        write_rows(model, f"{args.folder}/{name}.{rank}.npz")
        predictions = model.predict(make_data(300), verbose=0)
        found[name] = {
            "predictions": predictions[:, 0].tolist(),
            "size": model.tables[0].size(),
            "counters": counters(model),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
