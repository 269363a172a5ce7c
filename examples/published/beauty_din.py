# SPDX-License-Identifier: Apache-2.0
r"""DIN on Amazon Beauty: whether an item is the next one of a user.

    python examples/published/beauty_din.py --data=amazon_beauty
    python examples/published/beauty_din.py --data=amazon_beauty \
        --interest=mean --test

The model is that of docs/recipes.md: a candidate attends to the items that the
user has bought before. With `--interest=mean`, all of them weigh the same, and
with `--interest=none` the model has the candidate alone. Each item of a user is
an example, beside one that the user has not bought, drawn uniformly. Data and
parts are those of beauty.py: the last item of each user is for the test, the
last but one for validation, each beside one other. The figure is the AUC.

Without `--test`, that of the validation part is printed as the model learns:
choose the number of epochs, and everything else, by it. The last line is JSON,
with the CPU time and the memory that it took.
"""

import argparse
import pathlib

import measured
import numpy as np
import tensorflow as tf
from visits import read

import tf_ext

keras = tf.keras

LENGTH = 20
HIDDEN_UNITS = (64, 32)


def attend(candidate, history):
    """The sum of the history `[b, LENGTH, dim]`, by the candidate's weights."""
    repeated = keras.layers.RepeatVector(LENGTH)(candidate)
    common = keras.layers.Multiply()([history, repeated])
    pairs = keras.layers.Concatenate()([history, repeated, common])
    hidden = keras.layers.Dense(32, activation="relu")(pairs)
    weights = keras.layers.Dense(1)(hidden)
    return keras.layers.Flatten()(keras.layers.Dot(axes=1)([weights, history]))


def build(args):
    """The model, of `item` `[b]` and `history` `[b, LENGTH]`."""
    inputs = {
        "item": keras.Input((), dtype="int64", name="item"),
        "history": keras.Input((LENGTH,), dtype="int64", name="history"),
    }
    column = tf_ext.feature_column.category_column
    past = column("history", namespace="item", missing=0)
    sequence = tf_ext.feature_column.sequence_category_column(
        past, max_length=LENGTH
    )
    mean = column("history", namespace="item", missing=0, combiner="mean")
    columns = {"attention": [sequence], "mean": [mean], "none": []}
    rule = {"optimizer": args.rule} if args.rule else {}
    table = tf_ext.SparseTable("items", args.dim, **rule)
    embedded = tf_ext.layers.EmbeddingFeatures(
        [column("item"), *columns[args.interest]], table, concatenate=False
    )(inputs if args.interest != "none" else {"item": inputs["item"]})
    parts = list(embedded.values())
    if args.interest == "attention":
        parts = [parts[0], attend(*parts)]
    hidden = keras.layers.Concatenate()(parts) if parts[1:] else parts[0]
    for units in HIDDEN_UNITS:
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    outputs = keras.layers.Dense(1, activation="sigmoid")(hidden)
    return tf_ext.Model(inputs, outputs)


def examples(sequences, places, num_items, seed):
    """Items at some places of sequences, each beside another.

    Args:
      sequences: list of arrays, the items of each user in order.
      places: function of a sequence to those of its items that are examples.
      num_items: int; ids are 1 to num_items.
      seed: int, of the other items.

    Returns:
      `(features, labels)`: a dict of arrays, and float32 `[n, 1]`.
    """
    rng = np.random.default_rng(seed)
    item, history, labels = [], [], []
    for bought in sequences:
        known = set(bought.tolist())
        for place in places(bought):
            past = np.zeros(LENGTH, np.int64)
            latest = bought[max(place - LENGTH, 0) : place]
            past[: len(latest)] = latest
            other = rng.integers(1, num_items + 1)
            while other in known:
                other = rng.integers(1, num_items + 1)
            item += [bought[place], other]
            history += [past, past]
            labels += [1.0, 0.0]
    features = {"item": np.array(item), "history": np.array(history)}
    return features, np.array(labels, np.float32)[:, np.newaxis]


def auc(labels, scores):
    """The area under the ROC curve, of all as if they were of one user."""
    users = np.zeros(len(scores), np.int64)
    return tf_ext.metrics.gauc(users, labels[:, 0], scores).value


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    measured.add_arguments(parser, "folder of Beauty.txt")
    add(
        "--interest", choices=["attention", "mean", "none"], default="attention"
    )
    add("--rule", help="of the table, by name; default: that of SparseTable")
    add("--epochs", type=int, default=3)
    add("--batch", type=int, default=512)
    add("--dim", type=int, default=16)
    add("--rate", type=float, default=0.001, help="of dense weights")
    add("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    keras.utils.set_random_seed(args.seed)
    sequences = read(pathlib.Path(args.data) / "Beauty.txt")
    num_items = max(int(items.max()) for items in sequences)

    # Held-out items may be drawn in training: nobody knows them there.
    train = examples(
        [items[:-2] for items in sequences],
        lambda items: range(1, len(items)),
        num_items,
        args.seed,
    )
    back = 1 if args.test else 2
    held_out, wanted = examples(
        sequences, lambda items: [len(items) - back], num_items, seed=0
    )
    model = build(args)
    adam = keras.optimizers.Adam(args.rate)
    model.compile(tf_ext.optimizers.Optimizer(adam), "binary_crossentropy")
    data = tf.data.Dataset.from_tensor_slices(train)
    data = data.shuffle(len(train[1]), args.seed).batch(args.batch)

    def measure():
        scores = model.predict(held_out, batch_size=4096, verbose=0)
        return {"auc": auc(wanted, scores[:, 0])}

    return measured.train(model, data, args, measure, every=1)


if __name__ == "__main__":
    main()
