# SPDX-License-Identifier: Apache-2.0
"""Updates that are beyond float32."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models as small
from models.sharded_tables import shards_on

import tf_ext
from tf_ext import optimizers
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ExtremeUpdatesTest::test_a_model_that_diverges_has_finite_rows",
    ),
]

_RULES = {
    "sgd": optimizers.SparseSGD(10.0),
    "momentum": optimizers.SparseSGD(10.0, momentum=0.9),
    "adagrad": optimizers.SparseAdagrad(10.0),
    "row_wise_adagrad": optimizers.SparseRowWiseAdagrad(10.0),
    "adam": optimizers.SparseAdam(10.0),
    "ftrl": optimizers.SparseFtrl(10.0),
    "rmsprop": optimizers.SparseRMSprop(10.0),
}
_MOMENTUM = optimizers.SparseSGD(1.0, momentum=0.5)


def _fields(table):
    signs, fields = table.export_rows()
    order = np.argsort(signs)
    return {name: values[order] for name, values in fields.items()}


class ExtremeUpdatesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        (f"{rule}_{shards}_shards", rule, shards)
        for rule in _RULES
        for shards in (1, 2)
    )
    def test_rows_stay_finite_and_are_counted(self, rule, shards):
        with shards_on(["/device:CPU:0"] * shards):
            table = tf_ext.SparseTable("items", 4, _RULES[rule], "normal")
        calm = tf_ext.SparseTable("items", 4, _RULES[rule], "normal")
        for step in range(1, 6):
            sign = 1 if step % 2 else -1
            gradients = np.full([3, 4], 3e38 * sign, np.float32)
            gradients[1:] = 0.1
            table.push([0, 1, 2], gradients, step=step)
            calm.push([1, 2], gradients[1:], step=step)
        self.assertGreater(table.stats()["saturated"], 0)
        self.assertEqual(calm.stats()["saturated"], 0)
        expected = _fields(calm)
        for name, values in _fields(table).items():
            self.assertTrue(np.isfinite(values.astype(np.float64)).all(), name)
            self.assertAllEqual(values[1:], expected[name])

    @parameterized.parameters("float32", "float16", "bfloat16")
    def test_weights_become_the_largest_number_and_come_back(self, dtype):
        table = tf_ext.SparseTable(
            "items", 2, _RULES["sgd"], "zeros", dtype=dtype
        )
        largest = float(tf.as_dtype(dtype).max)
        table.push([1], [[3e38, -3e38]], step=1)
        self.assertAllEqual(table.pull([1]), [[-largest, largest]])
        self.assertEqual(table.stats()["saturated"], 2)
        table.push([1], [[-largest, largest]], step=2, learning_rate=1.0)
        self.assertAllEqual(table.pull([1]), [[0, 0]])
        self.assertEqual(table.stats()["saturated"], 2)

    def test_weights_and_slots_of_all_rows_are_counted(self):
        table = tf_ext.SparseTable("items", 5, _MOMENTUM, "zeros")
        gradients = np.full([4, 5], 0.5, np.float32)
        gradients[0, 1:] = gradients[2, :2] = gradients[3] = 3e38
        for step in (1, 2):
            table.push([1, 2, 3, 4], gradients, step=step)
        # After the second step, of each such value its weight and its slot.
        largest = np.finfo(np.float32).max
        limited = sum(
            np.count_nonzero(np.abs(values) == largest)
            for values in _fields(table).values()
        )
        self.assertEqual(limited, 2 * 11)
        self.assertEqual(table.stats()["saturated"], limited)

    @parameterized.parameters("float16", "bfloat16")
    def test_values_of_any_width_are_counted(self, dtype):
        # Loops work on 16 values, on 8, and on single ones. Where `dim` is odd,
        # the slots are copied like weights, though they are of float32.
        largest = float(tf.as_dtype(dtype).max)
        for dim in (1, 7, 8, 15, 16, 17, 24, 33, 64):
            table = tf_ext.SparseTable(
                "items", dim, _MOMENTUM, "zeros", dtype=dtype
            )
            places = np.arange(3 * dim).reshape([3, dim])
            gradients = np.where(places % 5 == 0, -3.4e38, 0.5)
            table.push([1, 2, 3], gradients, step=1)
            wanted = np.where(places % 5 == 0, largest, -0.5)
            self.assertAllEqual(table.pull([1, 2, 3]), wanted)
            saturated = np.count_nonzero(places % 5 == 0)
            self.assertEqual(table.stats()["saturated"], saturated, dim)

    def test_a_model_that_diverges_has_finite_rows(self):
        table = tf_ext.SparseTable("deep", 4, optimizers.SparseSGD(3e38))
        model = small.functional(table)
        model.compile(
            tf_ext.optimizers.Optimizer(keras.optimizers.SGD(3e38)), "mse"
        )
        features, labels = small.batch(np.random.default_rng(0), 70)
        try:
            model.fit(features, labels, batch_size=32, epochs=3, verbose=0)
        except tf.errors.InvalidArgumentError as error:
            self.assertIn("gradients must be finite", str(error))
        weights = _fields(table)["weights"]
        self.assertNotEmpty(weights)
        self.assertTrue(np.isfinite(weights).all())


if __name__ == "__main__":
    tf.test.main()
