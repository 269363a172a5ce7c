# SPDX-License-Identifier: Apache-2.0
"""Datasets of records that are hashed where they were parsed."""

import functools
import typing
from collections.abc import Callable, Collection, Iterator

import tensorflow as tf

from tf_ext._checks import refuse
from tf_ext.data.formats import Reader
from tf_ext.data.hashed_datasets import (
    HashedColumns,
    distinct_columns,
    hash_others,
)
from tf_ext.data.part_hashing import PartHasher, features_of
from tf_ext.data.parts import Parsed
from tf_ext.data.schema import Schema


class Hashing(typing.NamedTuple):
    """What hashes the records of a dataset.

    Attributes:
      hasher: PartHasher.
      left_out: set of keys of features that are not in batches.
    """

    hasher: PartHasher
    left_out: set[str]

    def of_others(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Batches in which the columns are hashed that `hasher` has left."""
        if not self.hasher.others:
            return batches
        hashed = hash_others(batches, self.hasher.others, self.left_out, None)
        return hashed.prefetch(tf.data.AUTOTUNE)


def hashing_of(
    owner: str,
    schema: Schema,
    columns: HashedColumns | None,
    keep: Collection[str],
) -> Hashing | None:
    """The Hashing of the arguments of `owner`; None without columns.

    Raises:
      ValueError: they are not as `hash_columns` has them.
    """
    if columns is None:
        if keep != ():
            refuse(owner, "keep", "left out without `columns`", keep)
        return None
    distinct, left_out = distinct_columns(owner, columns, keep)
    features = features_of(schema)
    for column in distinct:
        column.check(features)
    return Hashing(PartHasher(schema, distinct, keep), left_out)


class HashingReader:
    """A Reader that hashes what another one reads, in the same threads."""

    def __init__(self, reader: Reader, hasher: PartHasher) -> None:
        self._reader = reader
        self._hasher = hasher

    def blocks(self, file: str) -> Iterator[Callable[[], Parsed]]:
        """Yields functions that parse the blocks of a file, in any thread."""
        for parse in self._reader.blocks(file):
            yield functools.partial(self._hashed, parse)

    def _hashed(self, parse: Callable[[], Parsed]) -> Parsed:
        parsed = parse()
        return parsed._replace(part=self._hasher(parsed.part))
