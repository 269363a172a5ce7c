# SPDX-License-Identifier: Apache-2.0
"""Hashing in the threads of a dataset, beside the training."""

import typing
from collections.abc import Collection, Iterator, Mapping, Sequence

import tensorflow as tf

from tf_ext._checks import is_int, listed, refuse
from tf_ext.data.worker_batches import batch_size_of
from tf_ext.feature_column.bags import hash_batch
from tf_ext.feature_column.column import Column
from tf_ext.feature_column.hashed_features import (
    KEY,
    identity_of,
    keys_read,
    split,
)

_NAME = "hash_columns"


class _Layer(typing.Protocol):
    @property
    def columns(self) -> Sequence[Sequence[Column]]: ...


_Columns: typing.TypeAlias = Column | _Layer | Sequence[Column]
HashedColumns: typing.TypeAlias = _Layer | Sequence[_Columns]


def hash_columns(
    dataset: tf.data.Dataset,
    columns: HashedColumns,
    *,
    keep: Collection[str] = (),
    num_parallel_calls: int | None = tf.data.AUTOTUNE,
) -> tf.data.Dataset:
    """Hashes the features of a dataset in its threads, while a model trains.

    The signs take the place of the features that the columns read. The model is
    the same one as without: its `tf_ext.layers.EmbeddingFeatures` find their
    columns hashed, read the same rows and train them to the same bits, and take
    raw features elsewhere, such as in `predict` and when the model is served.
    The columns must be those of the layers, except for names and combiners.

    Functional models whose inputs are replaced must be `tf_ext.Model`.

    Args:
      dataset: tf.data.Dataset of batches: features, a dict by key, or a tuple
        that begins with them.
      columns: tf_ext.layers.EmbeddingFeatures, or a list of all layers and
        columns that read the dataset.
      keep: keys of features that something else reads, too, and that remain
        although they are hashed. Features that no column reads always do.
      num_parallel_calls: int, the batches that are hashed at the same time;
        `tf.data.AUTOTUNE`; or None for one at a time, when it is asked for. The
        order of batches does not depend on it.

    Returns:
      tf.data.Dataset of the same batches with hashed features, under the key
      "tf_ext_hashed". It can be shared, repeated, cached and saved like any
      other.

    Raises:
      ValueError: an argument is not as above, or a feature is missing or of a
        type that its column does not take.
      tf.errors.InvalidArgumentError: of a batch, as of
        `tf_ext.feature_column.columns_to_bags`, when it is read.

    Example:
      >>> user = tf_ext.feature_column.category_column("user")
      >>> layer = tf_ext.layers.EmbeddingFeatures(
      ...     [user], tf_ext.SparseTable("hashed", 4))
      >>> data = tf.data.Dataset.from_tensor_slices(
      ...     ({"user": ["ann", "bob", "cem"]}, [1.0, 0.0, 1.0])).batch(2)
      >>> hashed = tf_ext.data.hash_columns(data, layer)
      >>> for (raw, _), (signs, _) in zip(data, hashed):
      ...     print("user" in signs, np.array_equal(layer(raw), layer(signs)))
      False True
      False True
    """
    if not isinstance(dataset, tf.data.Dataset):
        refuse(_NAME, "dataset", "a tf.data.Dataset", dataset)
    if num_parallel_calls is not None and not (
        is_int(num_parallel_calls)
        and (num_parallel_calls > 0 or num_parallel_calls == tf.data.AUTOTUNE)
    ):
        allowed = "a positive integer, tf.data.AUTOTUNE or None"
        refuse(_NAME, "num_parallel_calls", allowed, num_parallel_calls)
    distinct, left_out = distinct_columns(_NAME, columns, keep)
    _check_features(dataset.element_spec)
    return hash_others(dataset, distinct, left_out, num_parallel_calls)


def distinct_columns(
    owner: str, columns: HashedColumns, keep: Collection[str]
) -> tuple[list[Column], set[str]]:
    """Columns of different identities, and the features that they replace.

    Args:
      owner: string, the function of the arguments.
      columns: as of `hash_columns`.
      keep: as of `hash_columns`.

    Raises:
      ValueError: they are not as they have to be.
    """
    by_identity = {identity_of(c): c for c in _to_columns(owner, columns)}
    read = set().union(*map(keys_read, by_identity))
    if (
        isinstance(keep, str)
        or not isinstance(keep, Collection)
        or not read.issuperset(keep)
    ):
        names = listed(read)
        refuse(owner, "keep", f"of the keys that columns read, {names}", keep)
    return list(by_identity.values()), read.difference(keep)


def hash_others(
    dataset: tf.data.Dataset,
    columns: Sequence[Column],
    left_out: Collection[str],
    num_parallel_calls: int | None,
) -> tf.data.Dataset:
    """Hashes columns that are not hashed in a dataset.

    Args:
      dataset: tf.data.Dataset.
      columns: list of Column.
      left_out: keys of features that are left out of the result.
      num_parallel_calls: int or None, as of `hash_columns`.
    """
    is_tuple = isinstance(dataset.element_spec, tuple)
    keys = {k for c in columns for part in c.parts for k in part.keys}

    def hash_features(*element: typing.Any) -> typing.Any:
        raw, *rest = element
        is_known = any(key in raw for key in keys)
        size = None if is_known else batch_size_of(element)
        with tf.name_scope(_NAME):
            hashed = hash_batch(columns, raw, False, batch_size=size)
            kept = {k: v for k, v in raw.items() if k not in left_out}
            kept[KEY] = {**raw.get(KEY, {}), **split(columns, hashed, raw)}
        return (kept, *rest) if is_tuple else kept

    return dataset.map(
        # Errors of ours would begin with words of AutoGraph.
        tf.autograph.experimental.do_not_convert(hash_features),
        num_parallel_calls=num_parallel_calls,
        deterministic=True if num_parallel_calls is not None else None,
    )


def _to_columns(owner: str, columns: HashedColumns) -> list[Column]:
    found = list(_flat(columns))
    if not found or not all(isinstance(one, Column) for one in found):
        allowed = (
            "a layer with columns, such as tf_ext.layers.EmbeddingFeatures, or "
            "a list of such layers, columns and lists of columns"
        )
        refuse(owner, "columns", allowed, columns)
    return found


def _flat(columns: typing.Any) -> Iterator[typing.Any]:
    """What should be columns, of layers, columns and lists of them."""
    if not isinstance(columns, Column):
        columns = getattr(columns, "columns", columns)
    if not isinstance(columns, list | tuple):
        yield columns
        return
    for one in columns:
        yield from _flat(one)


def _check_features(element_spec: typing.Any) -> None:
    is_tuple = isinstance(element_spec, tuple) and element_spec
    inputs = element_spec[0] if is_tuple else element_spec
    if not isinstance(inputs, Mapping):
        allowed = "a dataset of batches whose features are a dict"
        refuse(_NAME, "dataset", allowed, element_spec)
    if KEY in inputs:
        allowed = "one that is not hashed yet: hash all columns at once"
        refuse(_NAME, "dataset", allowed, element_spec)
    # A feature [n] of one sample would be taken for a batch of n.
    if any(spec.shape.rank == 0 for spec in tf.nest.flatten(element_spec)):
        refuse(_NAME, "dataset", "of batches, not of samples", element_spec)
