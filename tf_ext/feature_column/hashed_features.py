# SPDX-License-Identifier: Apache-2.0
"""Features whose columns have been hashed before they reach a layer.

Each column is an entry of a dict, which is itself an entry of the features. All
its tensors have one value, or one row, for each example, so that a batch can be
cut, joined and sent like any other. Its key says how it was hashed: a layer
finds its columns by it, and no others.
"""

import functools
import json
import typing
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf_ext.feature_column.bag_blocks import Bags
from tf_ext.feature_column.bags import HashedBatch
from tf_ext.feature_column.column import Column, describe

KEY = "tf_ext_hashed"
"""Of the hashed columns among the features of a batch."""

Hashed: typing.TypeAlias = Mapping[str, Mapping[str, typing.Any]]
"""By `identity_of` a column: "signs", int64 `[batch_size]` if each example has
one, or `[batch_size, None]`; "weights", float32 of the same structure, if the
column has any; and "mask" of a sequence, bool `[batch_size, length]`, which is
ragged if the length depends on the batch."""


@functools.lru_cache(maxsize=4096)
def identity_of(column: Column) -> str:
    """A JSON text of all that the signs, weights and mask of a batch depend on.

    Columns that differ in their names or combiners only have the same.

    Args:
      column: Column.
    """
    described = describe([column], range(len(column.parts)))
    del described["part_inputs"]
    lists: dict[str, typing.Any] = {
        "features": [part.key for part in column.parts],
        "weights": [part.weights for part in column.parts],
        "references": [part.reference for part in column.parts],
        "conversions": [part.conversion for part in column.parts],
        **described,
    }
    # Most are what they are unless given: 0, "", False or None.
    entries = {name: values for name, values in lists.items() if any(values)}
    if column.sequence is not None:
        entries["sequence"] = list(column.sequence)
    return json.dumps(entries)


def keys_read(identity: str) -> set[str]:
    """The features and weights that a column reads, by its identity."""
    entries = json.loads(identity)
    others = [*entries.get("weights", ()), *entries.get("references", ())]
    return {*entries["features"], *filter(None, others)}


def split(
    columns: Sequence[Column],
    hashed: HashedBatch,
    inputs: Mapping[str, typing.Any],
) -> dict[str, dict[str, typing.Any]]:
    """What stands for columns in the features of a batch.

    Args:
      columns: list of Column.
      hashed: HashedBatch of them.
      inputs: dict of the raw features by key.

    Returns:
      A dict as of `Hashed`.
    """
    signs, row_splits, weights = hashed.bags
    count = len(columns)
    weighted = any(column.is_weighted for column in columns)
    if weighted:
        missing = tf.size(signs) - tf.size(weights)
        weights = tf.concat([weights, tf.ones([missing])], 0)
    batch = (tf.size(row_splits, tf.int64) - 1) // count
    firsts = tf.range(count + 1, dtype=tf.int64) * batch
    bounds = tf.gather(row_splits, firsts)
    sizes = bounds[1:] - bounds[:-1]
    places = firsts[:-1, tf.newaxis] + tf.range(batch + 1)
    splits = tf.gather(row_splits, places) - bounds[:-1, tf.newaxis]
    entries = {}
    for column, its_signs, its_weights, its_splits in zip(
        columns,
        tf.split(signs, sizes, num=count),
        tf.split(weights, sizes, num=count) if weighted else [None] * count,
        tf.unstack(splits, count),
        strict=True,
    ):
        entry = {"signs": its_signs}
        if column.is_weighted:
            entry["weights"] = its_weights
        if not _has_one_value(column, inputs):
            for name, values in entry.items():
                entry[name] = tf.RaggedTensor.from_row_splits(
                    values, its_splits, validate=False
                )
        if column in hashed.masks:
            entry["mask"] = _mask(column, hashed)
        entries[identity_of(column)] = entry
    return entries


def _has_one_value(column: Column, inputs: Mapping[str, typing.Any]) -> bool:
    """Whether a column has one sign for each example, as the shapes tell."""
    if column.sequence is not None:
        return False
    features = [inputs.get(part.key) for part in column.parts]
    return all(
        isinstance(feature, tf.Tensor)
        and feature.shape.rank is not None
        and feature.shape[1:].num_elements() == 1
        # NaN is no value.
        and not feature.dtype.is_floating
        and part.missing is None
        for feature, part in zip(features, column.parts, strict=True)
    )


def _mask(column: Column, hashed: HashedBatch) -> tf.Tensor | tf.RaggedTensor:
    mask = hashed.masks[column]
    if mask.shape[1] is not None:
        return mask
    # As long as the longest sequence, which may be in another part of a batch.
    return tf.RaggedTensor.from_tensor(mask, hashed.lengths[column])


def join(columns: Sequence[Column], hashed: Hashed) -> HashedBatch:
    """The batch of columns, all of which are in `hashed`.

    It is what `hash_batch` would have made of the raw features, bit by bit.

    Args:
      columns: list of Column.
      hashed: Hashed.
    """
    entries = [hashed[identity_of(column)] for column in columns]
    signs = [entry["signs"] for entry in entries]
    values = tf.concat([_flat(one) for one in signs], 0)
    if any(isinstance(one, tf.RaggedTensor) for one in signs):
        lengths = tf.concat([_lengths(one) for one in signs], 0)
        row_splits = tf.concat([[0], tf.cumsum(lengths)], 0)
    else:
        row_splits = tf.range(tf.size(values, tf.int64) + 1)
    weights = tf.zeros([0])
    if any(column.is_weighted for column in columns):
        weights = tf.concat(
            [
                _flat(entry["weights"])
                if column.is_weighted
                else tf.ones_like(_flat(entry["signs"]), tf.float32)
                for column, entry in zip(columns, entries, strict=True)
            ],
            0,
        )
    masks = {
        column: _padded(entry["mask"])
        for column, entry in zip(columns, entries, strict=True)
        if "mask" in entry
    }
    return HashedBatch(
        Bags(values, row_splits, weights), masks, {}, tf.constant("")
    )


def _flat(feature: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
    if isinstance(feature, tf.RaggedTensor):
        return feature.flat_values
    # Some training loops of Keras make [batch_size, 1] of [batch_size].
    return tf.reshape(feature, [-1])


def _lengths(feature: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
    if isinstance(feature, tf.RaggedTensor):
        return tf.cast(feature.row_lengths(), tf.int64)
    return tf.ones_like(_flat(feature))


def _padded(mask: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
    if not isinstance(mask, tf.RaggedTensor):
        return mask
    length = tf.maximum(mask.bounding_shape(1), 1)
    padded = mask.to_tensor(False, shape=tf.stack([mask.nrows(), length]))
    padded.set_shape([None, None])
    return padded
