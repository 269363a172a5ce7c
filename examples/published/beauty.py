# SPDX-License-Identifier: Apache-2.0
r"""SASRec on Amazon Beauty: the next item of a user, among all items.

    python examples/published/beauty.py --data=amazon_beauty
    python examples/published/beauty.py --data=amazon_beauty --test

The data are reviews, of users and items with at least five: `Beauty.txt` has a
line for each user, `user item item ...` in the order of time. The last item of
each user is the test part, the last but one the validation part.

A causal transformer reads a user's items, and predicts at each the next one
([Kang and McAuley, 2018](https://arxiv.org/abs/1808.09781)). Norms follow each
sum, the first is that of the embeddings, and the latest item has the last
place, as in the published table
([Zhou et al., 2020](https://arxiv.org/abs/2008.07873)). The loss is the same,
the cross-entropy of the next item and of one that the user has not bought,
drawn uniformly; or `--loss=softmax`, over all items, which finds more in fewer
epochs (20). `--matrix` trains a matrix of Keras in place of the table, to
compare.

Figures of the validation part are printed as the model learns: choose the
number of epochs, and everything else, by them. With `--test`, the test part is
ranked once, in the end; `--log` collects each such reading. Figures are means
over all users, whose item is ranked among all that they have not bought before,
as in the published table; and, as `of_all`, among all. The last line is JSON,
with the CPU time and the memory that it took.
"""

import argparse
import json
import pathlib

import numpy as np
import tensorflow as tf
from measured import add_arguments, cpu_seconds, report
from visits import read

import tf_ext

keras = tf.keras

# Sequences with lengths between two of these are a batch, to pad little.
BOUNDARIES = (4, 6, 9, 14, 25)
# Of initial weights.
STDDEV = 0.02


def normal(stddev=STDDEV):
    """The initializer of weights."""
    return keras.initializers.RandomNormal(stddev=stddev)


class Block(keras.layers.Layer):
    """Causal attention and a perceptron at each position."""

    def __init__(self, dim, heads, dropout, **kwargs):
        super().__init__(**kwargs)
        layers = keras.layers
        self.attention = layers.MultiHeadAttention(
            heads, dim // heads, dropout=dropout, kernel_initializer=normal()
        )
        self.inner = layers.Dense(dim, "gelu", kernel_initializer=normal())
        self.outer = layers.Dense(dim, kernel_initializer=normal())
        self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in "12"]
        self.dropout = layers.Dropout(dropout)

    def call(self, hidden, training=None):
        # Padding is behind the items, where no item attends to it.
        attended = self.attention(
            hidden, hidden, use_causal_mask=True, training=training
        )
        attended = self.dropout(attended, training=training)
        hidden = self.norms[0](hidden + attended)
        inner = self.outer(self.inner(hidden))
        return self.norms[1](hidden + self.dropout(inner, training=training))


