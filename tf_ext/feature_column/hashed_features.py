# SPDX-License-Identifier: Apache-2.0
"""Features whose columns have been hashed before they reach a layer.

Each column is in an entry of a dict, which is itself an entry of the features.
All its tensors have one value, or one row, for each example, so a batch can be
cut, joined and sent like any other. Its key says how it was hashed: a layer
finds its columns by it, and no others. Columns of at most one value may share
an entry: around a batch, a tensor of one column costs as much as one of all.
"""

import functools
import itertools
import json
import typing
from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf

from tf_ext.feature_column.bag_blocks import Bags
from tf_ext.feature_column.bags import HashedBatch
from tf_ext.feature_column.column import Column, describe

KEY = "tf_ext_hashed"
"""Of the hashed columns among the features of a batch."""

Entries: typing.TypeAlias = Mapping[str, Mapping[str, typing.Any]]
"""By `identity_of` a column: "signs", int64 `[batch_size]` if each example has
one, or `[batch_size, None]`; "weights", float32 of the same structure, if the
column has any; and "mask" of a sequence, bool `[batch_size, length]`, which is
ragged if the length depends on the batch. By `key_of` columns of at most one
value: "signs", int64 `[batch_size, columns]`, and unless each example has one
in every column, "present", bool of the same shape."""
Hashed: typing.TypeAlias = Mapping[str, Mapping[str, typing.Any]]
"""By `identity_of` a column: its own entry, or a `Shared`."""

_KEY_JOINT = "\n"  # No text of JSON has one.


class Shared(dict[str, typing.Any]):
    """An entry of several columns, for one of them.

    Args:
      entry: dict of tensors.
      place: int, the column's among those of the entry.
      count: int, their number.
    """

    def __init__(
        self, entry: Mapping[str, typing.Any], place: int, count: int
    ) -> None:
        super().__init__(entry)
        self.entry = entry
        self.place = place
        self.count = count


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


def key_of(columns: Sequence[Column]) -> str:
    """The key of an entry of several columns."""
    return _KEY_JOINT.join(map(identity_of, columns))


def by_identity(entries: Entries) -> Hashed:
    """The entries of columns, each by its own identity."""
    found: dict[str, Mapping[str, typing.Any]] = {}
    for key, entry in entries.items():
        identities = key.split(_KEY_JOINT)
        if len(identities) == 1 and "present" not in entry:
            found[key] = entry
            continue
        for place, identity in enumerate(identities):
            found[identity] = Shared(entry, place, len(identities))
    return found


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
      Entries, one a column.
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
        and not part.converted_type(feature.dtype).is_floating
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

    It is what `hash_batch` would have made of the raw features, bit by bit, but
    for weights that are all 1, which it may leave out.

    Args:
      columns: list of Column.
      hashed: Hashed.
    """
    entries = [hashed[identity_of(column)] for column in columns]
    runs = [*_runs(entries)]
    values = _concat([run.values for run in runs])
    if all(run.lengths is None for run in runs):
        row_splits = tf.range(tf.size(values, tf.int64) + 1)
    else:
        lengths = _concat([run.all_lengths() for run in runs])
        row_splits = tf.concat([[0], tf.cumsum(lengths)], 0)
    weights = tf.zeros([0])
    if any(column.is_weighted for column in columns):
        weights = _concat([run.all_weights() for run in runs])
    masks = {
        column: _padded(entry["mask"])
        for column, entry in zip(columns, entries, strict=True)
        if "mask" in entry
    }
    return HashedBatch(
        Bags(values, row_splits, weights), masks, {}, tf.constant("")
    )


class _Run(typing.NamedTuple):
    """The bags of columns that stand side by side, column by column.

    values: int64; lengths: int64, of bags, or None if each has one; weights:
    float32, or None.
    """

    values: tf.Tensor
    lengths: tf.Tensor | None
    weights: tf.Tensor | None

    def all_lengths(self) -> tf.Tensor:
        if self.lengths is None:
            return tf.ones_like(self.values)
        return self.lengths

    def all_weights(self) -> tf.Tensor:
        if self.weights is None:
            return tf.ones_like(self.values, tf.float32)
        return self.weights


def _runs(entries: Sequence[Mapping[str, typing.Any]]) -> Iterator[_Run]:
    """Entries of columns as few runs."""
    for _, group in itertools.groupby(
        entries, lambda one: id(one.entry if isinstance(one, Shared) else one)
    ):
        run = list(group)
        first = run[0]
        if isinstance(first, Shared):
            places = [one.place for one in run if isinstance(one, Shared)]
            yield _run_of_shared(first, places)
            continue
        signs, weights = first["signs"], first.get("weights")
        one = _Run(
            _flat(signs),
            _lengths(signs) if isinstance(signs, tf.RaggedTensor) else None,
            None if weights is None else _flat(weights),
        )
        # Columns that differ in their combiners only.
        yield from [one] * len(run)


def _run_of_shared(shared: Shared, places: list[int]) -> _Run:
    def chosen(matrix: tf.Tensor) -> tf.Tensor:
        if places != [*range(shared.count)]:
            matrix = tf.gather(matrix, places, axis=1)
        return tf.reshape(tf.transpose(matrix), [-1])

    # Some training loops of Keras make other shapes of one column.
    signs = chosen(tf.reshape(shared["signs"], [-1, shared.count]))
    if "present" not in shared:
        return _Run(signs, None, None)
    present = chosen(tf.reshape(shared["present"], [-1, shared.count]))
    kept = tf.boolean_mask(signs, present)
    return _Run(kept, tf.cast(present, tf.int64), None)


def _concat(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def _flat(feature: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
    if isinstance(feature, tf.RaggedTensor):
        return feature.flat_values
    # Some training loops of Keras make [batch_size, 1] of [batch_size].
    return tf.reshape(feature, [-1])


def _lengths(feature: tf.RaggedTensor) -> tf.Tensor:
    return tf.cast(feature.row_lengths(), tf.int64)


def _padded(mask: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
    if not isinstance(mask, tf.RaggedTensor):
        return mask
    length = tf.maximum(mask.bounding_shape(1), 1)
    padded = mask.to_tensor(False, shape=tf.stack([mask.nrows(), length]))
    padded.set_shape([None, None])
    return padded
