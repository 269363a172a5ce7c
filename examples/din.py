# SPDX-License-Identifier: Apache-2.0
"""Trains a Deep Interest Network: attention of the candidate on the history.

The model is that of Zhou et al., "Deep Interest Network for Click-Through Rate
Prediction" (2018). Of the items that a user rated before, those count that
have to do with the candidate: a small network gives each of them a weight, from
its embedding, the candidate's, and what they have in common. An item of the
history and its genre have the same rows as those of the candidate, because
their columns have the same namespaces.

    python din.py

makes up impressions, whose clicks depend on how many items of the history are
of the candidate's genre, and prints the AUC beside the best one possible.
MovieLens-100K, or a folder of its layout, is read with

    python din.py --data=ml-100k --split=ua

where what stands for a click is a rating of 4 or 5. The last line on standard
output is a JSON object: `auc` on the test events, `best_auc` (null for real
data), `rows` of the table, and the `seconds` of training.
"""

import argparse
import json
import time

import recommender_data
from recommender_data import HISTORY, auc
from tensorflow import keras

import tf_ext

FEATURES = [
    "user",
    "item",
    "genre",
    "age",
    "gender",
    "occupation",
    "history",
    "history_genre",
]
EMBEDDING_DIM = 8
ATTENTION_UNITS = 32
HIDDEN_UNITS = (64, 32)


def make_columns():
    """Returns the columns of single features, and that of the history."""
    column = tf_ext.feature_column.category_column
    singles = [
        column("user"),
        column("item"),
        column("genre"),
        column("age", boundaries=[18.0, 25.0, 35.0, 45.0, 50.0, 56.0]),
        column("gender"),
        column("occupation"),
    ]
    histories = [
        tf_ext.feature_column.sequence_category_column(
            column(key, namespace=namespace, missing=missing),
            max_length=HISTORY,
        )
        for key, namespace, missing in (
            ("history", "item", 0),
            ("history_genre", "genre", ""),
        )
    ]
    return singles, histories


def attend(candidate, history):
    """The sum of a history's embeddings, weighted by the candidate's interest.

    Weights are not normalized, as in the paper: their sum is how strong the
    interest is. Padding is zeros, and adds nothing.

    Args:
      candidate: `[batch, dim]`.
      history: `[batch, HISTORY, dim]`.

    Returns:
      `[batch, dim]`.
    """
    repeated = keras.layers.RepeatVector(HISTORY)(candidate)
    pairs = keras.layers.Concatenate()(
        [
            history,
            repeated,
            keras.layers.Multiply()([history, repeated]),
            keras.layers.Subtract()([history, repeated]),
        ]
    )
    hidden = keras.layers.Dense(ATTENTION_UNITS, activation="relu")(pairs)
    weights = keras.layers.Dense(1)(hidden)
    return keras.layers.Flatten()(keras.layers.Dot(axes=1)([weights, history]))


def embed(inputs, table):
    """Returns all features of an example in a vector, `[batch, n]`."""
    singles, histories = make_columns()
    embedded = tf_ext.layers.EmbeddingFeatures(
        [*singles, *histories], table, concatenate=False
    )(inputs)
    join = keras.layers.Concatenate()
    interest = attend(
        join([embedded["item"], embedded["genre"]]),
        join([embedded["history"], embedded["history_genre"]]),
    )
    return join([*(embedded[column.name] for column in singles), interest])


def make_model(inputs, table):
    """Returns a model of the probability of a click."""
    hidden = embed(inputs, table)
    for units in HIDDEN_UNITS:
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    outputs = keras.layers.Dense(1, activation="sigmoid")(hidden)
    return tf_ext.Model(inputs, outputs)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    recommender_data.add_arguments(parser)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=512)
    args = parser.parse_args()
    data = recommender_data.load(args)
    keras.utils.set_random_seed(args.seed)

    table = tf_ext.SparseTable("embeddings", dim=EMBEDDING_DIM, seed=args.seed)
    model = make_model(data.inputs(FEATURES), table)
    model.compile(
        tf_ext.optimizers.Optimizer(keras.optimizers.Adam(0.003)),
        loss="binary_crossentropy",
        metrics=[keras.metrics.AUC(name="auc")],
    )
    start = time.perf_counter()
    train = data.dataset(
        data.train, args.batch_size, FEATURES, "click", shuffle_seed=args.seed
    )
    test = data.dataset(data.test, 4096, FEATURES, "click")
    model.fit(
        train,
        validation_data=test,
        epochs=args.epochs,
        shuffle=False,
        verbose=2,
    )
    seconds = time.perf_counter() - start

    clicks = data.test["click"]
    best = data.best("click", data.test)
    result = {
        "auc": auc(clicks, model.predict(test, verbose=0)[:, 0]),
        "best_auc": None if best is None else auc(clicks, best),
        "rows": table.size(),
        "seconds": round(seconds, 1),
    }
    print(f"test AUC {result['auc']:.4f}")
    if best is not None:
        print(f"the best AUC possible is {result['best_auc']:.4f}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