class SASRec(tf_ext.Model):
    """Rows of items, and a transformer; outputs are the losses of users.

    Args:
      args: those of `main`.
      num_items: int.
      steps: int, of the whole training, in which the rates fall to 0.
    """

    def __init__(self, args, num_items, steps):
        super().__init__()
        self.dim, self.length = args.dim, args.length
        # Adam moves all weights alike: so a matrix has a rate of its own.
        self.scale = args.rate / args.dense_rate
        self.matrix = None
        if args.matrix:
            self.matrix = self.add_weight(
                name="matrix",
                shape=(num_items + 1, args.dim),
                initializer=normal(STDDEV / self.scale),
            )
        # As Keras trains a matrix: absent rows move on by their moments.
        rule = args.rule or tf_ext.optimizers.SparseAdam(
            keras.optimizers.schedules.CosineDecay(args.rate, steps),
            absent="decay",
        )
        self.table = tf_ext.SparseTable(
            "item",
            args.dim,
            rule,
            initializer=tf_ext.initializers.Normal(stddev=STDDEV),
            l2=args.l2,
        )
        item = tf_ext.feature_column.category_column(
            "item", hashing="identity", missing=0
        )
        self.embed = tf_ext.layers.EmbeddingFeatures([item], self.table)
        self.places = keras.layers.Embedding(
            args.length, args.dim, embeddings_initializer=normal()
        )
        self.norm = keras.layers.LayerNormalization(epsilon=1e-6)
        self.dropout = keras.layers.Dropout(args.dropout)
        self.blocks = [
            Block(args.dim, args.heads, args.dropout)
            for _ in range(args.blocks)
        ]
        self.items = tf.range(1, num_items + 1, dtype=tf.int64)
        self.negatives = self.softmax = None
        if args.loss == "softmax":
            self.softmax = tf_ext.layers.SampledSoftmax()
        else:
            self.negatives = tf_ext.layers.NegativeSampler(
                num_items, seed=args.seed
            )
            self.negatives.index(range(1, num_items + 1))

    def rows(self, items, training=None):
        """Those of items `[n]`, `[n, dim]`, zeros for 0."""
        if self.matrix is None:
            return self.embed({"item": items}, training=training)
        # Of a product, the gradient is as dense as the matrix.
        rows = tf.gather(self.scale * self.matrix, items)
        return rows * tf.cast(items > 0, tf.float32)[:, tf.newaxis]

    def encode(self, past, rows, training=None):
        """Vectors of positions, `[batch_size, length, dim]`.

        Args:
          past: ids `[batch_size, length]`, 0 behind the items.
          rows: those of `past`, `[batch_size * length, dim]`.
          training: bool.
        """
        shape = tf.concat([tf.shape(past), [self.dim]], 0)
        hidden = tf.reshape(rows, shape)
        # The latest item has the last place, however many are before it.
        lengths = tf.math.count_nonzero(past, 1, True, tf.int32)
        places = self.length - lengths + tf.range(shape[1])
        hidden += self.places(tf.minimum(places, self.length - 1))
        hidden = self.dropout(self.norm(hidden), training=training)
        for block in self.blocks:
            hidden = block(hidden, training=training)
        return hidden

    def call(self, inputs, training=None):
        items = inputs["items"]
        following = items[:, 1:]
        # Nothing follows the last item of a user, so it is not read.
        past = tf.where(following > 0, items[:, :-1], 0)
        there = tf.where(following > 0)
        chosen = tf.gather_nd(following, there)
        others = self.items
        if self.negatives is not None:
            bought = tf.gather(items, there[:, 0])
            others = self.negatives(chosen, bought, training=training)[0][:, 0]
        # One pull for all.
        ids = [tf.reshape(past, [-1]), chosen, others]
        rows = self.rows(tf.concat(ids, 0), training)
        read, positive, other = tf.split(rows, [tf.size(one) for one in ids])
        hidden = tf.gather_nd(self.encode(past, read, training), there)
        if self.softmax is not None:
            losses = self.softmax(
                hidden, positive, other, ids=chosen, negative_ids=others
            )
        else:
            losses = tf.nn.softplus(-tf.reduce_sum(hidden * positive, 1))
            losses += tf.nn.softplus(tf.reduce_sum(hidden * other, 1))
        # Each position counts the same, whatever the user's number of them.
        users, count = tf.shape(items)[0], tf.maximum(tf.size(losses), 1)
        sums = tf.math.unsorted_segment_sum(losses, there[:, 0], users)
        return sums * tf.cast(users / count, tf.float32)


def rank(model, past, wanted, length):
    """Recall and NDCG at 5 and 10, means over users.

    Args:
      model: SASRec.
      past: list of arrays, the items of each user before the wanted one.
      wanted: array, the item that comes next.
      length: int, how many of the past items are read.
    """
    items = model.rows(model.items, False)
    encode = tf.function(model.encode, reduce_retracing=True)
    positions, of_all = [], []
    for begin in range(0, len(past), 512):
        some = past[begin : begin + 512]
        latest = tf.ragged.constant([one[-length:] for one in some], tf.int64)
        padded, last = latest.to_tensor(), latest.row_lengths() - 1
        rows = model.rows(tf.reshape(padded, [-1]), False)
        hidden = tf.gather(encode(padded, rows), last, batch_dims=1)
        scores = tf.matmul(hidden, items, transpose_b=True).numpy()
        users = np.arange(len(some))
        best = scores[users, wanted[begin : begin + 512] - 1][:, np.newaxis]
        # An item of the same score, or of NaN, stands before the wanted one.
        before = ~(scores < best)
        of_all.append(np.count_nonzero(before, 1) - 1)
        bought = np.repeat(users, [len(one) for one in some])
        before[bought, np.concatenate(some) - 1] = False
        # The wanted one, too, may have been bought before.
        before[users, wanted[begin : begin + 512] - 1] = False
        positions.append(np.count_nonzero(before, 1))
    return {**figures(positions), "of_all": figures(of_all)}


