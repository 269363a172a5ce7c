"""The training step of step_benchmarks.py with TFRA, run by its own Python.

Needs a Python with tensorflow-recommenders-addons and its TensorFlow. Prints
one JSON line.
"""

import argparse
import json
import os
import statistics
import time

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
import tensorflow_recommenders_addons as tfra

_SEED = 1
_BATCH = 4096
_IDS = 26
_UNIVERSE = 10_000_000


def zipf(rng, exponent, universe, size):
    """The same ids as harness.zipf, which this Python cannot import."""
    power = 1 - exponent
    ids = ((universe + 1) ** power - 1) * rng.random(size) + 1
    return np.minimum(ids ** (1 / power), universe).astype(np.int64) - 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rule", default="adagrad")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=50)
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    rng = np.random.default_rng(_SEED)
    ids = tf.constant(zipf(rng, 1.05, _UNIVERSE, (_BATCH, _IDS)))
    labels = np.random.default_rng(_SEED).integers(0, 2, (_BATCH, 1))
    labels = tf.constant(labels.astype(np.float32))
    dynamic = tfra.dynamic_embedding
    table = dynamic.get_variable(
        "bench",
        key_dtype=tf.int64,
        value_dtype=tf.float32,
        dim=args.dim,
        initializer=tf.keras.initializers.RandomNormal(0.0, 0.05),
    )
    optimizer = dynamic.DynamicEmbeddingOptimizer(
        {
            "adagrad": tf.keras.optimizers.legacy.Adagrad,
            "adam": tf.keras.optimizers.legacy.Adam,
            "ftrl": tf.keras.optimizers.legacy.Ftrl,
            "sgd": tf.keras.optimizers.legacy.SGD,
        }[args.rule](0.01)
    )
    trainable = []

    @tf.function
    def step():
        def loss():
            rows, variable = dynamic.embedding_lookup_unique(
                table, ids, return_trainable=True
            )
            if not trainable:
                trainable.append(variable)
            logits = tf.reduce_sum(rows, axis=[1, 2])[:, tf.newaxis]
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
            return tf.reduce_mean(losses)

        optimizer.minimize(loss, lambda: trainable)

    for _ in range(10):
        step()
    wall, cpu = [], []
    for _ in range(args.repeats):
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        step()
        cpu.append(1e3 * (time.process_time() - cpu_start))
        wall.append(1e3 * (time.perf_counter() - wall_start))
    cpu_ms = statistics.median(cpu)
    print(
        json.dumps(
            {
                "case": "TFRA",
                "items": _BATCH,
                "repeats": args.repeats,
                "wall_ms": statistics.median(wall),
                "wall_spread_ms": float(
                    np.subtract(*np.percentile(wall, [75, 25])) / 2
                ),
                "cpu_ms": cpu_ms,
                "cpu_spread_ms": float(
                    np.subtract(*np.percentile(cpu, [75, 25])) / 2
                ),
                "items_per_cpu_s": 1e3 * _BATCH / cpu_ms,
            }
        )
    )


if __name__ == "__main__":
    main()
