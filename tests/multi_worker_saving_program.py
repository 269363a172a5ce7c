"""A worker that saves and loads a model, alone or with others.

With `save` it trains a model and saves it in every way; with `load` it loads
what was saved and checks that rows and predictions are the same.
"""

import argparse
import json
import os

import numpy as np
import tensorflow as tf
from multi_worker_train_program import make_data, make_model

from tf_ext import distribute

RULE = "adam"  # It has a field of int32, too.


def rows_by_sign(table):
    signs, fields = table.export_rows()
    order = np.argsort(signs)
    return {"signs": signs[order]} | {k: v[order] for k, v in fields.items()}


def save(model, folder):
    model.fit(make_data(1000), epochs=1, verbose=0)
    model.save_weights(f"{folder}/model.weights.h5")
    model.save(f"{folder}/model.keras")
    return tf.train.Checkpoint(model=model)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["save", "load"])
    parser.add_argument("folder")
    args = parser.parse_args()
    strategy, rank = tf.distribute.get_strategy(), 0
    if "TF_CONFIG" in os.environ:
        strategy = distribute.multi_worker_strategy()
        rank = strategy.cluster_resolver.task_id
    if args.action == "save":
        with strategy.scope():
            model = make_model(RULE, None)
        checkpoint = save(model, args.folder)
        name = "checkpoint" if rank == 0 else f"temporary{rank}"
        checkpoint.write(f"{args.folder}/{name}")
        predictions = model.predict(make_data(300), verbose=0)
        if rank == 0:
            np.save(f"{args.folder}/predictions.npy", predictions)
        for table in model.tables:
            np.savez(
                f"{args.folder}/{table.name}.{rank}.npz", **rows_by_sign(table)
            )
        print(json.dumps({t.name: t.size() for t in model.tables}))
        return
    found = {}
    for way in ("weights", "checkpoint"):
        with strategy.scope():
            model = make_model(RULE, None)
        if way == "weights":
            model.load_weights(f"{args.folder}/model.weights.h5")
        else:
            tf.train.Checkpoint(model=model).read(
                f"{args.folder}/checkpoint"
            ).expect_partial()
        for table in model.tables:
            np.savez(
                f"{args.folder}/{way}.{table.name}.{rank}.npz",
                **rows_by_sign(table),
            )
        found[way] = model.predict(make_data(300), verbose=0)[:, 0].tolist()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
