# SPDX-License-Identifier: Apache-2.0
"""PCGrad over the rows of tables, against dense vectors of all rows."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import (
    EDGE_SIGNS,
    generator,
    id_column,
    number,
    rows_of,
)
from oracles.pcgrad_reference import projected_sum

import tf_ext
from tf_ext._keras import keras
from tf_ext.optimizers import pcgrad

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "TableTest::test_in_a_train_step1",
        "TableTest::test_tables_of_one_task",
        "TableTest::test_tasks_of_different_pulls_and_tables[23]",
        "TableTest::test_tasks_of_one_pull[23]",
    ),
]

_DIM = 3


class TableTest(tf.test.TestCase, parameterized.TestCase):
    """Tables' rows are part of the vector, and tables get the projection."""

    def setUp(self):
        super().setUp()
        self.rng = generator(self)

    def tables(self, **options):
        """Two tables whose rows become minus the gradient they are pushed."""
        rule = tf_ext.optimizers.SparseSGD(1.0)
        return [
            tf_ext.SparseTable(name, _DIM, rule, "zeros", **options)
            for name in ("one", "other")
        ]

    def features(self):
        """Ids that repeat within and over samples, some only of one feature."""
        ids = np.array([*EDGE_SIGNS, 1, 2, 3])
        return {
            "a": self.rng.choice(ids[:6], [7, 3]),
            "b": self.rng.choice(ids[3:], [7, 2]),
        }

    def run_step(self, layers_of_tasks, dense, targets, traced, features):
        """Trains one step of losses that are linear in layers' outputs."""
        layers = list(dict.fromkeys(itertools.chain(*layers_of_tasks)))
        variables = list(
            {
                id(v): v for layer in layers for v in layer.trainable_variables
            }.values()
        )
        optimizer = tf_ext.optimizers.Optimizer(keras.optimizers.SGD(1.0))
        optimizer.build([*variables, *dense])

        def losses():
            outputs = {id(one): one(features, training=True) for one in layers}
            return [
                tf.add_n(
                    [
                        tf.reduce_sum(outputs[id(one)] * target)
                        for one, target in zip(mine, targets[task])
                    ]
                )
                + sum(tf.reduce_sum(v * targets[task][-1]) for v in dense)
                for task, mine in enumerate(layers_of_tasks)
            ]

        def step():
            with tf.GradientTape(persistent=True) as tape:
                values = losses()
            trained = [*variables, *dense]
            gradients = pcgrad(tape, values, trained)
            optimizer.apply_gradients(zip(gradients, trained))

        (tf.function(step) if traced else step)()
        return optimizer

    def expected(self, layers_of_tasks, targets, features, size):
        """`({table: {sign: row}}, dense)` of one dense vector of all rows."""
        signs = sorted({int(s) for v in features.values() for s in v.ravel()})
        tables = list(
            dict.fromkeys(
                table
                for mine in layers_of_tasks
                for layer in mine
                for table in layer.tables
            )
        )
        gradients = np.zeros([len(targets), len(tables), len(signs), _DIM])
        for task, mine in enumerate(layers_of_tasks):
            for layer, target in zip(mine, targets[task]):
                keys = [column.name for column in layer.columns[0]]
                blocks = np.split(target, len(keys), 1)
                for key, block in zip(keys, blocks):
                    for sample, bag in enumerate(features[key]):
                        for sign in bag.tolist():
                            gradients[
                                task,
                                tables.index(layer.tables[0]),
                                signs.index(sign),
                            ] += block[sample]
        flat = np.concatenate(
            [
                gradients.reshape(len(targets), -1),
                np.array([np.broadcast_to(t[-1], size) for t in targets]),
            ],
            1,
        )
        found = -projected_sum(flat)
        self.assertGreater(
            np.abs(found + flat.sum(0)).max(), 0.1, "no conflict"
        )
        rows, dense = np.split(found, [gradients[0].size])
        rows = rows.reshape(gradients.shape[1:])
        return {
            table: dict(zip(signs, rows[index]))
            for index, table in enumerate(tables)
        }, dense

    def assert_rows(self, expected):
        scale = np.abs([list(rows.values()) for rows in expected.values()])
        for table, rows in expected.items():
            found = rows_of(table)
            self.assertNotEmpty(found)
            for sign, row in rows.items():
                if sign in found:
                    self.assertAllClose(found[sign], row, 0, 1e-6 * scale.max())
                else:
                    self.assertAllEqual(row, np.zeros(_DIM))

    def targets(self, tasks, widths):
        """For each task, one matrix a layer, and a number for the variable."""
        targets = [
            [self.rng.normal(size=(7, width)) for width in widths]
            + [float(self.rng.normal())]
            for _ in range(tasks)
        ]
        # Conflicts.
        targets[1] = [
            one - 0.8 * other for one, other in zip(targets[1], targets[0])
        ]
        return tf.nest.map_structure(np.float32, targets)

    @parameterized.product(
        traced=[False, True], statistics=[None, ["show", "click"]]
    )
    def test_tasks_of_one_pull(self, traced, statistics):
        options = {} if statistics is None else {"statistics": statistics}
        table, _ = self.tables(**options)
        layer = tf_ext.layers.EmbeddingFeatures(
            [id_column("a"), id_column("b")], table
        )
        features = self.features()
        tasks = [[layer]] * 3
        targets = self.targets(3, [2 * _DIM])
        dense = [tf.Variable(tf.zeros([2]))]
        self.run_step(tasks, dense, targets, traced, features)
        expected, variable = self.expected(tasks, targets, features, 2)
        self.assert_rows(expected)
        self.assertAllClose(dense[0], variable, 1e-6, 2e-6)
        self.assert_shows(table, features, statistics)

    @parameterized.product(
        traced=[False, True], statistics=[None, ["show", "click"]]
    )
    def test_tasks_of_different_pulls_and_tables(self, traced, statistics):
        """Tasks share layers, tables, and only some ids."""
        options = {} if statistics is None else {"statistics": statistics}
        one, other = self.tables(**options)
        layers = []
        for key, table in (("a", one), ("b", one), ("b", other)):
            layers.append(
                tf_ext.layers.EmbeddingFeatures([id_column(key)], table)
            )
        a, b, b_other = layers
        features = self.features()
        tasks = [[a, b], [b, b_other], [a, b_other]]
        targets = self.targets(3, [_DIM, _DIM])
        dense = [tf.Variable(tf.zeros([2]))]
        self.run_step(tasks, dense, targets, traced, features)
        expected, variable = self.expected(tasks, targets, features, 2)
        self.assert_rows(expected)
        self.assertAllClose(dense[0], variable, 1e-6, 2e-6)
        self.assert_shows(one, features, statistics)
        only_b = {"b": features["b"]}
        self.assert_shows(other, only_b, statistics)

    def assert_shows(self, table, features, statistics):
        """Each occurrence of an id counts once, whatever tasks there are."""
        if statistics is None:
            return
        signs = np.concatenate([v.ravel() for v in features.values()])
        for sign, [show] in rows_of(table, "show").items():
            self.assertEqual(show, np.sum(signs == sign), sign)

    def test_the_plan_of_one_pull_is_used_again(self):
        table, _ = self.tables(statistics=["show"])
        layer = tf_ext.layers.EmbeddingFeatures([id_column("a")], table)
        features = {"a": tf.constant([[1, 2], [2, 3]], tf.int64)}
        optimizer = tf_ext.optimizers.Optimizer("sgd")

        @tf.function
        def step():
            with tf.GradientTape(persistent=True) as tape:
                rows = layer(features, training=True)
                losses = [tf.reduce_sum(rows), -tf.reduce_sum(rows**2)]
            variables = layer.trainable_variables
            gradients = pcgrad(tape, losses, variables)
            optimizer.apply_gradients(zip(gradients, variables))

        optimizer.build(layer.trainable_variables)
        graph = step.get_concrete_function().graph
        kinds = [operation.type for operation in graph.get_operations()]
        self.assertEqual(kinds.count("TfExt>UniqueByShardEach"), 1)

    def test_tables_of_one_task(self):
        one, other = self.tables()
        layers = [
            tf_ext.layers.EmbeddingFeatures([id_column("a")], table)
            for table in (one, other)
        ]
        features = self.features()
        targets = self.targets(2, [_DIM])
        self.run_step([layers[:1], layers[1:]], [], targets, True, features)
        for table, (target, _) in zip((one, other), targets):
            sums = {}
            for bag, row in zip(features["a"], target):
                for sign in bag.tolist():
                    sums[sign] = sums.get(sign, 0) - row
            for sign, row in rows_of(table).items():
                self.assertAllClose(row, sums[sign], 1e-6, 1e-6)

    @parameterized.parameters(False, True)
    def test_in_a_train_step(self, seeded):
        table = tf_ext.SparseTable("users", 4, "adagrad", seed=1)

        class Two(tf_ext.Model):
            def __init__(self):
                super().__init__()
                self.features = tf_ext.layers.EmbeddingFeatures(
                    [id_column("user")], table
                )
                self.shared = keras.layers.Dense(4, "tanh")
                self.heads = [keras.layers.Dense(1) for _ in range(2)]

            def call(self, inputs, training=None):
                hidden = self.shared(self.features(inputs, training=training))
                return [head(hidden) for head in self.heads]

            def train_step(self, data):
                features, labels = data
                with tf.GradientTape(persistent=True) as tape:
                    outputs = self(features, training=True)
                    losses = [
                        tf.reduce_mean(tf.square(output - label))
                        for output, label in zip(outputs, labels)
                    ]
                variables = self.trainable_variables
                options = {}
                if seeded:
                    step = tf.convert_to_tensor(self.optimizer.iterations)
                    options = {"seed": 1, "step": step}
                gradients = pcgrad(tape, losses, variables, **options)
                self.optimizer.apply_gradients(zip(gradients, variables))
                return {"total": tf.add_n(losses)}

        model = Two()
        model.compile(tf_ext.optimizers.Optimizer(keras.optimizers.Adam(0.05)))
        users = np.arange(40) % 8
        labels = (users % 2, users // 4)
        labels = tuple(v[:, np.newaxis].astype(np.float32) for v in labels)
        data = tf.data.Dataset.from_tensor_slices(({"user": users}, labels))
        history = model.fit(data.batch(8), epochs=30, verbose=0).history
        self.assertLess(history["total"][-1], 0.1 * history["total"][0])
        self.assertEqual(table.size(), 8)
        self.assertEqual(number(model.optimizer.iterations), 150)


if __name__ == "__main__":
    tf.test.main()
