# SPDX-License-Identifier: Apache-2.0
"""`layers.BPR`, `CosineContrastive`, `SampledSoftmax`: formulas, gradients."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import generator

import tf_ext
from tf_ext._keras import keras
from tf_ext.layers import BPR, CosineContrastive, SampledSoftmax

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "PairLossesTest::test_formula_and_gradients1[01]",
        "PairLossesTest::test_formula_and_gradients[124578]",
    ),
]

_N, _DIM = 7, 4


def _mean(values, mask):
    count = tf.maximum(tf.reduce_sum(mask, -1), 1)
    return tf.reduce_sum(values * mask, -1) / count


def _scores(queries, positives, negatives):
    queries = queries[..., tf.newaxis, :]
    positive = tf.reduce_sum(queries[..., 0, :] * positives, -1)
    return positive, tf.reduce_sum(queries * negatives, -1)


def _bpr(queries, positives, negatives, mask, _):
    positive, negative = _scores(queries, positives, negatives)
    margins = positive[..., tf.newaxis] - negative
    return _mean(-tf.math.log(1 / (1 + tf.exp(-margins))), mask)


def _cosine(queries, positives, negatives, mask, _):
    vectors = (queries, positives, negatives)
    units = [v / tf.norm(v, axis=-1, keepdims=True) for v in vectors]
    positive, negative = _scores(*units)
    return 1 - positive + 9.0 * _mean(tf.maximum(negative - 0.1, 0), mask)


def _softmax(queries, positives, negatives, mask, log_counts):
    positive, negative = _scores(queries, positives, negatives)
    others = tf.reduce_sum(tf.exp(negative / 0.5 - log_counts) * mask, -1)
    chosen = tf.exp(positive / 0.5)
    return -tf.math.log(chosen / (chosen + others))


_LOSSES = {
    "bpr": (lambda: BPR(), _bpr),
    "cosine": (lambda: CosineContrastive(0.1, 9.0), _cosine),
    "softmax": (lambda: SampledSoftmax(0.5), _softmax),
}


class PairLossesTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.rng = generator(self)

    def inputs(self, shape, shared):
        """Vectors, and a mask that leaves nothing to one query."""
        of_negatives = [_N] if shared else [*shape, _N]
        mask = self.rng.uniform(size=[*shape, _N]) < 0.7
        mask[0] = False
        return {
            "queries": self.rng.normal(size=[*shape, _DIM]),
            "positives": self.rng.normal(size=[*shape, _DIM]),
            "negatives": self.rng.normal(size=[*of_negatives, _DIM]),
            "negatives_mask": mask,
        }

    @parameterized.product(
        name=list(_LOSSES), shape=[(5,), (3, 2)], shared=[True, False]
    )
    def test_formula_and_gradients(self, name, shape, shared):
        make, reference = _LOSSES[name]
        layer, given = make(), self.inputs(shape, shared)
        mask = given.pop("negatives_mask")
        log_counts = self.rng.normal(size=given["negatives"].shape[:-1])
        kept = self.rng.uniform(size=shape) < 0.8
        factors = self.rng.normal(size=shape)
        options = {"sample_mask": kept, "negatives_mask": mask}
        if name == "softmax":
            options["log_expected_counts"] = log_counts
        without = {**options, "negatives_mask": None}
        for counted, arguments in (
            (mask, options),
            (np.ones_like(mask), without),
        ):

            def results(function, dtype, factors=factors):
                vectors = [tf.constant(v, dtype) for v in given.values()]
                with tf.GradientTape() as tape:
                    tape.watch(vectors)
                    losses = function(*vectors)
                    weighted = losses * tf.constant(factors, dtype)
                return losses, *tape.gradient(weighted, vectors)

            def expected(*vectors, counted=counted):
                counted = tf.cast(counted, tf.float64)
                return reference(*vectors, counted, log_counts) * kept

            def found(*vectors, arguments=arguments):
                return layer(*vectors, **arguments)

            for one, wanted in zip(
                results(tf.function(found), tf.float32),
                results(expected, tf.float64),
                strict=True,
            ):
                self.assertEqual(one.dtype, tf.float32)
                self.assertAllClose(one, wanted, 1e-5, 1e-5)

    @parameterized.parameters(*_LOSSES)
    def test_arguments_that_are_no_tensors(self, name):
        given = self.inputs((5,), True)
        mask = given.pop("negatives_mask")
        layer = _LOSSES[name][0]()
        kept = np.arange(5) > 1
        wanted = layer(
            *(tf.constant(v, tf.float32) for v in given.values()),
            negatives_mask=tf.constant(mask),
            sample_mask=tf.constant(kept),
        )
        for convert in (np.float32, lambda v: np.float32(v).tolist()):
            found = layer(
                **{key: convert(value) for key, value in given.items()},
                negatives_mask=mask,
                sample_mask=kept,
            )
            self.assertAllClose(found, wanted)

    @parameterized.parameters(*_LOSSES)
    def test_no_samples(self, name):
        layer = _LOSSES[name][0]()
        empty = tf.zeros([0, _DIM])
        with tf.GradientTape() as tape:
            negatives = tf.ones([_N, _DIM])
            tape.watch(negatives)
            losses = tf.function(layer)(empty, empty, negatives)
        self.assertEqual(losses.shape, [0])
        gradient = tape.gradient(losses, negatives)
        self.assertAllEqual(gradient, np.zeros([_N, _DIM]))
        one, none = tf.ones([1, _DIM]), tf.zeros([0, _DIM])
        self.assertAllEqual(tf.math.is_finite(layer(one, one, none)), [True])

    @parameterized.parameters(*_LOSSES)
    def test_functional_model(self, name):
        layer = _LOSSES[name][0]()
        inputs = [
            keras.Input((3, _DIM)),
            keras.Input((3, _DIM)),
            keras.Input((3, _N, _DIM)),
        ]
        model = tf_ext.Model(inputs, layer(*inputs))
        self.assertEqual(model.output_shape, (None, 3))
        given = self.inputs((4, 3), False)
        vectors = [
            tf.constant(given[k], tf.float32)
            for k in ("queries", "positives", "negatives")
        ]
        self.assertAllClose(model(vectors), layer(*vectors))
        copy = type(layer).from_config(layer.get_config())
        self.assertEqual(copy.get_config(), layer.get_config())

    def test_masks_of_keras_go_on(self):
        # Keras's means leave out what is masked.
        ids = tf.constant([[1, 2, 0], [3, 0, 0]])
        embedding = keras.layers.Embedding(5, _DIM, mask_zero=True)
        inputs = keras.Input((3,), dtype="int32")
        vectors = embedding(inputs)
        losses = BPR()(vectors, vectors, keras.layers.Dense(_DIM)(vectors)[0])
        model = tf_ext.Model(inputs, losses)
        model.compile(
            tf_ext.optimizers.Optimizer("sgd"),
            loss=lambda _, losses: losses,
        )
        outputs = model(ids)
        kept = tf.boolean_mask(outputs, ids > 0)
        found = model.evaluate(ids, tf.zeros([2, 3]), verbose=0)
        self.assertAllClose(found, tf.reduce_mean(kept), 1e-5)

    def test_refused(self):
        for make, message in (
            (lambda: CosineContrastive(1.0, 1), "`margin` .* less than 1.*1.0"),
            (lambda: CosineContrastive(0, 0), "`negative_weight` .* above 0"),
            (lambda: SampledSoftmax(0), "`temperature` .* above 0"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                make()
        two, three = tf.ones([2, _DIM]), tf.ones([3, _DIM])
        layer = SampledSoftmax()
        for options, message in (
            ({"queries": two[0]}, r"`queries` of Sam.* floats \[batch_size"),
            ({"queries": tf.ones([2, 4], tf.int32)}, "`queries` .* floats"),
            ({"positives": three}, "`positives` .* of the shape of queries"),
            ({"negatives": three[0]}, r"`negatives` .* \[n, 4\], or of the"),
            ({"negatives": three[:, 1:]}, r"`negatives` .* \[n, 4\], or of"),
            (
                {"negatives_mask": tf.ones([2, 2], tf.bool)},
                r"`negatives_mask` .* bools \(2, 3\)",
            ),
            ({"negatives_mask": tf.ones([2, 3])}, "`negatives_mask` .* bools"),
            (
                {"sample_mask": tf.ones([3], tf.bool)},
                r"`sample_mask` .* bools \(2,\)",
            ),
            (
                {"log_expected_counts": tf.ones([2])},
                r"`log_expected_counts` .* floats \(3,\)",
            ),
            ({"ids": tf.range(2)}, "`negative_ids` .* given with `ids`"),
            (
                {"ids": tf.range(3), "negative_ids": tf.range(3)},
                r"`ids` .* integers or strings \(2,\)",
            ),
            (
                {"ids": tf.range(2), "negative_ids": tf.range(2)},
                r"`negative_ids` .* of shape \(3,\)",
            ),
        ):
            given = {"queries": two, "positives": two, "negatives": three}
            with self.assertRaisesRegex(ValueError, message):
                layer(**(given | options))


if __name__ == "__main__":
    tf.test.main()
