"""Finds candidates on request: by tf_ext and by a library of its Keras.

`retrieval_benchmarks.py` starts it, once for each Keras, and calls methods of
`_Worker`.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import batches
import numpy as np
import remote
import tensorflow as tf
from harness import Case

import tf_ext

_SEED = 1
_BATCHES = 8


def _tf_ext(ids, embeddings, k):
    layer = tf_ext.layers.Retrieval(embeddings.shape[1], k)
    layer.index(ids, embeddings)
    return layer


def _tfrs(ids, embeddings, k):
    import tensorflow_recommenders as tfrs

    layer = tfrs.layers.factorized_top_k.BruteForce(k=k)
    return layer.index(tf.constant(embeddings), tf.constant(ids))


def _keras_rs(ids, embeddings, k):
    import keras_rs

    # It keeps ids in 32 bits.
    return keras_rs.layers.BruteForceRetrieval(
        tf.constant(embeddings), tf.constant(ids, tf.int32), k=k
    )


_MAKE = {
    "tf_ext": _tf_ext,
    "TFRS BruteForce": _tfrs,
    "keras-rs BruteForceRetrieval": _keras_rs,
}


class _Worker:
    """Holds cases between requests."""

    def start(self, threads):
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        self._cases = {}

    def make(self, case, library, candidates, dim, queries, k):
        """Makes a case; returns the ids of the first batch."""
        rng = np.random.default_rng(_SEED)
        embeddings = rng.normal(size=(candidates, dim)).astype(np.float32)
        asked = [
            tf.constant(rng.normal(size=(queries, dim)).astype(np.float32))
            for _ in range(_BATCHES)
        ]
        layer = _MAKE[library](np.arange(candidates), embeddings, k)
        find = tf.function(layer, autograph=False)
        run = batches.in_turn(find, asked)
        self._cases[case] = Case(case, run, queries)
        return np.asarray(find(asked[0])[1]).tolist()

    def time(self, case):
        """Wall and CPU milliseconds of one repetition."""
        return self._cases[case].time()

    def run(self, case):
        self._cases[case].run()


if __name__ == "__main__":
    remote.serve(_Worker())
