# SPDX-License-Identifier: Apache-2.0
"""The files of an export: versions, what is known of them, and errors."""

import errno
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest.mock

import interrupts
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from models import small_models as small
from models.model_building import mirrored_strategy

import tf_ext
from tf_ext import serving
from tf_ext._keras import keras
from tf_ext.serving import folder, replay

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ErrorsTest::test_a_full_disk",
        "ErrorsTest::test_a_function_that_would_keep_the_exported_rows",
        "ErrorsTest::test_weights_that_a_type_cannot_hold",
        "FolderTest::test_manifest",
        "FolderTest::test_only_leftovers_of_the_dead_are_removed",
        "FolderTest::test_versions_count_up",
        "StrategyTest::test_replicas_of_one_process",
        "WarmupTest::test_servers_read_the_file",
    ),
]

_FEATURES = {
    "user": np.arange(6),
    "items": np.array([[i, -i] for i in range(6)]),
}

# Writes a version until it is killed.
_HOLD = """
import sys, time
from tf_ext.serving import folder

with folder.new_version(sys.argv[1], None, "test") as new:
    (new.part / "held").write_text("")
    time.sleep(600)
"""


class _Test(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="tf_ext_export_")
        self.path = pathlib.Path(self.enterContext(folder), "models")

    def assert_raises(self, error, pattern, call, *args, **kwargs):
        with self.assertRaisesRegex(error, pattern) as caught:
            call(*args, **kwargs)
        sentence = str(caught.exception)
        self.assertNotIn("\n", sentence)
        return sentence


def _model(table=None, rows=6):
    table = table or small.table("adagrad")
    model = small.compiled(small.functional(table))
    table.pull(range(rows), training=True)
    return model


