# SPDX-License-Identifier: Apache-2.0
"""The two numbers that EmbeddingFeatures makes of the statistics of ids."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import counted_rows
from models.model_building import generator, id_column, mirrored_strategy

import tf_ext
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "NumbersTest::test_of_bags[023]",
        "TrainingTest::test_fit_evaluate_*",
        "TrainingTest::test_rows_are_trained_as_without_them1",
        "TrainingTest::test_what_was_before_the_batch",
    ),
]

_DIM = 3


def _columns():
    """Weighted columns, and ones that an op of its own combines."""
    return [
        id_column("user"),
        id_column("summed", "sum", weights="weights"),
        id_column("mean", "mean", weights="weights"),
        id_column("max", "max"),
        id_column("weighted", "sqrtn", weights="weights"),
        id_column("sqrtn", "sqrtn"),
    ]


def _batch(rng):
    """Features of `_columns`, and of `counted_rows.columns`."""
    features = counted_rows.batch(rng)
    keys = ["summed", "mean", "max", "weighted", "sqrtn"]
    return features | dict.fromkeys(keys, features["items"])


def _filled(rng, signs):
    """A table with statistics of some signs."""
    table = counted_rows.table()
    show = rng.integers(0, 50, [len(signs), 1]).astype(np.float32)
    click = np.floor(show * rng.uniform(0, 1, show.shape)).astype(np.float32)
    weights = rng.normal(size=[len(signs), _DIM]).astype(np.float32)
    table.import_rows(signs, {"weights": weights, "show": show, "click": click})
    return table


def _pooled(values, weights, combiner):
    """A bag of values `[n, k]`, in float64."""
    values = np.asarray(values, np.float64)
    if len(values) == 0:
        return np.zeros(values.shape[1])
    if combiner == "max":
        return values.max(0)
    weights = np.ones(len(values)) if weights is None else np.array(weights)
    total = (values * weights[:, np.newaxis]).sum(0)
    if combiner == "mean":
        return total / weights.sum()
    return total / np.sqrt((weights**2).sum()) if combiner == "sqrtn" else total


def _expected(table, columns, features):
    """`{column: [batch, dim + 2]}`, computed with NumPy."""
    signs, fields = table.export_rows()
    stored = {
        sign: [fields["show"][i, 0], fields["click"][i, 0]]
        for i, sign in enumerate(signs.tolist())
    }
    rows_of = {column.name: [] for column in columns}
    for column in columns:
        key = column.parts[0].key
        bags = features[key]
        if key == "user":
            bags = [[sign] for sign in bags.numpy().tolist()]
        else:
            bags = bags.to_list()
        weights = [None] * len(bags)
        if column.is_weighted:
            weights = features["weights"].to_list()
        for bag, its_weights in zip(bags, weights, strict=True):
            rows = table.pull(np.array(bag, np.int64)).numpy()
            how = column.combiner
            row = _pooled(rows.reshape([-1, _DIM]), its_weights, how)
            counts = np.array([stored.get(s, [0, 0]) for s in bag])
            show, click = _pooled(counts.reshape([-1, 2]), None, how)
            logs = [np.log(show + 1), np.log(click + 1) - np.log(show + 1)]
            rows_of[column.name].append([*row, *logs])
    return {name: np.array(rows) for name, rows in rows_of.items()}


def _layer(table, columns=None, **kwargs):
    return tf_ext.layers.EmbeddingFeatures(
        columns or [id_column("user")], table, cvm=True, **kwargs
    )


class NumbersTest(parameterized.TestCase, tf.test.TestCase):
    def setUp(self):
        super().setUp()
        rng = generator(self)
        # Some ids of the batch have no row.
        self.table = _filled(rng, np.arange(-4, 6))
        self.features = _batch(rng)
        self.assertIn([], self.features["items"].to_list())

    @parameterized.product(concatenate=[True, False], traced=[True, False])
    def test_of_bags(self, concatenate, traced):
        columns = _columns()
        layer = _layer(self.table, columns, concatenate=concatenate)
        call = tf.function(layer.__call__) if traced else layer
        found = call(self.features)
        expected = _expected(self.table, columns, self.features)
        if concatenate:
            expected = np.concatenate(list(expected.values()), 1)
            self.assertAllClose(found, expected, rtol=1e-5, atol=1e-5)
            return
        self.assertEqual(found.keys(), expected.keys())
        for name, values in expected.items():
            self.assertAllClose(found[name], values, rtol=1e-5, atol=1e-5)

    @parameterized.parameters("sum", "mean", "sqrtn", "max")
    def test_of_a_bag_by_hand(self, combiner):
        counts = {"show": [[3.0], [8.0]], "click": [[2.0], [0.0]]}
        self.table.import_rows([101, 102], counts)
        column = id_column("items", combiner)
        [found] = _layer(self.table, [column])(
            {"items": tf.constant([[101, 102]])}
        ).numpy()[:, -2:]
        show, click = {
            "sum": (11, 2),
            "mean": (5.5, 1),
            "sqrtn": (11 / 2**0.5, 2**0.5),
            "max": (8, 2),
        }[combiner]
        wanted = [np.log(show + 1), np.log((click + 1) / (show + 1))]
        self.assertAllClose(found, wanted, rtol=1e-6, atol=1e-6)

    def test_the_embedding_is_that_without_them(self):
        columns = _columns()
        found = _layer(self.table, columns, concatenate=False)(self.features)
        plain = tf_ext.layers.EmbeddingFeatures(
            columns, self.table, concatenate=False
        )(self.features)
        for name, values in plain.items():
            self.assertAllEqual(found[name][:, :-2], values)

    def test_decay_changes_them(self):
        column = id_column("user")
        layer = _layer(self.table, [column])
        before = layer(self.features).numpy()
        self.table.decay_statistics(0.25)
        after = layer(self.features).numpy()
        expected = _expected(self.table, [column], self.features)["user"]
        self.assertAllClose(after, expected, rtol=1e-5, atol=1e-5)
        self.assertAllEqual(after[:, :_DIM], before[:, :_DIM])
        self.assertGreater(np.abs(after - before).max(), 0.5)

    def test_of_an_empty_batch(self):
        features = {"user": tf.zeros([0], tf.int64)}
        self.assertEqual(_layer(self.table)(features).shape, [0, _DIM + 2])

    def test_in_half_precision(self):
        expected = _layer(self.table)(self.features)
        half = _layer(self.table, dtype="mixed_float16")(self.features)
        self.assertEqual(half.dtype, tf.float16)
        self.assertAllClose(half, expected, rtol=1e-3, atol=1e-3)

    def test_on_replicas(self):
        strategy = mirrored_strategy()
        with strategy.scope():
            table = _filled(np.random.default_rng(2), np.arange(-4, 6))
            layer = _layer(table)
        features = {"user": self.features["user"]}
        call = tf.function(lambda batch: layer(batch, training=True))
        found = strategy.run(call, args=(features,))
        expected = _expected(table, [id_column("user")], features)["user"]
        for one in strategy.experimental_local_results(found):
            self.assertAllClose(one, expected, rtol=1e-5, atol=1e-5)

    def test_of_several_tables(self):
        other = counted_rows.table("other")
        columns = [id_column("user")]
        layer = tf_ext.layers.EmbeddingFeatures(
            {self.table: columns, other: columns}, cvm=True
        )
        found = layer(self.features)
        expected = _expected(self.table, columns, self.features)["user"]
        self.assertAllClose(found["counted"], expected, rtol=1e-5, atol=1e-5)
        self.assertAllEqual(found["other"][:, _DIM:], np.zeros([40, 2]))


class TrainingTest(parameterized.TestCase, tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.rng = generator(self)

    def _batches(self):
        return [counted_rows.batch(self.rng) for _ in range(3)]

    def test_what_was_before_the_batch(self):
        table = counted_rows.table()
        columns = counted_rows.columns()
        layer = _layer(table, columns, click="bought", concatenate=False)
        optimizer = tf_ext.optimizers.Optimizer("sgd")

        @tf.function(input_signature=[counted_rows.SPEC], autograph=False)
        def step(features):
            with tf.GradientTape() as tape:
                found = layer(features, training=True)
                loss = tf.add_n([tf.reduce_sum(v) for v in found.values()])
            gradients = tape.gradient(loss, layer.trainable_variables)
            counted_rows.apply(optimizer, gradients, layer.trainable_variables)
            return found

        counts = counted_rows.Counts()
        for index, features in enumerate(self._batches()):
            user = step(features)["user"].numpy()
            before = np.array(
                [counts.rows.get(s, (0, 0)) for s in features["user"].numpy()]
            )
            show, click = before[:, 0], before[:, 1]
            self.assertAllClose(user[:, _DIM], np.log(show + 1), 1e-5, 1e-5)
            ratio = np.log((click + 1) / (show + 1))
            self.assertAllClose(user[:, _DIM + 1], ratio, 1e-5, 1e-5)
            self.assertEqual(before.max() > 0, index > 0)
            counts.add_batch(features)
        self.assertEqual(counted_rows.rows(table), counts.rows)

    @parameterized.parameters(True, False)
    def test_rows_are_trained_as_without_them(self, eager):
        weights = []
        for cvm in (False, True):
            table = counted_rows.table()
            layer = tf_ext.layers.EmbeddingFeatures(
                counted_rows.columns(), table, cvm=cvm, concatenate=False
            )
            optimizer = tf_ext.optimizers.Optimizer("sgd")

            def step(features, layer=layer, optimizer=optimizer):
                with tf.GradientTape() as tape:
                    found = layer(features, training=True)
                    joined = tf.stack(list(found.values()))
                    loss = tf.reduce_sum(joined[..., :_DIM] ** 2)
                    # Their gradient must not reach the rows.
                    loss += tf.reduce_sum(joined[..., _DIM:])
                gradients = tape.gradient(loss, layer.trainable_variables)
                counted_rows.apply(
                    optimizer, gradients, layer.trainable_variables
                )

            call = step if eager else tf.function(step)
            self.rng = np.random.default_rng(3)
            for features in self._batches():
                call(features)
            signs, fields = table.export_rows()
            order = np.argsort(signs)
            weights.append(
                {name: value[order] for name, value in fields.items()}
            )
        self.assertGreater(np.abs(weights[0]["weights"]).max(), 0.01)
        for name, values in weights[0].items():
            self.assertAllEqual(weights[1][name], values)

    @parameterized.parameters("float32", "mixed_float16")
    def test_fit_evaluate_predict(self, dtype):
        table = counted_rows.table()
        columns = counted_rows.columns()[:2]
        features = self._batches()[0]
        model = _of_three_layers(table, columns, dtype)
        labels = tf.zeros([40, model.outputs[0].shape[1]])
        data = tf.data.Dataset.from_tensors((features, labels))
        model.fit(data, epochs=2, verbose=0)
        found = counted_rows.rows(table)
        self.assertEqual(found, _counts_of_two_epochs(features))
        expected = np.concatenate(
            list(_expected(table, columns, features).values()), 1
        )
        tolerance = 1e-5 if dtype == "float32" else 1e-2
        predicted = model.predict(data, verbose=0)
        width = expected.shape[1]
        for part in (predicted[:, :width], predicted[:, -width:]):
            self.assertAllClose(part, expected, tolerance, tolerance)
        loss = model.evaluate(data, verbose=0)
        wanted = np.mean(predicted.astype(np.float64) ** 2)
        self.assertAllClose(loss, wanted, 1e-2, 1e-3)
        self.assertEqual(counted_rows.rows(table), found)


def _of_three_layers(table, columns, dtype):
    """A model with, without and again with the numbers, the last frozen."""
    inputs = {"user": keras.Input((), dtype="int64", name="user")}
    for key, kind in (("items", "int64"), ("weights", "float32")):
        inputs[key] = keras.Input((None,), dtype=kind, ragged=True, name=key)
    inputs["bought"] = keras.Input((1,), name="bought")
    make = tf_ext.layers.EmbeddingFeatures
    layers = [
        make(columns, table, cvm=True, click="bought", dtype=dtype),
        make(columns, table, dtype=dtype),
        make(columns, table, cvm=True, trainable=False, dtype=dtype),
    ]
    outputs = [layer(inputs) for layer in layers]
    model = tf_ext.Model(inputs, keras.layers.Concatenate()(outputs))
    model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    return model


def _counts_of_two_epochs(features):
    """What the first two layers count, the first one with clicks."""
    counts = counted_rows.Counts()
    clicks = features["bought"].numpy()[:, 0].tolist() * 2
    users = features["user"].numpy().tolist() * 2
    bags = features["items"].to_list() * 2
    for user, bag, click in zip(users, bags, clicks, strict=True):
        signs = [user, *bag]
        counts.add(signs, [click] * len(signs))
        counts.add(signs)
    return counts.rows


class ArgumentTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters((None, "None"), (["show"], r"\['show'\]"))
    def test_tables_need_both_statistics(self, statistics, described):
        table = tf_ext.SparseTable("plain", _DIM, statistics=statistics)
        with self.assertRaisesRegex(
            ValueError,
            "Argument `cvm` of EmbeddingFeatures must be False unless all "
            r'tables have statistics=\["show", "click"\]. Received: cvm=True, '
            f"and table 'plain' with statistics={described}",
        ):
            _layer(table)

    def test_of_another_type(self):
        with self.assertRaisesRegex(
            ValueError,
            "Argument `cvm` of EmbeddingFeatures must be True or False. "
            "Received: cvm='yes'",
        ):
            tf_ext.layers.EmbeddingFeatures(
                [id_column("user")], counted_rows.table(), cvm="yes"
            )

    def test_columns_need_a_combiner(self):
        class Own(tf_ext.feature_column.Column):
            name, parts, combiner = "own", (id_column("user"),), None
            namespace = bucket_size = hashing_identity = None

        with self.assertRaisesRegex(
            ValueError, "`cvm` .* without a combiner.*column 'own'"
        ):
            _layer(counted_rows.table(), [Own()], concatenate=False)

    def test_is_in_the_config(self):
        layer = _layer(counted_rows.table())
        self.assertTrue(type(layer).from_config(layer.get_config()).cvm)
        older = layer.get_config()
        del older["cvm"]
        self.assertFalse(type(layer).from_config(older).cvm)

    def test_shapes(self):
        for concatenate in (True, False):
            layer = _layer(
                counted_rows.table(), _columns(), concatenate=concatenate
            )
            found = layer.compute_output_shape({"user": (7,)})
            wanted = {c.name: (7, _DIM + 2) for c in _columns()}
            if concatenate:
                wanted = (7, 6 * (_DIM + 2))
            self.assertEqual(found, wanted)

    def test_graphs_without_them_are_as_before(self):
        layer = tf_ext.layers.EmbeddingFeatures(
            _columns(), counted_rows.table()
        )
        spec = tf.nest.map_structure(
            tf.type_spec_from_value, _batch(generator(self))
        )
        call = tf.function(lambda features: layer(features, training=True))
        graph = call.get_concrete_function(spec).graph
        kinds = [op.type for op in graph.get_operations()]
        self.assertNotIn("Log1p", kinds)
        [pull] = [
            op
            for op in graph.get_operations()
            if op.type == "TfExt>SparseTablesPull"
        ]
        self.assertEqual(pull.get_attr("statistics"), [0])
        self.assertEqual(pull.outputs[0].shape[1], _DIM)


if __name__ == "__main__":
    tf.test.main()
