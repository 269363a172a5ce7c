# SPDX-License-Identifier: Apache-2.0
"""Packs the tensors of a batch, to send them.

A batch of many features has many tensors, and each would take a message. They
are put into one tensor before sending, and taken out again on the worker.
Strings are not copied byte by byte, so they are another tensor.
"""

import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext.ops.passes import bundle_ops
from tf_ext.training.feeds import Spec


class Packing:
    """Bundles the tensors of a batch, and takes them out again.

    Args:
      element_spec: nested structure of `tf.TypeSpec`.

    Attributes:
      signature: list of `tf.TensorSpec`: the bundle of all tensors, in which
        the sizes of those of strings are in their places; if there are some,
        all strings.
    """

    def __init__(self, element_spec: Spec) -> None:
        self._spec = element_spec
        self._specs = tf.nest.flatten(element_spec, expand_composites=True)
        for spec in self._specs:
            if spec.shape.rank is None:
                raise ValueError(
                    "The tensors of a dataset must have a known rank. "
                    f"Received: element_spec={element_spec}. Set the rank with "
                    "`tf.ensure_shape` in `dataset.map`."
                )
            if spec.dtype in (tf.variant, tf.resource):
                raise ValueError(
                    "The tensors of a dataset must be of numbers, booleans or "
                    f"strings. Received: element_spec={element_spec}"
                )
        self.signature = [tf.TensorSpec([None], tf.uint8)]
        if any(spec.dtype == tf.string for spec in self._specs):
            self.signature.append(tf.TensorSpec([None], tf.string))

    def pack(self, batch: typing.Any) -> tuple[tf.Tensor, ...]:
        """Joins the tensors of a batch.

        Args:
          batch: structure of tensors, including ragged and sparse ones.

        Returns:
          Tuple of tensors, as `signature` says.
        """
        tensors = tf.nest.flatten(batch, expand_composites=True)
        strings = [tf.reshape(t, [-1]) for t in tensors if _is_string(t)]
        bundle = bundle_ops.bundle(
            [tf.shape(t, tf.int64) if _is_string(t) else t for t in tensors]
        )
        return (bundle, tf.concat(strings, 0)) if strings else (bundle,)

    def unpack(self, packed: Sequence[tf.Tensor]) -> typing.Any:
        """The batch that was packed."""
        bundle, *strings = packed
        tensors = bundle_ops.unbundle(
            bundle,
            [
                tf.TensorSpec([spec.shape.rank], tf.int64)
                if _is_string(spec)
                else spec
                for spec in self._specs
            ],
        )
        if strings:
            of_strings = [i for i, s in enumerate(self._specs) if _is_string(s)]
            shapes = [tensors[i] for i in of_strings]
            parts = _split(strings[0], shapes)
            for i, part, shape in zip(of_strings, parts, shapes, strict=True):
                tensors[i] = tf.ensure_shape(
                    tf.reshape(part, shape), self._specs[i].shape
                )
        return tf.nest.pack_sequence_as(
            self._spec, tensors, expand_composites=True
        )


class Joining:
    """Joins packed batches, and takes them apart, for several steps.

    Args:
      packing: Packing of each batch.

    Attributes:
      signature: list of `tf.TensorSpec`: those of a batch, of all batches, and
        the length of each batch's part of each.
    """

    def __init__(self, packing: Packing) -> None:
        count = len(packing.signature)
        self.signature = [
            *packing.signature,
            tf.TensorSpec([None, count], tf.int64),
        ]

    @staticmethod
    def join(
        batches: Sequence[tuple[tf.Tensor, ...]],
    ) -> tuple[tf.Tensor, ...]:
        """Joins batches, each as `Packing.pack` returns it; eagerly.

        Returns:
          Tuple of tensors, as `signature` says.
        """
        lengths = [[len(part) for part in batch] for batch in batches]
        return (
            *(tf.concat(parts, 0) for parts in zip(*batches, strict=True)),
            tf.constant(lengths, tf.int64),
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
        *flat, lengths = joined
        starts = tf.unstack(tf.reduce_sum(lengths[:index], 0), len(flat))
        ends = tf.unstack(tf.reduce_sum(lengths[: index + 1], 0), len(flat))
        parts = zip(flat, starts, ends, strict=True)
        return tuple(part[start:end] for part, start, end in parts)


def _split(flat: tf.Tensor, shapes: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    counts = tf.stack([tf.reduce_prod(shape) for shape in shapes])
    # A single part is not checked by tf.split, nor by a reshape that the graph
    # optimizer takes for redundant.
    tf.debugging.assert_equal(
        tf.size(flat, tf.int64),
        tf.reduce_sum(counts),
        "The strings of a batch must be as many as its shapes say.",
    )
    return tf.split(flat, counts, num=len(shapes))


def _is_string(tensor: tf.Tensor | tf.TensorSpec) -> bool:
    return tensor.dtype == tf.string
