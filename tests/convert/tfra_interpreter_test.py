# SPDX-License-Identifier: Apache-2.0
"""Rows that TFRA itself has written.

TF_EXT_TFRA_PYTHON names an interpreter with tensorflow-recommenders-addons
0.8.1, tensorflow 2.16.2 and tf_keras 2.16.0.
"""

import os
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from paths import PROGRAMS
from saving_util import TestCase

import tf_ext

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "TF_EXT_TFRA_PYTHON" not in os.environ,
        reason="TF_EXT_TFRA_PYTHON names no interpreter with TFRA 0.8.1",
    ),
]

_DIM = 16
# Rule of TFRA -> that of the table, and the names of slots by field.
_RULES = {
    "adagrad": ("adagrad", {"accumulator": "accumulator"}),
    "adam": ("adam", {"m": "m", "v": "v"}),
    "ftrl": ("ftrl", {"accumulator": "accumulator", "linear": "linear"}),
    "momentum": (
        tf_ext.optimizers.SparseSGD(0.1, momentum=0.9),
        {"momentum": "m"},
    ),
    "rmsprop": (
        tf_ext.optimizers.SparseRMSprop(0.1, momentum=0.5, centered=True),
        {
            "velocity": "velocity",
            "momentum": "momentum",
            "average_gradient": "average_gradient",
        },
    ),
    "legacy_adam": ("adam", {"m": "m", "v": "v"}),
    "legacy_rmsprop": (
        tf_ext.optimizers.SparseRMSprop(0.1, momentum=0.5, centered=True),
        {"velocity": "rms", "momentum": "momentum", "average_gradient": "mg"},
    ),
}


class InterpreterTest(TestCase):
    def _saved(self, *arguments):
        directory = self.directory()
        program = str(PROGRAMS / "tfra_program.py")
        python = os.environ["TF_EXT_TFRA_PYTHON"]
        subprocess.run(
            [python, program, directory, *map(str, arguments)],
            check=True,
            capture_output=True,
            timeout=600,
        )
        return directory, dict(
            np.load(f"{directory}/exported.npz", allow_pickle=True)
        )

    @parameterized.parameters(
        ("adagrad", "int64", "float32", 1_000_000),
        ("adam", "int64", "float32", 2000),
        ("adam", "int64", "float16", 2000),
        ("adagrad", "int64", "bfloat16", 2000),
        ("adagrad", "int32", "float32", 2000),
        ("adagrad", "string", "float32", 2000),
        ("adam", "string", "float16", 2000),
        ("ftrl", "int64", "float32", 2000),
        ("momentum", "int64", "float32", 2000),
        ("rmsprop", "int64", "float32", 2000),
        ("legacy_adam", "int64", "float32", 2000),
        ("legacy_rmsprop", "int64", "float32", 2000),
    )
    def test_equal_to_the_bit(self, rule, key_type, value_type, rows):
        directory, expected = self._saved(rule, key_type, value_type, rows)
        mine, slots = _RULES[rule]
        column = tf_ext.feature_column.category_column("user")
        sources = [(f"{directory}/checkpoint", {})]
        if key_type != "string":
            types = {"key_dtype": key_type, "value_dtype": value_type}
            sources.append((f"{directory}/files", types))
        for path, types in sources:
            table = tf_ext.SparseTable("user", _DIM, mine)
            # TFRA does not list slots of legacy optimizers, but saves them.
            is_known = bool(set(slots.values()) & expected.keys()) or not types
            step = 2 * -(-rows // 100_000)
            done = tf_ext.convert.from_tfra(
                path, table, column, step=step if types else None, **types
            )
            self.assertEqual((done.taken, done.left), (rows, 0))
            self.assertEqual(set(slots) <= set(done.slots), is_known)
            signs, fields = table.export_rows()
            order = np.argsort(signs)
            names = {"weights": "user"} | (slots if is_known else {})
            for field, name in names.items():
                if name not in expected:
                    continue
                wanted = column.signs(expected[f"{name}_keys"]).numpy()
                by_sign = np.argsort(wanted)
                self.assertAllEqual(wanted[by_sign], signs[order])
                values = expected[name]
                if value_type == "bfloat16":  # NumPy's files know no such type.
                    values = values.view(tf.bfloat16.as_numpy_dtype)
                self.assertEqual(
                    values[by_sign].astype(np.float32).tobytes(),
                    fields[field][order].tobytes(),
                )
            if "step" in done.slots:
                self.assertAllEqual(fields["step"], np.full([rows, 1], step))


if __name__ == "__main__":
    tf.test.main()
