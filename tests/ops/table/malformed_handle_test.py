# SPDX-License-Identifier: Apache-2.0
"""Handles of something else, and configs that make no table."""

import functools

import tensorflow as tf
from absl.testing import parameterized
from ops_util import UNIFORM, RefusalTestCase, named_cases, table_config
from tensorflow.core.framework import resource_handle_pb2, tensor_pb2

from tf_ext import ops
from tf_ext.ops.table import owner_ops


def _set_owner(handle):
    owner_ops.sparse_table_set_owner(handle, "owner", "run")


HANDLE_OPS = (
    ("pull", lambda handle: ops.sparse_table_pull(handle, [1], dim=4)),
    (
        "push",
        lambda handle: ops.sparse_table_push(
            handle, [1], tf.ones([1, 4]), hyperparameters=[0.5, 0.0]
        ),
    ),
    ("size", ops.sparse_table_size),
    ("stats", ops.sparse_table_stats),
    ("config", ops.sparse_table_config),
    (
        "export",
        lambda handle: ops.sparse_table_export(
            handle, field_names=["weights"], field_dtypes=[tf.float32]
        ),
    ),
    (
        "import",
        lambda handle: ops.sparse_table_import(
            handle, [1], [tf.ones([1, 4])], field_names=["weights"]
        ),
    ),
    ("erase", lambda handle: ops.sparse_table_erase(handle, [1])),
    ("clear", ops.sparse_table_clear),
    ("compact", ops.sparse_table_compact),
    ("decay", lambda handle: ops.sparse_table_decay(handle, 0.5)),
    ("evict", lambda handle: ops.sparse_table_evict(handle, 1, unseen=1)),
    ("set_owner", _set_owner),
)


def _handle_of(**entries):
    """A handle that no op made, as from a damaged or foreign graph."""
    proto = tensor_pb2.TensorProto(dtype=tf.resource.as_datatype_enum)
    proto.resource_handle_val.append(
        resource_handle_pb2.ResourceHandleProto(**entries)
    )
    return tf.io.parse_tensor(proto.SerializeToString(), tf.resource)


def _copy_of(handle):
    """The same handle, but without a reference to the table."""
    return tf.io.parse_tensor(tf.io.serialize_tensor(handle), tf.resource)


def _destroyed():
    handle = ops.sparse_table_handle(table_config(), shared_name="gone")
    tf.raw_ops.DestroyResourceOp(resource=handle)
    return handle


def _lookup_table():
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    return table.resource_handle


WANTED = "handle must be that of a sparse table"
BAD_HANDLES = (
    ("uninitialised", (_handle_of, WANTED, "an uninitialised handle")),
    (
        "of_a_variable",
        (
            lambda: tf.Variable([1.0]).handle,
            WANTED,
            "(a tf_ext::TableResource)",
            "a tensorflow::Var",
        ),
    ),
    (
        "of_a_lookup_table",
        (_lookup_table, WANTED, "a tensorflow::lookup::LookupInterface"),
    ),
    (
        "of_an_unknown_type",
        (
            lambda: _handle_of(name="x", hash_code=7, maybe_type_name="Q"),
            WANTED,
            "of the resource 'x', a Q",
        ),
    ),
    (
        "destroyed",
        (
            _destroyed,
            "handle is of the table 'gone'",
            "(or no longer) on ",
            "Create it again with SparseTableHandle",
        ),
    ),
    (
        "freed",
        (
            lambda: _copy_of(ops.sparse_table_handle(table_config())),
            "handle is of the table 'Resource-",
            "(or no longer) on ",
        ),
    ),
    (
        "not_a_scalar",
        (
            lambda: tf.stack([ops.sparse_table_handle(table_config())] * 2),
            "handle must be",
            "a scalar, but its shape is [2]",
        ),
    ),
    ("a_float", (lambda: tf.constant(1.0), "resource", "float")),
)


def _serving_handle(config, shared_name="served"):
    return ops.sparse_table_serving_handle(config, shared_name=shared_name)


HANDLES = (("handle", ops.sparse_table_handle), ("serving", _serving_handle))

# A config, and what is said of it.
BAD_CONFIGS = (
    (
        "of_no_form",
        ("dim: 4", 'the line "dim: 4" is not of the form key=value'),
    ),
    ("with_an_unknown_key", (table_config(color="red"), "color", "red")),
    ("of_dim_0", (table_config(dim=0), "dim=0", "65536")),
    ("of_a_huge_dim", (table_config(dim=2**31), "dim=2147483648", "65536")),
    (
        "of_another_dtype",
        (table_config(dtype="half"), "dtype=half", "float32"),
    ),
    (
        "of_an_unknown_optimizer",
        (table_config(optimizer="magic"), "optimizer=magic", "adagrad"),
    ),
    ("that_is_not_a_string", (5, "config", "5")),
)

_NORMAL = {
    "initializer": "normal",
    "initializer.mean": 0,
    "initializer.stddev": 1,
}

