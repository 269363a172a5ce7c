# SPDX-License-Identifier: Apache-2.0
"""The datasets that a dataset is made of."""

from collections.abc import Iterator

import tensorflow as tf


def parts_of(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """Yields a dataset and those that it reads, as far as objects tell.

    Those that functions of `flat_map` and `interleave` return are unknown.

    Seen in: TensorFlow 2.18 to 2.21.
    """
    waiting, seen = [dataset], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += one._inputs()
