# SPDX-License-Identifier: Apache-2.0
"""A model of 39 columns leaves Keras, trains on, is served, and comes back."""

import os

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from processes import run
from saving_util import TestCase

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = [pytest.mark.both_kerases(slow=True), pytest.mark.slow]

_NUMBERS, _TEXTS = 13, 26
_SIZES = [70 + 7 * place for place in range(_TEXTS)]
_BATCH, _STEPS, _DIM = 64, 100, 4


def _model():
    """A model like those of Criteo's data: numbers, and tokens of 26 columns.

    All embeddings are trained at the same time as the layers above them.
    """
    keras.utils.set_random_seed(5)
    inputs, parts = {}, []
    for place in range(_NUMBERS):
        name = f"I{place + 1}"
        inputs[name] = keras.Input((1,), name=name)
        parts.append(inputs[name])
    for place, size in enumerate(_SIZES):
        name = f"C{place + 1}"
        inputs[name] = keras.Input((1,), dtype="string", name=name)
        ids = keras.layers.StringLookup(vocabulary=_vocabulary(place))(
            inputs[name]
        )
        rows = keras.layers.Embedding(size + 1, _DIM, name=f"rows_{name}")(ids)
        parts.append(keras.layers.Flatten()(rows))
    hidden = keras.layers.Concatenate()(parts)
    hidden = keras.layers.Dense(32, activation="relu")(hidden)
    outputs = keras.layers.Dense(1, activation="sigmoid")(hidden)
    return keras.Model(inputs, outputs)


def _vocabulary(place):
    return [f"{place:x}_{value:06x}" for value in range(_SIZES[place])]


def _batches(seed, count, repeats):
    """Batches; with `repeats`, ids occur several times in one of them."""
    rng = np.random.default_rng(seed)
    while count:
        count -= 1
        features = {
            f"I{place + 1}": rng.normal(size=(_BATCH, 1)).astype(np.float32)
            for place in range(_NUMBERS)
        }
        score = sum(features.values())
        for place in range(_TEXTS):
            codes = rng.choice(_SIZES[place], _BATCH, replace=repeats)
            score += np.sin(codes * (place + 1))[:, np.newaxis] / 2
            tokens = np.array(_vocabulary(place))[codes]
            features[f"C{place + 1}"] = tokens[:, np.newaxis]
        labels = score + rng.normal(size=(_BATCH, 1)) > 0
        yield (
            {k: tf.constant(v) for k, v in features.items()},
            tf.constant(labels, tf.float32),
        )


class CriteoTest(TestCase):
    # Keras 3 squares the gradients of an id that occurs twice one by one; the
    # table, like tf_keras, squares their sum.
    @parameterized.named_parameters(
        ("sgd", "SGD", 0.05, True),
        ("adagrad", "Adagrad", 0.05, not IS_KERAS_3),
        ("adam", "Adam", 0.002, not IS_KERAS_3),
        ("adamw", "AdamW", 0.002, not IS_KERAS_3),
    )
    def test_leaves_trains_serves_and_returns(self, rule, rate, repeats):
        before = _model()
        before.compile(
            getattr(keras.optimizers, rule)(rate), "binary_crossentropy"
        )
        for features, labels in _batches(1, 30, repeats):
            before.train_on_batch(features, labels)
        done = tf_ext.convert.model_from_keras(before)
        after = done.model
        self.assertLen(after.tables, 1)
        self.assertEqual(after.tables[0].size(), sum(_SIZES))
        self.assertAllClose(
            after.predict(features, verbose=0),
            before.predict(features, verbose=0),
            0,
            1e-6,
        )
        losses = []
        for features, labels in _batches(2, _STEPS, repeats):
            losses.append(
                [
                    one.train_on_batch(features, labels)
                    for one in (before, after)
                ]
            )
        losses = np.array(losses, np.float64).reshape(_STEPS, 2)
        difference = np.abs(losses[:, 0] - losses[:, 1]).max()
        print(f"{rule}: largest difference of losses: {difference:.3g}")
        self.assertLess(difference, 1e-5)
        expected = after.predict(features, verbose=0)
        self.assertAllClose(
            expected, before.predict(features, verbose=0), 0, 1e-5
        )
        self._check_files(after, features, expected)
        vocabularies = {
            f"C{place + 1}": _vocabulary(place) for place in range(_TEXTS)
        }
        back = tf_ext.convert.model_to_keras(after, vocabularies)
        self.assertEqual(back.notes, ())
        self.assertAllClose(
            back.model.predict(features, verbose=0), expected, 0, 1e-6
        )
        for features, labels in _batches(3, 20, repeats):
            first, second = (
                one.train_on_batch(features, labels)
                for one in (back.model, after)
            )
            self.assertAllClose(first, second, 0, 1e-5)

    def _check_files(self, model, features, expected):
        """Other processes predict the same, with tf_ext and without."""
        folder = self.directory()
        model.save(os.path.join(folder, "model.keras"))
        tf_ext.serving.export(model, os.path.join(folder, "served"))
        np.savez(
            os.path.join(folder, "features.npz"),
            **{name: one.numpy() for name, one in features.items()},
        )
        for kind in ("keras", "served"):
            run("converted_model_program.py", folder, kind)
            found = np.load(os.path.join(folder, f"{kind}.npy"))
            self.assertAllClose(found, expected, 0, 1e-6)


if __name__ == "__main__":
    tf.test.main()