class FolderTest(_Test):
    def test_interrupts_leave_nothing(self):
        def write():
            with folder.new_version(self.path, None, "test") as new:
                (new.part / "file").write_text("")

        def count_opened():
            return len(os.listdir("/proc/self/fd"))

        opened, count = count_opened(), 0
        for was_interrupted, point in interrupts.at_each_point(write):
            count += 1
            # One more, if the interrupt comes before its number is known.
            more = count_opened() - opened
            self.assertLessEqual(more, was_interrupted, point)
            write()
            names = sorted(map(str, serving.versions(self.path)))
            self.assertCountEqual(os.listdir(self.path), names, point)
            shutil.rmtree(self.path)
            opened = count_opened()
        self.assertGreater(count, 20)

    def test_versions_count_up(self):
        model = _model()
        folder = serving.export(model, self.path)
        self.assertEqual(folder, str(self.path / "1"))
        self.assertEqual(
            serving.export(model, self.path, version=7), str(self.path / "7")
        )
        (self.path / "notes").mkdir()
        (self.path / "09").mkdir()  # Not a version, as we write them.
        (self.path / "6").write_text("a file")
        self.assertEqual(serving.export(model, self.path), str(self.path / "8"))
        self.assertEqual(serving.versions(self.path), [1, 7, 8])
        self.assertEqual(serving.versions(self.path / "none"), [])

    def test_an_existing_version_stays(self):
        model = _model()
        folder = pathlib.Path(serving.export(model, self.path, version=3))
        before = folder.stat().st_mtime_ns
        sentence = self.assert_raises(
            FileExistsError,
            "one that does not exist. Received: version=3",
            serving.export,
            model,
            self.path,
            version=3,
        )
        self.assertIn(str(folder), sentence)
        self.assertEqual(folder.stat().st_mtime_ns, before)
        self.assertEqual(os.listdir(self.path), ["3"])

    def test_processes_that_write_at_the_same_time(self):
        write = functools.partial(folder.new_version, self.path)
        opened = len(os.listdir("/proc/self/fd"))
        with write(None, "f") as one, write(None, "f") as other:
            (one.part / "one").write_text("")
            (other.part / "other").write_text("")
        self.assertEqual(
            [other.folder, one.folder], [self.path / "1", self.path / "2"]
        )
        with self.assertRaisesRegex(
            FileExistsError, "does not exist. Received: version=7"
        ):
            with write(7, "f") as one, write(7, "f") as other:
                (one.part / "one").write_text("")
                (other.part / "other").write_text("")
        self.assertCountEqual(
            os.listdir(self.path / "7"), ["assets.extra", "other"]
        )
        self.assertCountEqual(os.listdir(self.path), ["1", "2", "7"])
        self.assertLen(os.listdir("/proc/self/fd"), opened)

    def test_a_failure_removes_a_folder_that_nobody_else_uses(self):
        for others in ([], ["other"]):
            with (
                self.assertRaises(KeyError),
                folder.new_version(self.path, None, "f"),
            ):
                for name in others:
                    (self.path / name).mkdir()
                raise KeyError
            found = os.listdir(self.path) if self.path.exists() else []
            self.assertEqual(found, others)

    def test_only_leftovers_of_the_dead_are_removed(self):
        self.path.mkdir()
        dead = self.path / "exporting-elsewhere-1-00"
        dead.mkdir()
        (dead / "saved_model.pb").write_text("half")
        # A program, not a function of this module: a process of its own need
        # not find the module.
        with subprocess.Popen(
            [sys.executable, "-P", "-c", _HOLD, str(self.path)]
        ) as child:
            try:
                while not (held := list(self.path.glob("*/held"))):
                    self.assertIsNone(child.poll())
                    time.sleep(0.05)
                serving.export(_model(), self.path)
                self.assertTrue(held[0].exists())
                self.assertFalse(dead.exists())
            finally:
                child.kill()
        serving.export(_model(), self.path)
        self.assertCountEqual(os.listdir(self.path), ["1", "2"])

    def test_manifest(self):
        model = _model()
        features = {k: tf.constant(v) for k, v in _FEATURES.items()}
        model.train_on_batch(features, np.ones([6, 1]))
        folder = serving.export(model, self.path, dtype="int8")
        manifest = serving.read_manifest(folder)
        [table] = manifest["tables"]
        self.assertEqual(
            table,
            {
                "name": "deep",
                "rows": model.tables[0].size(),
                "dim": 4,
                "dtype": "int8",
                "bytes": model.tables[0].size() * (8 + 4 + 4),
                "unknown": "initial",
                "hash_version": 1,
                "snapshot": None,
            },
        )
        self.assertEqual(manifest["step"], 1)
        self.assertEqual(manifest["tf_ext_version"], tf_ext.__version__)
        self.assertEqual(manifest["tensorflow_version"], tf.__version__)
        names = {
            path.relative_to(folder).as_posix()
            for path in pathlib.Path(folder).rglob("*")
            if path.is_file()
        }
        listed = {file["name"] for file in manifest["files"]}
        self.assertEqual(names - listed, {"assets.extra/manifest.json"})
        self.assertIn("saved_model.pb", listed)

    def test_members_of_a_manifest(self):
        path = self.path / folder.EXTRA / folder.MANIFEST
        path.parent.mkdir(parents=True)
        table = {"name": "deep", "rows": 3, "dim": 2, "bytes": 48}
        file = {"name": "saved_model.pb", "bytes": 7, "sha256": "00"}
        good = {
            "format": folder.FORMAT,
            "model": "model",
            "tf_ext_version": "1",
            "tensorflow_version": "2",
            "files": [file],
            "tables": [table],
        }
        path.write_text(json.dumps(good))
        self.assertEqual(serving.read_manifest(self.path), good)
        for members, words in (
            ({"model": None}, "model is None"),
            ({"files": [{"name": "saved_model.pb"}]}, "KeyError.'bytes'"),
            ({"tables": [{**table, "rows": "3"}]}, "rows is '3'"),
            ({"tables": [{**table, "statistics": ["x"]}]}, "has 'x'"),
            ({"step": 1.5}, "step is 1.5"),
            ({"kind": "split"}, "KeyError.'dense'"),
        ):
            path.write_text(json.dumps({**good, **members}))
            with self.subTest(words):
                self.assert_raises(
                    ValueError,
                    f"{folder.MANIFEST} is damaged: .*{words}",
                    serving.read_manifest,
                    self.path,
                )

    def test_damage_is_found(self):
        folder = pathlib.Path(serving.export(_model(), self.path))
        # Rows are there once, as variables.
        self.assertNotIn("rows", os.listdir(folder))
        self.assertEqual(serving.damaged_files(folder), [])
        [data] = folder.glob("variables/*data*")
        good = data.read_bytes()
        data.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        [sentence] = serving.damaged_files(folder)
        self.assertEqual(sentence, f"{data} differs from what was written.")
        data.write_bytes(good[:-1])
        [sentence] = serving.damaged_files(folder)
        self.assertIn(f"has {len(good) - 1} bytes", sentence)
        data.unlink()
        self.assertEqual(serving.damaged_files(folder), [f"{data} is missing."])
        manifest = folder / "assets.extra" / "manifest.json"
        members = json.loads(manifest.read_text())
        manifest.write_text(json.dumps({**members, "format": 2}))
        self.assert_raises(
            ValueError, "is of format 2", serving.read_manifest, folder
        )
        manifest.write_text("[]")
        self.assert_raises(
            ValueError, "is damaged", serving.read_manifest, folder
        )


class StrategyTest(_Test):
    def test_replicas_of_one_process(self):
        strategy = mirrored_strategy()
        with strategy.scope():
            model = _model()
            folder = serving.export(model, self.path)  # In the scope, too.
        loaded = tf.saved_model.load(folder)
        features = {k: tf.constant(v) for k, v in _FEATURES.items()}
        np.testing.assert_allclose(
            loaded.serve(features), model(features), rtol=0, atol=1e-6
        )


