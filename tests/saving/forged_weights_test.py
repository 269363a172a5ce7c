# SPDX-License-Identifier: Apache-2.0
"""Files of Keras's formats with forged contents and right checksums."""

import json

import h5py
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from models.counter_tables import make_model, trained
from models.sharded_tables import bytes_of_rows, counters_of
from processes import run
from saving_util import TestCase

import tf_ext
from tf_ext import _core
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "ForgedHeaderTest::*_columns",
        "ForgedHeaderTest::test_changes_nothing_if_it_has_another__config",
        "ForgedHeaderTest::test_changes_nothing_if_it_has_another__none",
        "OtherStateTest::test_is_as_before_if_*",
    ),
]

_SEED = 20261101
_RATE = "it is not a JSON object with the members `config` and `first`"


def _fuzz(first, count):
    """Refused files change nothing: see the program."""
    ends = run(
        "forged_weights_program.py",
        first,
        count,
        timeout_seconds=300 + count,
        TF_USE_LEGACY_KERAS=str(int(not tf_ext._keras.IS_KERAS_3)),
    ).splitlines()[-1]
    return json.loads(ends)


class FuzzTest(absltest.TestCase):
    def test_refused_files_change_nothing(self):
        self.assertGreater(_fuzz(_SEED, 60)["refused"], 20)

    @pytest.mark.slow
    def test_many_refused_files_change_nothing(self):
        self.assertGreater(_fuzz(_SEED + 60, 2000)["refused"], 500)


def _forge(path, change):
    """Changes the header of the table in a file, and its checksum."""
    with h5py.File(path, "r+") as file:
        names = []
        file.visit(names.append)
        [name] = [name for name in names if name.endswith("/header")]
        header = json.loads(file[name][()].tobytes())
        change(header)
        text = np.frombuffer(json.dumps(header).encode(), np.uint8)
        del file[name]
        file[name] = text
        file[f"{name}_crc32c"][0] = _core.crc32c(text.tobytes())


def _set_rate(header, rate):
    state = json.loads(header["state"]["optimizer"])
    state["config"]["learning_rate"] = rate
    header["state"]["optimizer"] = json.dumps(state)


def _model(table):
    model = make_model(table)
    return tf_ext.Model(model.inputs, model.outputs)


class ForgedHeaderTest(TestCase):
    @parameterized.named_parameters(
        ("optimizer", lambda h: h["state"].update(optimizer="{}"), _RATE),
        ("deep", lambda h: h["state"].update(optimizer="[" * 9999), _RATE),
        ("rate", lambda h: _set_rate(h, "fast"), "learning_rate"),
        ("number", lambda h: h["state"].update(optimizer=5), "state is {"),
        ("columns", lambda h: h["state"].update(columns=[]), "state is {"),
        ("list", lambda h: h.update(state=["optimizer"]), r"state is \["),
        ("none", lambda h: h.update(state=None), "state is None"),
        ("config", lambda h: h.update(config=7), "config is 7"),
        ("crc32c", lambda h: h.update(crc32c=[]), r"crc32c is \[\]"),
    )
    def test_changes_nothing_if_it_has_another_(self, change, message):
        path = self.path("m.weights.h5")
        model = _model(trained())
        model.save_weights(path)
        _forge(path, change)
        other = _model(trained(shards=1))
        [table] = other.tables
        table.push([5], np.ones([1, 2]), step=40)
        dense = other.layers[-1]
        dense.set_weights([np.full_like(w, 7.0) for w in dense.get_weights()])

        def state():
            return (
                bytes_of_rows(table),
                counters_of(table),
                table.optimizer.state(),
                [w.tolist() for w in dense.get_weights()],
            )

        before = state()
        with self.assertRaisesRegex(ValueError, message):
            other.load_weights(path)
        self.assertEqual(state(), before)

    def test_loads_with_an_invalid_record_of_columns(self):
        """It only serves for warnings."""
        path = self.path("m.weights.h5")
        model = _model(trained())
        model.save_weights(path)
        _forge(path, lambda h: h["state"].update(columns="[" * 9999))
        other = _model(trained(shards=1))
        with self.assertLogs("tf_ext", "WARNING"):
            other.load_weights(path)
        self.assertEqual(
            bytes_of_rows(other.tables[0]), bytes_of_rows(model.tables[0])
        )


class OtherStateTest(TestCase):
    """What a model has besides rows, and a file that is refused at its end."""

    def _model(self, seed):
        keras.utils.set_random_seed(seed)
        table = tf_ext.SparseTable("items", 2, "sgd", "normal", seed=1)
        inputs = {"id": keras.Input((), dtype="int64", name="id")}
        column = tf_ext.feature_column.category_column("id", hashing="identity")
        query = keras.layers.Dense(3)(
            tf_ext.layers.EmbeddingFeatures([column], table)(inputs)
        )
        retrieval = tf_ext.layers.Retrieval(3, k=2)
        generator = np.random.default_rng(seed)
        retrieval.index([seed, 5, 6], generator.normal(size=[3, 3]))
        model = tf_ext.Model(inputs, [query, *retrieval(query)])
        model.compile(
            tf_ext.optimizers.Optimizer(keras.optimizers.Adam()),
            ["mse", None, None],
        )
        table.push([seed], np.ones([1, 2]))
        return model, retrieval

    def _state(self, model, retrieval):
        return (
            bytes_of_rows(model.tables[0]),
            retrieval.ids.tolist(),
            np.asarray(retrieval.embeddings).tolist(),
            [
                np.asarray(tf.convert_to_tensor(v)).tolist()
                for v in [*model.variables, *model.optimizer.variables]
            ],
        )

    def _check_refused(self, path):
        model, retrieval = self._model(2)
        model.load_weights(self.whole)
        loaded = self._state(model, retrieval)
        model, retrieval = self._model(2)
        model._build_optimizer()
        before = self._state(model, retrieval)
        self.assertNotEqual(before[1:3], loaded[1:3])
        with self.assertRaises((ValueError, KeyError)):
            model.load_weights(path)
        self.assertEqual(self._state(model, retrieval), before)

    def setUp(self):
        super().setUp()
        self.whole = self.path("whole.weights.h5")
        self._model(1)[0].save_weights(self.whole)

    def _copy(self):
        path = self.path("m.weights.h5")
        with open(self.whole, "rb") as whole, open(path, "wb") as copy:
            copy.write(whole.read())
        return path

    def test_is_as_before_if_rows_are_damaged(self):
        path = self._copy()
        _forge(path, lambda header: header.update(rows=5))
        self._check_refused(path)

    def test_is_as_before_if_an_index_is_damaged(self):
        path = self._copy()
        with h5py.File(path, "r+") as file:
            names = []
            file.visit(names.append)
            [name] = [n for n in names if n.endswith("/embeddings")]
            file[name][0, 0] = np.nan
        self._check_refused(path)

    def test_is_as_before_if_a_variable_is_damaged(self):
        path = self._copy()
        with h5py.File(path, "r+") as file:
            names = []
            file.visit(names.append)
            name = [n for n in names if "dense" in n and n.endswith("/0")][-1]
            del file[name]
            file[name] = np.zeros([9, 9], np.float32)
        self._check_refused(path)


if __name__ == "__main__":
    tf.test.main()
