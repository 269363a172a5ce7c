# SPDX-License-Identifier: Apache-2.0
"""Arguments that `tf_ext.data.read` and its schema refuse."""

import pathlib
import tempfile

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized
from oracles.readable_files import SCHEMA, Field, good_line

import tf_ext

Schema = tf_ext.data.Schema


class ArgumentsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.folder = pathlib.Path(folder)
        self.path = self.folder / "a"
        self.path.write_bytes(good_line(0, ",") + b"\n")

    def test_refusals_of_read(self):
        for argument, value in (
            ("format", "xml"),
            ("batch_size", 0),
            ("shuffle", 0),
            ("seed", -1),
            ("threads", 0),
            ("max_errors", 2),
            ("max_errors", float("nan")),
            ("errors", {}),
            ("header", 1),
            ("shard", (1, 1)),
            ("shard", (-1, 1)),
            ("shard", (0, 2)),
            ("shard", 3),
        ):
            with self.assertRaisesRegex(
                ValueError, f"Argument `{argument}` of read must be"
            ):
                tf_ext.data.read(
                    self.path, SCHEMA, **{"batch_size": 1, argument: value}
                )
        with self.assertRaisesRegex(ValueError, "`schema` of read"):
            tf_ext.data.read(self.path, [Field("x")], batch_size=1)
        with self.assertRaisesRegex(ValueError, "`files` of read"):
            tf_ext.data.read([self.path] * 2, SCHEMA, batch_size=1)
        for missing in (self.folder / "b", self.folder / "b*"):
            with self.assertRaisesRegex(
                FileNotFoundError,
                r"(There is no file|No file matches) .*/b\*?\. "
                "Argument `files` of read must be paths",
            ):
                tf_ext.data.read(missing, SCHEMA, batch_size=1)

    def test_who_else_shards(self):
        policies = tf.data.experimental.AutoShardPolicy
        for options, policy in (
            ({}, policies.DATA),
            ({"shard": (0, 1)}, policies.OFF),
        ):
            data = tf_ext.data.read(self.path, SCHEMA, batch_size=1, **options)
            found = data.options().experimental_distribute.auto_shard_policy
            self.assertEqual(found, policy)

    def test_refused_in_traced_functions(self):
        with self.assertRaisesRegex(RuntimeError, "in a function that Tensor"):
            tf.function(
                lambda: tf_ext.data.read(self.path, SCHEMA, batch_size=1)
            ).get_concrete_function()

    @parameterized.parameters(tf.float32, np.float32, np.dtype("float32"))
    def test_types_of_fields(self, dtype):
        field = tf_ext.data.Field("a", dtype, default=0.5)
        self.assertEqual(field, tf_ext.data.Field("a", "float32", default=0.5))

    @parameterized.parameters(
        ({"name": ""}, "name"),
        ({"dtype": tf.float64}, "dtype"),
        ({"dtype": np.bool_}, "dtype"),
        ({"dtype": float}, "dtype"),
        ({"dtype": "float64"}, "dtype"),
        ({"default": 3}, "default"),
        ({"dtype": "int32", "default": 2**31}, "default"),
        ({"dtype": "int32", "default": 0.5}, "default"),
        ({"dtype": "int32", "default": 0.0}, "default"),
        ({"dtype": "float32", "default": False}, "default"),
        ({"dtype": "float32", "default": 1e39}, "default"),
        ({"dtype": "float32", "default": 10**400}, "default"),
        ({"separator": "|", "default": ""}, "default"),
        ({"separator": ""}, "separator"),
        ({"weight_separator": ":"}, "weight_separator"),
        ({"separator": ":", "weight_separator": ":"}, "weight_separator"),
        ({"values": {"a": 1}}, "values"),
        ({"dtype": "int32", "values": {}}, "values"),
        ({"dtype": "int32", "values": {"a": 0.5}}, "values"),
    )
    def test_refusals_of_fields(self, arguments, named):
        with self.assertRaisesRegex(
            ValueError, f"^Argument `{named}` of Field.* must be "
        ):
            Field(**{"name": "x", **arguments})

    @parameterized.parameters(
        ({"fields": []}, "fields"),
        ({"fields": [Field("x"), Field("x")]}, "fields"),
        ({"label": "y"}, "label"),
        ({"label": ["x", "y"]}, "label"),
        ({"sample_weight": "x"}, "sample_weight"),
        ({"missing": "?"}, "missing"),
    )
    def test_refusals_of_schemas(self, arguments, named):
        with self.assertRaisesRegex(
            ValueError, f"^Argument `{named}` of Schema must be "
        ):
            Schema(**{"fields": [Field("x")], **arguments})

    def test_a_bag_without_separator_in_text(self):
        schema = Schema([Field("x", bag=True)])
        with self.assertRaisesRegex(ValueError, "separator"):
            tf_ext.data.read(self.path, schema, batch_size=1)


if __name__ == "__main__":
    absltest.main()
