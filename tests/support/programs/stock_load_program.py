# SPDX-License-Identifier: Apache-2.0
"""Loads exports in a process that cannot import tf_ext.

    stock_load_program.py CASES

CASES is a pickled list of dicts: `path`; `batch`, `{key: array}` or, of
composite tensors, `{key: {component: array}}`; `named`, the same by name in the
signature; `expected`, `{name: array}`; `atol`.

Prints the number of cases with the expected results.
"""

import gc
import pathlib
import pickle
import sys

import numpy as np


class _Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tf_ext":
            raise ImportError("tf_ext must not be imported here")
        return None


def tensor(value):
    """A tensor of its components."""
    import tensorflow as tf

    if not isinstance(value, dict):
        return tf.constant(value)
    if "row_splits" in value:
        return tf.RaggedTensor.from_row_splits(
            value["values"], value["row_splits"]
        )
    return tf.SparseTensor(**value)


def main(cases):
    """See the module's docstring."""
    sys.meta_path.insert(0, _Refuses())
    import tensorflow as tf

    loaded = []
    cases = pickle.loads(pathlib.Path(cases).read_bytes())
    for case in cases:
        model = tf.saved_model.load(case["path"])
        # Nothing keeps the object that this signature belongs to.
        default = tf.saved_model.load(case["path"]).signatures[
            "serving_default"
        ]
        loaded.append((model, default))  # All of them side by side.
    gc.collect()
    for case, (model, function) in zip(cases, loaded):
        batch = tf.nest.map_structure(lambda t: t, case["batch"])
        batch = (
            {key: tensor(value) for key, value in batch.items()}
            if isinstance(batch, dict)
            else tensor(batch)
        )
        named = {key: tf.constant(v) for key, v in case["named"].items()}
        default = function(**named)
        assert sorted(default) == sorted(case["expected"]), default.keys()
        served = [np.asarray(v) for v in tf.nest.flatten(model.serve(batch))]
        for name, expected in case["expected"].items():
            found = default[name].numpy()
            if np.issubdtype(expected.dtype, np.floating):
                np.testing.assert_allclose(
                    found, expected, 0, case["atol"], err_msg=str(case)
                )
            else:  # It would compare integers as floats.
                assert np.array_equal(found, expected), case
            assert any(
                v.shape == found.shape and np.array_equal(v, found)
                for v in served
            ), name
    maps = pathlib.Path("/proc/self/maps").read_text()
    assert "tf_ext" not in maps and "tf_ext" not in sys.modules
    print(f"{len(cases)} cases are served")


if __name__ == "__main__":
    main(*sys.argv[1:])
