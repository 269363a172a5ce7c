# SPDX-License-Identifier: Apache-2.0
"""Gathers the rows of all workers on the first, a chunk at a time."""

from collections.abc import Generator, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext.distribute.collectives import Collectives
from tf_ext.ops.exchange import exchange_ops
from tf_ext.regimes.table_interface import Chunk, Exports, Field

_GOES_ON, _FAILED = 0, 1


def gathered_chunks(
    collectives: Collectives,
    shard: Exports,
    fields: Sequence[Field],
    limit: int,
) -> Generator[Chunk, None, None]:
    """Brings the rows of all workers to the first, in bounded memory.

    All workers have to iterate over it at the same time. If one stops before
    the end, the others raise.

    Args:
      collectives: Collectives.
      shard: TableShard, this worker's.
      fields: tuple of Field, with elements of four bytes, or floats of two.
      limit: int, rows per worker and chunk.

    Yields:
      `(signs [n], {field: [n, count]})`, NumPy arrays; nothing on other
      workers than the first.

    Raises:
      RuntimeError: another worker stopped early.
    """
    cursor, agreed = 0, False
    try:
        while True:
            signs, values = tf.zeros([0], tf.int64), None
            if cursor >= 0:
                signs, cursor, values = shard.export(cursor, limit)
            mine = [_GOES_ON, tf.size(signs), cursor >= 0]
            rows = collectives.gather(tf.stack(_int64(mine))).numpy()
            agreed = rows[:, 0].max() == _FAILED or not rows[:, 2].any()
            if rows[:, 0].max() == _FAILED:
                raise RuntimeError(
                    f"Worker {rows[:, 0].argmax()} could not save the table; "
                    "its own error says why."
                )
            yield from _send(collectives, fields, signs, values, rows[:, 1])
            if agreed:
                return
    finally:
        if not agreed:
            collectives.gather(tf.constant([_FAILED, 0, 0], tf.int64))


def _int64(values: Sequence[int | tf.Tensor]) -> list[tf.Tensor]:
    return [tf.cast(value, tf.int64) for value in values]


def _send(
    collectives: Collectives,
    fields: Sequence[Field],
    signs: tf.Tensor,
    values: Mapping[str, tf.Tensor] | None,
    counts: npt.NDArray[np.int64],
) -> Iterator[Chunk]:
    """Sends one chunk of each worker to the first, which concatenates them."""
    dim = sum(field.count for field in fields)
    floats = tf.zeros([0, dim])
    if values is not None:
        # Only the bits matter, not the numbers.
        floats = tf.concat([_bits(values[f.name]) for f in fields], 1)
    all_signs = _to_first(collectives, signs[:, tf.newaxis], counts)
    all_floats = _to_first(collectives, floats, counts)
    if collectives.rank == 0:
        parts = tf.split(all_floats, [field.count for field in fields], axis=1)
        yield (
            all_signs.numpy()[:, 0],
            {
                field.name: _from_bits(part, field.dtype).numpy()
                for field, part in zip(fields, parts)
            },
        )


def _bits(values: tf.Tensor) -> tf.Tensor:
    """The bits of values of 2 or 4 bytes, as float32."""
    if values.dtype.size == 2:
        values = tf.cast(tf.bitcast(values, tf.uint16), tf.int32)
    return tf.bitcast(values, tf.float32)


def _from_bits(bits: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The values whose `_bits` these are."""
    if dtype.size == 2:
        bits = tf.cast(tf.bitcast(bits, tf.int32), tf.uint16)
    return tf.bitcast(bits, dtype)


def _to_first(
    collectives: Collectives, values: tf.Tensor, counts: npt.NDArray[np.int64]
) -> tf.Tensor:
    size, dim = collectives.size, values.shape[1]
    split_sizes = tf.pad(tf.shape(values, tf.int64)[:1], [[0, size - 1]])
    received = collectives.all_to_all(
        lambda width: exchange_ops.exchange_pack(
            [values], [split_sizes], tf.zeros([size, 0], values.dtype), width
        ),
        values.dtype,
        tf.constant(max(1, counts.max() * dim), tf.int64),
    )
    arrived = counts if collectives.rank == 0 else 0 * counts
    return exchange_ops.exchange_unpack(received, arrived[tf.newaxis], [dim])[0]
