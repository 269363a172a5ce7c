# SPDX-License-Identifier: Apache-2.0
"""Searches a table's rule, learning rate and dim with Optuna.

Each trial trains models of its own, from two seeds, stopped early on the
validation part. The first trial has the table's defaults. What was best trains
models from other seeds, which are averaged and saved as one. The test part is
measured once, at the end:

    pip install 'tf-ext[data]' optuna
    python tune.py

generates clicks. Adult and Criteo are read from a folder as in wide_deep.py,

    python tune.py --data=/data/criteo --format=criteo --trials=20

The last line on standard output is a JSON object: `default_auc`, the mean of
models with the defaults, `tuned_auc`, the mean of models with what was found,
`averaged_auc`, of their average, all on the test part; `found`, the parameters;
and the `seconds` of the search.
"""

import argparse
import json
import time

import numpy as np
import optuna
import wide_deep_data
from tensorflow import keras
from wide_deep import HIDDEN_UNITS, auc, positive_int

import tf_ext

DEFAULTS = {"rule": "row_wise_adagrad", "factor": 1.0, "dim": 16}
SEEDS_OF_A_TRIAL = 2
BATCH_SIZE = 256
MAX_EPOCHS = 12
# Of all samples, in their order, the last fifth is the test part, and the fifth
# before it the validation part.
PARTS = {"train": (0.0, 0.6), "valid": (0.6, 0.8), "test": (0.8, 1.0)}


def read(folder, name):
    """Features and labels of a data set, as arrays, with numbers in buckets."""
    features, labels = wide_deep_data.read_all(folder, name)
    for key, values in features.items():
        if values.dtype == np.float32:
            first = values[: int(len(labels) * PARTS["train"][1])]
            bounds = wide_deep_data.quantile_boundaries(first)
            features[key] = np.searchsorted(bounds, values, side="right")
    return features, labels


def generate(count, seed):
    """Clicks that depend on the product of a user's and an item's vector."""
    random = np.random.default_rng(seed)
    users, items = random.normal(size=(200, 4)), random.normal(size=(100, 4))
    user = random.integers(len(users), size=count)
    item = random.integers(len(items), size=count)
    logits = np.sum(users[user] * items[item], axis=1)
    clicks = random.random(count) < 1 / (1 + np.exp(-logits))
    return {"user": user, "item": item}, clicks.astype(np.float32)


def part(features, labels, name):
    """The features and labels of a part."""
    begin, end = (int(len(labels) * bound) for bound in PARTS[name])
    return {k: v[begin:end] for k, v in features.items()}, labels[begin:end]


def make_inputs(features):
    """Returns the inputs of a model, by feature."""
    return {
        key: keras.Input(
            (), dtype="string" if values.dtype == object else "int64", name=key
        )
        for key, values in features.items()
    }


def make_table(seed, rule, factor, dim):
    """Returns a table.

    Args:
      seed: int, of its initial rows.
      rule: string, a rule's name.
      factor: float, by which the learning rate differs from that by name.
      dim: int.
    """
    named = tf_ext.SparseTable("named", dim=dim, optimizer=rule).optimizer
    config = named.get_config()
    config["learning_rate"] *= factor
    return tf_ext.SparseTable(
        "embeddings", dim=dim, optimizer=named.from_config(config), seed=seed
    )


def make_model(features, seed, parameters):
    """Returns a model of the probability of a click.

    Args:
      features: dict of arrays.
      seed: int, of all initial weights.
      parameters: dict, of `make_table`.
    """
    keras.utils.set_random_seed(seed)
    table = make_table(seed, **parameters)
    inputs = make_inputs(features)
    columns = [tf_ext.feature_column.category_column(key) for key in features]
    hidden = tf_ext.layers.EmbeddingFeatures(columns, table)(inputs)
    for units in HIDDEN_UNITS:
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    outputs = keras.layers.Dense(1, activation="sigmoid")(hidden)
    # One model has several of them, which need names of their own.
    return tf_ext.Model(inputs, outputs, name=f"model_{seed}")


def train(model, features, labels):
    """Trains a model; returns its AUC on the validation part."""
    model.compile(
        tf_ext.optimizers.Optimizer("adam"),
        "binary_crossentropy",
        metrics=[keras.metrics.AUC(num_thresholds=2000, name="auc")],
    )
    stop = tf_ext.callbacks.EarlyStopping(
        "val_auc", mode="max", restore_best_weights=True
    )
    history = model.fit(
        *part(features, labels, "train"),
        batch_size=BATCH_SIZE,
        epochs=MAX_EPOCHS,
        validation_data=part(features, labels, "valid"),
        callbacks=[stop],
        verbose=0,
    ).history
    return max(history["val_auc"])


def search(features, labels, trials, seed):
    """Returns the parameters of the best trial, as `make_table` takes them."""

    def try_one(trial):
        parameters = {
            "rule": trial.suggest_categorical(
                "rule", ["adagrad", "row_wise_adagrad", "adam"]
            ),
            "factor": trial.suggest_float("factor", 0.1, 10.0, log=True),
            "dim": trial.suggest_categorical("dim", [4, 8, 16]),
        }
        return np.mean(
            [
                train(
                    make_model(features, seed + i, parameters), features, labels
                )
                for i in range(SEEDS_OF_A_TRIAL)
            ]
        )

    sampler = optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.enqueue_trial(DEFAULTS)
    # Keras's models are reference cycles: without a collection, the rows of
    # earlier trials would stay in memory.
    study.optimize(try_one, n_trials=trials, gc_after_trial=True)
    return study.best_params


def average(models, features):
    """Returns a model of the mean of models' outputs."""
    inputs = make_inputs(features)
    outputs = [model(inputs) for model in models]
    return tf_ext.Model(inputs, keras.layers.Average()(outputs))


def measure(model, features, labels):
    """The AUC on the test part."""
    features, labels = part(features, labels, "test")
    predicted = model.predict(features, batch_size=BATCH_SIZE, verbose=0)
    return float(auc(labels, predicted[:, 0]))


def parse_arguments(arguments=None):
    """Returns the program's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", help="folder of a real data set")
    parser.add_argument(
        "--format", choices=sorted(wide_deep_data.FORMATS), help="of --data"
    )
    parser.add_argument("--samples", type=positive_int, default=50_000)
    parser.add_argument("--trials", type=positive_int, default=10)
    parser.add_argument("--models", type=positive_int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", help="where to save the averaged model")
    args = parser.parse_args(arguments)
    if (args.data is None) != (args.format is None):
        parser.error("--data and --format go together")
    return args


def main():
    args = parse_arguments()
    if args.data:
        features, labels = read(args.data, args.format)
    else:
        features, labels = generate(args.samples, args.seed)
    start = time.perf_counter()
    found = search(features, labels, args.trials, args.seed)
    seconds = time.perf_counter() - start

    def trained(parameters):
        models = [
            make_model(features, args.seed + 100 + i, parameters)
            for i in range(args.models)
        ]
        for model in models:
            train(model, features, labels)
        return models

    tuned = trained(found)
    averaged = average(tuned, features)
    if args.save:
        averaged.save(args.save)
    result = {
        "default_auc": np.mean(
            [measure(model, features, labels) for model in trained(DEFAULTS)]
        ),
        "tuned_auc": np.mean(
            [measure(model, features, labels) for model in tuned]
        ),
        "averaged_auc": measure(averaged, features, labels),
        "found": found,
        "seconds": round(seconds, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