class WarmupTest(_Test):
    def test_requests_and_answers(self):
        model = _model()
        batches = [_FEATURES, {k: v[:1] for k, v in _FEATURES.items()}]
        path = serving.export(
            model, self.path, dtype="bfloat16", warmup=batches
        )
        found = serving.read_warmup(path)
        self.assertLen(found, 2)
        for batch, (inputs, outputs) in zip(batches, found):
            self.assertCountEqual(inputs, batch)
            for name, value in batch.items():
                np.testing.assert_array_equal(inputs[name], value)
            wanted = model.predict(
                {k: tf.constant(v) for k, v in batch.items()}, verbose=0
            )
            [answer] = outputs.values()
            # What the model says, whatever the export's dtype.
            np.testing.assert_allclose(answer, wanted, rtol=0, atol=1e-6)
        self.assertEqual(replay.replay(path).batches, 2)
        # The largest difference of all batches is told.
        for changed in range(2):
            found = [(b, {k: v + 0 for k, v in a.items()}) for b, a in found]
            [name] = found[0][1]
            found[changed][1][name][0] += 0.5
            with unittest.mock.patch.object(
                replay, "read_warmup", return_value=found
            ):
                self.assertGreater(replay.replay(path).largest, 0.4)
            found[changed][1][name][0] -= 0.5

    def test_servers_read_the_file(self):
        """By the wire format, of which nothing here is ours."""
        model = _model()
        folder = serving.export(model, self.path, warmup=_FEATURES)
        path = pathlib.Path(
            folder, "assets.extra", "tf_serving_warmup_requests"
        )
        [record] = [r.numpy() for r in tf.data.TFRecordDataset(str(path))]
        [log] = _fields(record)[6]  # PredictionLog.predict_log
        [request] = _fields(log)[1]  # PredictLog.request
        [spec] = _fields(request)[1]
        self.assertEqual(_fields(spec)[1], [model.name.encode()])
        self.assertEqual(_fields(spec)[3], [b"serving_default"])
        inputs = {
            _fields(entry)[1][0].decode(): _fields(entry)[2][0]
            for entry in _fields(request)[2]
        }
        proto = type(tf.make_tensor_proto(0))
        for name, value in _FEATURES.items():
            found = tf.make_ndarray(proto.FromString(inputs[name]))
            np.testing.assert_array_equal(found, value)

    def test_batches_that_do_not_fit(self):
        model = _model()
        for batch, pattern in (
            ({"user": np.arange(3)}, "must hold the input 'items'"),
            (
                {**_FEATURES, "user": np.array(["a"] * 6)},
                "that the model takes",
            ),
            ([_FEATURES] * 1001, "at most 1000 batches"),
        ):
            self.assert_raises(
                ValueError,
                pattern,
                serving.export,
                model,
                self.path,
                warmup=batch,
            )
        self.assertFalse(self.path.exists())


