# SPDX-License-Identifier: Apache-2.0
"""The datasets that a dataset is made of."""

from collections.abc import Callable, Iterator

import tensorflow as tf


def parts_of(
    dataset: tf.data.Dataset, cached: bool = True
) -> Iterator[tf.data.Dataset]:
    """Yields a dataset and those that it reads, as far as objects tell.

    Those that functions of `flat_map` and `interleave` return are unknown.

    Seen in: TensorFlow 2.18 to 2.21.

    Args:
      dataset: tf.data.Dataset.
      cached: bool, whether to look into what is read once, for a `cache`.
    """
    waiting, seen = [dataset], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if cached or type(one).__name__ != "CacheDataset":
            waiting += one._inputs()


def is_served(dataset: tf.data.Dataset) -> bool:
    """Whether a dataset reads from tf.data service, as far as `parts_of` tells.

    Seen in: TensorFlow 2.18 to 2.21.
    """
    return any("DataService" in type(one).__name__ for one in parts_of(dataset))


# Datasets that make one batch of each batch that they read.
_ONE_TO_ONE = frozenset(
    {
        "_MapDataset",
        "_OptionsDataset",
        "_ParallelMapDataset",
        "_PrefetchDataset",
        "_TakeDataset",
        "_ZipDataset",
    }
)


def batches_changed(
    dataset: tf.data.Dataset, is_source: Callable[[tf.data.Dataset], bool]
) -> list[str]:
    """The classes of datasets that change how many batches there are.

    Seen in: TensorFlow 2.18 to 2.21.

    Args:
      dataset: tf.data.Dataset.
      is_source: tells which datasets are not looked into.
    """
    waiting, changed = [dataset], set()
    while waiting:
        one = waiting.pop()
        if is_source(one):
            continue
        name = type(one).__name__
        if name not in _ONE_TO_ONE:
            changed.add(name.strip("_"))
        waiting += one._inputs()
    return sorted(changed)


def takes_some(dataset: tf.data.Dataset) -> bool:
    """Whether a dataset ends although those that it reads go on, by `take`.

    Seen in: TensorFlow 2.18 to 2.21.

    Args:
      dataset: tf.data.Dataset.
    """
    return any(
        type(one).__name__ == "_TakeDataset" for one in parts_of(dataset)
    )
