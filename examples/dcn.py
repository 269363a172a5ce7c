# SPDX-License-Identifier: Apache-2.0
"""Trains a Deep & Cross network to predict ratings.

The model is DCN-V2 of Wang et al., "DCN V2: Improved Deep & Cross Network and
Practical Lessons for Web-scale Learning to Rank Systems" (2021), in its
parallel form. Each cross layer multiplies the embeddings by a linear function
of its input, so that n of them compute products of up to n + 1 embeddings; a
multilayer perceptron on the same embeddings learns what is left.

    python dcn.py

makes up ratings, and prints the RMSE beside the best one possible.
MovieLens-100K, or a folder of its layout, is read with

    python dcn.py --data=ml-100k --split=u1

The last line on standard output is a JSON object: `rmse` on the test events,
`best_rmse` (null for real data), `rows` of the table, and the `seconds` of
training.
"""

import argparse
import json
import time

import recommender_data
from recommender_data import rmse
from tensorflow import keras

import tf_ext

FEATURES = ["user", "item", "age", "gender", "occupation"]
EMBEDDING_DIM = 8
CROSS_LAYERS = 2
HIDDEN_UNITS = (64, 32)
# About the mean of all ratings, from which training starts.
MIDDLE_RATING = 3.5


def make_columns():
    """Returns a column for each of `FEATURES`."""
    column = tf_ext.feature_column.category_column
    return [
        column("user"),
        column("item"),
        column("age", boundaries=[18.0, 25.0, 35.0, 45.0, 50.0, 56.0]),
        column("gender"),
        column("occupation"),
    ]


def cross(first, inputs):
    """A cross layer: first * (W inputs + b) + inputs, `[batch, dim]`."""
    linear = keras.layers.Dense(first.shape[-1])(inputs)
    product = keras.layers.Multiply()([first, linear])
    return keras.layers.Add()([product, inputs])


def predict_ratings(embeddings):
    """Ratings `[batch, 1]` from the embeddings `[batch, dim]` of all features.

    It is the part of the model that does not depend on where rows come from.
    """
    crossed = embeddings
    for _ in range(CROSS_LAYERS):
        crossed = cross(embeddings, crossed)
    hidden = embeddings
    for units in HIDDEN_UNITS:
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    joined = keras.layers.Concatenate()([crossed, hidden])
    middle = keras.initializers.Constant(MIDDLE_RATING)
    return keras.layers.Dense(1, bias_initializer=middle)(joined)


def make_model(inputs, columns, table):
    """Returns a model of the expected rating."""
    embed = tf_ext.layers.EmbeddingFeatures(columns, table)
    return tf_ext.Model(inputs, predict_ratings(embed(inputs)))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    recommender_data.add_arguments(parser)
    # The more ratings of each user and item, the nearer to the best.
    parser.set_defaults(events=500_000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch_size", type=int, default=512)
    args = parser.parse_args()
    data = recommender_data.load(args)
    keras.utils.set_random_seed(args.seed)

    table = tf_ext.SparseTable("embeddings", dim=EMBEDDING_DIM, seed=args.seed)
    model = make_model(data.inputs(FEATURES), make_columns(), table)
    model.compile(
        tf_ext.optimizers.Optimizer(keras.optimizers.Adam(0.001)),
        loss="mse",
        metrics=[keras.metrics.RootMeanSquaredError(name="rmse")],
    )
    start = time.perf_counter()
    train = data.dataset(
        data.train, args.batch_size, FEATURES, "rating", shuffle_seed=args.seed
    )
    test = data.dataset(data.test, 4096, FEATURES, "rating")
    model.fit(
        train,
        validation_data=test,
        epochs=args.epochs,
        shuffle=False,
        verbose=2,
    )
    seconds = time.perf_counter() - start

    ratings = data.test["rating"]
    best = data.best("rating", data.test)
    # MovieLens's ratings are 1 to 5, and so are predictions.
    predicted = model.predict(test, verbose=0)[:, 0].clip(1.0, 5.0)
    result = {
        "rmse": rmse(ratings, predicted),
        "best_rmse": None if best is None else rmse(ratings, best),
        "rows": table.size(),
        "seconds": round(seconds, 1),
    }
    print(f"test RMSE {result['rmse']:.4f}")
    if best is not None:
        print(f"the best RMSE possible is {result['best_rmse']:.4f}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
