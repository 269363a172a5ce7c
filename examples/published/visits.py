# SPDX-License-Identifier: Apache-2.0
"""Users described by their items, and the whole catalog ranked.

Users and items have a row each, compared by their cosine. As in SimpleX ([Mao
et al., 2021](https://arxiv.org/abs/2109.12613)), a user is the weighted mean of
a row and of what a linear layer makes of the items that the user has visited.
Because a cosine cannot tell popular items from others, an item also has a bias.
The loss is a softmax over an item that the user visited and all others, or some
drawn uniformly and shared by the batch, which stand for them. With `--drop`, a
user is described by a random part of the items, and only the rest is predicted.

A sample is a user with all of his or her items, so that the negatives, which
take most of the time, are scored once a user and not once a visit.
"""

import functools
import pathlib

import measured
import numpy as np
import tensorflow as tf

import tf_ext

keras = tf.keras

K = 20


def read(path):
    """The items of each user, a list of int64 arrays."""
    lines = pathlib.Path(path).read_text().splitlines()
    return [np.array(line.split()[1:], np.int64) for line in lines]


class Visits(tf_ext.Model):
    """Rows of users and items; the outputs are the losses of users.

    Args:
      args: those of `add_arguments`.
      num_items: int.
      steps: int, of the whole training, in which the rate falls to 0.
    """

    def __init__(self, args, num_items, steps):
        super().__init__()
        self.gate = args.gate
        self.drop = args.drop
        self.temperature = args.temperature
        column = functools.partial(
            tf_ext.feature_column.category_column, hashing="identity"
        )
        # A table's rate is its own, whatever that of the dense weights is.
        rate = keras.optimizers.schedules.CosineDecay(args.rate, steps)
        rule = tf_ext.optimizers.SparseAdam(rate)
        tables = [
            tf_ext.SparseTable(name, dim, rule, initializer=initializer)
            for name, dim, initializer in (
                ("user", args.dim, "uniform"),
                ("item", args.dim, "uniform"),
                ("bias", 1, "zeros"),
            )
        ]
        self.user = None
        if self.gate:
            self.user = tf_ext.layers.EmbeddingFeatures(
                [column("user")], tables[0]
            )
        self.item = tf_ext.layers.EmbeddingFeatures(
            {table: [column("item")] for table in tables[1:]}
        )
        self.linear = keras.layers.Dense(
            args.dim, use_bias=False, kernel_initializer="identity"
        )
        self.items = tf.range(num_items, dtype=tf.int64)
        self.negatives = None
        if args.negatives:
            self.negatives = tf_ext.layers.NegativeSampler(
                num_items, args.negatives, shared=True, seed=args.seed
            )
            self.negatives.index(range(num_items))
        self.softmax = tf_ext.layers.SampledSoftmax()

    def of_items(self, rows, bias):
        """Vectors of items, `[n, dim + 1]`: directions, and their biases."""
        return tf.concat([tf.nn.l2_normalize(rows, 1), bias], 1)

    def of_users(self, user, rows, of, weights=None, training=None):
        """Vectors of users, `[batch_size, dim + 1]`, from rows of their items.

        Args:
          user: ids `[batch_size]`.
          rows: `[n, dim]`, of the items of all of them.
          of: `[n]`, each row's place in `user`.
          weights: `[n]`, of the rows. None for 1.
          training: bool.
        """
        means, _ = means_of(rows, of, tf.size(user), weights)
        both = (1 - self.gate) * self.linear(means)
        if self.user is not None:
            both += self.gate * self.user({"user": user}, training=training)
        scaled = tf.nn.l2_normalize(both, 1) / self.temperature
        return tf.pad(scaled, [[0, 0], [0, 1]], constant_values=1.0)

    def call(self, inputs, training=None):
        user, visited = inputs["user"], inputs["visited"]
        items, of = visited.flat_values, visited.value_rowids()
        count = tf.shape(items)[0]
        ids, log_counts = self.items, None
        if self.negatives is not None:
            ids, log_counts, _ = self.negatives(items, training=training)
        both = {"item": tf.concat([items, ids], 0)}
        found = self.item(both, training=training)
        read = predicted = None
        if self.drop and training:
            predicted = tf.random.uniform([count]) < self.drop
            predicted = tf.cast(predicted, tf.float32)
            read = 1.0 - predicted
        rows = found["item"][:count]
        users = self.of_users(user, rows, of, read, training)
        vectors = self.of_items(found["item"], found["bias"])
        # The mean of a user's scores is the score of the mean of the items.
        means, lengths = means_of(vectors[:count], of, tf.size(user), predicted)
        losses = self.softmax(users, means, vectors[count:], log_counts)
        # Each visit counts the same, whatever the user's number of them.
        lengths = lengths[:, 0]
        mean = tf.reduce_mean(lengths)
        return tf.math.divide_no_nan(losses * lengths, mean)


