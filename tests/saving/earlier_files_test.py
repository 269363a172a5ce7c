# SPDX-License-Identifier: Apache-2.0
"""Files of earlier versions load; those of the last are written the same."""

import inspect
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from packaging.version import Version
from paths import FIXTURES
from programs import earlier_files_program as program
from saving_util import TestCase

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.snapshot import open_snapshot

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ModelTest::*_weights_file_0.1.0.dev0",
        "ModelTest::test_checkpoint_0.1.0.dev0",
        "SnapshotTest::test_loads_0.1.0.dev0_adam_by_row",
        "SnapshotTest::test_loads_0.1.0.dev0_momentum",
        "SnapshotTest::test_loads_0.1.0.dev0_normal",
        "SnapshotTest::test_loads_0.1.0.dev0_rmsprop",
        "SnapshotTest::test_loads_0.1.0.dev0_rmsprop_all",
        "SnapshotTest::test_loads_0.1.0.dev0_row_wise_adagrad",
        "SnapshotTest::test_loads_0.1.0.dev0_sgd",
        "SnapshotTest::test_loads_0.1.0.dev0_truncated_normal",
    ),
]

_DATA = FIXTURES / "earlier"
# Each version has a folder.
_VERSIONS = sorted((each.name for each in _DATA.iterdir()), key=Version)
_RULES = {
    **{name: {"rule": name} for name in program.RULES},
    **{name: {"initializer": name} for name in program.INITIALIZERS},
}
_CASES = [
    (f"{version}_{name}", version, arguments)
    for version in _VERSIONS
    for name, arguments in _RULES.items()
    if (_DATA / version / "snapshots" / name).exists()
]
# A chunk begins with its CRC and its file's tag, which no two files share.
_TAG = slice(8, 16)


def _models(version):
    return _DATA / version / ("keras_3" if IS_KERAS_3 else "tf_keras")


def _files(path):
    """The bytes of a snapshot's files of rows, without what differs."""
    found = []
    for name in sorted(pathlib.Path(path).glob("rows-*.chunks")):
        data = bytearray(name.read_bytes())
        data[:4] = bytes(4)
        data[_TAG] = bytes(8)
        found.append(bytes(data))
    return found


def _manifest(path):
    """A manifest without what no two snapshots share."""
    found = json.loads(pathlib.Path(path, "manifest.json").read_text())
    for name in ("id", "base", "crc32c", "tf_ext_version"):
        del found[name]
    del found["tensorflow_version"], found["table"]["id"]
    for file in found["files"]:
        del file["name"], file["tag"], file["crc32c"]
    return found


def _rows(one):
    """The bytes of all fields of all rows, by sign."""
    signs, fields = one.export_rows()
    fields = {name: np.asarray(field) for name, field in fields.items()}
    return {
        sign: {name: field[i].tobytes() for name, field in fields.items()}
        for i, sign in enumerate(np.asarray(signs).tolist())
    }


def _chunks(path):
    return list(open_snapshot(str(path)).chunks())


def _public_classes():
    for name in tf_ext.__all__:
        value = getattr(tf_ext, name)
        values = [value]
        if inspect.ismodule(value):
            values = [getattr(value, member) for member in value.__all__]
        yield from filter(inspect.isclass, values)


class NameTest(TestCase):
    def test_classes_are_named_alike_wherever_they_are_defined(self):
        others = {
            cls.__name__
            for cls in _public_classes()
            if hasattr(cls, "get_config")
            and keras.utils.get_registered_name(cls) != f"tf_ext>{cls.__name__}"
        }
        # Bases of others, which are registered.
        bases = {"Column", "Initializer", "Model", "Policy", "SparseOptimizer"}
        self.assertEqual(others, bases)


class SnapshotTest(TestCase):
    @parameterized.named_parameters(*_CASES)
    def test_loads(self, version, arguments):
        (name,) = arguments.values()
        for kind in ("full", "delta"):
            one = program.table(**arguments)
            manifest = one.load(
                str(_DATA / version / "snapshots" / name / kind)
            )
            self.assertEqual(manifest.step, 3 if kind == "full" else 6)
            trained = program.table(**arguments)
            program.train(trained, 1)
            if kind == "delta":
                program.train(trained, 2)
                trained.erase(program.erased())
            self.assertEqual(_rows(one), _rows(trained))

    @parameterized.named_parameters(*_RULES.items())
    def test_is_written_the_same(self, arguments):
        (name,) = arguments.values()
        directory = self.directory()
        program.write_snapshots(program.table(**arguments), directory)
        for kind in ("full", "delta"):
            earlier = _DATA / _VERSIONS[-1] / "snapshots" / name / kind
            now = os.path.join(directory, kind)
            self.assertEqual(_manifest(now), _manifest(earlier))
            self.assertNotEmpty(_files(now))
            self.assertEqual(_files(now), _files(earlier))
            for found, expected in zip(
                _chunks(now), _chunks(earlier), strict=True
            ):
                self.assertAllEqual(found[0], expected[0])


