# SPDX-License-Identifier: Apache-2.0
"""The pass over a graph that writes bags into their concatenation."""

import collections

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from ops_util import RefusalTestCase
from tensorflow.python.eager import context

from tf_ext import ops

_BATCH = 5


def _bags(dim, combiners, weighted, seed):
    """The inputs of combine_bags."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 4, len(combiners) * _BATCH)
    n = sizes.sum()
    return {
        "rows": tf.constant(rng.normal(size=[7, dim]), tf.float32),
        "inverse": tf.constant(rng.integers(0, 7, n), tf.int32),
        "row_splits": tf.constant(np.cumsum([0, *sizes]), tf.int64),
        "weights": tf.constant(
            rng.uniform(1, 2, n if weighted else 0), tf.float32
        ),
        "combiners": combiners,
    }


_TABLES = (
    _bags(16, ["sum"], False, 1),
    _bags(3, ["mean", "sqrtn"], True, 2),
    _bags(1, ["max", "sum", "mean"], False, 3),
)


_SPLITS = [table["row_splits"] for table in _TABLES]


def _tables(splits):
    """_TABLES with other tensors of splits."""
    return [{**t, "row_splits": its} for t, its in zip(_TABLES, splits)]


def _run(function, *arguments):
    """What a function returns, and what it ran.

    Sizes of its arguments are not known when it is traced.
    """
    specs = tf.nest.map_structure(
        lambda tensor: tf.TensorSpec([None] * tensor.shape.rank, tensor.dtype),
        arguments,
    )
    traced = tf.function(function, input_signature=specs, autograph=False)
    context.context().enable_run_metadata()
    context.context().export_run_metadata()  # What ran before this.
    try:
        found = traced(*arguments)
        metadata = context.context().export_run_metadata()
    finally:
        context.context().disable_run_metadata()
    return found, _Ran(metadata)


class _Ran(collections.Counter):
    """How many nodes of each type of op ran."""

    def __init__(self, metadata):
        self._types, self._nodes = {}, []
        for graphs in metadata.function_graphs:
            for graph in graphs.partition_graphs:
                self._nodes.extend(graph.node)
        for node in self._nodes:
            self._types[node.name] = node.op.removeprefix("TfExt>")
        super().__init__(self._types.values())

    def waited(self, one, other):
        """Whether each node of one type waited for one of another type."""
        return all(
            other
            in [self._types[i[1:]] for i in node.input if i.startswith("^")]
            for node in self._nodes
            if self._types[node.name] == one
        )


class ConcatPassTest(parameterized.TestCase, tf.test.TestCase):
    def assert_same(self, found, expected):
        for one, other in zip(
            tf.nest.flatten(found), tf.nest.flatten(expected), strict=True
        ):
            self.assertEqual(one.shape, other.shape)
            self.assertEqual(one.numpy().tobytes(), other.numpy().tobytes())

    def assert_rewritten(self, ran, whole, apart=0):
        """How many concatenations of bags ran, and how many bags apart."""
        self.assertEqual(ran["CombineBagsConcat"], whole)
        self.assertEqual(ran["CombineBags"], apart)

    @parameterized.parameters(1, -1)
    def test_values_and_gradients(self, axis):
        scale = tf.random.normal([_BATCH, 100])

        def step(splits):
            tables = _tables(splits)
            with tf.GradientTape() as tape:
                values = [[t["rows"], t["weights"]] for t in tables]
                tape.watch(values)
                x = tf.concat([ops.combine_bags(**t) for t in tables], axis)
                loss = tf.reduce_sum(x * x * scale[:, : x.shape[1]])
            return x, tape.gradient(loss, values)

        found, ran = _run(step, _SPLITS)
        self.assert_same(found, step(_SPLITS))
        self.assert_rewritten(ran, 1)
        for name in ("ConcatV2", "ShapeN"):
            self.assertEqual(ran[name], 0, name)

    def test_among_other_matrices(self):
        """Dense features, an empty matrix, the same bags twice."""

        def step(dense):
            twice = ops.combine_bags(**_TABLES[0])
            bags = [ops.combine_bags(**table) for table in _TABLES]
            parts = [dense, bags[1], twice, dense[:, :0], bags[0], twice]
            with tf.GradientTape() as tape:
                tape.watch(parts)
                x = tf.concat([*parts, bags[2]], 1)
                loss = tf.reduce_sum(x * x)
            return x, tape.gradient(loss, parts)

        dense = tf.random.normal([_BATCH, 4])
        found, ran = _run(step, dense)
        self.assert_same(found, step(dense))
        self.assert_rewritten(ran, 1, 1)

    @parameterized.parameters(tf.int32, tf.int64)
    def test_shapes_that_others_need(self, out_type):
        def step(splits, dense):
            bags = [ops.combine_bags(**table) for table in _tables(splits)]
            shapes = tf.shape_n([bags[1], dense, bags[0], bags[1]], out_type)
            return (
                tf.concat([bags[0], dense, bags[1], bags[2]], 1),
                *shapes,
                tf.shape(bags[2], out_type),
            )

        arguments = _SPLITS, tf.random.normal([_BATCH, 4])
        found, ran = _run(step, *arguments)
        self.assert_same(found, step(*arguments))
        self.assert_rewritten(ran, 1)
        self.assertEqual(ran["Shape"], 0)

    def test_shapes_of_two_types_and_values_that_others_need(self):
        def step(splits, dense):
            bags = [ops.combine_bags(**table) for table in _tables(splits)]
            return (
                tf.concat([bags[0], dense, bags[1]], 1),
                tf.concat([bags[2], dense], 1),
                2.0 * bags[0],
                2.0 * bags[1],
                tf.shape(bags[2]),
                tf.shape(bags[2], tf.int64),
            )

        arguments = _SPLITS, tf.random.normal([_BATCH, 4])
        found, ran = _run(step, *arguments)
        self.assert_same(found, step(*arguments))
        self.assert_rewritten(ran, whole=0, apart=3)

    def test_what_waits_for_the_shape_of_bags(self):
        """As the shape comes from the concatenation, it cannot wait for it."""

        def step(splits):
            tables = _tables(splits)
            bags = [ops.combine_bags(**table) for table in tables[:2]]
            dense = tf.fill(tf.shape(bags[0]), 7.0)
            return tf.concat([*bags, dense], 1)

        found, ran = _run(step, _SPLITS)
        self.assert_same(found, step(_SPLITS))
        self.assert_rewritten(ran, whole=0, apart=2)

    def test_bags_that_need_other_bags(self):
        def step():
            first = ops.combine_bags(**_TABLES[0])
            rows = tf.concat([first, first], 0)[:7]
            second = ops.combine_bags(**{**_TABLES[0], "rows": rows})
            return tf.concat([first, second], 1)

        found, ran = _run(step)
        self.assert_same(found, step())
        self.assert_rewritten(ran, 1, 1)

    def test_another_axis(self):
        def step():
            return tf.concat([_shifted(_TABLES[0], i) for i in range(2)], 0)

        found, ran = _run(step)
        self.assert_same(found, step())
        self.assertEqual(ran["CombineBagsConcat"], 0)

    def test_control_dependencies_stay(self):
        before = tf.Variable(0.0)
        after, last = tf.Variable(0), tf.Variable(0)

        def step(splits, one):
            with tf.control_dependencies([before.assign_add(1.0)]):
                bags = [ops.combine_bags(**t) for t in _tables(splits)]
                shape = tf.shape(bags[2])
            with tf.control_dependencies([bags[0]]):
                after.assign_sub(one)
            with tf.control_dependencies([shape]):
                last.assign(one)
            return tf.concat(bags, 1), shape

        arguments = _SPLITS, tf.constant(1)
        found, ran = _run(step, *arguments)
        self.assert_same(found, step(*arguments))
        self.assert_rewritten(ran, 1)
        self.assertTrue(ran.waited("CombineBagsConcat", "AssignAddVariableOp"))
        for waiting in ("AssignSubVariableOp", "AssignVariableOp"):
            self.assertTrue(ran.waited(waiting, "CombineBagsConcat"), waiting)
        self.assertEqual((float(before), int(after)), (2.0, -2))

    def test_what_comes_between_bags_and_concatenation(self):
        noted = tf.Variable(0.0)

        def step():
            bags = [ops.combine_bags(**table) for table in _TABLES]
            with tf.control_dependencies(bags):
                last = noted.assign_add(10.0)
            with tf.control_dependencies([last]):
                return tf.concat(bags, 1)

        found, ran = _run(step)
        self.assert_rewritten(ran, whole=0, apart=3)
        self.assert_same(found, step())

    def test_branches(self):
        def joined(shift):
            return tf.concat([_shifted(table, shift) for table in _TABLES], 1)

        def step(predicate, other):
            apart = _shifted(_TABLES[0], 0.5)
            one = tf.cond(predicate, lambda: joined(1.0), lambda: joined(2.0))
            mixed = tf.cond(
                other,
                lambda: tf.concat([apart, _shifted(_TABLES[1], 3.0)], 1),
                lambda: tf.concat([apart, tf.zeros([_BATCH, 6])], 1),
            )
            return one, mixed

        for predicate in (True, False):
            for other in (True, False):
                arguments = tf.constant(predicate), tf.constant(other)
                found, ran = _run(step, *arguments)
                self.assert_same(found, step(*arguments))
                # Bags from outside a branch are none of its own.
                self.assert_rewritten(ran, 3, 1)

    def test_after_branches(self):
        def step(outer, inner):
            def taken():
                return tf.cond(inner, lambda: tf.ones([]), lambda: 2.0)

            shift = tf.cond(outer, taken, lambda: 3.0)
            with tf.GradientTape() as tape:
                rows = [table["rows"] + shift for table in _TABLES]
                tape.watch(rows)
                bags = [
                    ops.combine_bags(**{**table, "rows": its})
                    for table, its in zip(_TABLES, rows)
                ]
                x = tf.concat(bags, 1)
                loss = tf.reduce_sum(x * x)
            return x, tape.gradient(loss, rows)

        for outer in (True, False):
            for inner in (True, False):
                arguments = tf.constant(outer), tf.constant(inner)
                found, ran = _run(step, *arguments)
                self.assert_same(found, step(*arguments))
                self.assert_rewritten(ran, 1)

    def test_loops(self):
        def step(count):
            def body(i, total):
                shift = tf.cast(i, tf.float32)
                bags = [_shifted(table, shift) for table in _TABLES]
                return i + 1, total + tf.concat(bags, 1)

            before = tf.concat([ops.combine_bags(**t) for t in _TABLES], 1)
            _, total = tf.while_loop(
                lambda i, _: i < count, body, [tf.constant(0), before]
            )
            rows = tf.reshape(total[0, :7], [7, 1])
            after = ops.combine_bags(**{**_TABLES[2], "rows": rows})
            return total, tf.concat([after, total], 1)

        for count in (tf.constant(0), tf.constant(4)):
            found, ran = _run(step, count)
            for one, other in zip(found, step(count), strict=True):
                self.assertAllClose(one, other, rtol=1e-6)
            self.assert_rewritten(ran, 3)

    def test_bags_that_the_next_round_of_a_loop_needs(self):
        def step(count, splits):
            def body(i, total, shift):
                bags = [_shifted(table, shift) for table in _tables(splits)]
                size = tf.cast(tf.shape(bags[0])[0], tf.float32)
                total += tf.reduce_sum(tf.concat(bags, 1))
                return i + 1, total, shift + size

            first = [tf.constant(0), tf.zeros([]), tf.zeros([])]
            return tf.while_loop(lambda i, *_: i < count, body, first)

        arguments = tf.constant(3), _SPLITS
        found, ran = _run(step, *arguments)
        for one, other in zip(found, step(*arguments), strict=True):
            self.assertAllClose(one, other, rtol=1e-6)
        self.assert_rewritten(ran, 1)

    def test_many_values_on_several_threads(self):
        tables = [
            {
                "rows": tf.random.normal([5000, dim]),
                "inverse": tf.random.uniform([n * 3000], 0, 5000, tf.int32),
                "row_splits": n * tf.range(3001, dtype=tf.int64),
                "combiners": ["sum"],
            }
            for dim, n in ((16, 4), (3, 0), (64, 1))
        ]

        def step(dense):
            bags = [ops.combine_bags(**table) for table in tables]
            return tf.concat([*bags, dense], 1)

        dense = tf.random.normal([3000, 150])
        found, ran = _run(step, dense)
        self.assert_same(found, step(dense))
        self.assert_rewritten(ran, 1)


_NAMES = ("rows", "inverse", "row_splits", "weights")


def _shifted(table, shift):
    return ops.combine_bags(**{**table, "rows": table["rows"] + shift})


def _tensor(name, value):
    types = {"inverse": tf.int32, "row_splits": tf.int64}
    return tf.convert_to_tensor(value, types.get(name, tf.float32))


def _concat(**changed):
    arguments = {
        "rows": [[[1.0]], [[2.0, 3.0]]],
        "inverse": [[0], [0, 0]],
        "row_splits": [[0, 1], [0, 1, 2]],
        "weights": [[], []],
        "others": [[[5.0, 6.0]]],
        "columns": [1, 2],
        "combiners": ["sum", "sum", "mean"],
        "places": [0, 2],
        **changed,
    }
    for name in (*_NAMES, "others"):
        arguments[name] = [_tensor(name, value) for value in arguments[name]]
    return ops.library().tf_ext_combine_bags_concat(**arguments)


class MalformedTest(RefusalTestCase):
    def test_well_formed(self):
        concatenated, shapes = _concat()
        self.assertAllEqual(concatenated, [[1.0, 5.0, 6.0, 2.0, 3.0, 2.0, 3.0]])
        self.assertAllEqual(shapes, [[1, 1], [1, 4]])

    @parameterized.named_parameters(
        ("columns_of_one", {"columns": [1]}, "columns must have N = 2 values"),
        ("columns_of_none", {"columns": [3, 0]}, "but are 3, 0."),
        ("columns_too_many", {"columns": [1, 3]}, "but are 1, 3."),
        ("columns_too_few", {"columns": [1, 1]}, "but are 1, 1."),
        ("columns_huge", {"columns": [1, 2**31 - 1]}, "together"),
        ("places_of_one", {"places": [1]}, "places must have N = 2 values"),
        ("places_twice", {"places": [1, 1]}, "places must increase"),
        ("places_negative", {"places": [-1, 1]}, "but are -1, 1."),
        ("places_beyond", {"places": [0, 3]}, "to 2 at most, but are 0, 3."),
        ("rows", {"rows": [[[1.0]], [2.0]]}, "rows[1] must be a matrix"),
        (
            "row_splits",
            {"row_splits": [[0, 1], [0, 2]]},
            "row_splits[1] must have 2 * batch_size + 1 values",
        ),
        ("weights", {"weights": [[1.0, 2.0], []]}, "weights[0]", "inverse[0]"),
        (
            "a_position",
            {"inverse": [[0], [0, 1]]},
            "Of the bags [1]: inverse[1] is 1; it must be",
        ),
        (
            "another_batch",
            {"row_splits": [[0, 1], [0, 1, 1, 1, 2]]},
            "row_splits[1] must be of a batch of 1 (as row_splits[0]), but is "
            "of 2.",
        ),
        (
            "others_of_another_batch",
            {"others": [[[5.0], [6.0]]]},
            "others[0] must be of a batch of 1",
        ),
        ("others_vector", {"others": [[5.0]]}, "others[0] must be a matrix"),
    )
    def test_malformed(self, arguments, *texts):
        self.assert_refused(lambda: _concat(**arguments), *texts)

    def test_a_shape_beyond_int32(self):
        wide = {
            "rows": [tf.zeros([0, 2**31])] * 2,
            "inverse": [[], []],
            "row_splits": [[0], [0]],
            "others": [tf.zeros([0, 1])],
        }
        self.assert_refused(
            lambda: _concat(**wide),
            "shapes must be int64 for a shape of [0,2147483648]",
        )
        shapes = _concat(**wide, out_type=tf.int64).shapes
        self.assertAllEqual(shapes, [[0, 2**31], [0, 2**32]])


if __name__ == "__main__":
    tf.test.main()
