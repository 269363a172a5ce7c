# SPDX-License-Identifier: Apache-2.0
"""`layers.NegativeSampler`: distribution, exclusions, seeds, saving."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases import negative_cases
from models.model_building import generator, mirrored_strategy, number
from saving_util import TestCase

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.layers import NegativeSampler

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "NegativeSamplerTest::test_exclusions[035]",
        "NegativeSamplerTest::test_fit*",
        "NegativeSamplerTest::test_saved_with_a_model[235]",
        "NegativeSamplerTest::test_sequences_in_a_function1",
    ),
]

# The 99.9 % quantile of chi-squared with 39 degrees of freedom.
_CHI_SQUARED = 72.1


def _sampler(*arguments, ids=range(40), counts=None, **options):
    sampler = NegativeSampler(1000, *arguments, **options)
    sampler.index(ids, counts)
    return sampler


def _far(count=1):
    """Positives that are no items."""
    return tf.fill([count], tf.constant(-1, tf.int64))


class NegativeSamplerTest(TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.rng = generator(self)

    @parameterized.product(shared=[True, False], power=[0.0, 0.75, 1.0])
    def test_distribution(self, shared, power):
        counts = 1e3 / np.arange(1, 41) ** 1.2
        self.rng.shuffle(counts)
        sampler = _sampler(20_000, shared, power, counts=counts)
        ids, expected, mask = sampler(_far(2), training=True)
        self.assertAllEqual(mask, np.ones([2, 20_000], bool))
        found = np.bincount(np.ravel(ids), minlength=40)
        probability = counts**power / (counts**power).sum()
        wanted = probability * found.sum()
        self.assertLess(((found - wanted) ** 2 / wanted).sum(), _CHI_SQUARED)
        logs = np.log(20_000 * probability)[ids.numpy()]
        self.assertAllClose(expected, logs, 1e-5, 1e-5)

    @parameterized.parameters(1, 2, 5, 1000)
    def test_alias_table(self, size):
        for weights in (
            np.ones(size),
            self.rng.zipf(1.2, size).astype(np.float64),
            np.arange(size) == size - 1,
            self.rng.uniform(size=size) ** 20,
        ):
            sampler = _sampler(1, ids=range(size), counts=weights * 1.0)
            kept = sampler._stored.kept.numpy().astype(np.float64)
            kept = kept[:size]
            found = kept.copy()
            alias = sampler._stored.alias.numpy()[:size]
            # Even where rounding gives away what is kept in full.
            self.assertTrue((weights[alias] > 0).all())
            np.add.at(found, alias, 1 - kept)
            wanted = weights / weights.sum() * size
            # The shares are stored in float32.
            self.assertAllClose(found, wanted, 1e-5, 1e-6)

    @parameterized.product(dtype=["int32", "int64", "string"], ragged=[0, 1])
    def test_exclusions(self, dtype, ragged):
        ids = np.arange(100, 120).astype("S" if dtype == "string" else dtype)
        options = {"id_dtype": "string" if dtype == "string" else "int64"}
        rows = [ids[:3], ids[:0], ids[4:6]]
        if ragged:
            seen = tf.RaggedTensor.from_row_lengths(
                tf.constant(np.concatenate(rows)), [3, 0, 2]
            )
        else:
            fill = ["none"] if dtype == "string" else [-1]
            seen = tf.constant([[*row, *fill * 3][:3] for row in rows], dtype)
        positives = tf.constant(ids[[3, 0, 0]])
        allowed = [ids[4:], ids[1:], ids[[1, 2, 3, *range(6, 20)]]]
        own = _sampler(300, ids=ids, **options)
        found, _, mask = own(positives, seen, training=True)
        self.assertAllEqual(mask, np.ones([3, 300], bool))
        for row, one in zip(found.numpy(), allowed):
            self.assertCountEqual(set(row.tolist()), one.tolist())
        together = _sampler(300, True, ids=ids, **options)
        found, _, mask = together(positives, seen, training=True)
        self.assertEqual(found.shape, [300])
        for row, one in zip(mask.numpy(), allowed):
            self.assertAllEqual(row, np.isin(found.numpy(), one))

    def test_items_of_unsigned_ids(self):
        ids = np.array([5, 2**63 - 1], np.uint64)
        found, _, _ = _sampler(50, ids=ids)(_far())
        self.assertCountEqual(set(found.numpy().ravel()), ids.astype(np.int64))

    def test_nothing_left_is_masked(self):
        sampler = _sampler(4, ids=[1, 2])
        _, _, mask = sampler(tf.constant([1]), tf.constant([[2]]))
        self.assertAllEqual(mask, [[False] * 4])

    @parameterized.parameters(True, False)
    def test_sequences_in_a_function(self, shared):
        sampler = _sampler(3, shared, ids=range(6))
        signature = [
            tf.TensorSpec([None, None], tf.int32),
            tf.RaggedTensorSpec([None, None], tf.int64),
        ]
        draw = tf.function(
            lambda *args: sampler(*args, training=True),
            input_signature=signature,
        )
        for size in (5, 0):
            positives = tf.ones([size, 4], tf.int32)
            seen = tf.RaggedTensor.from_row_lengths(
                tf.tile(tf.constant([2, 3], tf.int64), [size]), [2] * size
            )
            ids, log_counts, mask = draw(positives, seen)
            self.assertEqual(mask.shape, [size, 4, 3])
            self.assertEqual(ids.shape, [3] if shared else [size, 4, 3])
            self.assertEqual(log_counts.shape, ids.shape)
            excluded = np.isin(ids.numpy(), [1, 2, 3])
            expected = np.broadcast_to(~excluded, mask.shape)
            self.assertAllEqual(mask, expected)
            self.assertTrue(shared or not excluded.any())

    def test_seeds_and_steps(self):
        def draw(sampler, training=True):
            return sampler(_far(), training=training)[0].numpy().tolist()

        first, same = _sampler(9, seed=5), _sampler(9, seed=5)
        drawn = [draw(first) for _ in range(3)]
        self.assertEqual([draw(same) for _ in range(3)], drawn)
        self.assertLen(set(map(str, drawn)), 3)
        self.assertNotEqual(draw(_sampler(9, seed=6)), drawn[0])
        # An evaluation does not change what comes next.
        self.assertEqual(draw(first, False), draw(first, None))
        self.assertEqual(draw(first), draw(same))
        first.index(range(50, 60))
        self.assertTrue(all(50 <= one < 60 for one in draw(first)[0]))

    @parameterized.parameters(False, True)
    def test_shapes_before_they_are_drawn(self, shared):
        if not IS_KERAS_3:
            self.skipTest("tf_keras does not ask layers for shapes.")
        sampler = _sampler(3, shared=shared)
        drawn = sampler(_far(5))
        for told, found in zip(
            sampler.compute_output_spec(tf.constant(_far(5))),
            drawn,
            strict=True,
        ):
            self.assertEqual(tuple(told.shape), tuple(found.shape))

    def test_hardest(self):
        ids = tf.constant([[7, 8, 9], [1, 2, 3]])
        scores = tf.constant([[0.1, 0.5, 0.3], [0.9, 0.1, 0.2]])
        mask = tf.constant([[True, False, True], [False, False, True]])
        sampler = _sampler(3)
        hard, left = sampler.hardest(ids, scores, 2, mask)
        self.assertAllEqual(hard, [[9, 7], [3, 1]])
        self.assertAllEqual(left, [[True, True], [True, False]])
        shared, left = sampler.hardest(ids[0], scores, 1)
        self.assertAllEqual(shared, [[8], [7]])
        self.assertAllEqual(left, [[True], [True]])
        ordered, _ = sampler.hardest(ids, scores, 3)
        self.assertAllEqual(ordered, [[8, 9, 7], [1, 3, 2]])
        wide = tf.tile(scores[:, tf.newaxis], [1, 4, 1])
        self.assertEqual(sampler.hardest(ids[0], wide, 2)[0].shape, [2, 4, 2])

    @parameterized.product(
        file=["keras", "weights", "checkpoint"], dtype=["int64", "string"]
    )
    def test_saved_with_a_model(self, file, dtype):
        ids = np.arange(30).astype("S" if dtype == "string" else dtype)

        def make():
            sampler = NegativeSampler(
                50, 20, True, 0.5, dtype, seed=3, name="negatives"
            )
            positives = keras.Input((), dtype=dtype)
            return tf_ext.Model(positives, sampler(positives)), sampler

        model, sampler = make()
        sampler.index(ids, np.tile(np.arange(5), 6))  # Has ties.
        asked = tf.constant(ids[:1])
        model(asked, training=True)
        if file == "keras":
            path = f"{self.directory()}/model.keras"
            model.save(path)
            other = keras.models.load_model(path)
        else:
            other, _ = make()
            if file == "weights":
                path = f"{self.directory()}/model.weights.h5"
                model.save_weights(path)
                other.load_weights(path)
            else:
                saved = tf.train.Checkpoint(model=model)
                path = saved.write(f"{self.directory()}/point")
                restored = tf.train.Checkpoint(model=other)
                restored.read(path).assert_consumed()
        [*_, copy] = other.layers
        self.assertEqual(copy.get_config(), sampler.get_config())
        self.assertEqual((copy.size, sampler.size), (30, 30))
        for _ in range(2):
            for one, wanted in zip(
                other(asked, training=True), model(asked, training=True)
            ):
                self.assertAllEqual(one, wanted)

    def test_files_of_other_types(self):
        model = tf_ext.Model(i := keras.Input((), dtype="int64"), _sampler()(i))
        path = f"{self.directory()}/model.weights.h5"
        model.save_weights(path)
        texts = NegativeSampler(9, id_dtype="string")
        other = tf_ext.Model(i := keras.Input((), dtype="string"), texts(i))
        message = "has ids of string, but the file has ids of int64"
        with self.assertRaisesRegex(ValueError, message):
            other.load_weights(path)

    @parameterized.parameters(
        (3, {"probability": [0.5, 0.5]}, "3 ids, but 2 probabilities"),
        (2, {}, "3 items, more than max_items=2"),
    )
    def test_files_that_do_not_fit(self, max_items, damage, message):
        sampler = NegativeSampler(3)
        sampler.build((None,))
        sampler.index([1, 2, 3], [1, 1, 1])
        stored = {}
        sampler.save_own_variables(stored)
        other = NegativeSampler(max_items)
        other.build((None,))
        with self.assertRaisesRegex(ValueError, message):
            other.load_own_variables(stored | damage)
        self.assertEqual(other.size, 0)

    @parameterized.parameters(("softmax", True), ("bpr", False))
    def test_fit(self, kind, shared):
        self.check_fit(kind, shared)

    def check_fit(self, kind, shared):
        strategy = tf.distribute.get_strategy()
        found = negative_cases.trained(strategy, kind, shared)
        self.assertLess(found["losses"][-1], 0.9 * found["losses"][0])
        self.assertLess(found["evaluated"], found["losses"][0])
        # Seven batches an epoch; evaluation counts no step.
        self.assertEqual(found["steps"], 4 * 7)

    @parameterized.parameters(
        ("softmax", False), ("bpr", True), ("cosine", True), ("cosine", False)
    )
    @pytest.mark.slow
    def test_fit_of_others(self, kind, shared):
        self.check_fit(kind, shared)

    @pytest.mark.slow
    def test_fit_goes_on_after_a_restart(self):
        strategy = tf.distribute.get_strategy()
        whole = negative_cases.trained(strategy, epochs=2)
        model = negative_cases.compiled(strategy, "softmax", True)
        model.fit(negative_cases.dataset(), verbose=0, shuffle=False)
        path = f"{self.directory()}/point"
        saved = tf.train.Checkpoint(model=model).write(path)
        other = negative_cases.compiled(strategy, "softmax", True)
        other.sampler.index([1])  # Replaced.
        tf.train.Checkpoint(model=other).read(saved)
        history = other.fit(negative_cases.dataset(), verbose=0, shuffle=False)
        self.assertAllClose(history.history["loss"], whole["losses"][1:], 1e-6)

    def test_replicas_draw_differently(self):
        drawn = negative_cases.draws(mirrored_strategy())
        self.assertLen({str(one) for step in drawn for one in step}, 6)

    def test_refused(self):
        for options, message in (
            ({"max_items": 0}, "`max_items` of Neg.* at least 1.*=0"),
            ({"num_negatives": 0}, "`num_negatives` of Neg.* at least 1.*=0"),
            ({"shared": 1}, "`shared` of Neg.* True or False"),
            ({"power": -0.5}, "`power` of Neg.* at least 0.*-0.5"),
            ({"id_dtype": "int32"}, "`id_dtype` .* 'int64' or 'string'"),
            ({"seed": 2**63}, "`seed` .* an integer of 64 bits"),
            ({"seed": -(2**63) - 1}, "`seed` .* an integer of 64 bits"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                NegativeSampler(**({"max_items": 9} | options))
        sampler = _sampler(3, True, ids=[1, 2])
        for arguments, message in (
            (([],), "`ids` of NegativeSampler.index .* at least one item"),
            ((range(1001),), "`ids` .* at most max_items=1000.*1001 ids"),
            (([1, 1],), "`ids` of NegativeSampler.index .* distinct"),
            ((["a"],), "`ids` of NegativeSampler.index .* integers"),
            (([1, 2], [1]), r"`counts` .* numbers of shape \(2,\)"),
            (([1, 2], [1, -1]), "`counts` .* at least 0.*-1.0 in place 1"),
            (([1, 2], [0, 0]), "`counts` .* above 0 for at least one item"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                sampler.index(*arguments)
        self.assertEqual(sampler.size, 2)
        one = tf.constant([1])
        for arguments, message in (
            ((tf.constant([1.0]),), r"`positives` .* int64 \[batch_size\] or"),
            ((tf.constant(1),), r"`positives` .* int64 \[batch_size\] or"),
            ((one, one), r"`exclusions` .* int64 \[batch_size, n\]"),
            ((one, tf.constant([["a"]])), "`exclusions` .*string"),
            ((one, tf.constant([[1], [2]])), "`exclusions` .* batch size"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                sampler(*arguments)
        scores = tf.ones([1, 3])
        for arguments, message in (
            ((one, scores, 0), "`k` of NegativeSampler.hardest .* at least 1"),
            ((one, scores, 4), "`k` .* at most num_negatives=3.*k=4"),
            ((one, one, 1), r"`scores` .* floats \[..., num_negatives\]"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                sampler.hardest(*arguments)

    def test_no_items(self):
        sampler = NegativeSampler(9, name="negatives")
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            "The NegativeSampler layer 'negatives' has no items yet. Call its",
        ):
            sampler(_far())
        self.assertEqual(sampler.size, 0)
        self.assertEqual(number(sampler.weights[0]), 0)
        self.assertEmpty(sampler.trainable_weights)


if __name__ == "__main__":
    tf.test.main()
