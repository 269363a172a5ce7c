# SPDX-License-Identifier: Apache-2.0
"""`layers.Retrieval`: what it finds, how its index changes, what is saved."""

import pathlib
import pickle
import tempfile
from unittest import mock

import numpy as np
import processes
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import generator, mirrored_strategy

import tf_ext
from tf_ext._keras import keras
from tf_ext.layers import Retrieval, top_k

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "IndexTest::test_before_the_first_index1",
        "IndexTest::test_changes_need_no_new_*",
        "IndexTest::test_index_from_dataset1",
        "IndexTest::test_refused_calls1",
        "SavingTest::test_under_a_mirrored_strategy",
        "SearchTest::test_any_size[234]",
        "SearchTest::test_equals_numpy_also_*",
        "SearchTest::test_exclusions1",
        "SearchTest::test_search_of_a_*",
    ),
]

_MANY = 100_000
_DIM = 16
_BOTH = ("int64", "string")


def _ids(rng, count, id_dtype="int64"):
    """Distinct ids above 2^53, which float64 cannot tell apart."""
    ids = 2**53 + 1 + rng.permutation(count).astype(np.int64)
    if id_dtype == "int64":
        return ids
    return np.array([b"i\0%d" % one for one in ids], object)


def _vectors(rng, count, dim=_DIM):
    """Small integers: all products are exact, and many are equal."""
    return rng.integers(-4, 5, (count, dim)).astype(np.float32)


def _best(queries, vectors, ids, k):
    """NumPy's top-k: the first of equal scores comes first."""
    scores = queries @ vectors.T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), ids[order]


def _model(layer):
    inputs = keras.Input((layer.dim,), name="query")
    return tf_ext.Model(inputs, layer(inputs))


class RetrievalTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.rng = generator(self)

    def assert_found(self, results, scores, ids):
        found_scores, found_ids = (np.asarray(one) for one in results)
        self.assertEqual(found_ids.dtype, ids.dtype)
        np.testing.assert_array_equal(found_scores, scores)
        np.testing.assert_array_equal(found_ids, ids)

    def filled(self, count, id_dtype="int64", **options):
        layer = Retrieval(_DIM, id_dtype=id_dtype, **options)
        ids = _ids(self.rng, count, id_dtype)
        vectors = _vectors(self.rng, count)
        layer.index(ids, vectors)
        return layer, ids, vectors


