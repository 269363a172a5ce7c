# SPDX-License-Identifier: Apache-2.0
"""The features of serve.py, as JSON has them and as models take them."""

import tensorflow as tf

# Those of wide_deep_generator.py, which needs tf_ext; servers do without.
_DTYPES = {
    "user": "string",
    "item": "int64",
    "campaign": "int64",
    "tags": "int64",
    "device": "string",
    "hour": "int32",
    "price": "float32",
}
_BAGS = {"tags"}

# How many the servers are asked for; a request has some of them.
SAMPLES = 64


def to_lists(features):
    """A batch as lists by feature, of strings as text."""
    lists = {}
    for name, dtype in _DTYPES.items():
        values = features[name]
        values = values.to_list() if name in _BAGS else values.numpy().tolist()
        if dtype == "string":
            values = [value.decode() for value in values]
        lists[name] = values
    return lists


def to_features(lists):
    """A batch as models take it, of lists by feature.

    Raises:
      ValueError: a feature is missing, or holds something else.
    """
    features = {}
    for name, dtype in _DTYPES.items():
        if name not in lists:
            raise ValueError(f"The feature {name!r} is missing.")
        values = lists[name]
        try:
            features[name] = (
                tf.ragged.constant(values, dtype, ragged_rank=1)
                if name in _BAGS
                else tf.constant(values, dtype, [len(values)])
            )
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The feature {name!r} is no list of {dtype}: {error}"
            ) from None
    return features
