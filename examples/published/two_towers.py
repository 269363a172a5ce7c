# SPDX-License-Identifier: Apache-2.0
r"""Two towers on the data of the other programs, with the catalog ranked.

    python examples/published/two_towers.py gowalla --data=gowalla
    python examples/published/two_towers.py electronics \\
        --data=amazon_electronics --frequency=none --test

The model is the one of docs/sequences.md: a row and a linear layer for users,
and the same for items, compared by their cosine. The other items of a batch
are the negatives; `ItemFrequency` corrects for popular ones being negatives
more often, unless `--frequency=none`. Parts of the data, `--test`, `--log` and
the last line are those of gowalla.py and electronics.py.
"""

import argparse

import electronics
import gowalla
import measured
import numpy as np
import tensorflow as tf
import visits

import tf_ext

keras = tf.keras

PARTS = {"electronics": electronics.parts, "gowalla": gowalla.parts}


def tower(key, args):
    """A model from ids to unit vectors, `[batch_size, dim]`."""
    ids = {key: keras.Input((), dtype="int64", name=key)}
    column = tf_ext.feature_column.category_column(key, hashing="identity")
    rule = {"optimizer": args.rule} if args.rule else {}
    table = tf_ext.SparseTable(f"{key}_tower", args.dim, **rule)
    rows = tf_ext.layers.EmbeddingFeatures([column], table)(ids)
    vectors = keras.layers.Dense(args.dim)(rows)
    return tf_ext.Model(ids, keras.layers.UnitNormalization()(vectors))


class TwoTowers(tf_ext.Model):
    """The model that is trained; its outputs are the losses of a batch."""

    def __init__(self, args):
        super().__init__()
        self.user, self.item = tower("user", args), tower("item", args)
        self.frequency = None
        if args.frequency == "estimated":
            self.frequency = tf_ext.layers.ItemFrequency()
        self.softmax = tf_ext.layers.InBatchSoftmax(args.temperature)

    def call(self, inputs, training=None):
        item = inputs["item"]
        probabilities = None
        if self.frequency is not None:
            probabilities = self.frequency(item, training=training)
        return self.softmax(
            self.user({"user": inputs["user"]}, training=training),
            self.item({"item": item}, training=training),
            item,
            probabilities,
        )


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("name", choices=sorted(PARTS), help="how the data are divided")
    measured.add_arguments(parser, "folder of the files")
    add("--frequency", choices=["estimated", "none"], default="estimated")
    add("--rule", help="of the tables, by name; default: that of SparseTable")
    add("--epochs", type=int, default=10)
    add("--every", type=int, default=2, help="epochs a print")
    add("--batch", type=int, default=4096, help="pairs of a user and an item")
    add("--dim", type=int, default=64)
    add("--temperature", type=float, default=0.1)
    add("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    keras.utils.set_random_seed(args.seed)
    train, wanted = PARTS[args.name](args.data, args.test)
    users = np.repeat(np.arange(len(train)), [len(one) for one in train])
    pairs = {"user": users, "item": np.concatenate(train)}
    num_items = 1 + int(pairs["item"].max())
    # The losses need no labels, but Keras wants some.
    data = tf.data.Dataset.from_tensor_slices((pairs, users * 0.0))
    data = data.shuffle(len(users), args.seed).batch(args.batch)
    model = TwoTowers(args)
    model.compile(
        tf_ext.optimizers.Optimizer("adam"), loss=lambda _, losses: losses
    )

    def measure():
        return visits.rank_all(
            lambda some: model.user({"user": some}),
            model.item({"item": np.arange(num_items)}),
            train,
            wanted,
        )

    return measured.train(model, data, args, measure, args.every)


if __name__ == "__main__":
    main()
