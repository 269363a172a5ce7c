# SPDX-License-Identifier: Apache-2.0
"""Models in two: rows in Parquet files, and a SavedModel of the rest."""

import json
import os
import pathlib
import sys
import unittest.mock

import numpy as np
import processes
import pytest
import tensorflow as tf
from absl.testing import absltest
from models import small_models as small
from pyarrow import parquet
from saving_util import TestCase

import tf_ext
from tf_ext import _core
from tf_ext._keras import keras
from tf_ext.serving import damaged_files, export_split, read_manifest, versions

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "SplitTest::test_names_the_step",
    ),
]

_SAMPLES = 24


def _ragged(bags, dtype):
    return tf.ragged.constant(bags, dtype, ragged_rank=1)


class _Kinds:
    """All kinds of columns, on two tables that are called alike."""

    def __init__(self):
        column = tf_ext.feature_column.category_column
        cross = tf_ext.feature_column.crossed_column
        self.user = user = column("user")
        self.age = age = column("age", boundaries=[18.0, 30.5, 65.0])
        tags = column("tags", combiner="sqrtn", weights="heat", missing="")
        item = column("item", combiner="max", bucket_size=7, missing=-1)
        raw = column("raw", hashing="identity")
        absent = column("absent", optional=True)
        by_age = cross(["tags", age], combiner="mean")
        hot = cross([tags, column("item", bucket_size=5)], bucket_size=11)
        self.deep = tf_ext.SparseTable("emb", 4, "adagrad", "normal", seed=3)
        self.wide = tf_ext.SparseTable(
            "emb", 1, "ftrl", tf_ext.initializers.Constant(0.25)
        )
        self.columns = {
            self.deep: [user, age, tags, item, raw, absent],
            self.wide: [user, by_age, hot],
        }

    @staticmethod
    def inputs():
        return {
            "user": keras.Input((), dtype="string", name="user"),
            "age": keras.Input((1,), dtype="float32", name="age"),
            "tags": keras.Input(
                (None,), dtype="string", ragged=True, name="tags"
            ),
            "heat": keras.Input(
                (None,), dtype="float32", ragged=True, name="heat"
            ),
            "item": keras.Input((2,), dtype="int64", name="item"),
            "raw": keras.Input((None,), dtype="int64", name="raw"),
            "price-EUR": keras.Input((2,), dtype="float32", name="price-EUR"),
        }

    @staticmethod
    def bags(rng, unseen=0):
        """A batch as lists; ids of `unseen` and more are new."""
        ids = rng.integers(0, 9, [_SAMPLES, 2]) + unseen
        counts = rng.integers(0, 4, _SAMPLES)
        ages = rng.uniform(0, 90, _SAMPLES).astype(np.float32).tolist()
        ages[3] = float("nan")
        words = np.array(["", "new", "red", "müde", "a\0b"])
        return {
            "user": [[f"u{n}"] for n in ids[:, 0]],
            "age": [[age] for age in ages],
            "tags": [rng.choice(words, n).tolist() for n in counts],
            "heat": [
                rng.uniform(0.5, 2, n).astype(np.float32).tolist()
                for n in counts
            ],
            "item": (rng.integers(-1, 4, [_SAMPLES, 2])).tolist(),
            "raw": (ids * (2**60 + 1) - 2**62).tolist(),
        }

    @staticmethod
    def batch(bags, rng):
        return {
            "user": tf.constant([user for [user] in bags["user"]]),
            "age": tf.constant(bags["age"]),
            "tags": _ragged(bags["tags"], tf.string),
            "heat": _ragged(bags["heat"], tf.float32),
            "item": tf.constant(bags["item"], tf.int64),
            "raw": tf.constant(bags["raw"], tf.int64),
            "price-EUR": tf.constant(rng.normal(size=[_SAMPLES, 2]), "float32"),
        }

    def layers(self):
        """What embeds: tables called alike are in layers of their own."""
        embed = tf_ext.layers.EmbeddingFeatures
        return [
            *(embed(columns, table) for table, columns in self.columns.items()),
            # Of columns that are embedded already, and of one that is not.
            embed(
                [self.user, self.age],
                self.wide,
                concatenate=False,
            ),
        ]


