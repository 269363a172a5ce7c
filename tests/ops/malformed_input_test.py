# SPDX-License-Identifier: Apache-2.0
"""Whatever is given to an op, it raises a sentence and changes nothing."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from ops_util import (
    FLOAT32,
    FLOAT64,
    MODES,
    RefusalTestCase,
    export_all,
    table_config,
)

from tf_ext import ops

DIM = 4
HYPERPARAMETERS = (0.5, 0.0, 1e-7)  # of adagrad
FIELDS = ("weights", "accumulator")
TYPES = (tf.float32, tf.float32)


def _signs(*values):
    return tf.constant(values, tf.int64)


def _pull(handle, signs=(1, 2), training=True, dim=DIM):
    return ops.sparse_table_pull(handle, signs, training, dim=dim)


def _push(
    handle,
    signs=(1, 2),
    gradients=((1.0,) * DIM,) * 2,
    statistics=None,
    hyperparameters=HYPERPARAMETERS,
    step=1,
):
    return ops.sparse_table_push(
        handle,
        signs,
        gradients,
        statistics,
        hyperparameters=hyperparameters,
        step=step,
    )


def _export(handle, cursor=0, limit=-1, names=FIELDS, types=TYPES):
    return ops.sparse_table_export(
        handle, cursor, limit, field_names=names, field_dtypes=types
    )


def _import(handle, signs=(1, 2), fields=None, names=("weights",), clear=True):
    fields = [tf.ones([2, DIM])] if fields is None else fields
    return ops.sparse_table_import(
        handle, signs, fields, field_names=names, clear=clear
    )


NAN, INF = float("nan"), float("inf")


def _gradients_with(value):
    gradients = np.ones([2, DIM], np.float32)
    gradients[1, 2] = value
    return gradients


# Name, call, and what the sentence has to say.
TABLE_CASES = (
    (
        "pull_signs_of_rank_0",
        lambda h: _pull(h, tf.constant(1, tf.int64)),
        "signs must be a vector",
        "shape is []",
    ),
    (
        "pull_signs_of_rank_2",
        lambda h: _pull(h, [[1, 2]]),
        "signs must be a vector",
        "shape is [1,2]",
    ),
    (
        "pull_signs_float32",
        lambda h: _pull(h, tf.constant([1.0])),
        "float32). Floats cannot represent all ids",
    ),
    (
        "pull_training_of_rank_1",
        lambda h: _pull(h, training=[True]),
        "training must be a scalar",
        "shape is [1]",
    ),
    (
        "pull_training_int32",
        lambda h: _pull(h, training=tf.constant(1)),
        "bool",
        "int32",
    ),
    (
        "pull_another_dim",
        lambda h: _pull(h, dim=5),
        "dim is 5, but the rows of the table 'items' have 4 weights",
    ),
    (
        "pull_a_huge_dim",
        lambda h: _pull(h, dim=2**62),
        "dim is 4611686018427387904, but",
        "have 4 weights",
    ),
    (
        "pull_statistics_of_a_table_without",
        lambda h: ops.sparse_table_pull(h, [1], dim=DIM, statistics=2),
        "statistics is 2, but the rows of the table 'items' have 0 statistics",
    ),
    (
        "pull_negative_statistics",
        lambda h: ops.sparse_table_pull(h, [1], dim=DIM, statistics=-1),
        "'statistics'",
        "-1",
        "minimum 0",
    ),
    (
        "pull_a_huge_number_of_statistics",
        lambda h: ops.sparse_table_pull(h, [1], dim=2, statistics=2**63 - 1),
        ("dim is 2, but", "integer overflow", "overflow"),
    ),
    ("pull_dim_0", lambda h: _pull(h, dim=0), "'dim'", "0", "minimum 1"),
    (
        "pull_another_dtype",
        lambda h: ops.library().tf_ext_sparse_table_pull(
            h, [1], True, dim=DIM, dtype=tf.half
        ),
        ("half", "float16"),
        FLOAT32,
    ),
    (
        "push_fewer_gradients_than_signs",
        lambda h: _push(h, signs=[1, 2, 3]),
        "gradients must",
        "3",
        "shape is [2,4]",
    ),
    (
        "push_gradients_of_another_dim",
        lambda h: _push(h, gradients=tf.ones([2, 5])),
        "gradients must be of shape [2,4] (as signs, the table's dim)",
        "shape is [2,5]",
    ),
    (
        "push_gradients_of_rank_1",
        lambda h: _push(h, gradients=tf.ones([8])),
        "gradients must be a matrix",
        "shape is [8]",
    ),
    (
        "push_signs_of_rank_2",
        lambda h: _push(h, signs=[[1, 2]]),
        "signs must be a vector",
        "shape is [1,2]",
    ),
    (
        "push_gradients_float64",
        lambda h: _push(h, gradients=tf.ones([2, DIM], tf.float64)),
        FLOAT64,
        FLOAT32,
    ),
    (
        "push_statistics_of_another_size",
        lambda h: _push(h, statistics=tf.ones([3, 1])),
        "statistics must be of shape [2,s] (a row for each of the signs) or "
        "[0,0]",
        "shape is [3,1]",
    ),
    (
        "push_statistics_of_rank_1",
        lambda h: _push(h, statistics=tf.ones([2])),
        "statistics must be a matrix",
        "shape is [2]",
    ),
    (
        "push_too_few_hyperparameters",
        lambda h: _push(h, hyperparameters=[0.5]),
        "hyperparameters of adagrad must be 3 numbers",
        "found 1",
    ),
    (
        "push_hyperparameters_of_rank_0",
        lambda h: _push(h, hyperparameters=tf.constant(0.5, tf.float64)),
        "hyperparameters must be a vector",
        "shape is []",
    ),
    (
        "push_a_learning_rate_nan",
        lambda h: _push(h, hyperparameters=[NAN, 0.0, 1e-7]),
        "learning_rate of adagrad must be",
        "found nan",
    ),
    (
        "push_a_negative_epsilon",
        lambda h: _push(h, hyperparameters=[0.5, 0.0, -1.0]),
        "epsilon of adagrad must be",
        "found -1",
    ),
    (
        "push_a_negative_step",
        lambda h: _push(h, step=-1),
        "step must be 0 or more",
        "found -1",
    ),
    (
        "push_step_of_rank_1",
        lambda h: _push(h, step=[1]),
        "step must be a scalar",
        "shape is [1]",
    ),
    (
        "push_a_gradient_nan",
        lambda h: _push(h, gradients=_gradients_with(NAN)),
        "gradients[1, 2] of sign 2 is nan; gradients must be finite",
    ),
    (
        "push_a_gradient_inf",
        lambda h: _push(h, gradients=_gradients_with(INF)),
        "gradients[1, 2] of sign 2 is inf; gradients must be finite",
    ),
    (
        "push_a_gradient_minus_inf",
        lambda h: _push(h, gradients=_gradients_with(-INF)),
        "gradients[1, 2] of sign 2 is -inf; gradients must be finite",
    ),
    (
        "push_a_gradient_nan_of_an_absent_sign",
        lambda h: _push(h, signs=[1, 99], gradients=_gradients_with(NAN)),
        "of sign 99 is nan",
    ),
    (
        "export_a_negative_cursor",
        lambda h: _export(h, cursor=-2),
        "cursor is -2; it must be 0 or",
    ),
    (
        "export_beyond_the_end",
        lambda h: _export(h, cursor=-1),
        "cursor is -1; it must be 0 or",
    ),
    (
        "export_cursor_of_rank_1",
        lambda h: _export(h, cursor=[0]),
        "cursor must be a scalar",
        "shape is [1]",
    ),
    (
        "export_limit_of_rank_1",
        lambda h: _export(h, limit=[1, 2]),
        "limit must be a scalar",
        "shape is [2]",
    ),
    (
        "export_limit_int32",
        lambda h: _export(h, limit=tf.constant(1)),
        "int32",
        "int64",
    ),
    (
        "export_an_unknown_field",
        lambda h: _export(h, names=["weights", "m"]),
        "no field 'm' of type float in the table 'items'",
        "Its fields are: weights float[4], accumulator float[4]",
    ),
    (
        "export_a_field_as_another_type",
        lambda h: _export(h, types=[tf.float32, tf.int32]),
        "no field 'accumulator' of type int32",
        "accumulator float[4]",
    ),
    (
        "export_a_field_twice",
        lambda h: _export(h, names=["weights", "weights"]),
        "field_names must name each field once, but 'weights' appears twice",
    ),
    (
        "export_more_names_than_types",
        lambda h: _export(h, types=[tf.float32]),
        "field_names and Tfields must have one entry per field",
        "2 and 1",
    ),
    (
        "export_a_type_that_no_field_has",
        lambda h: _export(h, types=[tf.float32, tf.int64]),
        "int64",
        "int32",
    ),
    (
        "import_signs_of_rank_2",
        lambda h: _import(h, signs=[[1, 2]]),
        "signs must be a vector",
        "shape is [1,2]",
    ),
    (
        "import_more_signs_than_rows",
        lambda h: _import(h, signs=[1, 2, 3]),
        "fields[0]",
        "[2,4]",
    ),
    (
        "import_a_field_of_another_dim",
        lambda h: _import(h, fields=[tf.ones([2, 5])]),
        "fields[0] ('weights') must be of shape [2,4]",
        "shape is [2,5]",
    ),
    (
        "import_a_field_transposed",
        lambda h: _import(h, fields=[tf.ones([DIM, 2])]),
        "fields[0]",
        "shape is [4,2]",
    ),
    (
        "import_a_field_of_rank_1",
        lambda h: _import(h, fields=[tf.ones([2])]),
        "fields[0]",
        "shape is [2]",
    ),
    (
        "import_an_unknown_field",
        lambda h: _import(h, names=["momentum"]),
        "no field 'momentum' of type float",
        "Its fields are: weights float[4], accumulator float[4]",
    ),
    (
        "import_a_field_as_another_type",
        lambda h: _import(h, fields=[tf.ones([2, DIM], tf.int32)]),
        "no field 'weights' of type int32",
        "weights float[4]",
    ),
    (
        "import_a_field_of_a_type_that_no_field_has",
        lambda h: _import(h, fields=[tf.ones([2, DIM], tf.float64)]),
        FLOAT64,
        "int32",
    ),
    (
        "import_a_field_twice",
        lambda h: _import(
            h, fields=[tf.ones([2, DIM])] * 2, names=["weights"] * 2
        ),
        "field_names must name each field once, but 'weights' appears twice",
    ),
    (
        "import_fewer_fields_than_names",
        lambda h: _import(h, names=FIELDS),
        "field_names and Tfields must have one entry per field",
        "2 and 1",
    ),
    (
        "import_clear_of_rank_1",
        lambda h: _import(h, clear=[True]),
        "clear must be a scalar",
        "shape is [1]",
    ),
    (
        "erase_signs_of_rank_2",
        lambda h: ops.sparse_table_erase(h, [[1]]),
        "signs must be a vector",
        "shape is [1,1]",
    ),
    (
        "erase_signs_float32",
        lambda h: ops.sparse_table_erase(h, tf.constant([1.0])),
        "float32). Floats cannot represent all ids",
    ),
)


class MalformedInputTest(RefusalTestCase):
    def setUp(self):
        super().setUp()
        self.handle = ops.sparse_table_handle(
            table_config(dim=DIM, optimizer="adagrad")
        )
        values = np.random.default_rng(0).normal(size=[10, DIM])
        _push(self.handle, np.arange(10), values)
        self.before = export_all(self.handle, FIELDS, TYPES)

    def assert_unchanged(self):
        signs, values = export_all(self.handle, FIELDS, TYPES)
        self.assertAllEqual(signs, self.before[0])
        for found, expected in zip(values, self.before[1]):
            self.assertAllEqual(found, expected)

    @parameterized.named_parameters(*TABLE_CASES)
    def test_table_op(self, call, *texts):
        self.assert_refused(lambda: call(self.handle), *texts)

    def test_nesterov_is_on_or_off(self):
        """A number between the two is in no way both."""
        handle = ops.sparse_table_handle(
            table_config(name="momentum", optimizer="momentum")
        )
        self.assert_refused(
            lambda: _push(handle, hyperparameters=[0.5, 0.0, 0.9, 0.5]),
            "nesterov of momentum must be 0 or 1, found 0.5",
        )
        self.assertEqual(ops.sparse_table_size(handle), 0)
        for nesterov in (0.0, 1.0):
            _push(handle, hyperparameters=[0.5, 0.0, 0.9, nesterov])

    @parameterized.named_parameters(
        ("pull", lambda h: _pull(h, _signs()), [0, DIM]),
        ("push", lambda h: _push(h, _signs(), tf.zeros([0, DIM])), []),
        ("erase", lambda h: ops.sparse_table_erase(h, _signs()), []),
        (
            "import",
            lambda h: _import(h, _signs(), [tf.zeros([0, DIM])], clear=False),
            [],
        ),
    )
    def test_empty_tensors_are_right_for(self, call, shape):
        for _, mode in MODES:
            self.assertEqual(mode(lambda: call(self.handle))().shape, shape)
            self.assert_unchanged()


if __name__ == "__main__":
    tf.test.main()
