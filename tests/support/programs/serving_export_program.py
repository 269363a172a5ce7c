# SPDX-License-Identifier: Apache-2.0
"""Trains models, exports them, and writes down what they predict.

    serving_export_program.py DIRECTORY WHAT...

trains each WHAT: a case, or README.md, for the model of its quick start. That
of a case with "_again" after it is loaded and saved once more, as another one.

Each export is a SavedModel DIRECTORY/NAME with NAME.json beside it: the inputs,
`{key: [dtype, nested lists]}`, what the model predicts for them, and the names
of the signature's tensors.
"""

import json
import os
import pathlib
import sys

import numpy as np
import tensorflow as tf
from cases import rule_cases
from models import small_models as small
from tensorflow.core.protobuf import saved_model_pb2

import tf_ext
from tf_ext._keras import keras

_SEED = 5


def _rates():
    decay = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.9)
    return {"own_rate": 0.05, "schedule": decay, "no_rate": None}


def _rule(case):
    """The update rule of a case: RULE_RATE, of rule_cases and `_rates`."""
    for name, rule, options in rule_cases.CASES:
        for kind, rate in _rates().items():
            if case == f"{name}_{kind}":
                return small.RULES[rule](rate, **options)
    raise ValueError(f"There is no case {case!r}.")


def _model(rule):
    """Ids and texts; two tables that are called alike, and one that counts."""
    column = tf_ext.feature_column.category_column
    inputs = {
        **small.inputs(),
        "tag": keras.Input((None,), dtype="string", name="tag"),
    }
    tables = [small.table(rule) for _ in range(2)]
    wide = tf_ext.SparseTable(
        "wide", 1, "ftrl", "normal", statistics=["show", "click"]
    )
    embed = tf_ext.layers.EmbeddingFeatures
    vectors = [
        embed(small.columns(), tables[0])(inputs),
        embed([column("tag", combiner="sqrtn", missing="")], tables[1])(inputs),
        embed([column("tag", missing=""), column("user")], wide, cvm=True)(
            inputs
        ),
    ]
    joined = keras.layers.Concatenate()(vectors)
    return small.compiled(tf_ext.Model(inputs, small.head()(joined)))


def _batch(rng):
    features, labels = small.batch(rng)
    tags = np.array(["", "new", "red", "m\u00fcde", "a\u0000b"], object)
    features["tag"] = tags[rng.integers(0, len(tags), (len(labels), 3))]
    return features, labels


def _export_case(directory, name, again):
    rng = np.random.default_rng(_SEED)
    model = _model(_rule(name))
    for _ in range(6):
        features, labels = _batch(rng)
        model.train_on_batch(
            {k: tf.constant(v) for k, v in features.items()}, labels
        )
    features, _ = _batch(rng)
    features["user"][:5] += 10**6  # never seen
    _export(model, features, directory / name, again)


def _export_quick_start(directory, readme):
    text = pathlib.Path(readme).read_text(encoding="utf-8")
    program = text.partition("## Quick start")[2].partition("```python\n")[2]
    names = {}
    os.chdir(directory)  # It saves a model.
    exec(program.partition("```")[0], names)
    features = {k: v.numpy() for k, v in names["features"].items()}
    _export(names["model"], features, directory / "quick_start")


def _export(model, features, path, again=False):
    batch = {key: tf.constant(value) for key, value in features.items()}
    expected = model.predict(batch, verbose=0)
    model.export(str(path))
    _describe(path, features, expected)
    if again:
        loaded = tf.saved_model.load(str(path))
        path = path.with_name(f"{path.name}_again")
        tf.saved_model.save(loaded, str(path), loaded.signatures)
        _describe(path, features, expected)


def _describe(path, features, expected):
    saved = saved_model_pb2.SavedModel.FromString(
        (path / "saved_model.pb").read_bytes()
    )
    signature = saved.meta_graphs[0].signature_def["serving_default"]
    [output] = signature.outputs.values()
    description = {
        "path": str(path),
        "features": {
            key: [
                "str" if value.dtype == object else str(value.dtype),
                np.vectorize(_plain)(value).tolist(),
            ]
            for key, value in features.items()
        },
        "expected": expected.tolist(),
        "feeds": {key: i.name for key, i in signature.inputs.items()},
        "fetch": output.name,
    }
    path.with_suffix(".json").write_text(json.dumps(description))


def _plain(value):
    return value.decode() if isinstance(value, bytes) else value


def main(directory, *what):
    """See the module's docstring."""
    directory = pathlib.Path(directory)
    for each in what:
        if each.endswith(".md"):
            _export_quick_start(directory, each)
        else:
            name = each.removesuffix("_again")
            _export_case(directory, name, again=name != each)


if __name__ == "__main__":
    main(*sys.argv[1:])
