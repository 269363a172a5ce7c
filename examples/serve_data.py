"""The features of serve.py, as JSON has them and as models take them."""

import tensorflow as tf
from wide_deep_generator import SCHEMA

# How many the servers are asked for; a request has some of them.
SAMPLES = 64

# A made-up sample, to ask a model before it serves: the first request of each
# takes longest.
ONE_SAMPLE = {
    "user": ["0"],
    "item": [0],
    "campaign": [0],
    "tags": [[0]],
    "device": ["0"],
    "hour": [0],
    "price": [1.0],
}


def to_lists(features):
    """A batch as lists by feature, of strings as text."""
    lists = {}
    for field in SCHEMA.features:
        values = features[field.name]
        values = values.to_list() if field.bag else values.numpy().tolist()
        if field.dtype == "string":
            values = [value.decode() for value in values]
        lists[field.name] = values
    return lists


def to_features(lists):
    """A batch as models take it, of lists by feature.

    Raises:
      ValueError: a feature is missing, or holds something else.
    """
    features = {}
    for field in SCHEMA.features:
        if field.name not in lists:
            raise ValueError(f"The feature {field.name!r} is missing.")
        values = lists[field.name]
        try:
            features[field.name] = (
                tf.ragged.constant(values, field.dtype, ragged_rank=1)
                if field.bag
                else tf.constant(values, field.dtype, [len(values)])
            )
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The feature {field.name!r} is no list of {field.dtype}: "
                f"{error}"
            ) from None
    return features