class SearchTest(RetrievalTest):
    @parameterized.parameters(*_BOTH)
    def test_equals_numpy_also_exported(self, id_dtype):
        layer, ids, vectors = self.filled(_MANY, id_dtype, k=50)
        queries = _vectors(self.rng, 20)
        scores, best = _best(queries, vectors, ids, 50)
        self.assert_found(layer(queries), scores, best)
        model = _model(layer)
        self.assert_found(model.predict(queries, verbose=0), scores, best)
        path = tf_ext.serving.export(
            model, tempfile.mkdtemp(dir=self.get_temp_dir())
        )
        case = {
            "path": path,
            "batch": queries,
            "named": {"query": queries},
            "expected": {"output_0": scores, "output_1": best},
            "atol": 0,
        }
        cases = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()), "cases")
        cases.write_bytes(pickle.dumps([case]))
        printed = processes.run("stock_load_program.py", cases)
        self.assertIn("1 cases are served", printed)

    @parameterized.product(k=[1, 30, 1200], block_size=[100, 5000])
    def test_any_size(self, k, block_size):
        layer = Retrieval(_DIM, k, block_size=block_size)
        call = tf.function(layer)
        for count in (0, 1, 31, 32, 33, 97, 1000, 7000):
            ids, vectors = _ids(self.rng, count), _vectors(self.rng, count)
            layer.index(ids, vectors)
            queries = _vectors(self.rng, 3)
            scores, best = _best(queries, vectors, ids, k)
            more = [[0, 0], [0, k - len(best[0])]]
            self.assert_found(
                call(tf.constant(queries)),
                np.pad(scores, more, constant_values=-np.inf),
                np.pad(best, more, constant_values=-1),
            )

    @mock.patch.object(top_k, "_LEAST_BLOCK", 64)
    @mock.patch.object(top_k, "_LEAST_SCORES", 1000)
    def test_blocks_of_the_default_size(self):
        layer, ids, vectors = self.filled(1500, k=1)
        call = tf.function(
            layer, input_signature=[tf.TensorSpec([None, _DIM], tf.float32)]
        )
        # Blocks of 992, 320 and 64 candidates.
        for count in (1, 3, 40, 0):
            queries = _vectors(self.rng, count)
            scores, best = _best(queries, vectors, ids, 1)
            self.assert_found(call(queries), scores, best)

    def test_no_query(self):
        for count in (0, 5, 100):
            layer, _, _ = self.filled(count)
            scores, ids = layer(np.zeros((0, _DIM), np.float32))
            self.assertEqual(scores.shape, [0, 10])
            self.assertEqual(ids.shape, [0, 10])

    @parameterized.product(id_dtype=_BOTH, traced=[False, True])
    def test_exclusions(self, id_dtype, traced):
        layer, ids, vectors = self.filled(300, id_dtype, k=20, block_size=64)
        queries = _vectors(self.rng, 4)
        _, best = _best(queries, vectors, ids, 300)
        # Of one query: some of the best, twice; none; an unknown id; all.
        unknown = b"?" if id_dtype == "string" else -1
        seen = [[*best[0, [0, 3, 3, 19]]], [], [unknown], [*ids]]
        left = [
            [one for one in row if one not in set(gone)][:20]
            for row, gone in zip(best, seen)
        ]
        missing = b"" if id_dtype == "string" else -1
        left[3] = [missing] * 20
        expected = np.array(left, object if id_dtype == "string" else None)
        ragged = tf.ragged.constant(seen, dtype=id_dtype)
        call = tf.function(layer) if traced else layer
        dense = ragged.to_tensor(unknown)
        for exclusions in (
            ragged,
            dense,
            dense.numpy(),
            dense.numpy().tolist(),
        ):
            scores, found = call(queries, exclusions=exclusions)
            np.testing.assert_array_equal(found, expected)
            self.assertAllEqual(tf.math.is_finite(scores)[:, 0], [1, 1, 1, 0])
            self.assertAllEqual(scores, tf.sort(scores, 1, "DESCENDING"))

    def test_exclusions_are_inputs_of_a_model(self):
        layer, ids, vectors = self.filled(100, k=3)
        inputs = {
            "query": keras.Input((_DIM,), name="query"),
            "seen": keras.Input((2,), dtype="int64", name="seen"),
        }
        found = layer(inputs["query"], exclusions=inputs["seen"])
        self.assertEqual([(*one.shape,) for one in found], [(None, 3)] * 2)
        model = tf_ext.Model(inputs, found)
        queries = _vectors(self.rng, 6)
        scores, best = _best(queries, vectors, ids, 5)
        self.assert_found(
            model.predict({"query": queries, "seen": best[:, :2]}, verbose=0),
            scores[:, 2:],
            best[:, 2:],
        )

    @parameterized.parameters(*_BOTH)
    def test_search_of_a_dataset(self, id_dtype):
        layer, _, _ = self.filled(5, id_dtype, k=30)
        ids, vectors = _ids(self.rng, 1000, id_dtype), _vectors(self.rng, 1000)
        dataset = tf.data.Dataset.from_tensor_slices((ids.tolist(), vectors))
        queries = _vectors(self.rng, 4)
        scores, best = _best(queries, vectors, ids, 32)
        for size in (70, 5000):
            batches = dataset.batch(size)
            found = layer.search(queries, batches)
            self.assert_found(found, scores[:, :30], best[:, :30])
            found = tf.function(
                lambda q, seen, b=batches: layer.search(q, b, seen)
            )(queries, tf.constant(best[:, :2]))
            self.assert_found(found, scores[:, 2:], best[:, 2:])
        scores, ids = layer.search(queries, dataset.take(0).batch(2), k=2)
        self.assertAllEqual(scores, np.full((4, 2), -np.inf))

    def test_queries_of_other_floats(self):
        layer, ids, vectors = self.filled(200)
        queries = _vectors(self.rng, 3)
        scores, best = _best(queries, vectors, ids, 10)
        for dtype in (tf.float16, tf.bfloat16, tf.float64):
            self.assert_found(layer(tf.cast(queries, dtype)), scores, best)