def figures(positions):
    """Recall and NDCG at 5 and 10, of places `[users]` that begin at 0."""
    place = np.concatenate(positions)
    result = {}
    for k in (5, 10):
        gains = np.where(place < k, 1 / np.log2(place + 2), 0)
        result[f"recall@{k}"] = np.mean(place < k)
        result[f"ndcg@{k}"] = np.mean(gains)
    return result


def batches(sequences, args):
    """A shuffled dataset of one epoch."""
    bounds = [one for one in BOUNDARIES if one <= args.length]
    # The longer the sequences, the fewer of them have as many positions.
    longest = [*(one - 2 for one in bounds), args.length]
    sizes = [max(args.batch // positions, 1) for positions in longest]
    lengths = [len(one) for one in sequences]
    places = np.searchsorted(bounds, lengths, side="right")
    counts = np.bincount(places, minlength=len(sizes))
    data = tf.data.Dataset.from_tensor_slices(
        tf.RaggedTensor.from_row_lengths(np.concatenate(sequences), lengths)
    )
    # Padding is for tensors, not for rows of a ragged one.
    data = data.shuffle(len(sequences), args.seed).map(tf.convert_to_tensor)
    data = data.bucket_by_sequence_length(tf.size, bounds, sizes)
    # The losses need no labels, but Keras wants some.
    data = data.map(lambda items: ({"items": items}, items[:, 0]))
    steps = sum(-(-count // size) for count, size in zip(counts, sizes))
    return data.apply(tf.data.experimental.assert_cardinality(steps))


def compile_with_rate(model, args, steps):
    """Compiles a model for so many steps."""
    rate = keras.optimizers.schedules.CosineDecay(args.dense_rate, steps)
    adam = keras.optimizers.Adam(rate)
    if model.matrix is not None and args.l2:
        # In each step it shrinks by as much as the rows of a table.
        adam = keras.optimizers.Adam(rate, weight_decay=model.scale * args.l2)
        adam.exclude_from_weight_decay(var_names=["^(?!.*matrix)"])
    model.compile(
        tf_ext.optimizers.Optimizer(adam), loss=lambda _, losses: losses
    )


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add_arguments(parser, "folder of Beauty.txt")
    add("--loss", choices=["bce", "softmax"], default="bce")
    add("--matrix", action="store_true", help="of Keras, without a table")
    add("--l2", type=float, default=0.0, help="of rows, or of the matrix")
    add("--epochs", type=int, default=160)
    add("--every", type=int, default=5, help="epochs a print")
    add("--batch", type=int, default=2048, help="positions")
    add("--length", type=int, default=50)
    add("--dim", type=int, default=64)
    add("--heads", type=int, default=2)
    add("--blocks", type=int, default=2)
    add("--dropout", type=float, default=0.5)
    add("--rule", help="of rows, by name; default: the Adam of a matrix")
    add("--rate", type=float, default=0.003, help="of rows, in the beginning")
    add("--dense-rate", type=float, default=0.001, help="of other weights")
    add("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    keras.utils.set_random_seed(args.seed)
    sequences = read(pathlib.Path(args.data) / "Beauty.txt")
    train = [items[:-2][-args.length - 1 :] for items in sequences]
    train = [items for items in train if len(items) > 1]
    num_items = max(int(items.max()) for items in sequences)

    def measure(held_out):
        past = [items[:held_out] for items in sequences]
        wanted = np.array([items[held_out] for items in sequences])
        return rank(model, past, wanted, args.length)

    data = batches(train, args)
    steps = args.epochs * len(data)
    model = SASRec(args, num_items, steps)
    compile_with_rate(model, args, steps)
    result, spent = {}, 0.0
    for epoch in range(1, args.epochs + 1):
        begin = cpu_seconds()
        loss = model.fit(data, verbose=0).history["loss"][0]
        spent += cpu_seconds() - begin
        done = epoch == args.epochs
        if done or epoch % args.every == 0:
            result = {
                "epoch": epoch,
                "mean_loss": loss,
                "train_cpu_seconds": round(spent),
                **measure(-2),
            }
            if not done:
                print(json.dumps(result), flush=True)
    if args.test:
        result["test"] = measure(-1)
    return report(args, result)


if __name__ == "__main__":
    main()
