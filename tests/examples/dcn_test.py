# SPDX-License-Identifier: Apache-2.0
"""The Deep & Cross example, and its model with Keras's embeddings instead."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from oracles.movielens_files import write_movielens
from paths import ROOT

import tf_ext
from tf_ext._keras import keras

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(ROOT / "examples"))

import dcn

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow,
]

_STEPS, _BATCH, _IDS = 300, 64, 50


def _run(*arguments):
    """The JSON of the last line that the example prints."""
    environment = dict(os.environ)
    environment.pop("PYTHONSAFEPATH", None)
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "dcn.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


class ProgramTest(tf.test.TestCase):
    @pytest.mark.slow
    def test_made_up_ratings(self):
        result = _run("--events=40000", "--epochs=3", "--batch_size=256")
        # About 0.95 is the RMSE of the mean of all ratings.
        self.assertBetween(result["rmse"], result["best_rmse"], 0.88)
        self.assertGreater(result["rows"], 1_000)

    @pytest.mark.slow
    def test_folder_of_movielens(self):
        folder = pathlib.Path(self.get_temp_dir()) / "ml"
        write_movielens(folder)
        result = _run(f"--data={folder}", "--epochs=30", "--batch_size=16")
        self.assertIsNone(result["best_rmse"])
        self.assertLess(result["rmse"], 1.2)


class TwinTest(tf.test.TestCase):
    def test_losses_are_those_of_keras_embeddings(self):
        random = np.random.default_rng(2)
        count = _STEPS * _BATCH
        features = {
            name: random.integers(0, _IDS, count) for name in ("user", "item")
        }
        ratings = 3.0 + np.sin(features["user"] + features["item"])
        data = tf.data.Dataset.from_tensor_slices(
            (features, ratings.astype(np.float32)[:, np.newaxis])
        ).batch(_BATCH)
        inputs = {
            name: keras.Input((), dtype="int64", name=name) for name in features
        }
        columns = dcn.make_columns()[:2]
        rule = tf_ext.optimizers.SparseSGD(0.02)
        table = tf_ext.SparseTable("ids", 8, rule, "normal", seed=1)
        model = dcn.make_model(inputs, columns, table)
        ids = {name: tf.range(_IDS, dtype=tf.int64) for name in features}
        rows = tf_ext.layers.EmbeddingFeatures(
            columns, table, concatenate=False
        )(ids, training=False)
        embeddings = [keras.layers.Embedding(_IDS, 8) for _ in columns]
        twin = keras.Model(
            inputs,
            dcn.predict_ratings(
                keras.layers.Concatenate()(
                    [
                        embed(inputs[column.name])
                        for embed, column in zip(embeddings, columns)
                    ]
                )
            ),
        )
        for embed, column in zip(embeddings, columns):
            embed.set_weights([rows[column.name].numpy()])
        dense = [w for w in twin.get_weights() if w.shape != (_IDS, 8)]
        own = [v for v in model.trainable_variables if v.shape != (1, 8)]
        for variable, value in zip(own, dense, strict=True):
            variable.assign(value)
        losses = []
        optimizers = [
            tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.02)),
            keras.optimizers.SGD(0.02),
        ]
        for one, optimizer in zip((model, twin), optimizers):
            record = _Losses()
            one.compile(optimizer, "mse")
            one.fit(data, verbose=0, shuffle=False, callbacks=[record])
            losses.append(record.losses)
        self.assertLen(losses[0], _STEPS)
        self.assertLess(np.mean(losses[0][-20:]), 0.75 * losses[0][0])
        self.assertAllClose(losses[0], losses[1], 1e-5, 1e-5)


class _Losses(keras.callbacks.Callback):
    """Keeps the loss of each batch."""

    def on_train_begin(self, logs=None):
        self.losses = []

    def on_train_batch_begin(self, batch, logs=None):
        self.model.reset_metrics()

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])


if __name__ == "__main__":
    tf.test.main()
