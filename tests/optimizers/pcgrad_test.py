# SPDX-License-Identifier: Apache-2.0
"""PCGrad against Algorithm 1 of its paper on dense vectors, in float64."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import generator, mirrored_strategy
from oracles.pcgrad_reference import projected_sum

from tf_ext.optimizers import pcgrad

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "DenseTest::test_a_seed_shuffles_the_others_in_each_step",
        "DenseTest::test_several_variables_are_one_vector[135]",
    ),
]


def _conflicting(rng, tasks, size):
    """Gradients that conflict: not all cosines are above 0."""
    gradients = rng.normal(size=(tasks, size)) * rng.uniform(0.1, 5, (tasks, 1))
    gradients[1] -= 0.9 * gradients[0]
    return gradients.astype(np.float32)


class Linear:
    """Tasks whose gradients of dense variables are given."""

    def __init__(self, gradients, shapes):
        self.shapes = shapes
        self.variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]
        sizes = [int(np.prod(shape)) for shape in shapes]
        self._parts = [
            np.split(gradient, np.cumsum(sizes)[:-1]) for gradient in gradients
        ]

    def losses(self):
        return [
            tf.add_n(
                [
                    tf.reduce_sum(variable * part.reshape(shape))
                    for variable, part, shape in zip(
                        self.variables, parts, self.shapes
                    )
                ]
            )
            for parts in self._parts
        ]

    def gradients(self, **options):
        with tf.GradientTape(persistent=True) as tape:
            losses = self.losses()
        return pcgrad(tape, losses, self.variables, **options)


class DenseTest(tf.test.TestCase, parameterized.TestCase):
    def assert_equals(self, found, expected):
        scale = np.abs(expected).max()
        self.assertAllClose(found, expected, 0.0, 1e-6 * scale)

    @parameterized.product(tasks=[2, 3, 5], traced=[False, True])
    def test_several_variables_are_one_vector(self, tasks, traced):
        rng = generator(self)
        gradients = _conflicting(rng, tasks, 45)
        linear = Linear(gradients, [(4, 5), (), (3, 8)])
        step = tf.function(linear.gradients) if traced else linear.gradients
        found = np.concatenate([np.ravel(one) for one in step()])
        expected = projected_sum(gradients)
        self.assertGreater(
            np.abs(expected - gradients.sum(0)).max(), 0.1, "no conflict"
        )
        self.assert_equals(found, expected)

    def test_tasks_without_conflict_are_summed(self):
        gradients = np.abs(_conflicting(generator(self), 3, 6))
        found = Linear(gradients, [(6,)]).gradients()[0]
        self.assert_equals(found, gradients.sum(0))

    def test_opposite_gradients_cancel(self):
        gradients = np.array([[1.0, 2.0], [-2.0, -4.0]], np.float32)
        found = Linear(gradients, [(2,)]).gradients()[0]
        self.assertAllClose(found, [0.0, 0.0], 0.0, 1e-6)

    def test_gradients_of_zero(self):
        gradients = np.array([[1.0, -2.0], [0.0, 0.0]], np.float32)
        found = Linear(gradients, [(2,)]).gradients()[0]
        self.assertAllEqual(found, [1.0, -2.0])

    def test_one_task_has_its_gradient(self):
        gradients = np.array([[1.0, -2.0]], np.float32)
        self.assertAllEqual(
            Linear(gradients, [(2,)]).gradients()[0], [1.0, -2.0]
        )

    def test_nan_reaches_the_optimizer(self):
        gradients = np.array([[1.0, 2.0], [-1.0, np.nan]], np.float32)
        self.assertAllEqual(
            np.isnan(Linear(gradients, [(2,)]).gradients()[0]), [True, True]
        )

    def test_towers_have_the_gradients_of_their_tasks(self):
        """They count neither in products nor in norms."""
        rng = generator(self)
        gradients = _conflicting(rng, 3, 8)
        own = rng.normal(size=(3, 4)).astype(np.float32) * 10
        linear = Linear(gradients, [(8,)])
        towers = [tf.Variable(tf.zeros([4])) for _ in own]
        unused = tf.Variable(1.0)
        with tf.GradientTape(persistent=True) as tape:
            losses = [
                loss + tf.reduce_sum(tower * values)
                for loss, tower, values in zip(linear.losses(), towers, own)
            ]
        variables = [towers[0], *linear.variables, *towers[1:], unused]
        found = pcgrad(tape, losses, variables)
        self.assert_equals(found[1], projected_sum(gradients))
        self.assertAllEqual([found[0], *found[2:4]], own)
        self.assertIsNone(found[4])

    def test_variables_that_some_tasks_share(self):
        gradients = _conflicting(generator(self), 3, 8)
        gradients[2, :4] = 0.0
        with tf.GradientTape(persistent=True) as tape:
            one, other = (tf.Variable(tf.zeros([4])) for _ in range(2))
            tape.watch([one, other])
            losses = [
                tf.reduce_sum(other * values[4:])
                + (tf.reduce_sum(one * values[:4]) if task < 2 else 0.0)
                for task, values in enumerate(gradients)
            ]
        found = pcgrad(tape, losses, [one, other])
        self.assert_equals(np.concatenate(found), projected_sum(gradients))

    def test_a_seed_shuffles_the_others_in_each_step(self):
        gradients = _conflicting(generator(self), 5, 7)
        linear = Linear(gradients, [(7,)])
        results = []
        for step in range(4):

            def order(task, others, step=step):
                return tf.random.experimental.stateless_shuffle(
                    others, [3, step * 5 + task]
                ).numpy()

            found = linear.gradients(seed=3, step=step)[0]
            self.assert_equals(found, projected_sum(gradients, order))
            self.assertAllEqual(found, linear.gradients(seed=3, step=step)[0])
            results.append(found)
        self.assertNotAllClose(results[0], results[1])
        self.assertNotAllClose(results[0], linear.gradients(seed=4, step=0)[0])
        traced = tf.function(
            lambda step: linear.gradients(seed=3, step=step)[0]
        )
        for step in range(2):
            self.assert_equals(
                traced(tf.constant(step, tf.int64)), results[step]
            )

    @parameterized.parameters(
        ("losses", [], {}),
        ("losses", 1.0, {}),
        ("seed", None, {"seed": 1.5, "step": 0}),
        ("step", None, {"seed": 1}),
        ("step", None, {"step": 1}),
    )
    def test_refuses(self, name, losses, options):
        variable = tf.Variable(1.0)
        with tf.GradientTape(persistent=True) as tape:
            mine = [variable * 2]
        with self.assertRaisesRegex(
            ValueError, f"Argument `{name}` of pcgrad must be"
        ):
            pcgrad(
                tape, mine if losses is None else losses, [variable], **options
            )

    def test_refuses_a_tape_of_one_pass(self):
        variable = tf.Variable(1.0)
        with tf.GradientTape() as tape:
            loss = variable * 2
        with self.assertRaisesRegex(
            ValueError, r"`tape` of pcgrad must be .*\(persistent=True\)"
        ):
            pcgrad(tape, [loss, loss], [variable])

    def test_refuses_strategies(self):
        for strategy in (
            tf.distribute.OneDeviceStrategy("CPU:0"),
            mirrored_strategy(),
        ):
            with strategy.scope():
                variable = tf.Variable(1.0)

            def step(variable=variable):
                with tf.GradientTape(persistent=True) as tape:
                    losses = [variable * 2, variable * -3]
                return pcgrad(tape, losses, [variable])

            with self.assertRaisesRegex(
                ValueError,
                "pcgrad must be called without a tf.distribute strategy.*"
                f"{type(strategy).__name__}, a replica or worker has only "
                "those of its own share",
            ):
                strategy.run(step)

    def test_slices_of_variables(self):
        """Keras Embeddings: rows that repeat, and one that is also dense."""
        rng = generator(self)
        ids = [np.array([0, 3, 0, 1]), np.array([3, 3, 2, 0])]
        values = rng.normal(size=(2, 4, 2)).astype(np.float32)
        values[1] -= values[0]
        for tied in (False, True):
            matrix = tf.Variable(tf.zeros([5, 2]))
            rows = rng.normal(size=(5, 2)).astype(np.float32)
            with tf.GradientTape(persistent=True) as tape:
                losses = [
                    tf.reduce_sum(tf.gather(matrix, i) * v)
                    for i, v in zip(ids, values)
                ]
                if tied:
                    losses[0] += tf.reduce_sum(matrix * rows)
            found = pcgrad(tape, losses, [matrix])[0]
            self.assertEqual(isinstance(found, tf.IndexedSlices), not tied)
            dense = np.zeros([2, 5, 2])
            for task in range(2):
                np.add.at(dense[task], ids[task], values[task])
            dense[0] += rows if tied else 0.0
            expected = projected_sum(dense.reshape(2, -1)).reshape(5, 2)
            self.assertAllClose(tf.convert_to_tensor(found), expected, 0, 3e-6)


if __name__ == "__main__":
    tf.test.main()
