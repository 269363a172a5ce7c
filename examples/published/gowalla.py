# SPDX-License-Identifier: Apache-2.0
r"""Matrix factorization on Gowalla, with the whole catalog ranked.

    python examples/published/gowalla.py --data=gowalla
    python examples/published/gowalla.py --data=gowalla --test

The data are check-ins in the split of LightGCN: `train.txt`, `valid.txt` and
`test.txt`, each with a line for each user, `user item item ...`. The first two
are the published train set.

Users and items have a row each, compared by their cosine. The loss is a softmax
over the item that a user visited and others, drawn uniformly and shared by the
batch, which stand for all.

Without `--test`, the model trains on train.txt, and prints recall@20 and
NDCG@20 of valid.txt as it learns: choose the number of epochs, and everything
else, by that. With it, the model trains on train.txt and valid.txt for that
number of epochs, and ranks test.txt once; `--log` collects each such reading.
Every figure is a mean over users of all items that they have not visited in
training. The last line is JSON, with the CPU time and the memory that it took.
"""

import argparse
import json
import pathlib
import resource

import numpy as np
import tensorflow as tf

import tf_ext

keras = tf.keras

K = 20


def read(path):
    """The items of each user, a list of int64 arrays."""
    lines = pathlib.Path(path).read_text().splitlines()
    return [np.array(line.split()[1:], np.int64) for line in lines]


class Factors(tf_ext.Model):
    """Rows of users and items; the outputs are the losses of samples."""

    def __init__(self, args, num_items):
        super().__init__()

        def embed(key):
            column = tf_ext.feature_column.category_column(
                key, hashing="identity"
            )
            table = tf_ext.SparseTable(key, args.dim, args.rule)
            return tf_ext.layers.EmbeddingFeatures([column], table)

        self.user, self.item = embed("user"), embed("item")
        self.negatives = tf_ext.layers.NegativeSampler(
            num_items, args.negatives, shared=True, seed=args.seed
        )
        self.softmax = tf_ext.layers.SampledSoftmax(args.temperature)

    def call(self, inputs, training=None):
        user, item = inputs["user"], inputs["item"]
        ids, log_counts, mask = self.negatives(item, training=training)
        both = tf.concat([item, ids], 0)
        users = self.user({"user": user}, training=training)
        items = self.item({"item": both}, training=training)
        users, items = (tf.nn.l2_normalize(v, 1) for v in (users, items))
        size = tf.shape(item)[0]
        return self.softmax(users, items[:size], items[size:], log_counts, mask)


def rank(model, seen, wanted, num_items):
    """Recall and NDCG at 20 of the wanted items, means over users.

    Args:
      model: Factors.
      seen: list of arrays, the items of each user that are left out.
      wanted: list of arrays, the items of each user that are to be found.
      num_items: int.
    """
    rows = [one.tables[0].pull for one in (model.user, model.item)]
    items = tf.nn.l2_normalize(rows[1](np.arange(num_items)), 1)
    discounts = 1 / np.log2(np.arange(2, K + 2))
    best = np.cumsum(discounts)
    users = np.array([u for u, found in enumerate(wanted) if len(found)])
    recalls, ndcgs = [], []
    for begin in range(0, len(users), 1024):
        some = users[begin : begin + 1024]
        of_users = tf.nn.l2_normalize(rows[0](some), 1)
        scores = tf.matmul(of_users, items, transpose_b=True).numpy()
        for row, user in zip(scores, some, strict=True):
            row[seen[user]] = -np.inf
        found = tf.math.top_k(scores, K).indices.numpy()
        for row, user in zip(found, some, strict=True):
            hits = np.isin(row, wanted[user])
            recalls.append(hits.sum() / len(wanted[user]))
            most = best[min(K, len(wanted[user])) - 1]
            ndcgs.append(discounts[hits].sum() / most)
    return {"recall@20": np.mean(recalls), "ndcg@20": np.mean(ndcgs)}


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", required=True, help="folder of the files")
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--log", help="file to which --test adds its figures")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--every", type=int, default=5, help="epochs a print")
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--negatives", type=int, default=1024)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--rule", default="adam")
    parser.add_argument("--temperature", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    keras.utils.set_random_seed(args.seed)
    folder = pathlib.Path(args.data)
    train, valid = (read(folder / f"{n}.txt") for n in ("train", "valid"))
    if args.test:
        train = [np.concatenate(both) for both in zip(train, valid)]
        wanted = read(folder / "test.txt")
    else:
        wanted = valid
    users = np.repeat(np.arange(len(train)), [len(one) for one in train])
    items = np.concatenate(train)
    num_items = 1 + int(items.max())

    model = Factors(args, num_items)
    model.negatives.index(range(num_items))
    model.compile(
        tf_ext.optimizers.Optimizer("adam"), loss=lambda _, losses: losses
    )
    rng = np.random.default_rng(args.seed)
    result = {}
    for epoch in range(1, args.epochs + 1):
        order = rng.permutation(len(users))
        features = {"user": users[order], "item": items[order]}
        # The losses need no labels, but Keras wants some.
        data = tf.data.Dataset.from_tensor_slices((features, order * 0.0))
        loss = model.fit(data.batch(args.batch), verbose=0).history["loss"][0]
        done = epoch == args.epochs
        if done or (not args.test and epoch % args.every == 0):
            result = {
                "epoch": epoch,
                "loss": loss,
                "train_cpu_seconds": round(cpu_seconds()),
                **rank(model, train, wanted, num_items),
                "cpu_seconds": round(cpu_seconds()),
            }
            if not done:
                print(json.dumps(result), flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = {**vars(args), **result, "peak_mb": peak // 1024}
    print(json.dumps(result))
    if args.test and args.log:
        with open(args.log, "a") as log:
            log.write(json.dumps(result) + "\n")
    return result


if __name__ == "__main__":
    main()
