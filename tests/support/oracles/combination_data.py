# SPDX-License-Identifier: Apache-2.0
"""The samples of the combination test, for tables and for dense twins."""

import numpy as np
import tensorflow as tf

import tf_ext
from tf_ext._compat.models import layers_of

DIM = 4
BATCH_SIZE = 4
_IDS = 9
_SEED = 5
_DAY_SECONDS = 86_400
_AGES = [60, 3600]  # seconds
_WORDS = np.array([f"word {i}" for i in range(_IDS)])
_CLICK = "click"


def age_boundaries():
    """Those of the column of ages."""
    return _AGES


def click_key():
    """The feature that counts as clicks."""
    return _CLICK


def keys_of(program):
    """The features that a program's model reads, in order."""
    keys = {
        "ids": ["user", "word"],
        "weighted": ["user", "tags", "tag_weights"],
        "crossed": ["user", "word"],
        "buckets": ["user", "age"],
        "sequence": ["user", "tags"],
        "optional": ["user"],
        "times": ["seen", "made"],
    }[program.columns]
    clicks = [_CLICK] if program.layer == "clicks" else []
    return sorted([*keys, *clicks, "number"])


def samples_of(program):
    """All samples of a program: `(features, labels, sample weights)`.

    Features are arrays and `tf.RaggedTensor`s by key, labels an array, or a
    dict of them for two outputs.
    """
    size = program.samples
    rng = np.random.default_rng(_SEED)
    # More samples are the same ones, and others after them.
    rows = [_sample(rng) for _ in range(size)]
    features = {
        "user": np.array([r["user"] for r in rows]),
        "word": _WORDS[[r["word"] for r in rows]],
        "age": np.array([r["age"] for r in rows], np.float32),
        "number": np.array([r["number"] for r in rows], np.float32),
        "seen": np.array([r["seen"] for r in rows]),
        "made": np.array([r["made"] for r in rows]),
        _CLICK: np.array([r["a"] for r in rows], np.float32),
        "tags": tf.ragged.constant(
            [_WORDS[r["tags"]].tolist() for r in rows], dtype=tf.string
        ),
        "tag_weights": tf.ragged.constant(
            [r["tag_weights"] for r in rows], dtype=tf.float32
        ),
    }
    labels = {
        "a": np.array([[r["a"]] for r in rows], np.float32),
        "b": np.array([[r["b"]] for r in rows], np.float32),
    }
    weights = np.array([r["weight"] for r in rows], np.float32)
    return (
        {key: features[key] for key in keys_of(program)},
        labels if program.loss == "two_outputs" else labels["a"],
        weights if program.loss == "weighted" else None,
    )


def _sample(rng):
    tags = rng.integers(0, _IDS, rng.integers(0, 4)).tolist()
    user = int(rng.integers(0, _IDS))
    sample = {
        "user": user,
        "word": int(rng.integers(0, _IDS)),
        # Some are in another bucket when rounded to 16 bits.
        "age": float(rng.choice([10.0, 19.98, 20.02, 39.95, 40.0, 50.0])),
        "number": rng.normal(size=2).tolist(),
        "tags": tags,
        "tag_weights": rng.uniform(0.5, 2.0, len(tags)).tolist(),
        "a": float(user % 2 == rng.integers(0, 3) % 2),
        "b": float(rng.uniform()),
        "weight": float(rng.uniform(0.2, 3.0)),
    }
    # Beyond 2^24, where float32 has no longer every second.
    seen = int(rng.integers(2**30, 2**31))
    age = int(rng.choice([-1, 0, _AGES[0] - 1, _AGES[0], _AGES[1]]))
    is_missing = rng.integers(0, 5) == 0
    sample["seen"], sample["made"] = seen, 0 if is_missing else seen - age
    return sample


def features_of(program):
    """The `tf.TypeSpec` of batches of each feature, by key."""
    shapes = {"number": (None, 2)}
    specs = {
        "user": tf.int64,
        "word": tf.string,
        "age": tf.float32,
        "number": tf.float32,
        "seen": tf.int64,
        "made": tf.int64,
        _CLICK: tf.float32,
    }
    return {
        key: tf.TensorSpec(shapes.get(key, (None,)), specs[key])
        if key in specs
        else tf.RaggedTensorSpec(
            (None, None), tf.string if key == "tags" else tf.float32
        )
        for key in keys_of(program)
    }


