# SPDX-License-Identifier: Apache-2.0
"""Several Python threads on the same tables."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import EDGE_SIGNS, generator, id_column, rows_of
from models.small_models import batch, compiled, functional, table

import tf_ext

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "TrainingTest::test_*",
    ),
]

_THREADS = 4
_SIGNS = np.concatenate([EDGE_SIGNS, np.arange(100, 600)])


def _run(*functions):
    """Runs functions at the same time; raises the first error of them."""
    errors = []
    start = threading.Barrier(len(functions))

    def run(function):
        start.wait()
        try:
            function()
        except BaseException as error:  # Raised again below.
            errors.append(error)

    threads = [threading.Thread(target=run, args=[f]) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _counting_table():
    """SGD at rate 1 from 0: a row is minus the sum of its gradients."""
    return tf_ext.SparseTable(
        "counts", 4, tf_ext.optimizers.SparseSGD(1.0), "zeros"
    )


class TableTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("eagerly", lambda f: f), ("in_a_function", tf.function)
    )
    def test_no_update_is_lost_or_torn(self, mode):
        counts, rng = _counting_table(), generator(self)
        push = mode(lambda s, g: counts.push(s, g))
        pull = mode(lambda s: counts.pull(s))
        pushes = [
            [tf.constant(rng.choice(_SIGNS, 200)) for _ in range(30)]
            for _ in range(_THREADS)
        ]

        def pusher(batches):
            def work():
                for signs in batches:
                    push(signs, tf.ones([200, 4]))

            return work

        def puller():
            for _ in range(60):
                rows = pull(tf.constant(_SIGNS)).numpy()
                self.assertAllEqual(rows, np.tile(rows[:, :1], 4))

        _run(*map(pusher, pushes), puller)
        signs, times = np.unique(np.concatenate(pushes), return_counts=True)
        self.assertAllEqual(
            counts.pull(signs), np.tile(-times[:, np.newaxis], 4)
        )
        self.assertEqual(counts.size(), len(signs))

    def test_one_row_for_a_sign_that_all_meet_first(self):
        expected = table().pull(_SIGNS)
        deep, found = table(), []

        def meet():
            found.append(deep.pull(_SIGNS, training=True).numpy())

        _run(*[meet] * 8)
        self.assertLen(found, 8)
        for rows in found:
            self.assertAllEqual(rows, expected)
        self.assertEqual(deep.size(), len(_SIGNS))

    def test_rows_that_stay_while_others_come_and_go(self):
        counts = _counting_table()
        steps = 40

        def stay():
            for _ in range(steps):
                counts.push(_SIGNS, np.ones([len(_SIGNS), 4]))

        def churn(thread):
            def work():
                for step in range(steps):
                    first = 10_000 * (1 + thread + step * _THREADS)
                    signs = np.arange(first, first + 1000)
                    counts.push(signs, np.ones([1000, 4]))
                    self.assertEqual(counts.erase(signs), 1000)

            return work

        def look():
            for _ in range(steps):
                self.assertGreaterEqual(counts.stats()["rows"], 0)
                signs, fields = counts.export_rows()
                rows = fields["weights"]
                self.assertLen(np.unique(signs), len(signs))
                self.assertAllEqual(rows, np.tile(rows[:, :1], 4))

        _run(stay, look, *map(churn, range(2)))
        self.assertEqual(counts.size(), len(_SIGNS))
        self.assertAllEqual(
            counts.pull(_SIGNS), np.full([len(_SIGNS), 4], -steps)
        )


class TrainingTest(tf.test.TestCase):
    def test_loops_that_share_a_table(self):
        counts = _counting_table()
        rng = generator(self)
        batches = rng.choice(_SIGNS, [_THREADS, 20, 64])

        def trainer(ids):
            column = id_column("ids")
            layer = tf_ext.layers.EmbeddingFeatures([column], counts)
            optimizer = tf_ext.optimizers.Optimizer("sgd")

            @tf.function
            def step(ids):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(layer({"ids": ids}, training=True))
                gradient = tape.gradient(loss, counts.shadow)
                optimizer.apply_gradients([(gradient, counts.shadow)])

            step(tf.constant([7]))  # Traced before the threads start.

            def work():
                for one in ids:
                    step(tf.constant(one))

            return work

        _run(*map(trainer, batches))
        signs, times = np.unique(batches, return_counts=True)
        self.assertAllEqual(
            counts.pull(signs), np.tile(-times[:, np.newaxis], 4)
        )
        self.assertAllEqual(counts.pull([7]), np.full([1, 4], -_THREADS))

    def test_predicting_while_fitting(self):
        features, labels = batch(generator(self))
        unseen = {k: tf.constant(v + 1000) for k, v in features.items()}
        alone, model = (compiled(functional(table())) for _ in range(2))
        call = tf.function(lambda inputs: model(inputs, training=False))
        done = threading.Event()
        predicted = []

        def fit(one):
            one.fit(
                features,
                labels,
                batch_size=16,
                epochs=15,
                shuffle=False,
                verbose=0,
            )

        def fit_then_stop():
            try:
                fit(model)
            finally:
                done.set()

        def predict():
            while not done.is_set():
                predicted.append(call(unseen).numpy())

        call(unseen)
        fit(alone)
        _run(fit_then_stop, predict, predict)
        self.assertNotEmpty(predicted)
        for probabilities in predicted:
            self.assertAllInRange(probabilities, 0.0, 1.0)
        # Nothing of what they asked for was made, and no update is missing.
        rows, expected = (rows_of(m.tables[0]) for m in (model, alone))
        self.assertCountEqual(rows, expected)
        for sign, row in rows.items():
            self.assertAllClose(row, expected[sign], rtol=1e-4, atol=1e-6)
        self.assertEqual(int(model.optimizer.iterations), 60)

    def test_models_that_fit_at_the_same_time(self):
        features, labels = batch(generator(self))
        models = [compiled(functional(table("adagrad"))) for _ in range(2)]

        def fitter(model):
            return lambda: model.fit(features, labels, verbose=0, shuffle=False)

        for model in models:
            fitter(model)()  # Keras traces one function at a time.
        _run(*map(fitter, models))
        first, second = (rows_of(model.tables[0]) for model in models)
        self.assertCountEqual(first, second)
        for sign, row in first.items():
            self.assertAllClose(row, second[sign], rtol=1e-4, atol=1e-6)


if __name__ == "__main__":
    tf.test.main()
