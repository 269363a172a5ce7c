"""Packs the tensors of a batch by type, to send them.

A batch of many features has many tensors, and each would take a message. They
are concatenated before sending and split again on the worker.
"""

import typing
from collections.abc import Sequence

import tensorflow as tf


class Packing:
    """Concatenates the tensors of a batch by type, and splits them.

    Args:
      element_spec: nested structure of `tf.TypeSpec`.

    Attributes:
      signature: list of `tf.TensorSpec`: one flat tensor per type, then the
        dynamic sizes, int64.
    """

    def __init__(self, element_spec: typing.Any) -> None:
        self._spec = element_spec
        self._specs = tf.nest.flatten(element_spec, expand_composites=True)
        self._dtypes = sorted(
            {spec.dtype for spec in self._specs}, key=lambda dtype: dtype.name
        )
        for spec in self._specs:
            if spec.shape.rank is None:
                raise ValueError(
                    "The tensors of a dataset must have a known rank. "
                    f"Received: element_spec={element_spec}. Set the rank with "
                    "`tf.ensure_shape` in `dataset.map`."
                )
        self.signature = [tf.TensorSpec([None], d) for d in self._dtypes]
        self.signature.append(tf.TensorSpec([None], tf.int64))

    def pack(self, batch: typing.Any) -> tuple[tf.Tensor, ...]:
        """Joins the tensors of a batch.

        Args:
          batch: structure of tensors, including ragged and sparse ones.

        Returns:
          Tuple of tensors, as `signature` says.
        """
        tensors = tf.nest.flatten(batch, expand_composites=True)
        joined = [
            tf.concat(
                [tf.reshape(t, [-1]) for t in tensors if t.dtype == dtype], 0
            )
            for dtype in self._dtypes
        ]
        sizes = [
            tf.shape(tensor, tf.int64)[axis]
            for tensor, spec in zip(tensors, self._specs, strict=True)
            for axis in _unknown(spec)
        ]
        sizes = tf.stack(sizes) if sizes else tf.zeros([0], tf.int64)
        return (*joined, sizes)

    def unpack(self, packed: Sequence[tf.Tensor]) -> typing.Any:
        """The batch that was packed."""
        *joined, sizes = packed
        position, shapes = 0, []
        for spec in self._specs:
            shape = [0 if size is None else size for size in spec.shape]
            for axis in _unknown(spec):
                shape[axis] = sizes[position]
                position += 1
            shapes.append(shape)
        tensors = [None] * len(self._specs)
        for dtype, flat in zip(self._dtypes, joined, strict=True):
            of_type = [
                index
                for index, spec in enumerate(self._specs)
                if spec.dtype == dtype
            ]
            counts = [_product(shapes[index]) for index in of_type]
            parts = tf.split(flat, tf.stack(counts), num=len(of_type))
            for index, part in zip(of_type, parts, strict=True):
                tensor = tf.reshape(part, tf.stack(_int64(shapes[index])))
                tensors[index] = tf.ensure_shape(
                    tensor, self._specs[index].shape
                )
        return tf.nest.pack_sequence_as(
            self._spec, tensors, expand_composites=True
        )


class Joining:
    """Joins packed batches, and takes them apart, for several steps.

    Args:
      packing: Packing of each batch.

    Attributes:
      signature: list of `tf.TensorSpec`: one flat tensor per type, the length
        of each batch's part of each type, and the batches' dynamic sizes.
    """

    def __init__(self, packing: Packing) -> None:
        *flat, sizes = packing.signature
        self.signature = [
            *flat,
            tf.TensorSpec([None, len(flat)], tf.int64),
            tf.TensorSpec([None, *sizes.shape], tf.int64),
        ]

    @staticmethod
    def join(
        batches: Sequence[tuple[tf.Tensor, ...]],
    ) -> tuple[tf.Tensor, ...]:
        """Joins batches, each as `Packing.pack` returns it; eagerly.

        Returns:
          Tuple of tensors, as `signature` says.
        """
        *flat, sizes = zip(*batches, strict=True)
        lengths = [[len(part) for part in parts] for parts in flat]
        return (
            *(tf.concat(parts, 0) for parts in flat),
            tf.transpose(tf.constant(lengths, tf.int64)),
            tf.stack(sizes),
        )

    @staticmethod
    def take(
        joined: Sequence[tf.Tensor], index: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """A batch of those joined.

        Args:
          joined: tuple of tensors that `join` returned.
          index: int64 scalar, which batch.
        """
        *flat, lengths, sizes = joined
        starts = tf.unstack(tf.reduce_sum(lengths[:index], 0), len(flat))
        ends = tf.unstack(tf.reduce_sum(lengths[: index + 1], 0), len(flat))
        parts = zip(flat, starts, ends, strict=True)
        return (*(part[start:end] for part, start, end in parts), sizes[index])


def _unknown(spec: tf.TensorSpec) -> list[int]:
    return [axis for axis, size in enumerate(spec.shape) if size is None]


def _int64(shape: list[typing.Any]) -> typing.Any:
    return [tf.cast(size, tf.int64) for size in shape] or tf.zeros(
        [0], tf.int64
    )


def _product(shape: list[typing.Any]) -> tf.Tensor:
    return tf.reduce_prod(tf.stack(_int64(shape)))