@parameterized.named_parameters(*((f"_{v}", v) for v in _VERSIONS))
class ModelTest(TestCase):
    def assert_state(self, model, expected):
        expected = dict(np.load(expected))
        found = program.state(model)
        self.assertSameElements(found, expected)
        for key, value in expected.items():
            if key == "predictions":
                self.assertAllClose(found[key], value, 1e-6, 1e-6)
            else:
                self.assertEqual(found[key].tobytes(), value.tobytes(), key)

    def assert_trains(self, model):
        features, labels = program.batch()
        before = program.state(model)
        model.train_on_batch(features, labels)
        after = program.state(model)
        self.assertEqual(after["iterations"], before["iterations"] + 1)
        for key in ("deep/weights", "small/weights", "wide/weights"):
            self.assertNotAllClose(before[key], after[key])

    def test_keras_file(self, version):
        model = keras.models.load_model(_models(version) / "model.keras")
        self.assert_state(model, _models(version) / "state.npz")
        self.assert_trains(model)

    def test_weights_file(self, version):
        model = program.build_model()
        model.optimizer.build(model.trainable_variables)
        model.load_weights(_models(version) / "model.weights.h5")
        self.assert_state(model, _models(version) / "state.npz")
        self.assert_trains(model)

    def test_checkpoint(self, version):
        model = program.build_model()
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        status = checkpoint.read(str(_models(version) / "checkpoint"))
        model.optimizer.build(model.trainable_variables)
        status.expect_partial()
        self.assert_state(model, _models(version) / "state.npz")
        self.assert_trains(model)

    def assert_predicts(self, model, version):
        expected = np.load(_models(version) / "subclassed.npz")["predictions"]
        found = model.predict(program.batch()[0], verbose=0)
        self.assertAllClose(found, expected, 1e-6, 1e-6)

    def _built_subclassed(self):
        model = program.Subclassed()
        model.compile(tf_ext.optimizers.Optimizer("adam"), "mse")
        model(program.batch()[0])
        return model

    def test_subclassed_keras_file(self, version):
        # It has the shapes of the inputs, without their types.
        model = keras.models.load_model(_models(version) / "subclassed.keras")
        self.assert_predicts(model, version)

    def test_subclassed_weights_file(self, version):
        model = self._built_subclassed()
        model.load_weights(_models(version) / "subclassed.weights.h5")
        self.assert_predicts(model, version)

    def test_subclassed_checkpoint(self, version):
        model = self._built_subclassed()
        read = tf.train.Checkpoint(model=model).read
        path = str(_models(version) / "subclassed_checkpoint")
        if IS_KERAS_3 and Version(version) < Version("0.1.0"):
            # It has the layers of a list as what the optimizer trains.
            with self.assertRaisesRegex(
                ValueError, "written by an earlier version.*optimizer.build"
            ):
                read(path)
            model.optimizer.build(model.trainable_variables)
        read(path).expect_partial()
        self.assert_predicts(model, version)

    def test_recovery_point(self, version):
        # Where training goes on, points are written and removed.
        points = pathlib.Path(self.directory(), "points")
        shutil.copytree(_models(version) / "points", points)
        model = program.build_model()
        dataset = tf.data.Dataset.from_tensors(program.batch()).repeat(5)
        callback = tf_ext.callbacks.TableSnapshot(points, steps=5)
        model.fit(dataset, callbacks=[callback], verbose=0)
        self.assert_state(model, _models(version) / "points.npz")
        model.fit(
            dataset,
            epochs=2,
            callbacks=[tf_ext.callbacks.TableSnapshot(points, steps=5)],
            verbose=0,
        )
        self.assertEqual(program.state(model)["iterations"], 10)


if __name__ == "__main__":
    tf.test.main()