class IndexTest(RetrievalTest):
    @parameterized.parameters(*_BOTH)
    def test_changes_need_no_new_trace(self, id_dtype):
        layer, ids, vectors = self.filled(_MANY // 10, id_dtype)
        model = _model(layer)
        queries = _vectors(self.rng, 5)
        traces = []

        @tf.function(reduce_retracing=True)
        def call(batch):
            traces.append(batch)
            return model(batch)

        call(tf.constant(queries))
        model.predict(queries, verbose=0)
        predict = model.predict_function
        count = len(ids) // 10
        more = _ids(self.rng, len(ids) + count, id_dtype)
        # A tenth are new, and as many of the old ones are replaced.
        new = np.setdiff1d(more, ids)
        changed = np.concatenate([new, ids[5 : 5 + count]])
        added = _vectors(self.rng, len(changed)) * 3
        self.assertEqual(layer.add(changed, added), count)
        vectors[5 : 5 + count] = added[count:]
        ids = np.concatenate([ids, new])
        vectors = np.concatenate([vectors, added[:count]])
        self.assertEqual(layer.size, len(ids))
        self.assert_found(
            call(tf.constant(queries)), *_best(queries, vectors, ids, 10)
        )
        gone = self.rng.permutation(len(ids))[:700]
        layer.remove(ids[gone])
        ids, vectors = np.delete(ids, gone), np.delete(vectors, gone, 0)
        expected = _best(queries, vectors, ids, 10)
        self.assert_found(call(tf.constant(queries)), *expected)
        self.assert_found(model.predict(queries, verbose=0), *expected)
        self.assertLen(traces, 1)
        self.assertIs(model.predict_function, predict)
        self.assertEqual(predict.experimental_get_tracing_count(), 1)
        np.testing.assert_array_equal(layer.ids, ids)
        np.testing.assert_array_equal(layer.embeddings, vectors)

    def test_empty_again(self):
        for id_dtype in _BOTH:
            layer, ids, _ = self.filled(7, id_dtype)
            layer.remove(ids[:4])
            layer.remove(ids[4:])
            self.assertEqual(layer.size, 0)
            scores, _ = layer(_vectors(self.rng, 2))
            self.assertAllEqual(scores, np.full((2, 10), -np.inf))
            self.assertEqual(layer.add(ids, np.ones((7, _DIM))), 7)

    def test_ids_before_and_behind_all_others(self):
        layer, ids, _ = self.filled(5)
        new = np.array([ids.min() - 1, ids.max() + 1])
        self.assertEqual(layer.add(new, np.ones((2, _DIM))), 2)
        self.assertAllEqual(layer.ids, [*ids, *new])
        with self.assertRaisesRegex(ValueError, "not in the index"):
            layer.remove(new + [-1, 1])
        layer.remove(new)
        self.assertAllEqual(layer.ids, ids)

    @parameterized.parameters(*_BOTH)
    def test_before_the_first_index(self, id_dtype):
        layer = Retrieval(_DIM, id_dtype=id_dtype, name="finder")
        model = _model(layer)
        path = f"{tempfile.mkdtemp(dir=self.get_temp_dir())}/model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        queries = _vectors(self.rng, 2)
        self.assertEqual((layer.size, layer.ids.tolist()), (0, []))
        for call in (
            lambda: layer(queries),
            lambda: model(queries),
            lambda: model.predict(queries, verbose=0),
            lambda: loaded.predict(queries, verbose=0),
        ):
            with self.assertRaises(tf.errors.InvalidArgumentError) as caught:
                call()
            self.assertIn(
                "The Retrieval layer 'finder' has no candidates yet. Call its "
                "`index`",
                caught.exception.message,
            )
        with self.assertRaises(tf.errors.InvalidArgumentError) as caught:
            model.predict(queries, verbose=0)
        self.assertStartsWith(caught.exception.message, "The Retrieval layer")
        ids = _ids(self.rng, 1, id_dtype)
        self.assertEqual(layer.add(ids, np.ones((1, _DIM))), 1)
        _, found = model.predict(queries, verbose=0)
        self.assertEqual(found[:, 0].tolist(), [ids[0], ids[0]])
        # An index that has become empty finds nothing.
        layer.remove(ids)
        scores, _ = model.predict(queries, verbose=0)
        self.assertAllEqual(scores, np.full((2, 10), -np.inf))

    @parameterized.parameters(*_BOTH)
    def test_index_from_dataset(self, id_dtype):
        ids, vectors = _ids(self.rng, 100, id_dtype), _vectors(self.rng, 100)
        dataset = tf.data.Dataset.from_tensor_slices((ids.tolist(), vectors))
        other = Retrieval(_DIM, id_dtype=id_dtype)
        other.index_from_dataset(dataset.batch(30))
        np.testing.assert_array_equal(other.ids, ids)
        np.testing.assert_array_equal(other.embeddings, vectors)
        with self.assertRaisesRegex(ValueError, "must be distinct"):
            other.index_from_dataset(dataset.repeat(2).batch(30))
        with self.assertRaisesRegex(ValueError, "of pairs .ids, embeddings."):
            other.index_from_dataset(tf.data.Dataset.range(5).batch(2))
        self.assertEqual(other.size, 100)
        other.index_from_dataset(dataset.take(0).batch(2))
        self.assertEqual(other.size, 0)

    def test_index_from_table(self):
        table = tf_ext.SparseTable("items", _DIM, "sgd", "normal", seed=1)
        signs = tf.constant([5, -7, 2**60])
        rows = table.pull(signs, training=True)
        layer = Retrieval(_DIM)
        layer.index_from_table(table)
        self.assertCountEqual(layer.ids, signs.numpy())
        layer.index_from_table(table, signs[:2])
        self.assertAllEqual(layer.embeddings, rows[:2])
        text = tf_ext.feature_column.category_column("item", missing="")
        named = Retrieval(_DIM, id_dtype="string")
        named.index_from_table(table, ["tea", "milk"], text)
        embed = tf_ext.layers.EmbeddingFeatures([text], table)
        vectors = embed({"item": tf.constant(["tea", "milk"])})
        self.assertAllEqual(named.embeddings, vectors)
        small = tf_ext.SparseTable("small", 2)
        for arguments, message in (
            ((small,), "`table` of .* SparseTable of dim 16.*: table='dim 2'"),
            ((16,), "`table` of .* SparseTable of dim 16.*: table=16"),
            ((table,), "`ids` .* must be given with a column, or with id_dt"),
            ((table, ["a"]), "`column` .* must be given with id_dtype"),
            ((table, ["a"], "item"), "`column` .* must be a category_column"),
            ((table, ["a", ""], text), "`ids` .* must be other than ''"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                named.index_from_table(*arguments)

    def test_refusals_leave_the_index(self):
        layer, ids, vectors = self.filled(5)
        bad = vectors.copy()
        bad[3, 2] = np.nan
        huge = vectors.copy()
        huge[1] = 1e19  # Its square is no float32.
        for ids_given, given, message in (
            ([1, 1, 2, 3, 4], vectors, "`ids` .* distinct. Received: 1, more"),
            (ids[:4], vectors, r"`embeddings` .* of shape \(4, 16\)"),
            (ids, vectors[:, :3], r"`embeddings` .* of shape \(5, 16\)"),
            (ids, vectors.astype(int), "`embeddings` .* floats. .* int64"),
            (ids, bad, "`embeddings` .* finite, .* in row 3"),
            (ids, huge, "`embeddings` .* finite, .* in row 1"),
            (ids * 1.0, vectors, "`ids` .* integers .* array of float64"),
            (ids > 0, vectors, "`ids` .* integers .* array of bool"),
            (list("abcde"), vectors, "`ids` .* integers .* array of <U1"),
            (ids[:, None], vectors, r"`ids` .* of rank 1.* \(5, 1\)"),
            (ids.astype(np.uint64) + 2**63, vectors, "`ids` .* uint64"),
            (tf.ragged.constant([[1], [2]]), vectors, "`ids` .* dense"),
        ):
            for method in (layer.index, layer.add):
                with self.assertRaisesRegex(ValueError, message):
                    method(ids_given, given)
        with self.assertRaisesRegex(
            ValueError, "`ids` of Retrieval.remove .* Received: 3, not in the"
        ):
            layer.remove([ids[0], 3])
        np.testing.assert_array_equal(layer.ids, ids)
        np.testing.assert_array_equal(layer.embeddings, vectors)
        text = Retrieval(_DIM, id_dtype="string")
        for wrong in ([1, 2], [b"a", None], [1.5, 2.5]):
            with self.assertRaisesRegex(ValueError, "`ids` .* strings"):
                text.index(wrong, vectors[:2])
        with self.assertRaisesRegex(
            ValueError, "`ids` .* distinct.*: 'a\ufffd'"
        ):
            text.index([b"a\xff"] * 2, vectors[:2])

    def test_refused_arguments(self):
        for options, message in (
            ({"dim": 0}, "`dim` .* at least 1. Received: dim=0"),
            ({"k": 1.5}, "`k` .* at least 1. Received: k=1.5"),
            ({"block_size": 0}, "`block_size` .* at least 1"),
            ({"id_dtype": "int32"}, "`id_dtype` .* 'int64' or 'string'"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                Retrieval(**{"dim": 4, **options})

    @parameterized.parameters(False, True)
    def test_refused_calls(self, traced):
        layer, ids, _ = self.filled(5)
        call = tf.function(layer.call) if traced else layer.call
        queries = tf.ones([2, _DIM])
        for arguments, message in (
            ((queries[:, :3],), r"`queries` .* floats \[n, 16\]"),
            ((queries[0],), r"`queries` .* floats \[n, 16\]"),
            ((tf.cast(queries, tf.int32),), "`queries` .* floats .*int32"),
            ((queries, None, 0), "`k` .* at least 1"),
            ((queries, tf.constant([["a"]])), r"`exclusions` .* int64 \[bat"),
            ((queries, tf.constant(ids)), r"`exclusions` .* int64 \[bat"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                call(*arguments)
        for value in (np.nan, np.inf, 1e30):
            with self.assertRaisesRegex(
                tf.errors.InvalidArgumentError, "Queries of Retrieval must be"
            ):
                call(queries * value)
        pair = tf.data.Dataset.from_tensors(([1, 2], queries * np.nan))
        with self.assertRaisesRegex(ValueError, r"`dataset` .* ids \[n\] of"):
            layer.search(queries, pair)
        pair = pair.map(lambda ids, rows: (tf.cast(ids, tf.int64), rows))
        for wrong in (
            lambda ids, rows: (ids, rows[:, :3]),
            lambda ids, rows: (ids, tf.cast(rows, tf.int32)),
        ):
            with self.assertRaisesRegex(
                ValueError, r"`dataset` of Retrieval.search .* \[n, 16\]"
            ):
                layer.search(queries, pair.map(wrong))
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "Candidates of Retrieval.search"
        ):
            layer.search(queries, pair)


class SavingTest(RetrievalTest):
    @parameterized.product(id_dtype=_BOTH, count=[0, 40])
    def test_saved_with_the_model(self, id_dtype, count):
        layer, ids, vectors = self.filled(count, id_dtype)
        model = _model(layer)
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        model.save(f"{folder}/model.keras")
        model.save_weights(f"{folder}/model.weights.h5")
        saved = tf.train.Checkpoint(model).save(f"{folder}/checkpoint")

        def check(layer):
            self.assertEqual(layer.ids.tolist(), ids.tolist())
            self.assertAllEqual(layer.embeddings, vectors)

        [*_, loaded] = keras.models.load_model(f"{folder}/model.keras").layers
        self.assertEqual(loaded.get_config(), layer.get_config())
        check(loaded)
        layer.index(_ids(self.rng, 3, id_dtype), _vectors(self.rng, 3))
        model.load_weights(f"{folder}/model.weights.h5")
        check(layer)
        layer.index(_ids(self.rng, 3, id_dtype), _vectors(self.rng, 3))
        tf.train.Checkpoint(model).restore(saved).assert_consumed()
        check(layer)

    def test_ids_of_another_type_are_refused(self):
        path = f"{tempfile.mkdtemp(dir=self.get_temp_dir())}/model.weights.h5"
        for saved, mine in (_BOTH, _BOTH[::-1]):
            layer, _, _ = self.filled(4, saved)
            _model(layer).save_weights(path)
            model = _model(Retrieval(_DIM, id_dtype=mine))
            with self.assertRaisesRegex(
                ValueError, f"ids of {mine}, but the file has ids of {saved}"
            ):
                model.load_weights(path)

    def test_under_a_mirrored_strategy(self):
        with mirrored_strategy().scope():
            layer, ids, vectors = self.filled(100)
            model = _model(layer)
        layer.add([1], np.full((1, _DIM), 9.0))
        ids, vectors = np.append(ids, 1), np.append(vectors, [[9.0] * _DIM], 0)
        queries = _vectors(self.rng, 7)
        expected = _best(queries, vectors.astype(np.float32), ids, 10)
        self.assert_found(model.predict(queries, verbose=0), *expected)
        path = tf_ext.serving.export(
            model, tempfile.mkdtemp(dir=self.get_temp_dir())
        )
        loaded = tf.saved_model.load(path)
        self.assert_found(loaded.serve(tf.constant(queries)), *expected)


del RetrievalTest  # It has no tests.

if __name__ == "__main__":
    tf.test.main()