class _Rest:
    """What is behind the embeddings: it reads features, too."""

    def __init__(self):
        names = [f"u{n}" for n in range(5)]
        self._lookup = keras.layers.StringLookup(
            vocabulary=names, output_mode="one_hot"
        )
        self._join = keras.layers.Concatenate()
        self._norm = keras.layers.BatchNormalization()
        self._head = small.head()

    def __call__(self, embedded, inputs):
        deep, wide, apart = embedded
        flat = self._join(
            [
                *(deep, wide, *apart.values()),
                self._lookup(inputs["user"]),
                inputs["price-EUR"],
            ]
        )
        return {"score": self._head(self._norm(flat)), "price": wide}


def _functional(kinds):
    inputs = kinds.inputs()
    embedded = [layer(inputs) for layer in kinds.layers()]
    return tf_ext.Model(inputs, _Rest()(embedded, inputs))


class Subclassed(tf_ext.Model):
    def __init__(self, kinds):
        super().__init__()
        self.embed = kinds.layers()
        self.rest = _Rest()
        # Keras finds layers that are attributes.
        self.parts = list(vars(self.rest).values())

    def call(self, inputs, training=None):
        embedded = [layer(inputs, training=training) for layer in self.embed]
        return self.rest(embedded, inputs)


class SplitTest(TestCase):
    def setUp(self):
        super().setUp()
        self.path = pathlib.Path(self.directory())

    def _train(self, make, rng):
        kinds = _Kinds()
        model = make(kinds)
        # Rows are made by pulls in training; dense variables are random.
        for _ in range(2):
            batch = kinds.batch(kinds.bags(rng), rng)
            with tf.GradientTape() as tape:
                outputs = model(batch, training=True)
                loss = sum(tf.reduce_sum(one**2) for one in outputs.values())
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            tf_ext.optimizers.Optimizer("sgd").apply_gradients(
                [pair for pair in zip(gradients, variables)]
            )
        return kinds, model

    def test_names_the_step(self):
        model = small.compiled(small.functional(small.table("adagrad")))
        folder = export_split(model, self.path)
        self.assertEqual(read_manifest(folder)["step"], 0)
        features, labels = small.batch(np.random.default_rng(1))
        model.fit(features, labels, batch_size=len(labels) // 2, verbose=0)
        folder = export_split(model, self.path)
        self.assertEqual(read_manifest(folder)["step"], 2)

    def test_serves_as_the_model_in_other_processes(self):
        rng = np.random.default_rng(7)
        lookups, expected, others = [], [], []
        for make in (_functional, Subclassed):
            kinds, model = self._train(make, rng)
            bags = kinds.bags(rng, unseen=5)
            batch = kinds.batch(bags, rng)
            signature = {
                key: tf.type_spec_from_value(value)
                for key, value in batch.items()
            }
            version = export_split(
                model,
                self.path / make.__name__,
                signature=None if make is _functional else signature,
            )
            self.assertEmpty(damaged_files(version))
            lookups.append({"version": version, "batch": bags})
            outputs = model(batch, training=False)
            expected.append({k: v.numpy() for k, v in outputs.items()})
            others.append(
                {
                    one["input"]: batch[one["of_model"]].numpy()
                    for one in read_manifest(version)["inputs"]
                }
            )
            self.assertCountEqual(others[-1], ["user", "price_EUR"])
        embeddings = self._run("split_lookup_program.py", lookups)
        self.assertLen(embeddings, 2)
        dense = []
        for index, (case, other) in enumerate(zip(lookups, others)):
            inputs = self.path / f"inputs_{index}.npz"
            other["user"] = other["user"].astype("S")
            np.savez(inputs, **embeddings[index], **other)
            dense.append({"version": case["version"], "inputs": str(inputs)})
        for found, wanted in zip(
            self._run("split_dense_program.py", dense), expected, strict=True
        ):
            self.assertCountEqual(found, wanted)
            for name, value in wanted.items():
                np.testing.assert_allclose(
                    found[name], value, rtol=0, atol=1e-6, err_msg=name
                )

    def _run(self, program, cases):
        """What a program says of each case: a list of dicts of arrays."""
        plan, out = self.path / "plan", self.path / "out.npz"
        plan.write_text(json.dumps(cases))
        processes.run(program, plan, out)
        found = [{} for _ in cases]
        with np.load(out) as results:
            for key in results:
                index, _, name = key.partition("/")
                found[int(index)][name] = results[key]
        return found

    def test_inputs_and_files_are_what_the_columns_ask_for(self):
        kinds = _Kinds()
        model = _functional(kinds)
        rng = np.random.default_rng(1)
        batch = kinds.batch(kinds.bags(rng), rng)
        model(batch, training=False)
        kinds.wide.pull([1, 2], training=True)
        version = export_split(model, self.path)
        self.assertEqual(version, str(self.path / "1"))
        manifest = read_manifest(version)
        self.assertEqual(manifest["tf_ext_version"], tf_ext.__version__)
        self.assertEqual(manifest["outputs"], ["price", "score"])
        self.assertEqual(
            {
                one["of_model"]: (one["dtype"], one["shape"])
                for one in manifest["inputs"]
            },
            {"user": ("string", [None]), "price-EUR": ("float32", [None, 2])},
        )
        self.assertEqual(
            {
                e["input"]: (e["file"], e["shape"])
                for e in manifest["embeddings"]
            },
            {
                **{
                    f"emb__{name}": ("emb.parquet", [4])
                    for name in ("user", "age", "tags", "item", "raw", "absent")
                },
                # Of the other table that is called so.
                **{
                    f"emb__{name}": ("emb_2.parquet", [1])
                    for name in ("user_2", "tags_X_age", "tags_X_item", "age_2")
                },
            },
        )
        self.assertEqual(
            [(t["file"], t["rows"], t["dim"]) for t in manifest["tables"]],
            [("emb.parquet", 0, 4), ("emb_2.parquet", 2, 1)],
        )
        for about, read in zip(manifest["tables"], kinds.columns.values()):
            read = [*read, *([kinds.age] if read[1] is not kinds.age else [])]
            path = pathlib.Path(version, about["file"])
            self.assertEqual(about["bytes"], path.stat().st_size)
            found = parquet.read_schema(path).metadata
            self.assertEqual(found[b"tf_ext.table"], b"emb")
            # Not how it was trained: any rule's rows may replace these.
            self.assertIn(b"optimizer=none", found[b"tf_ext.config"])
            covered = sorted(
                line
                for line in (
                    f"{key.decode()}={value.decode()}".removeprefix("tf_ext.")
                    for key, value in found.items()
                    if key.startswith(b"tf_ext.")
                )
                if not line.startswith("schema_crc32c=")
            )
            self.assertEqual(
                about["schema_crc32c"],
                f"{_core.crc32c(chr(10).join(covered).encode()):08x}",
            )
            columns = {(one.name, one.hashing_identity) for one in read}
            self.assertEqual(
                json.loads(found[b"tf_ext.columns"]),
                sorted(map(list, columns)),
            )
            for key in ("schema_crc32c", "config"):
                self.assertEqual(
                    found[f"tf_ext.{key}".encode()].decode(), about[key]
                )
        self.assertLen({t["schema_crc32c"] for t in manifest["tables"]}, 2)

    def test_names_that_differ_in_case_or_begin_with_digits(self):
        tables = [small.table("sgd", name=name) for name in ("deep", "Deep")]
        inputs = {
            "id": keras.Input((1,), dtype="int64", name="id"),
            "2nd": keras.Input((4,), dtype="float32", name="2nd"),
        }
        column = tf_ext.feature_column.category_column("id")
        towers = [
            tf_ext.layers.EmbeddingFeatures([column], table)(inputs)
            for table in tables
        ]
        outputs = keras.layers.Add()([*towers, inputs["2nd"]])
        version = export_split(
            tf_ext.Model(inputs, outputs), self.path, version=4
        )
        self.assertEqual(version, str(self.path / "4"))
        manifest = read_manifest(version)
        self.assertEqual(
            [(one["input"], one["file"]) for one in manifest["embeddings"]],
            [("deep__id", "deep.parquet"), ("Deep__id_2", "Deep_2.parquet")],
        )
        [other] = manifest["inputs"]
        self.assertEqual(other["input"], "input_2nd")

    def test_a_layer_that_is_called_twice(self):
        table = small.table("sgd")
        layer = tf_ext.layers.EmbeddingFeatures(
            [tf_ext.feature_column.category_column("id")], table
        )
        inputs = {
            name: keras.Input((1,), dtype="int64", name=name)
            for name in ("here", "there")
        }
        towers = [layer({"id": one}) for one in inputs.values()]
        model = tf_ext.Model(inputs, keras.layers.Dot(1)(towers))
        version = export_split(model, self.path)
        self.assertEqual(
            [
                (one["input"], one["features"])
                for one in read_manifest(version)["embeddings"]
            ],
            [("deep__id", {"id": "here"}), ("deep__id_2", {"id": "there"})],
        )
        serve = _dense(version)
        one, other = np.eye(4, dtype=np.float32)[:2], np.ones([2, 4], "float32")
        other[1] *= 3
        [found] = serve(deep__id=one, deep__id_2=other).values()
        self.assertAllEqual(found, [[1], [3]])

    def test_half_precision(self):
        keras.mixed_precision.set_global_policy("mixed_float16")
        self.addCleanup(keras.mixed_precision.set_global_policy, "float32")
        table = small.table("sgd")
        model = small.functional(table)
        features, _ = small.batch(np.random.default_rng(3), 8)
        batch = {key: tf.constant(value) for key, value in features.items()}
        serve = _dense(export_split(model, self.path))
        embedded = {
            f"deep__{name}": vectors
            for name, vectors in tf_ext.layers.EmbeddingFeatures(
                small.columns(), table, concatenate=False, dtype="float32"
            )(batch).items()
        }
        [found] = serve(**embedded).values()
        # Graphs round to half precision elsewhere than eager ops where the
        # processor has instructions for it.
        self.assertAllClose(found, model(batch), rtol=0, atol=1e-3)

    def test_what_cannot_be_split_is_refused(self):
        class Direct(small.Subclassed):
            def call(self, inputs, training=None):
                [table] = self.embed.tables
                return super().call(inputs) + table.pull(inputs["user"])

        class Python(small.Subclassed):
            def call(self, inputs, training=None):
                x = super().call(inputs)
                y = tf.numpy_function(np.negative, [x], tf.float32)
                return tf.ensure_shape(y, x.shape)

        class Traced(small.Subclassed):
            def call(self, inputs, training=None):
                return tf.function(super().call)(inputs)

        signature = {
            "user": tf.TensorSpec([None], tf.int64),
            "items": tf.TensorSpec([None, 2], tf.int64),
        }
        for model, message in (
            (
                Direct(small.table()),
                "the op TfExt>.* outside of its Embedd",
            ),
            (Python(small.table()), "runs Python"),
            (Traced(small.table()), "on table 'deep' is called inside of a tf"),
        ):
            with self.assertRaisesRegex(ValueError, "must be built: call it"):
                export_split(model, self.path, signature=signature)
            features, _ = small.batch(np.random.default_rng(1))
            model({key: tf.constant(one) for key, one in features.items()})
            with self.assertRaisesRegex(ValueError, message):
                export_split(model, self.path, signature=signature)
        with self.assertRaisesRegex(ValueError, "of several tables cannot"):
            export_split(
                _functional(_Kinds()), self.path, snapshots={"emb": "/none"}
            )
        model = small.functional(small.table())
        with self.assertRaisesRegex(ValueError, "`signature` must be a struct"):
            export_split(model, self.path, signature={"user": 3})
        with self.assertRaisesRegex(ValueError, "are deep; .*: 'wide'"):
            export_split(model, self.path, snapshots={"wide": "/none"})
        with self.assertRaisesRegex(FileNotFoundError, "There is no snapshot"):
            export_split(model, self.path, snapshots={"deep": "/none"})
        with self.assertRaisesRegex(
            ValueError, "`version` of tf_ext.serving.e"
        ):
            export_split(model, self.path, version=0)
        modules = {"pyarrow": None}
        with unittest.mock.patch.dict(sys.modules, modules):
            with self.assertRaisesRegex(ModuleNotFoundError, "not installed"):
                export_split(model, self.path)
        self.assertEmpty(os.listdir(self.path))
        inputs = keras.Input((1,))
        plain = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        with self.assertRaisesRegex(
            ValueError, "no EmbeddingFeatures was call"
        ):
            export_split(plain, self.path)

    def test_what_stopped_leaves_no_version(self):
        model = small.functional(small.table())
        with (
            unittest.mock.patch.object(
                os, "fsync", side_effect=OSError(28, "No space left on device")
            ),
            self.assertRaisesRegex(OSError, "No space left on device"),
        ):
            export_split(model, self.path)
        self.assertEmpty(versions(self.path))
        self.assertEmpty([p for p in os.listdir(self.path) if "expo" in p])


def _dense(version):
    loaded = tf.saved_model.load(f"{version}/dense")
    # Signatures do not keep what they belong to alive.
    serve = loaded.signatures["serving_default"]
    serve.owner = loaded
    return serve


if __name__ == "__main__":
    absltest.main()
