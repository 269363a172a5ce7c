# SPDX-License-Identifier: Apache-2.0
"""Runs the examples of the docstrings.

An example is a `>>>` block; `keras`, `np`, `tf` and `tf_ext` are imported.
"""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_ext

pytestmark = pytest.mark.both_kerases(slow=True)

_MODULES = ["tf_ext"] + [
    info.name
    for info in pkgutil.walk_packages(tf_ext.__path__, "tf_ext.")
    if not info.name.startswith("tf_ext._")
]
_IMPORTED = {"keras": tf.keras, "np": np, "tf": tf, "tf_ext": tf_ext}


class DocstringTest(parameterized.TestCase):
    @parameterized.named_parameters(*zip(_MODULES, _MODULES, strict=True))
    def test_examples_of(self, module):
        failures, _ = doctest.testmod(
            importlib.import_module(module),
            extraglobs=_IMPORTED,
            optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
        )
        self.assertEqual(failures, 0, "the differences are printed above")


if __name__ == "__main__":
    absltest.main()
