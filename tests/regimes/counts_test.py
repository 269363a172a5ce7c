# SPDX-License-Identifier: Apache-2.0
"""How often signs occur, as it comes to the push, against a count in NumPy."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import counted_rows
from models.model_building import generator, id_column, mirrored_strategy

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "FitTest::test_counts_and_evaluation_does_not",
        "GraphTest::test_a_table_without_has_no_op_of_them",
        "LoopTest::test_counts7",
        "OptimizerTest::test_a_skipped_step_counts_nothing0",
        "SlicesTest::test_*",
    ),
]

_STEPS = 3
_NAMES = ["show", "click"]


def _loop(model, optimizer, mode, rescale=None):
    """A function that trains a batch, traced where `mode` says."""
    inner = tf.function if mode in ("nested", "forward") else lambda f: f
    outer = tf.function if mode in ("traced", "nested") else lambda f: f

    @inner
    def forward(features):
        return tf.reduce_sum(model(features, training=True) ** 2)

    @outer
    def train(features):
        with tf.GradientTape() as tape:
            loss = forward(features)
        gradients = tape.gradient(loss, model.trainable_variables)
        if rescale is not None:
            gradients = rescale(gradients)
        counted_rows.apply(optimizer, gradients, model.trainable_variables)
        return loss

    return train


class _Test(parameterized.TestCase, tf.test.TestCase):
    def check(self, table, counts):
        self.assertEqual(counted_rows.rows(table), counts.rows)
        # Signs repeat, so that the counts say something.
        self.assertGreater(max(show for show, _ in counts.rows.values()), 2)


class LoopTest(_Test):
    @parameterized.product(
        mode=["eager", "traced", "nested", "forward"], both=[False, True]
    )
    def test_counts(self, mode, both):
        rng, counts = generator(self), counted_rows.Counts()
        table = counted_rows.table("counted", _NAMES[: 1 + both])
        model = counted_rows.Model(table)
        if not both:
            # One pull alone, whose plan its push may use.
            model = tf_ext.layers.EmbeddingFeatures(
                counted_rows.columns(), table
            )
        train = _loop(model, tf_ext.optimizers.Optimizer("adam"), mode)
        for _ in range(_STEPS):
            features = counted_rows.batch(rng)
            if both:
                counts.add_model(features)
            else:
                counts.add_batch(features, clicked=False)
            train(features)
        self.check(table, counts)

    def test_users_change_gradients_before_they_apply_them(self):
        def rescale(gradients):
            clipped, _ = tf.clip_by_global_norm(gradients, 1e-3)
            return [tf.clip_by_norm(g, 1e-4) for g in clipped]

        rng, counts = generator(self), counted_rows.Counts()
        table = counted_rows.table()
        train = _loop(
            counted_rows.Model(table),
            tf_ext.optimizers.Optimizer("sgd"),
            "traced",
            rescale,
        )
        features = counted_rows.batch(rng)
        counts.add_model(features)
        train(features)
        self.check(table, counts)

    def test_several_tables_of_one_layer(self):
        rng, counts = generator(self), counted_rows.Counts()
        tables = [
            counted_rows.table("shows", _NAMES[:1]),
            counted_rows.table("one"),
            counted_rows.table("other"),
        ]
        layer = tf_ext.layers.EmbeddingFeatures(
            dict.fromkeys(tables, counted_rows.columns()), click="bought"
        )

        @tf.function
        def train(features):
            with tf.GradientTape() as tape:
                outputs = layer(features, training=True)
                loss = tf.add_n([tf.reduce_sum(v) for v in outputs.values()])
            gradients = tape.gradient(loss, layer.trainable_variables)
            counted_rows.apply(optimizer, gradients, layer.trainable_variables)

        optimizer = tf_ext.optimizers.Optimizer("sgd")
        features = counted_rows.batch(rng)
        counts.add_batch(features)
        train(features)
        for table in tables[1:]:
            self.check(table, counts)
        self.assertEqual(
            counted_rows.rows(tables[0]),
            {sign: (show, 0) for sign, (show, _) in counts.rows.items()},
        )

    def test_without_occurrences(self):
        empty = {
            "user": tf.zeros([0], tf.int64),
            "items": tf.RaggedTensor.from_row_lengths(
                tf.zeros([0], tf.int64), tf.zeros([0], tf.int64)
            ),
            "weights": tf.RaggedTensor.from_row_lengths(
                tf.zeros([0]), tf.zeros([0], tf.int64)
            ),
            "bought": tf.zeros([0]),
        }
        for mode in ("eager", "traced"):
            table = counted_rows.table()
            _loop(
                counted_rows.Model(table),
                tf_ext.optimizers.Optimizer("sgd"),
                mode,
            )(empty)
            self.assertEqual(counted_rows.rows(table), {})


class OptimizerTest(_Test):
    """What acts on gradients leaves the counts alone."""

    def _train(self, dense, steps=_STEPS, mode="traced", **options):
        rng, counts = generator(self), counted_rows.Counts()
        table = counted_rows.table()
        optimizer = tf_ext.optimizers.Optimizer(dense, **options)
        train = _loop(counted_rows.Model(table), optimizer, mode)
        for _ in range(steps):
            features = counted_rows.batch(rng)
            counts.add_model(features)
            train(features)
        return table, counts

    @parameterized.parameters("clipnorm", "clipvalue", "global_clipnorm")
    def test_clipping(self, clipping):
        dense = keras.optimizers.SGD(0.1, **{clipping: 1e-3})
        self.check(*self._train(dense))

    @parameterized.product(mode=["eager", "traced"])
    def test_accumulation(self, mode):
        if not IS_KERAS_3:
            self.skipTest("tf_keras does not accumulate.")
        dense = keras.optimizers.SGD(
            0.1,
            gradient_accumulation_steps=3,
            loss_scale_factor=8.0,
            global_clipnorm=1e-3,
        )
        table, counts = self._train(dense, steps=6, mode=mode)
        self.check(table, counts)

    def test_a_step_that_waits_has_counted_nothing(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras does not accumulate.")
        dense = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
        table, _ = self._train(dense, steps=2)
        self.assertEqual(counted_rows.rows(table), {})

    def test_loss_scaling(self):
        rng, counts = generator(self), counted_rows.Counts()
        table = counted_rows.table()
        model = counted_rows.Model(table)
        optimizer = counted_rows.scaled(
            keras.optimizers.SGD(0.1, clipnorm=1e-3)
        )

        @tf.function
        def train(features, factor):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(features, training=True))
                loss *= factor
            variables = model.trainable_variables
            gradients = counted_rows.scaled_gradients(
                tape, optimizer, loss, variables
            )
            counted_rows.apply(optimizer, gradients, variables)

        for factor in (1.0, np.inf, 1.0):
            features = counted_rows.batch(rng)
            if np.isfinite(factor):
                counts.add_model(features)
            train(features, tf.constant(factor))
        self.check(table, counts)

    @parameterized.parameters("eager", "traced")
    def test_a_skipped_step_counts_nothing(self, mode):
        rng, counts = generator(self), counted_rows.Counts()
        table = counted_rows.table()
        model = counted_rows.Model(table)
        optimizer = tf_ext.optimizers.Optimizer("sgd", on_nonfinite="skip")
        factor = tf.Variable(1.0)
        train = _loop(
            model,
            optimizer,
            mode,
            lambda grads: [
                tf.IndexedSlices(g.values * factor, g.indices)
                if isinstance(g, tf.IndexedSlices)
                else g * factor
                for g in grads
            ],
        )
        for value in (1.0, np.nan, 1.0):
            features = counted_rows.batch(rng)
            if value == 1.0:
                counts.add_model(features)
            factor.assign(value)
            train(features)
        self.check(table, counts)

    def test_rows_are_those_of_a_table_without_statistics(self):
        rng = generator(self)
        batches = [counted_rows.batch(rng) for _ in range(_STEPS)]
        found = []
        for width in (0, 2):
            table = tf_ext.SparseTable(
                "rows", 5, "adam", "normal", statistics=_NAMES[:width]
            )
            keras.utils.set_random_seed(1)
            model = counted_rows.Model(table)
            dense = keras.optimizers.SGD(0.1, global_clipnorm=0.5)
            train = _loop(model, tf_ext.optimizers.Optimizer(dense), "traced")
            for features in batches:
                train(features)
            signs, fields = table.export_rows()
            order = np.argsort(signs)
            found.append({k: v[order] for k, v in fields.items()})
            found[-1]["signs"] = signs[order]
        for name, one in found[0].items():
            np.testing.assert_array_equal(one, found[1][name], name)


class FitTest(_Test):
    def _data(self, rng, steps, counts):
        batches = [counted_rows.batch(rng) for _ in range(steps)]
        for features in batches:
            counts.add_model(features)
        labels = np.zeros([len(batches[0]["user"]), 1], np.float32)
        data = tf.data.Dataset.from_generator(
            lambda: ((features, labels) for features in batches),
            output_signature=(
                counted_rows.SPEC,
                tf.TensorSpec([None, 1]),
            ),
        )
        return data.apply(tf.data.experimental.assert_cardinality(steps))

    def test_counts_and_evaluation_does_not(self):
        rng, counts = generator(self), counted_rows.Counts()
        table = counted_rows.table()
        model = counted_rows.Model(table)
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        data = self._data(rng, _STEPS, counts)
        model.fit(data, verbose=0)
        model.evaluate(data, verbose=0)
        model.predict(data, verbose=0)
        model(counted_rows.batch(rng))
        model(counted_rows.batch(rng), training=True)
        table.pull([1, 2, 3])
        self.check(table, counts)


class MirroredTest(_Test):
    """Two replicas in one process."""

    @parameterized.parameters((False, "one"), (True, "one"), (False, "nested"))
    def test_counts(self, scaled, mode):
        strategy = mirrored_strategy()
        rng, counts = generator(self), counted_rows.Counts()
        with strategy.scope():
            table = counted_rows.table()
            model = counted_rows.Model(table)
            dense = keras.optimizers.SGD(0.1, global_clipnorm=1e-3)
            wrap = tf_ext.optimizers.Optimizer
            optimizer = counted_rows.scaled(dense) if scaled else wrap(dense)
            inner = tf.function if mode == "nested" else lambda f: f

            @inner
            def gradients(features):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(model(features, training=True))
                return tape.gradient(loss, model.trainable_variables)

            @tf.function
            def train(batches):
                def step(features):
                    counted_rows.apply(
                        optimizer,
                        gradients(features),
                        model.trainable_variables,
                    )

                strategy.run(step, args=(batches,))

            def share(context):
                return batches[context.replica_id_in_sync_group]

            for sizes in ((40, 3), (1, 7)):
                batches = [counted_rows.batch(rng, size) for size in sizes]
                for features in batches:
                    counts.add_model(features)
                train(
                    strategy.experimental_distribute_values_from_function(share)
                )
        self.check(table, counts)


class SlicesTest(_Test):
    """Gradients that no pull made, and pushes outside of Keras."""

    @parameterized.parameters("eager", "traced")
    def test_each_sign_of_own_slices_counts_once(self, mode):
        table = counted_rows.table()
        optimizer = tf_ext.optimizers.Optimizer("sgd")

        def step(signs):
            slices = tf.IndexedSlices(tf.ones([4, 3]), signs)
            counted_rows.apply(optimizer, [slices], [table.shadow])

        step = tf.function(step) if mode == "traced" else step
        step(tf.constant([5, 7, 5, 5], tf.int64))
        self.assertEqual(
            counted_rows.rows(table), {5: (3.0, 0.0), 7: (1.0, 0.0)}
        )

    @parameterized.parameters(1, 2)
    def test_of_a_push(self, width):
        table = counted_rows.table("counted", _NAMES[:width])
        signs, ones = [5, 7, 5], np.ones([3, 3])
        table.push(signs, ones)
        statistics = np.array([[4, 1.5], [0, 0], [2, 0.5]])[:, :width]
        table.push(signs, ones, statistics=statistics)
        click = 2.0 if width == 2 else 0.0
        self.assertEqual(
            counted_rows.rows(table), {5: (8.0, click), 7: (1.0, 0.0)}
        )

    @parameterized.parameters(
        (0, [[1.0]] * 2),
        (1, [[1.0, 1.0]] * 2),
        (2, [[1.0]] * 2),
        (1, [[1.0]] * 3),
        (1, [1.0, 1.0]),
    )
    def test_of_a_push_of_another_shape(self, width, statistics):
        table = counted_rows.table("counted", _NAMES[:width])
        with self.assertRaisesRegex(
            ValueError, "Argument `statistics` of SparseTable.push must be"
        ):
            table.push([1, 2], np.ones([2, 3]), statistics=statistics)
        self.assertEqual(table.size(), 0)

    @parameterized.parameters(-1.0, np.nan, np.inf)
    def test_of_a_push_out_of_range(self, bad):
        table = counted_rows.table("counted", _NAMES[:1])
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "finite and not negative"
        ):
            # Their sum by sign is in range.
            table.push([1, 1], np.ones([2, 3]), statistics=[[bad], [2.0]])
        self.assertEqual(table.size(), 0)


class GraphTest(tf.test.TestCase):
    """What statistics cost those who have none."""

    def _types(self, width):
        """The types of a step's operations, and its graph."""
        table = counted_rows.table("counted", _NAMES[:width])
        layer = tf_ext.layers.EmbeddingFeatures([id_column("user")], table)
        train = tf.function(
            _loop(layer, tf_ext.optimizers.Optimizer("sgd"), "eager")
        )
        train({"user": tf.constant([1, 2])})
        graph = train.get_concrete_function(
            {"user": tf.TensorSpec([2], tf.int32)}
        ).graph
        types = collections.Counter(o.type for o in graph.get_operations())
        return types, graph

    def test_a_table_without_has_no_op_of_them(self):
        types, graph = self._types(0)
        for name in ("Bitcast", "TfExt>SumSegments"):
            self.assertNotIn(name, types)
        [unique] = [
            o for o in graph.get_operations() if "UniqueByShard" in o.type
        ]
        self.assertEmpty(unique.outputs[1].consumers())
        [push] = [o for o in graph.get_operations() if "TablesPush" in o.type]
        self.assertIn([0, 0], [i.shape.as_list() for i in push.inputs])
        [route] = [o for o in graph.get_operations() if "Route" in o.type]
        self.assertIs(route.inputs[2], unique.outputs[0])
        self.assertGreater(self._types(1)[0].total(), types.total())


if __name__ == "__main__":
    tf.test.main()
