# SPDX-License-Identifier: Apache-2.0
"""Serves exported models in a program that uses nothing else of tf_ext.

    serving_load_program.py ORDER JSON...

loads what `serving_export_program` wrote and compares predictions. ORDER says
what is imported first, `tensorflow` or `tf_ext`.
"""

import json
import pathlib
import sys


def main(order, *descriptions):
    """See the module's docstring."""
    if order == "tensorflow":
        import tensorflow as tf

        import tf_ext
    else:
        import tf_ext

        assert "tensorflow" not in sys.modules
        import tensorflow as tf

        tf_ext.ops.library()
    import numpy as np

    for description in descriptions:
        case = json.loads(pathlib.Path(description).read_text())
        batch = {
            key: tf.constant(values, "string" if dtype == "str" else dtype)
            for key, (dtype, values) in case["features"].items()
        }
        loaded = tf.saved_model.load(case["path"])
        [signed] = loaded.signatures["serving_default"](**batch).values()
        for found in (loaded.serve(batch), signed):
            np.testing.assert_allclose(
                found, case["expected"], rtol=0, atol=1e-6, err_msg=description
            )
    print(f"{len(descriptions)} models predict what they did")


if __name__ == "__main__":
    main(*sys.argv[1:])
