# SPDX-License-Identifier: Apache-2.0
r"""Two towers find items for users: training, recall, an index, an export.

    python examples/two_tower.py
    python examples/two_tower.py --data=ml-100k --export=retrieval
    TF_USE_LEGACY_KERAS=1 python examples/two_tower.py

One tower computes a vector of a user, of their attributes and of the last items
they rated; the other one that of an item, from its id and genres. They learn
from pairs of both: each item should be found among the others of the batch that
the user has not rated before. All items are then indexed, and found by their
inner products with the user's vector, without those that the user rated in
training.

The last line is JSON: recall@10 and recall@50 of the events of the test, that
is how many items were among the 10 or 50 found; for made-up data also
`best_recall@10` and `best_recall@50`, with the scores that made the data.
"""

import argparse
import json
import tempfile

import numpy as np
import recommender_data
import tensorflow as tf

import tf_ext

keras = tf.keras

DIM = 16
RECENT = 3
TOP = (10, 50)
USER = ["user", "age", "gender", "occupation", "history"]
ITEM = ["item", "genres"]


def _tower(inputs, features, width):
    """A tower: features to a vector."""
    hidden = keras.layers.Dense(width, "relu")(features)
    joined = keras.layers.Concatenate()([features, hidden])
    return tf_ext.Model(inputs, keras.layers.Dense(DIM)(joined))


def user_tower(inputs):
    """The vectors of users, and of what they are up to."""
    column = tf_ext.feature_column.category_column
    embed = tf_ext.layers.EmbeddingFeatures
    user = embed(
        [
            column("user"),
            column("age", boundaries=[20, 30, 40, 50, 60]),
            column("gender"),
            column("occupation"),
        ],
        tf_ext.SparseTable("user", DIM),
    )(inputs)
    history = tf_ext.feature_column.sequence_category_column(
        column("history", missing=0), max_length=RECENT
    )
    recent = embed(
        [history], tf_ext.SparseTable("recent", DIM), concatenate=False
    )(inputs)["history"]
    recent = keras.layers.Flatten()(recent)
    features = keras.layers.Concatenate()([user, recent])
    return _tower(inputs, features, 4 * DIM)


def item_tower(inputs):
    """The vectors of items."""
    column = tf_ext.feature_column.category_column
    columns = [
        column("item"),
        column("genres", missing="", combiner="mean"),
    ]
    table = tf_ext.SparseTable("item", DIM)
    features = tf_ext.layers.EmbeddingFeatures(columns, table)(inputs)
    return _tower(inputs, features, 2 * DIM)


class TwoTowers(tf_ext.Model):
    """The model that is trained; its outputs are the losses of a batch."""

    def __init__(self, users, items, counts):
        super().__init__()
        self.users, self.items = users, items
        # How often each item is rated, by id. Of a stream, whose counts nobody
        # knows, tf_ext.layers.ItemFrequency estimates them.
        self.counts = tf.constant(counts, tf.float32)
        self.softmax = tf_ext.layers.InBatchSoftmax()

    def call(self, inputs, training=None):
        item = inputs["item"]
        logits, labels = self.softmax.logits(
            self.users({k: inputs[k] for k in USER}, training=training),
            self.items({k: inputs[k] for k in ITEM}, training=training),
            item,
            # Popular items are negatives more often, which is made up for.
            tf.gather(self.counts, item),
        )
        # What the user has rated is no negative: nobody rates an item twice.
        rated = tf.reduce_any(inputs["history"][..., tf.newaxis] == item, 1)
        rated = tf.linalg.set_diag(rated, tf.zeros_like(item, tf.bool))
        logits = tf.where(rated, -1e30, logits)
        chosen = tf.gather(logits, labels, batch_dims=1)
        return tf.reduce_logsumexp(logits, 1) - chosen


def seen_items(data, users):
    """The items that users rated in training, a ragged `[n, ...]`."""
    order = np.argsort(data.train["user"], kind="stable")
    sorted_users = data.train["user"][order]
    begins = np.searchsorted(sorted_users, users)
    sizes = np.searchsorted(sorted_users, users, "right") - begins
    ends = np.cumsum(sizes)
    places = np.repeat(begins - ends + sizes, sizes) + np.arange(sizes.sum())
    items = data.train["item"][order][places]
    return tf.RaggedTensor.from_row_lengths(items, sizes)


def recalls(data, events, find):
    """How many of the events' items are found: {name: recall}.

    Args:
      data: `recommender_data.Ratings`.
      events: dict of arrays.
      find: function of some of the events to ids, the best first.
    """
    places = []
    count = len(events["user"])
    for first in range(0, count, 1024):
        some = {k: v[first : first + 1024] for k, v in events.items()}
        hits = np.asarray(find(some)) == some["item"][:, np.newaxis]
        places.append(np.where(hits.any(1), hits.argmax(1), count))
    places = np.concatenate(places)
    return {f"recall@{k}": float(np.mean(places < k)) for k in TOP}


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    recommender_data.add_arguments(parser)
    # Each of them rates few of the items: who has rated all that they like goes
    # on with others, which an inner product cannot know.
    parser.add_argument(
        "--users", type=int, default=4000, help="how many to make up"
    )
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--export", help="folder for the exported model")
    args = parser.parse_args(arguments)
    keras.utils.set_random_seed(args.seed)
    if args.data:
        data = recommender_data.load(args)
    else:
        data = recommender_data.generate(
            args.events, args.users, seed=args.seed
        )

    users = user_tower(data.inputs(USER))
    items = item_tower(data.inputs(ITEM))
    model = TwoTowers(users, items, np.bincount(data.train["item"]))
    adam = keras.optimizers.Adam(0.002)
    model.compile(
        tf_ext.optimizers.Optimizer(adam), loss=lambda _, losses: losses
    )
    # The losses need no labels, but Keras wants some.
    train = data.dataset(data.train, 1024, USER + ITEM, "rating", args.seed)
    model.fit(train, epochs=args.epochs, verbose=2)

    index = tf_ext.layers.Retrieval(DIM, k=max(TOP))
    catalog = {name: data.items[name] for name in ITEM}
    batches = tf.data.Dataset.from_tensor_slices(catalog).batch(1024)
    index.index_from_dataset(batches.map(lambda x: (x["item"], items(x))))

    inputs = data.inputs(USER)
    seen = keras.Input((None,), dtype="int64", name="seen")
    found = index(users(inputs), exclusions=seen)
    finder = tf_ext.Model({**inputs, "seen": seen}, found)
    with tempfile.TemporaryDirectory() as folder:
        path = tf_ext.serving.export(finder, args.export or folder)
        loaded = tf.saved_model.load(path)  # No tf_ext is needed for this.

    def find(events):
        batch = {name: tf.constant(events[name]) for name in USER}
        batch["seen"] = seen_items(data, events["user"]).to_tensor(0)
        return loaded.serve(batch)[1]

    def find_best(events):
        scores = data.best_scores(events)
        scores = data.without_seen(scores, events["user"])
        return data.items["item"][np.argsort(-scores)[:, : max(TOP)]]

    result = {"items": index.size, **recalls(data, data.test, find)}
    if data.teacher is not None:
        best = recalls(data, data.test, find_best)
        result.update({f"best_{name}": value for name, value in best.items()})
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main()
