# SPDX-License-Identifier: Apache-2.0
"""The ops on all tables of a step, compared with those on a single one."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from ops_util import MODES, UNIFORM, RefusalTestCase, export_all, table_config

from tf_ext import ops
from tf_ext.ops.bags import bag_ops
from tf_ext.ops.table import step_ops
from tf_ext.ops.table.op_counts import read_counts

pytestmark = pytest.mark.both_kerases(slow=True)

_TABLES = (
    {"name": "small", "dim": 1},
    {"name": "half", "dim": 4, "dtype": "float16", "optimizer": "adagrad"},
    {"name": "counted", "dim": 3, "statistics": "show,click"},
)
_DIMS = [1, 4, 3]
_STATISTICS = [0, 0, 2]
_HYPERPARAMETERS = [[0.5, 0.0], [0.1, 0.0, 1e-7], [0.25, 0.0]]


def _handles():
    return [
        ops.sparse_table_handle(table_config(UNIFORM, **entries))
        for entries in _TABLES
    ]


def _batch(seed, most):
    """Signs, gradients and statistics of each table."""
    rng = np.random.default_rng(seed)
    signs = [rng.permutation(20_000)[: rng.integers(most)] for _ in _DIMS]
    gradients = [
        rng.normal(size=[len(s), dim]).astype(np.float32)
        for s, dim in zip(signs, _DIMS)
    ]
    counted = rng.integers(0, 9, [len(signs[2]), 2]).astype(np.float32)
    return signs, gradients, [None, None, counted]


class StepTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.product(
        mode=[mode for _, mode in MODES], most=[9, 5000], training=[True, False]
    )
    def test_is_a_pull_of_each(self, mode, most, training):
        handles, alone = _handles(), _handles()
        signs, _, _ = _batch(1, most)
        training = [training, False, training]

        @mode
        def call():
            return step_ops.sparse_tables_pull(
                handles, signs, training, _DIMS, _STATISTICS
            )

        for i, rows in enumerate(call()):
            expected = ops.sparse_table_pull(
                alone[i],
                signs[i],
                training[i],
                dim=_DIMS[i],
                statistics=_STATISTICS[i],
            )
            self.assertAllEqual(rows, expected)
            self.assertEqual(
                ops.sparse_table_size(handles[i]),
                len(signs[i]) if training[i] else 0,
            )

    @parameterized.product(mode=[mode for _, mode in MODES], most=[9, 5000])
    def test_is_a_push_to_each(self, mode, most):
        handles, alone = _handles(), _handles()
        for step in (1, 2):
            signs, gradients, statistics = _batch(step, most)
            call = functools.partial(
                step_ops.sparse_tables_push,
                handles,
                signs,
                gradients,
                statistics,
                np.concatenate(_HYPERPARAMETERS),
                [len(each) for each in _HYPERPARAMETERS],
                step,
            )
            self.assertAllEqual(mode(call)(), [len(each) for each in signs])
            for i, handle in enumerate(alone):
                ops.sparse_table_push(
                    handle,
                    signs[i],
                    gradients[i],
                    statistics[i],
                    hyperparameters=_HYPERPARAMETERS[i],
                    step=step,
                )
        for one, other in zip(handles, alone):
            for found, expected in zip(export_all(one), export_all(other)):
                self.assertAllEqual(found, expected)

    def test_a_table_given_twice_is_updated_in_order(self):
        [handle, *_], [alone, *_] = _handles(), _handles()
        rng = np.random.default_rng(3)
        signs = np.arange(4000)
        gradients = [rng.normal(size=[4000, 1]) for _ in range(3)]
        step_ops.sparse_tables_push(
            [handle] * 3,
            [signs] * 3,
            gradients,
            [None] * 3,
            [0.5, 0.1] * 3,
            [2] * 3,
            1,
        )
        for each in gradients:
            ops.sparse_table_push(
                alone, signs, each, hyperparameters=[0.5, 0.1]
            )
        self.assertAllEqual(export_all(handle)[1], export_all(alone)[1])
        again = functools.partial(
            step_ops.sparse_tables_push,
            *([handle] * 3, [signs] * 3, gradients, [None] * 3),
            *([0.5, 0.1] * 3, [2] * 3, 1),
            numbers=[4, 4],
        )
        self.assertAllEqual(again(), [4000] * 3)
        self.assertAllEqual(again(), [0] * 3)
        first, second = step_ops.sparse_tables_pull(
            [handle] * 2, [signs, signs[:3]], [True] * 2, [1] * 2, [0] * 2
        )
        self.assertAllEqual(first[:3], second)

    @parameterized.parameters([mode for _, mode in MODES])
    def test_a_step_that_runs_again_changes_nothing(self, mode):
        handles, once = _handles(), _handles()
        arguments = _batch(1, 9)

        def push(tables, **numbered):
            return step_ops.sparse_tables_push(
                tables,
                *arguments,
                np.concatenate(_HYPERPARAMETERS),
                [len(each) for each in _HYPERPARAMETERS],
                1,
                **numbered,
            )

        def again(number, oldest, part=0):
            numbers = tf.constant([number, oldest], tf.int64)
            call = functools.partial(push, handles, numbers=numbers, part=part)
            return mode(call)()

        rows = [len(signs) for signs in arguments[0]]
        pushes = [(5, 3), (4, 3), (5, 3, 1), (6, 6)]
        for pushed in pushes:
            self.assertAllEqual(again(*pushed), rows)
            push(once)
        # In any order, and those that ended before the oldest.
        for pushed in [(6, 3), (5, 3), (4, 4), (5, 3, 1), (2, 0), (6, 6)]:
            self.assertAllEqual(again(*pushed), [0, 0, 0])
        for one, other in zip(handles, once):
            for found, expected in zip(export_all(one), export_all(other)):
                self.assertAllEqual(found, expected)

    def test_one_of_the_tables_has_the_update(self):
        handles, once = _handles(), _handles()
        _push(handles[:1] + once[1:], numbers=[0, 0])
        self.assertAllEqual(_push(handles, numbers=[0, 0]), [0, 1, 1])
        self.assertAllEqual(_push(once, numbers=[0, 0]), [2, 0, 0])
        for one, other in zip(handles, once):
            self.assertAllEqual(export_all(one)[1], export_all(other)[1])

    def test_tables_are_counted_apart(self):
        handles = [
            ops.sparse_table_handle(table_config(name=name))
            for name in ("apart1", "apart2")
        ]
        signs = [[1, 2, 3], [4]]
        step_ops.sparse_tables_pull(
            handles, signs, [True] * 2, [4] * 2, [0] * 2
        )
        gradients = [np.ones([len(s), 4]) for s in signs]
        step_ops.sparse_tables_push(
            handles, signs, gradients, [None] * 2, [0.5, 0.0] * 2, [2] * 2, 7
        )
        for name, its in zip(("apart1", "apart2"), signs):
            found = read_counts().tables[name]
            self.assertEqual(found.step, 7)
            for counts in (found.pull, found.push):
                self.assertEqual(counts.signs, len(its))
                self.assertEqual(sum(counts.calls), 1)
                self.assertGreater(counts.seconds, 0)

    @parameterized.product(shards=[1, 3], most=[9, 5000])
    def test_finds_the_distinct_signs_of_each(self, shards, most):
        rng = np.random.default_rng(5)
        signs = [rng.integers(0, 500, rng.integers(most)) for _ in range(4)]
        found = bag_ops.unique_by_shard_each(signs, shards)
        for i, its in enumerate(signs):
            expected = ops.unique_by_shard(its, shards)
            for name in expected._fields:
                self.assertAllEqual(
                    getattr(found, name)[i], getattr(expected, name)
                )

    def test_cuts_bags(self):
        signs, splits = [5, 6, 7, 8, 9], [0, 1, 1, 3, 4, 4, 5]
        parts = bag_ops.cut_bags(
            *(signs, splits, [0.5, 1.5, 2.5, 3.5, 4.5]),
            columns=3,
            runs=[(0, 1), (1, 3), (2, 2), (0, 3)],
            weighted=[True, False, True, True],
        )
        found = [[x.numpy().tolist() for x in each] for each in parts]
        self.assertEqual(found[0], [[5], [6, 7, 8, 9], [], signs])
        self.assertEqual(found[1], [[0, 1, 1], [0, 2, 3, 3, 4], [0], splits])
        self.assertEqual(found[2], [[0.5], [], [], [0.5, 1.5, 2.5, 3.5, 4.5]])

    def test_cuts_bags_with_weights_of_one(self):
        parts = _cut(weights=[], weighted=(True, False))
        self.assertAllEqual(parts.part_signs[0], [5])
        self.assertEqual([len(x) for x in parts.part_weights], [0, 0])


def _pull(
    handles=None,
    signs=((1, 2), (3,), (4,)),
    training=(True, True, True),
    dims=(1, 4, 3),
    statistics=(0, 0, 2),
):
    return step_ops.sparse_tables_pull(
        handles or _handles(), signs, training, dims, statistics
    )


def _push(
    handles=None,
    signs=((1, 2), (3,), (4,)),
    gradients=(((1.0,), (2.0,)), ((1.0,) * 4,), ((1.0,) * 3,)),
    statistics=(None, None, ((1.0, 0.0),)),
    hyperparameters=(0.5, 0.0, 0.1, 0.0, 1e-7, 0.25, 0.0),
    counts=(2, 3, 2),
    step=1,
    time=0,
    **numbered,
):
    return step_ops.sparse_tables_push(
        handles or _handles(),
        signs,
        gradients,
        statistics,
        hyperparameters,
        counts,
        step,
        time,
        **numbered,
    )


def _cut(
    signs=(5, 6, 7),
    row_splits=(0, 1, 3),
    weights=(),
    columns=2,
    runs=((0, 1), (1, 2)),
    weighted=(False, False),
):
    return bag_ops.cut_bags(signs, row_splits, weights, columns, runs, weighted)


class MalformedTest(RefusalTestCase):
    @parameterized.named_parameters(
        ("signs", {"signs": [[1, 2], [[3]], [4]]}, "signs[1] must be a vector"),
        ("training", {"training": [True]}, "training must be a vector of 3"),
        ("training_scalar", {"training": True}, "training must be a vector"),
        (
            "dims",
            {"dims": [1, 5, 3]},
            "dims[1] is 5, but the rows of the table",
        ),
        (
            "no_dim",
            {"dims": [1, -4, 3]},
            ("dims[1] must be at least 1", "dims[1] is -4"),
        ),
        ("few_dims", {"dims": [1, 4]}, "dims must have N = 3 values"),
        (
            "statistics",
            {"statistics": [0, 1, 2]},
            "statistics[1] is 1, but the rows of the table 'half'",
        ),
        ("few_statistics", {"statistics": [0]}, "statistics must have N = 3"),
    )
    def test_pull(self, malformed, *texts):
        handles = _handles()
        self.assert_refused(lambda: _pull(handles, **malformed), *texts)
        for handle in handles:
            self.assertEqual(ops.sparse_table_size(handle), 0)

    @parameterized.named_parameters(
        ("signs", {"signs": [[1, 2], [[3]], [4]]}, "signs[1] must be a vector"),
        (
            "gradients_of_more",
            {"gradients": [[[1.0]], [[1.0] * 4], [[1.0] * 3]]},
            "gradients[0] must",
        ),
        (
            "gradients_of_dim",
            {"gradients": [[[1.0], [2.0]], [[1.0] * 4], [[1.0] * 2]]},
            "gradients[2] must be of shape [1,3] (as signs[2], the table's",
        ),
        (
            "gradient_vector",
            {"gradients": [[1.0, 2.0], [[1.0] * 4], [[1.0] * 3]]},
            "gradients[0] must be a matrix",
        ),
        (
            "gradient_nan",
            {"gradients": [[[1.0], [2.0]], [[1.0] * 4], [[np.nan] * 3]]},
            "gradients[0, 0] of sign 4 is nan",
            'Table "counted" was not changed',
        ),
        (
            "statistics_of_more",
            {"statistics": [None, None, [[1.0, 0.0]] * 2]},
            "statistics[2] must be of shape [1,s]",
        ),
        (
            "statistics_negative",
            {"statistics": [None, None, [[1.0, -1.0]]]},
            "statistics[0, 1] of sign 4 is -1",
            'Table "counted"',
        ),
        (
            "hyperparameters",
            {"hyperparameters": [0.5] * 6},
            "hyperparameters must have as many values as counts says",
        ),
        (
            "hyperparameters_matrix",
            {"hyperparameters": [[0.5] * 7]},
            "hyperparameters must be a vector",
        ),
        ("number", {"numbers": [-1, -1]}, "0 <= oldest <= number"),
        ("oldest_number", {"numbers": [1, 2]}, "but they are 1, 2 and 0"),
        ("numbers", {"numbers": [1, 0, 2]}, "numbers must be a vector of 2"),
        ("numbers_scalar", {"numbers": 1}, "must be a vector"),
        ("part", {"numbers": [1, 0], "part": -1}, "part"),
        ("counts", {"counts": [2, 2, 3]}, 'found 2 (table "half")'),
        ("counts_negative", {"counts": [2, 9, -4]}, "counts[2] must be at"),
        (
            "counts_beyond",
            {"counts": [2, 2**63 - 1, 2**63 - 1]},
            "hyperparameters must have as many",
        ),
        ("few_counts", {"counts": [7]}, "counts must have N = 3 values"),
        ("step", {"step": [1]}, "step must be a scalar"),
        ("step_negative", {"step": -1}, "step must be 0 or more", "small"),
        ("time", {"time": [1]}, "time must be a scalar"),
    )
    def test_push(self, malformed, *texts):
        handles = _handles()
        self.assert_refused(lambda: _push(handles, **malformed), *texts)
        for handle in handles:
            self.assertEqual(ops.sparse_table_size(handle), 0)

    @parameterized.named_parameters(("pull", _pull), ("push", _push))
    def test_handle(self, call):
        handles = _handles()
        variable = tf.Variable(1.0)
        handles[1] = variable.handle
        self.assert_refused(lambda: call(handles), "handles[1]: handle must")
        self.assertEqual(ops.sparse_table_size(handles[0]), 0)

    def test_unique(self):
        self.assert_refused(
            lambda: bag_ops.unique_by_shard_each([[1], [[2]]]),
            "signs[1] must be a vector",
        )

    @parameterized.named_parameters(
        ("signs", {"signs": [[5]]}, "signs must be a vector"),
        (
            "splits",
            {"row_splits": [0, 1]},
            "row_splits must have 2 * batch_size",
        ),
        (
            "no_splits",
            {"row_splits": []},
            "row_splits must have 2 * batch_size",
        ),
        (
            "falling",
            {"row_splits": [0, 2, 1]},
            "columns 1 to 2 are from 2 to 1",
        ),
        (
            "beyond",
            {"row_splits": [0, 2, 4]},
            "from 0 to 3, the number of signs",
        ),
        (
            "below",
            {"row_splits": [-1, 2, 3]},
            "columns 0 to 1 are from -1 to 2",
        ),
        (
            "weights",
            {"weights": [1.0], "weighted": [False, True]},
            "weights must be a vector of 3 values (as signs)",
        ),
        ("runs", {"runs": [(0, 1), (1, 3)]}, "be at most columns = 2"),
        ("run_falls", {"runs": [(0, 1), (2, 1)]}, "begins[1] and ends[1]"),
        ("weighted", {"weighted": [True]}, "weighted must have N = 2 values"),
    )
    def test_cut(self, malformed, *texts):
        self.assert_refused(lambda: _cut(**malformed), *texts)


if __name__ == "__main__":
    tf.test.main()