class ErrorsTest(_Test):
    @parameterized.parameters(
        ({"dtype": "float64"}, r"`dtype` .* 'int8'. Received: dtype='float64'"),
        ({"unknown": "ones"}, "`unknown` .* None or 'zeros'"),
        ({"version": 0}, "`version` .* from 1 .* Received: version=0"),
        ({"version": True}, "Received: version=True"),
        ({"version": 2**63}, "Received: version=9223372036854775808"),
        ({"signature": {"user": 3}}, "`signature` must be a structure"),
    )
    def test_arguments(self, options, pattern):
        self.assert_raises(
            ValueError, pattern, serving.export, _model(), self.path, **options
        )
        self.assertFalse(self.path.exists())

    def test_versions_at_the_limits(self):
        model = _model()
        for version in (1, 2**63 - 1):
            serving.export(model, self.path, version=version)
        self.assertCountEqual(os.listdir(self.path), ["1", f"{2**63 - 1}"])

    def test_a_path_in_place_of_the_model(self):
        for function in (serving.export, serving.export_split):
            with self.assertRaisesRegex(TypeError, "Keras model, and comes fi"):
                function("model.keras", self.path)

    def test_paths(self):
        model = _model()
        self.assert_raises(
            ValueError,
            "must be a folder of this machine",
            serving.export,
            model,
            "gs://bucket/models",
        )
        file = self.path.with_name("file")
        file.write_text("")
        with self.assertRaisesRegex(OSError, str(file)):
            serving.export(model, file / "models")

    def test_a_full_disk(self):
        model = _model()
        serving.export(model, self.path)
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save = "tensorflow.saved_model.save"
        for name, error, number in (
            ("os.fsync", full, errno.ENOSPC),
            (
                save,
                tf.errors.ResourceExhaustedError(None, None, "No space left"),
                errno.ENOSPC,
            ),
            # A folder that can only be read: TensorFlow's error of it.
            (
                save,
                tf.errors.PermissionDeniedError(None, None, "models"),
                errno.EACCES,
            ),
        ):
            with (
                unittest.mock.patch(name, side_effect=error),
                self.assertRaises(OSError) as caught,
            ):
                serving.export(model, self.path)
            self.assertEqual(caught.exception.errno, number)
            self.assertIn(str(self.path), caught.exception.filename)
            self.assertEqual(os.listdir(self.path), ["1"])

    def test_weights_that_a_type_cannot_hold(self):
        table = small.table("sgd")
        model = _model(table)
        table.import_rows([3], {"weights": np.full([1, 4], 7e4, np.float32)})
        sentence = self.assert_raises(
            ValueError,
            "'deep' has the weight 70000, which is more than float16",
            serving.export,
            model,
            self.path,
            dtype="float16",
        )
        self.assertIn("dtype='float32'", sentence)
        self.assertFalse(self.path.exists())
        serving.export(model, self.path, dtype="bfloat16")
        table.import_rows([3], {"weights": np.full([1, 4], np.inf, np.float32)})
        self.assert_raises(
            ValueError,
            "'deep' has the weight inf, which int8 cannot represent",
            serving.export,
            model,
            self.path,
            dtype="int8",
        )

    def test_a_layer_that_runs_python(self):
        @keras.utils.register_keras_serializable("test")
        class Python(keras.layers.Layer):
            def call(self, x):
                y = tf.numpy_function(np.negative, [x], tf.float32)
                return tf.ensure_shape(y, x.shape)

            def compute_output_shape(self, shape):
                return shape

        self._assert_refused(Python(name="slow"), "slow.* runs Python")

    def test_a_layer_with_an_op_of_tf_ext(self):
        @keras.utils.register_keras_serializable("test")
        class Ours(keras.layers.Layer):
            def call(self, x):
                found = tf_ext.ops.library().tf_ext_raise_error(error="")
                with tf.control_dependencies([found]):
                    return tf.identity(x)

            def compute_output_shape(self, shape):
                return shape

        self._assert_refused(Ours(name="mine"), "mine.* an op TfExt>RaiseError")

    def _assert_refused(self, layer, pattern):
        inputs = keras.Input((2,), name="x")
        model = keras.Model(inputs, layer(inputs))
        self.assert_raises(
            ValueError, pattern, serving.export, model, self.path
        )
        self.assertFalse(self.path.exists())

    def test_a_function_that_would_keep_the_exported_rows(self):
        table = small.table("sgd")
        embed = small.functional(table)

        class Kept(tf_ext.Model):
            @tf.function(autograph=False)
            def kept(self, inputs):
                return embed(inputs)

            def call(self, inputs):
                # A branch is no function of its own.
                there = tf.size(inputs["user"]) >= 0
                return tf.cond(
                    there,
                    lambda: self.kept(inputs) if self.keeps else embed(inputs),
                    lambda: tf.zeros([0, 1]),
                )

        model = Kept()
        model.embed, model.keeps, model.built = embed, True, True
        export = functools.partial(
            serving.export,
            model,
            self.path,
            signature={
                "user": tf.TensorSpec([None], tf.int64),
                "items": tf.TensorSpec([None, 2], tf.int64),
            },
        )
        self.assert_raises(
            ValueError, "tf.function in it reads the table 'deep'", export
        )
        features = {
            key: tf.constant(values) for key, values in _FEATURES.items()
        }
        wanted = embed(features)
        np.testing.assert_allclose(model(features), wanted, rtol=1e-6)
        model.keeps = False
        loaded = tf.saved_model.load(export())
        np.testing.assert_allclose(loaded.serve(features), wanted, rtol=1e-6)

    def test_models_that_say_nothing(self):
        class Unknown(tf_ext.Model):
            def call(self, inputs):
                return inputs

        self.assert_raises(
            ValueError,
            "must be built",
            serving.export,
            Unknown(),
            self.path,
        )
        inputs = [keras.Input((), name=name) for name in ("a b", "a_b")]
        adds = keras.Model(
            dict(zip(("a b", "a_b"), inputs)), keras.layers.Add()(inputs)
        )
        self.assert_raises(
            ValueError,
            "'a b' and 'a_b' of the model would have the same name",
            serving.export,
            adds,
            self.path,
        )


def _fields(message):
    """The fields of a protobuf message: `{number: [bytes, ...]}`."""
    fields, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        number, kind = divmod(varint(), 8)
        assert kind == 2, kind
        size = varint()
        fields.setdefault(number, []).append(message[at : at + size])
        at += size
    return fields


if __name__ == "__main__":
    absltest.main()
