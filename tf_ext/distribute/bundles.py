# SPDX-License-Identifier: Apache-2.0
"""Small tensors of several types as one vector, to be sent together."""

from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

_WORD_BYTES = 4


class Bundle:
    """Tensors to be summed, and values to be gathered, over workers.

    Args:
      tensors: list of tensors of numbers of 2, 4 or 8 bytes, of static shapes.
      values: int64 `[n]`, n static.
      most_bytes: int, the most that are taken along of the tensors of a type;
        larger ones are not in `words`.

    Attributes:
      words: int32 `[n]`, n static, the bits of the tensors and the values.
      is_whole: bool, whether all tensors are in `words`.
    """

    def __init__(
        self, tensors: Iterable[tf.Tensor], values: tf.Tensor, most_bytes: int
    ) -> None:
        self._tensors = list(tensors)
        self._places: dict[tf.DType, list[int]] = {}
        for i, tensor in enumerate(self._tensors):
            self._places.setdefault(tensor.dtype, []).append(i)
        self._vectors = {
            dtype: _flatten([self._tensors[i] for i in its])
            for dtype, its in self._places.items()
        }
        self._small = [
            dtype
            for dtype, vector in self._vectors.items()
            if vector.shape[0] * dtype.size <= most_bytes
        ]
        self._sent = [*(self._vectors[dtype] for dtype in self._small), values]
        self.is_whole = len(self._small) == len(self._vectors)
        self.words = tf.concat([_to_words(one) for one in self._sent], 0)

    def unpack(
        self, rows: tf.Tensor, reduce: Callable[[tf.Tensor], tf.Tensor]
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """The sums and the values, from the bundles of all workers.

        Args:
          rows: int32 `[workers, n]`, the `words` of each worker.
          reduce: function that sums a vector over the workers.

        Returns:
          `(sums, gathered)`: a list of tensors like the bundle's, and int64
          `[workers, n]`, the values.
        """
        sizes = [_words_of(one) for one in self._sent]
        parts = [tf.split(row, sizes) for row in tf.unstack(rows)]
        *summands, gathered = [
            [_from_words(part[i], like) for part in parts]
            for i, like in enumerate(self._sent)
        ]
        # In the order of ranks, so that all get the same.
        totals = dict(zip(self._small, map(tf.add_n, summands)))
        sums = list(self._tensors)
        for dtype, its in self._places.items():
            if dtype not in totals:
                totals[dtype] = reduce(self._vectors[dtype])
            like = [self._tensors[i] for i in its]
            for i, part in zip(its, _unflatten(totals[dtype], like)):
                sums[i] = part
        return sums, tf.stack(gathered)


def _flatten(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """One vector of tensors of one type."""
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    return flat[0] if len(flat) == 1 else tf.concat(flat, 0)


def _unflatten(vector: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The parts of a vector that `_flatten` makes of tensors `like` these."""
    parts = tf.split(vector, [t.shape.num_elements() for t in like])
    return [tf.reshape(part, t.shape) for part, t in zip(parts, like)]


def _words_of(vector: tf.Tensor) -> int:
    return -(-vector.shape[0] * vector.dtype.size // _WORD_BYTES)


def _to_words(vector: tf.Tensor) -> tf.Tensor:
    """The bits of a vector, int32 `[n]`; types of two bytes are filled up."""
    if vector.dtype.size < _WORD_BYTES:
        vector = tf.pad(vector, [[0, vector.shape[0] % 2]])
        vector = tf.reshape(vector, [-1, 2])
    return tf.reshape(tf.bitcast(vector, tf.int32), [-1])


def _from_words(words: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """The vector of whose bits `_to_words` made these words."""
    if like.dtype.size > _WORD_BYTES:
        words = tf.reshape(words, [-1, 2])
    vector = tf.reshape(tf.bitcast(words, like.dtype), [-1])
    return vector[: like.shape[0]] if like.dtype.size < _WORD_BYTES else vector
