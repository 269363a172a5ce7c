# SPDX-License-Identifier: Apache-2.0
"""Trains two tasks on shared experts: multi-gate mixture of experts.

The model is that of Ma et al., "Modeling Task Relationships in Multi-task
Learning with Multi-gate Mixture-of-Experts" (2018). Several small networks, the
experts, see all features. Each task has a gate, which mixes their outputs for
each example, and a tower on top of the mixture. The tasks are whether an item
is clicked and whether it gets the best rating.

    python mmoe.py

makes up impressions and prints the AUC of each task beside the best one
possible. Where the gradients of the tasks point in opposite directions, the
conflicting parts are projected out with

    python mmoe.py --pcgrad

MovieLens-100K, or a folder of its layout, is read with

    python mmoe.py --data=ml-100k --split=ua

where what stands for a click is a rating of 4 or 5. The last line on standard
output is a JSON object: for each task `auc` on the test events and `best_auc`
(null for real data), and the `seconds` of training.
"""

import argparse
import json
import time

import recommender_data
import tensorflow as tf
from din import FEATURES, embed
from recommender_data import auc
from tensorflow import keras

import tf_ext

TASKS = ["click", "like"]
EMBEDDING_DIM = 8
EXPERTS = 4
EXPERT_UNITS = 32
TOWER_UNITS = 16


@keras.utils.register_keras_serializable(package="mmoe")
class PCGradModel(tf_ext.Model):
    """A model whose tasks' gradients are projected before they are added."""

    def train_step(self, data):
        features, labels = data
        with tf.GradientTape(persistent=True) as tape:
            outputs = self(features, training=True)
            losses = {
                f"{task}_loss": tf.reduce_mean(
                    keras.losses.binary_crossentropy(
                        labels[task][:, tf.newaxis], outputs[task]
                    )
                )
                for task in TASKS
            }
        variables = self.trainable_variables
        gradients = tf_ext.optimizers.pcgrad(
            tape, list(losses.values()), variables
        )
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return losses


def mix(features):
    """Returns the probability of each task, a dict of `[batch, 1]`."""
    experts = [
        keras.layers.Dense(EXPERT_UNITS, activation="relu")(features)
        for _ in range(EXPERTS)
    ]
    stacked = keras.layers.Reshape((EXPERTS, EXPERT_UNITS))(
        keras.layers.Concatenate()(experts)
    )
    outputs = {}
    for task in TASKS:
        gate = keras.layers.Dense(EXPERTS, activation="softmax")(features)
        mixed = keras.layers.Dot(axes=1)([gate, stacked])
        hidden = keras.layers.Dense(TOWER_UNITS, activation="relu")(mixed)
        outputs[task] = keras.layers.Dense(
            1, activation="sigmoid", name=f"{task}_probability"
        )(hidden)
    return outputs


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    recommender_data.add_arguments(parser)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=512)
    parser.add_argument(
        "--pcgrad", action="store_true", help="project conflicting gradients"
    )
    args = parser.parse_args()
    data = recommender_data.load(args)
    keras.utils.set_random_seed(args.seed)

    table = tf_ext.SparseTable("embeddings", dim=EMBEDDING_DIM, seed=args.seed)
    inputs = data.inputs(FEATURES)
    model_class = PCGradModel if args.pcgrad else tf_ext.Model
    model = model_class(inputs, mix(embed(inputs, table)))
    model.compile(
        tf_ext.optimizers.Optimizer(keras.optimizers.Adam(0.003)),
        loss={task: "binary_crossentropy" for task in TASKS},
    )
    start = time.perf_counter()
    train = data.dataset(
        data.train, args.batch_size, FEATURES, TASKS, shuffle_seed=args.seed
    )
    model.fit(train, epochs=args.epochs, shuffle=False, verbose=2)
    seconds = time.perf_counter() - start

    predictions = model.predict(
        data.dataset(data.test, 4096, FEATURES, TASKS), verbose=0
    )
    result = {}
    for task in TASKS:
        labels, best = data.test[task], data.best(task, data.test)
        result[task] = {
            "auc": auc(labels, predictions[task][:, 0]),
            "best_auc": None if best is None else auc(labels, best),
        }
        print(f"{task}: test AUC {result[task]['auc']:.4f}")
        if best is not None:
            print(f"  the best AUC possible is {result[task]['best_auc']:.4f}")
    print(json.dumps({**result, "seconds": round(seconds, 1)}))


if __name__ == "__main__":
    main()
