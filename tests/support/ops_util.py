# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of the ops."""

import functools
import itertools
import os
import subprocess
import sys
import tempfile

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tf_ext import ops

INT64_MIN, INT64_MAX = np.iinfo(np.int64).min, np.iinfo(np.int64).max

# For parameterized.named_parameters: the op called eagerly, and traced.
MODES = (
    ("eagerly", lambda f: f),
    ("in_a_function", functools.partial(tf.function, autograph=False)),
)

# TensorFlow names types in two ways.
FLOAT32 = ("float tensor", "values: float", "type float32")
FLOAT64 = ("double", "float64")


# What ops raise when they run and when they are traced.
_REFUSALS = (
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    ValueError,
    TypeError,
)


def table_config(entries=None, **more):
    """A table's config text; a small table that starts with zeros if none."""
    config = {
        "dim": 4,
        "initializer": "zeros",
        "name": "items",
        "optimizer": "sgd",
        **(entries or {}),
        **more,
    }
    return "\n".join(f"{key}={value}" for key, value in config.items())


UNIFORM = {
    "initializer": "uniform",
    "initializer.minval": -1,
    "initializer.maxval": 1,
}


def named_cases(**choices):
    """Every combination of choices, for parameterized.named_parameters.

    Args:
      **choices: argument = list of values, or of `(label, value)`.

    Returns:
      List of dicts, each with a `testcase_name` that spells the case.
    """
    cases = []
    for chosen in itertools.product(*choices.values()):
        labels, values = zip(
            *(c if isinstance(c, tuple) else (c, c) for c in chosen)
        )
        case = dict(zip(choices, values))
        case["testcase_name"] = "_".join(
            f"{name}_{label}" for name, label in zip(choices, labels)
        )
        cases.append(case)
    return cases


def export_all(handle, names=("weights",), dtypes=(tf.float32,)):
    """All rows, ordered by sign: `signs, [values of each field]`."""
    signs, next_cursor, values = ops.sparse_table_export(
        handle, field_names=names, field_dtypes=dtypes
    )
    assert int(next_cursor) == -1, next_cursor
    order = np.argsort(signs.numpy())
    return signs.numpy()[order], [v.numpy()[order] for v in values]


def resident_bytes():
    """The resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_python(script, *arguments):
    """The standard output of a script that runs in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode != 0:
        raise AssertionError(f"The script failed:\n{done.stderr[-4000:]}")
    return done.stdout


class StoredTableTestCase(parameterized.TestCase):
    """A table of three rows, and a directory for its files.

    Attributes:
      directory: string.
      handle: of the table.
    """

    def setUp(self):
        super().setUp()
        directory = tempfile.TemporaryDirectory(prefix="tf_ext_ops_")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.handle = ops.sparse_table_handle(table_config(dim=2))
        ops.sparse_table_pull(self.handle, [1, 2, 3], training=True, dim=2)


class RefusalTestCase(tf.test.TestCase, parameterized.TestCase):
    """Asserts that calls raise an error whose message is a sentence."""

    def assert_refused(self, call, *texts):
        """`call` raises, eagerly and traced, and changes nothing.

        Args:
          call: function without arguments.
          *texts: strings that the message must contain; of a tuple, one of
            them.
        """
        for name, mode in MODES:
            with self.subTest(name):
                with self.assertRaises(_REFUSALS) as raised:
                    mode(call)()
                message = str(raised.exception)
                for text in texts:
                    words = text if isinstance(text, tuple) else (text,)
                    self.assertTrue(
                        any(word in message for word in words),
                        f"{text!r} is not in {message!r}",
                    )
                self.assert_unchanged()

    def assert_unchanged(self):
        """For tests with a table: it is as it was."""