def means_of(rows, of, count, weights=None):
    """Weighted means, `[count, dim]`, and their sums of weights, `[count, 1]`.

    Args:
      rows: `[n, dim]`.
      of: `[n]`, of which mean each is.
      count: int, of means. That of no rows is 0.
      weights: `[n]`. None for 1.
    """
    if weights is None:
        weights = tf.ones_like(rows[:, 0])
    column = weights[:, tf.newaxis]
    total = tf.math.unsorted_segment_sum(column, of, count)
    sums = tf.math.unsorted_segment_sum(rows * column, of, count)
    return tf.math.divide_no_nan(sums, total), total


def rank(model, seen, wanted):
    """Recall and NDCG at 20 of the wanted items, means over users.

    Args:
      model: Visits.
      seen: list of arrays, the items of each user that are left out.
      wanted: list of arrays, the items of each user that are to be found.
    """
    rows, bias = (one.pull(model.items) for one in model.item.tables)

    def vectors(users):
        its = [seen[user] for user in users]
        of = np.repeat(np.arange(len(users)), [len(one) for one in its])
        return model.of_users(users, tf.gather(rows, np.concatenate(its)), of)

    return rank_all(vectors, model.of_items(rows, bias), seen, wanted)


def rank_all(vectors, items, seen, wanted):
    """Recall and NDCG at 20 by inner products, means over users.

    Args:
      vectors: function of ids `[n]` of users to `[n, dim]`.
      items: `[num_items, dim]`.
      seen: as of `rank`.
      wanted: as of `rank`.
    """
    users = np.array([u for u, found in enumerate(wanted) if len(found)])
    figures = []
    for begin in range(0, len(users), 1024):
        some = users[begin : begin + 1024]
        its = [seen[user] for user in some]
        of = np.repeat(np.arange(len(some)), [len(one) for one in its])
        scores = tf.matmul(vectors(some), items, transpose_b=True).numpy()
        scores[of, np.concatenate(its)] = -np.inf
        found = tf.math.top_k(scores, K).indices.numpy()
        figures += [
            of_user(row, wanted[user])
            for row, user in zip(found, some, strict=True)
        ]
    recall, ndcg = np.mean(figures, 0)
    return {"recall@20": recall, "ndcg@20": ndcg}


def of_user(found, wanted):
    """Recall and NDCG of the items that were found, best first.

    The best possible DCG has all wanted items first, as many as were found.
    """
    hits = np.isin(found, wanted)
    discounts = 1 / np.log2(np.arange(2, len(found) + 2))
    best = discounts[: len(wanted)].sum()
    return hits.sum() / len(wanted), discounts[hits].sum() / best


def add_arguments(parser, **defaults):
    """The arguments of the programs, with their defaults."""
    measured.add_arguments(parser, "folder of the files")
    add = parser.add_argument
    add("--every", type=int, default=10, help="epochs a print")
    add("--seed", type=int, default=1)
    for name, help_text in (
        ("epochs", None),
        ("batch", "users"),
        ("negatives", "0 for all items"),
        ("dim", None),
        ("gate", "weight of a user's row; 0 for none"),
        ("drop", "share of items that are predicted; 0: all are, and are read"),
        ("rate", "of rows, in the beginning"),
        ("temperature", None),
    ):
        default = defaults[name]
        add(f"--{name}", type=type(default), default=default, help=help_text)


def run(args, train, wanted):
    """Trains, and reports the figures.

    Args:
      args: those of `add_arguments`.
      train: list of arrays, the items of each user.
      wanted: list of arrays, the items of each user that are to be found.

    Returns:
      dict, what is reported.
    """
    keras.utils.set_random_seed(args.seed)
    num_items = 1 + max(int(one.max()) for one in train if len(one))
    lengths = [len(one) for one in train]
    users = np.flatnonzero(lengths)
    steps = args.epochs * -(-len(users) // args.batch)
    model = Visits(args, num_items, steps)
    model.compile(
        tf_ext.optimizers.Optimizer("adam"), loss=lambda _, losses: losses
    )
    visited = tf.RaggedTensor.from_row_lengths(np.concatenate(train), lengths)
    # The losses need no labels, but Keras wants some.
    data = tf.data.Dataset.from_tensor_slices((users, users * 0.0))
    data = data.shuffle(len(users), args.seed).batch(args.batch)
    data = data.map(
        lambda user, label: (
            {"user": user, "visited": tf.gather(visited, user)},
            label,
        )
    )
    return measured.train(
        model, data, args, lambda: rank(model, train, wanted), args.every
    )
