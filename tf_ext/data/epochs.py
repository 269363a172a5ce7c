# SPDX-License-Identifier: Apache-2.0
"""Epochs of datasets whose order depends on the epoch's number.

A dataset cannot know which epoch an iteration is of: a model that is built and
a restart read it as well. So `fit` tells it.
"""

import typing

import tensorflow as tf

from tf_ext._compat.datasets import parts_of


class Epoch:
    """The number of the epoch that the next iteration is of."""

    def __init__(self) -> None:
        self.number = 0


def mark(dataset: tf.data.Dataset, epochs: list[Epoch]) -> tf.data.Dataset:
    """Returns the dataset, whose order depends on Epochs."""
    dataset.tf_ext_epochs = epochs
    return dataset


def epochs_of(data: typing.Any) -> list[Epoch]:
    """The Epochs that the order of data depends on.

    That of a `cache` is of the first epoch, also in a process that begins with
    a later one.

    Args:
      data: tf.data.Dataset, or anything else, which has none.
    """
    if not isinstance(data, tf.data.Dataset):
        return []
    return [
        epoch
        for part in parts_of(data, cached=False)
        for epoch in getattr(part, "tf_ext_epochs", ())
    ]


def tell_epoch(data: typing.Any, number: int) -> None:
    """Tells data which epoch their next iteration is of.

    Args:
      data: as in `epochs_of`.
      number: int, from 0.
    """
    for epoch in epochs_of(data):
        epoch.number = number
