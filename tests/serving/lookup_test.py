# SPDX-License-Identifier: Apache-2.0
"""tf_ext.serving.Lookup: predictions without the model, of rows in a store."""

import functools
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import uuid
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from clusters import redis_server
from models import lookup_models as models
from models import small_models as small
from paths import ROOT
from saving_util import TestCase

import tf_ext
from tf_ext.serving import (
    DirectorySink,
    Lookup,
    Ragged,
    RedisSink,
    SinkError,
    export_split,
    publish,
    store_cli,
)

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "LookupTest::test_a_split_export",
        "LookupTest::test_a_directory0",
        "LookupTest::test_features*",
        "LookupTest::test_onnx*",
        "LookupTest::test_damaged_manifests",
    ),
]

_TOLERANCES = {"float32": 0, "float16": 1e-2, "int8": 0.5}


@functools.cache
def _exported():
    """`(folder of a split export, model)`, the same for all tests."""
    model = models.trained(np.random.default_rng(7))
    return export_split(model, tempfile.mkdtemp()), model


class LookupTest(TestCase):
    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.directory())
        self.rng = np.random.default_rng(7)
        self.folder, self.model = _exported()

    def load(self, sink, dtype="float32"):
        options = [self.folder, str(sink), f"--dtype={dtype}"]
        status = store_cli.main(["load-redis", *options])
        self.assertEqual(status, 0)

    def check_embeddings(self, sink, dtype="float32"):
        with (
            Lookup(self.folder) as wanted,
            Lookup(sink, every=None) as lookup,
        ):
            for size, ids in ((24, 30), (1, 100), (0, 1)):
                features = models.batch(self.rng, size, ids)
                found, right = lookup.embed(features), wanted.embed(features)
                self.assertEqual(found.keys(), right.keys())
                for name, one in right.items():
                    self.assertEqual(found[name].dtype, one.dtype)
                    atol = _TOLERANCES[dtype]
                    self.assertAllClose(found[name], one, rtol=0, atol=atol)

    def test_a_split_export(self):
        with Lookup(self.folder, dense="tensorflow") as lookup:
            for size, ids in ((24, 30), (7, 9), (1, 100), (0, 1)):
                features = models.batch(self.rng, size, ids)
                found = lookup.predict(features)
                tensors = models.tensors(features)
                wanted = self.model(tensors, training=False)
                self.assertCountEqual(found, wanted)
                for name, one in wanted.items():
                    self.assertAllClose(found[name], one, rtol=0, atol=1e-6)
                # Tensors are features, too.
                same = lookup.embed(tensors)
                for name, one in lookup.embed(features).items():
                    self.assertAllEqual(same[name], one)

    @parameterized.parameters(*_TOLERANCES)
    def test_a_directory(self, dtype):
        self.load(self.root / "store", dtype)
        self.check_embeddings(DirectorySink(self.root / "store"), dtype)

    @parameterized.parameters(*_TOLERANCES)
    def test_a_redis(self, dtype):
        if redis_server.missing():
            self.skipTest(redis_server.missing())
        server = redis_server.RedisServer(self.root)
        self.addCleanup(server.close)
        name = uuid.uuid4().hex
        self.load(f"{server.url}#{name}", dtype)
        self.check_embeddings(RedisSink(server.url, name), dtype)

    def test_onnx(self):
        if importlib.util.find_spec("tf2onnx") is None:
            self.skipTest("tf2onnx is not installed.")
        folder = export_split(self.model, self.root / "onnx", onnx=True)
        store = str(self.root / "store")
        self.assertEqual(store_cli.main(["load-redis", folder, store]), 0)
        for place in (folder, DirectorySink(store)):
            with Lookup(place, dense="onnx", every=None) as lookup:
                self.check_predictions(lookup)

    def test_onnx_that_computes_something_else(self):
        if importlib.util.find_spec("tf2onnx") is None:
            self.skipTest("tf2onnx is not installed.")
        import onnxruntime

        run, level = onnxruntime.InferenceSession.run, tf.get_logger().level

        def wrong(*arguments):
            return [one + 0.01 for one in run(*arguments)]

        with (
            mock.patch.object(onnxruntime.InferenceSession, "run", wrong),
            self.assertRaisesRegex(
                ValueError, "cannot be converted to ONNX: output '.*' differs"
            ),
        ):
            export_split(self.model, self.root / "wrong", onnx=True)
        self.assertEqual(tf.get_logger().level, level)

    def test_published_as_onnx(self):
        if importlib.util.find_spec("tf2onnx") is None:
            self.skipTest("tf2onnx is not installed.")
        model = small.compiled(small.functional(small.table("adagrad")))
        features, labels = small.batch(self.rng)
        points, store = self.directory(), self.directory()
        sink = DirectorySink(store)
        publisher = publish(model, points, sink, every=None, onnx=True)
        with publisher:
            callback = tf_ext.callbacks.TableSnapshot(points, incremental=True)
            for epoch in range(1, 3):
                model.fit(
                    *(features, labels),
                    **{"epochs": epoch, "initial_epoch": epoch - 1},
                    **{"verbose": 0, "callbacks": [callback]},
                )
                publisher.update()
                with Lookup(sink, dense="onnx", every=None) as lookup:
                    self.assertEqual(lookup.version, epoch)
                    [found] = lookup.predict(features).values()
                wanted = model.predict(features, verbose=0)
                self.assertAllClose(found, wanted, rtol=0, atol=1e-6)
        # Of other versions, before they are loaded.
        with self.assertRaisesRegex(SinkError, "has no ONNX model: write it"):
            Lookup(self.folder, dense="onnx")

    def check_predictions(self, lookup):
        for size, ids in ((24, 30), (7, 9), (1, 100)):
            features = models.batch(self.rng, size, ids)
            wanted = self.model(models.tensors(features), training=False)
            found = lookup.predict(features)
            self.assertCountEqual(found, wanted)
            for name, one in wanted.items():
                self.assertAllClose(found[name], one, rtol=1e-5, atol=2e-5)

    def test_features_of_all_forms(self):
        features = models.batch(self.rng)
        lengths = [len(bag) for bag in features["tags"]]
        tags = [tag for bag in features["tags"] for tag in bag]
        splits = np.concatenate([[0], np.cumsum(lengths)])
        objects = np.empty(len(lengths), object)
        objects[:] = features["heat"]
        users = [str(user) for user in features["user"]]
        others = {
            "user": users,
            "tags": Ragged([tag.encode() for tag in tags], splits),
            "heat": objects,
            "item": features["item"].astype(np.int32).tolist(),
            "raw": features["raw"].view(np.uint64)[:, np.newaxis],
            "past": features["past"].astype(np.int16),
            "item_of_past": features["item_of_past"].astype(str),
            "half": features["half"].astype(np.float64),
            "age": features["age"][:, np.newaxis],
            "unknown": [3],
        }
        with Lookup(self.folder) as lookup:
            wanted = lookup.embed(features)
            found = lookup.embed(features | others)
            for name, one in wanted.items():
                self.assertAllEqual(found[name], one)

    def test_features_that_are_refused(self):
        features = models.batch(self.rng, 3)
        cases = [
            ({"age": None}, "The feature 'age' of column 'age' is missing"),
            ({"heat": None}, "The feature 'heat' of column 'tags' is missing"),
            ({"user": 5}, "'user' must have a batch dimension"),
            ({"user": [1.5, 2.0, 3.0]}, "'user' has floats, which cannot be"),
            ({"user": ["a"]}, "but that of 'user' is 1 and that of 'age' is 3"),
            ({"user": [None, 1, 2]}, "'user' at position 0 must be str or by"),
            ({"user": [["a"], "b", "c"]}, "'user' must be an array or a list"),
            ({"user": np.zeros(3, complex)}, "but is of complex128"),
            ({"age": ["a", "b", "c"]}, "'age' is of strings, but column 'age'"),
            ({"raw": ["a", "b", "c"]}, "'raw' is of strings, .*identity"),
            ({"time": [1.5, 2.0, 3.0]}, "must be integers of at most int64"),
            ({"time": np.zeros([3, 2], int)}, "with one value for each sample"),
            (
                {"heat": features["seen"]},
                "'heat' .* must be floats, but are of",
            ),
            ({"heat": [[9.5]] * 2 + [[0.5] * 9]}, "have the same lengths"),
            (
                {"past": np.zeros([3, 4, 2], int)},
                "of shape .batch_size, length",
            ),
            ({"item_of_past": np.zeros([3, 3], int)}, "have the same lengths"),
            ({"tags": Ragged(["a"], [0, 1, 0, 1])}, "not decrease, and end"),
            ({"tags": Ragged(["a"], [0.0, 1.0])}, "row_splits .*be integers"),
        ]
        with Lookup(self.folder) as lookup:
            for change, message in cases:
                given = features | change
                given = {k: v for k, v in given.items() if v is not None}
                with self.assertRaisesRegex(ValueError, message, msg=change):
                    lookup.embed(given)
            with self.assertRaisesRegex(ValueError, "must be a dict of feat"):
                lookup.embed([1])
            with self.assertRaisesRegex(ValueError, "`dense` .* for `predict`"):
                lookup.predict(features)

    def test_damaged_manifests(self):
        path = pathlib.Path(self.folder, "assets.extra/manifest.json")
        manifest = json.loads(path.read_text())
        store = str(self.root / "store")
        self.load(store)
        sink = DirectorySink(store)
        written = sink.manifest(1)
        self.assertEqual(written["embeddings"], manifest["embeddings"])

        def change(*path, to):
            def apply(found):
                for key in path[:-1]:
                    found = found[key]
                found[path[-1]] = to

            return apply

        first = ("embeddings", 0)
        cases = [
            (change("kind", to="model"), "of format 1 and kind 'model'"),
            (change("tables", 0, "dim", to=2**40), "dim of deep.parquet"),
            (change("tables", 0, "dim", to="4"), "dim of deep.parquet"),
            (change("tables", 0, "dtype", to="int4"), "rows is 'int4'"),
            (change("tables", 0, "config", to="dim=4"), "is damaged"),
            (change("embeddings", to=None), "is damaged"),
            (change(*first, "file", to="none"), "KeyError.'none'"),
            (change(*first, "features", to={}), "'user' reads 'user'"),
            (change(*first, "kind", to="First"), "'user' cannot be computed"),
            (change(*first, "config", "new", to=1), "CategoryColumn with new"),
            (change(*first, "config", "key", to=""), "'' is not a text"),
            (
                change(*first, "config", "bucket_size", to=-1),
                "-1 is not a size",
            ),
            (change(*first, "config", "combiner", to="min"), "is 'min'"),
            (change(*first, "features", "user", to=None), "model computes"),
        ]
        for apply, message in cases:
            damaged = json.loads(json.dumps(written))
            apply(damaged)
            sink.manifest = lambda version, found=damaged: found
            with self.assertRaisesRegex(SinkError, message):
                Lookup(sink, every=None)

    def test_arguments(self):
        for arguments, message in (
            ({"store": 5}, "`store` .*Sink, or the folder"),
            ({"dense": "torch"}, "`dense` .*'onnx', 'tensorflow'"),
            ({"every": 0}, "`every` .*positive"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                Lookup(**({"store": self.folder} | arguments))
        with self.assertRaisesRegex(FileNotFoundError, "no version of an exp"):
            Lookup(self.root)
        with self.assertRaisesRegex(SinkError, "There is no version yet"):
            Lookup(DirectorySink(self.root))

    def test_a_process_without_tensorflow(self):
        features = models.batch(self.rng)
        given = self.root / "features.json"
        given.write_text(
            json.dumps(
                {
                    name: one.tolist() if hasattr(one, "tolist") else one
                    for name, one in features.items()
                }
            )
        )
        out = self.root / "out.npz"
        program = (
            "import json, pathlib, sys\n"
            "import numpy as np, tf_ext\n"
            "folder, given, out = sys.argv[1:]\n"
            "with tf_ext.serving.Lookup(folder) as lookup:\n"
            "    given = json.loads(pathlib.Path(given).read_text())\n"
            "    np.savez(out, **lookup.embed(given))\n"
            "assert not {'tensorflow', 'keras', 'tf_keras'} & {*sys.modules}\n"
        )
        subprocess.run(
            [sys.executable, "-c", program, self.folder, given, out],
            check=True,
            cwd=ROOT,
        )
        with Lookup(self.folder) as lookup, np.load(out) as found:
            for name, one in lookup.embed(features).items():
                self.assertAllEqual(found[name], one)


if __name__ == "__main__":
    absltest.main()