def dataset_of(program, model=None):
    """Batches of `(features, labels)`, with weights where there are some."""
    features, labels, weights = samples_of(program)
    whole = (
        (features, labels)
        if weights is None
        else (
            features,
            labels,
            weights,
        )
    )
    if program.model == "listed":
        whole = (_listed(features), *whole[1:])
    data = tf.data.Dataset.from_tensor_slices(whole).batch(BATCH_SIZE)
    if program.data == "hashed" and model is not None:
        columns = [c for table in _layer_of(model).columns for c in table]
        data = tf_ext.data.hash_columns(data, columns)
    return data


def arrays_of(program):
    """What `fit` takes as arrays: `{"x": ..., "y": ..., ...}`."""
    features, labels, weights = samples_of(program)
    x = _listed(features) if program.model == "listed" else features
    return {"x": x, "y": labels, "sample_weight": weights}


def _listed(features):
    return tuple(features[key] for key in sorted(features))


def _layer_of(model):
    [layer] = [
        layer
        for layer in layers_of(model)
        if isinstance(layer, tf_ext.layers.EmbeddingFeatures)
    ]
    return layer


# The twin.


def vocabulary_of(column):
    """Features that hold each value of a column once: `{key: values}`."""
    every = {
        "user": np.arange(_IDS),
        "word": _WORDS,
        "tags": tf.constant(_WORDS),
        "age": np.array([10.0, 30.0, 50.0], np.float32),
    }
    if column.name == "user_X_word":
        users, words = np.divmod(np.arange(_IDS * _IDS), _IDS)
        return {"user": users, "word": _WORDS[words]}
    if column.name == "absent":
        return {"absent": np.array([b"nothing"])}
    if column.name == "seen_weekday":
        return {"seen": _DAY_SECONDS * np.arange(4, 11)}  # A Monday is first.
    if column.name == "made_age":
        made = np.ones(len(_AGES) + 1, np.int64)
        return {"made": made, "seen": made + np.array([0, *_AGES])}
    found = {column.name: every[column.name]}
    if column.name == "tags":
        found["tag_weights"] = tf.ones(_IDS)
    return found


def twin_samples_of(program, columns):
    """As `samples_of`, with the weight of each value in the sample's bags."""
    features, labels, weights = samples_of(program)
    size = program.samples
    found = {"number": features["number"]}
    for column in columns:
        found[column.name] = {
            "user": lambda: _is(features["user"], np.arange(_IDS)),
            "word": lambda: _is(features["word"], _WORDS),
            "age": lambda: _is(
                np.digitize(features["age"], [20.0, 40.0]), np.arange(3)
            ),
            "absent": lambda: np.zeros([size, 1], np.float32),
            "seen_weekday": lambda: _is(
                (features["seen"] // _DAY_SECONDS + 3) % 7, np.arange(7)
            ),
            "made_age": lambda: (
                _is(
                    np.digitize(features["seen"] - features["made"], _AGES),
                    np.arange(len(_AGES) + 1),
                )
                * (features["made"] != 0)[:, np.newaxis]
            ),
            "tags": lambda: _mean(
                features["tags"].to_list(), features["tag_weights"].to_list()
            ),
            "user_X_word": lambda: np.reshape(
                _is(features["user"], np.arange(_IDS))[:, :, np.newaxis]
                * _is(features["word"], _WORDS)[:, np.newaxis],
                [size, -1],
            ),
        }[column.name]()
    return found, labels, weights


def _is(values, vocabulary):
    return np.float32(np.asarray(values)[:, np.newaxis] == vocabulary)


def _mean(bags, weights):
    found = np.zeros([len(bags), _IDS], np.float32)
    for row, words, its_weights in zip(found, bags, weights, strict=True):
        for word, weight in zip(words, its_weights, strict=True):
            row[np.flatnonzero(word.decode() == _WORDS)[0]] += weight
        row /= max(sum(its_weights), 1e-30)
    return found