# Lines of a config, and what is said of them.
BAD_LINES = (
    ({"name": ""}, "name= is not allowed", "found 0 bytes"),
    ({"name": "n" * 201}, "of 1 to 200 bytes, found 201 bytes"),
    ({"name": "a\tb"}, "has the control character 9 at byte 1"),
    ({"name": "ab\x7f"}, "has the control character 127 at byte 2"),
    (
        {"last_seen": "hour"},
        "last_seen=hour is not allowed; it must be one of",
        "step, second; leave it out if rows do not hold it",
    ),
    (
        {"statistics": "click"},
        'statistics=click is not allowed; it must be "show" or "show,click"; '
        "leave it out",
    ),
    ({"unknown": "ones"}, "unknown=ones is not allowed; it must be one of"),
    ({"l2": "-1"}, "l2=-1 is not allowed"),
    ({"l1": "nan"}, "l1=nan is not allowed"),
    (
        UNIFORM | {"initializer.minval": 2},
        "initializer.maxval=1 is not allowed; it must be at least "
        "initializer.minval=2",
    ),
    (UNIFORM | {"initializer.maxval": "inf"}, "initializer.maxval=inf is not"),
    (UNIFORM | {"initializer.minval": "nan"}, "initializer.minval=nan is not"),
    (
        UNIFORM | {"initializer.minval": -3e38, "initializer.maxval": 3e38},
        "and the width of the range a finite float32",
    ),
    (
        UNIFORM | {"initializer.maxval": 70000, "dtype": "float16"},
        "initializer.maxval=70000 is not allowed; it must be from -65504 to "
        "65504, as dtype is float16",
    ),
    (
        UNIFORM | {"initializer.minval": -70000, "dtype": "float16"},
        "initializer.minval=-70000 is not allowed",
    ),
    (
        _NORMAL | {"initializer.stddev": -1},
        "initializer.stddev=-1 is not allowed; it must be at least 0.",
    ),
    ({"slot_dtype": "int8"}, "slot_dtype=int8 is not allowed"),
    ({"dim": "4\ndim=5"}, "dim", '"4" and "5"'),
    (
        {"optimizer": "adagrad", "optimizer.initial_accumulator_value": -1},
        "optimizer.initial_accumulator_value=-1 is not allowed",
    ),
    (
        {"admission": "count", "admission.n": 0},
        "admission.n=0 is not allowed",
    ),
    (
        {"admission": "probability", "admission.p": 2},
        "admission.p=2 is not allowed",
    ),
)

GOOD_LINES = (
    {"name": "n" * 200},
    {"name": "ä ~"},
    UNIFORM | {"initializer.minval": 1},
    UNIFORM | {"initializer.maxval": 65504, "dtype": "float16"},
    _NORMAL | {"initializer.stddev": 0},
    {"last_seen": "second", "statistics": "show,click"},
    {"l2": 0, "l1": 0},
)


class MalformedHandleTest(RefusalTestCase):
    @parameterized.named_parameters(
        *named_cases(op=HANDLE_OPS, bad=BAD_HANDLES)
    )
    def test_handle(self, op, bad):
        make, *texts = bad
        handle = make()
        self.assert_refused(lambda: op(tf.identity(handle)), *texts)

    @parameterized.named_parameters(*named_cases(op=HANDLES, bad=BAD_CONFIGS))
    def test_config(self, op, bad):
        config, *texts = bad
        self.assert_refused(lambda: op(config), *texts)

    def test_lines_of_a_config(self):
        for lines, *texts in BAD_LINES:
            with self.subTest(lines=lines):
                config = table_config(lines)
                make = functools.partial(ops.sparse_table_handle, config)
                self.assert_refused(make, *texts)
        for lines in GOOD_LINES:
            with self.subTest(lines=lines):
                ops.sparse_table_handle(table_config(lines))

    @parameterized.named_parameters(
        ("empty", "", "shared_name must not be empty"),
        ("not_a_string", 5, "shared_name", "5"),
    )
    def test_name_of_a_served_table_is_(self, name, *texts):
        self.assert_refused(
            lambda: _serving_handle(table_config(), name), *texts
        )

    def test_served_table_of_the_name_is_another_one(self):
        handle = _serving_handle(table_config(optimizer="none"), self.id())
        ops.sparse_table_import(
            handle, [7], [tf.ones([1, 4])], field_names=["weights"]
        )
        self.assert_refused(
            lambda: _serving_handle(
                table_config(optimizer="none", dim=5), self.id()
            ),
            f"A table of shared_name '{self.id()}' exists and differs from",
            "dim",
        )
        self.assertEqual(int(ops.sparse_table_size(handle)), 1)

    def test_served_rows_are_not_trained(self):
        handle = _serving_handle(table_config(optimizer="none"), self.id())
        self.assert_refused(
            lambda: ops.sparse_table_push(
                handle, [1], tf.ones([1, 4]), hyperparameters=[0.5, 0.0]
            ),
            "the table has optimizer=none, as in an exported model",
            "Train the model that was exported or saved",
        )


if __name__ == "__main__":
    tf.test.main()
