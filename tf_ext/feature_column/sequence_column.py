# SPDX-License-Identifier: Apache-2.0
"""The column of a sequence: the ids of a bag, one after the other."""

import dataclasses
import typing
from collections.abc import Mapping

import tensorflow as tf

from tf_ext import ops
from tf_ext._checks import is_int, refuse
from tf_ext._keras import keras
from tf_ext.feature_column import checks
from tf_ext.feature_column.category_column import category_column
from tf_ext.feature_column.column import Column
from tf_ext.feature_column.part import Part
from tf_ext.feature_column.sequences import SequenceLayout

_NAME = "sequence_category_column"
_MAX_LENGTH = 2**31 - 1


@keras.utils.register_keras_serializable(package="tf_ext")
@dataclasses.dataclass(frozen=True)
class SequenceColumn(Column):
    """A sequence of ids; made by `sequence_category_column`.

    Equal columns are equal and hash alike. The fields are the arguments of
    `sequence_category_column`, with a key replaced by its column and the name
    filled in.
    """

    # Any, as __post_init__ converts what it is given.
    column: Column | typing.Any
    max_length: int | None = None
    truncating: str = "pre"
    ragged: bool = False
    append_weight: bool = False
    name: str | typing.Any = None

    # The ids of a sequence keep their rows.
    combiner: typing.ClassVar[None] = None

    def __post_init__(self) -> None:
        if isinstance(self.column, str):
            object.__setattr__(self, "column", category_column(self.column))
        if not isinstance(self.column, Column) or self.column.combiner is None:
            refuse(
                _NAME,
                "column",
                "a column of category_column or crossed_column, or a key",
                self.column,
            )
        if self.name is None:
            object.__setattr__(self, "name", self.column.name)
        checks.check_text(_NAME, "name", self.name)
        max_length = _to_max_length(self.max_length)
        object.__setattr__(self, "max_length", max_length)
        if self.truncating not in ("pre", "post"):
            refuse(_NAME, "truncating", '"pre" or "post"', self.truncating)
        for argument in ("ragged", "append_weight"):
            value = getattr(self, argument)
            if not isinstance(value, bool):
                refuse(_NAME, argument, "True or False", value)
        if any(part.reference is not None for part in self.parts):
            allowed = "one whose features have a value at each position"
            refuse(_NAME, "column", allowed, self.column)
        if self.append_weight and not self.is_weighted:
            refuse(
                _NAME,
                "append_weight",
                "False for a column without weights",
                self.append_weight,
            )

    @property
    def sequence(self) -> SequenceLayout:
        """How its ids are put at the positions of the output."""
        return SequenceLayout(self.max_length, self.truncating)

    @property
    def has_mask(self) -> bool:
        """Whether the output has a Keras mask."""
        return not self.ragged

    @property
    def parts(self) -> tuple[Part, ...]:
        """The features that are hashed together, position by position."""
        return self.column.parts

    @property
    def namespace(self) -> str:
        """The namespace of the ids."""
        return self.column.namespace

    @property
    def bucket_size(self) -> int | None:
        """The number of different signs; None for unbounded."""
        return self.column.bucket_size

    def output_shape(self, dim: int) -> tuple[int | None, ...]:
        """`(length, dim)`; length is None if it depends on the batch."""
        length = None if self.ragged else self.max_length
        return (length, dim + int(self.append_weight))

    @property
    def hashing_identity(self) -> str:
        """A JSON text of everything that determines a value's sign."""
        return self.column.hashing_identity

    def symbolic_shape(
        self,
        shape: tuple[int | None, ...],
        inputs: Mapping[str, typing.Any],
        mask: typing.Any,
    ) -> tuple[int | None, ...]:
        """The shape with the length that symbolic inputs tell."""
        if mask is None or self.ragged:
            return (self.length_of(inputs), shape[-1])
        return (mask.shape[1], shape[-1])

    def length_of(self, inputs: Mapping[str, typing.Any]) -> int | None:
        """The length of the output, if the shapes of symbolic inputs tell it.

        Args:
          inputs: dict of `keras.Input` by key.
        """
        if self.ragged or self.max_length is not None:
            return None if self.ragged else self.max_length
        given = [inputs[part.key] for part in self.parts if part.key in inputs]
        if not given or getattr(given[0], "ragged", False):
            return None
        if getattr(given[0], "sparse", False):
            return None
        return given[0].shape[1] if len(given[0].shape) == 2 else 1

    def check(self, inputs: Mapping[str, typing.Any]) -> None:
        """Checks that the features are sequences of what the column takes."""
        super().check(inputs)
        for part in self.parts:
            if part.key not in inputs:
                continue
            shape = tf.TensorShape(inputs[part.key].shape)
            if shape.rank not in (None, 1, 2):
                raise ValueError(
                    f"The feature {part.key!r} of the sequence {self.name!r} "
                    "must be of shape [batch_size, length] or [batch_size], "
                    f"but is of {shape}."
                )

    def place(
        self,
        rows: tf.Tensor,
        inverse: tf.Tensor,
        row_splits: tf.Tensor,
        weights: tf.Tensor | None,
        mask: tf.Tensor | None,
    ) -> tf.Tensor | tf.RaggedTensor:
        """Puts rows at their positions, or into a tf.RaggedTensor."""
        assert mask is not None
        is_there = mask[mask] if self.ragged else tf.reshape(mask, [-1])
        ends = tf.cumsum(tf.cast(is_there, tf.int64))
        factors = None if self.append_weight else weights

        # Each position is a bag of at most one row.
        def at_positions(of: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
            return ops.combine_bags(
                of, at, tf.concat([[0], ends], 0), factors, combiners=["sum"]
            )

        output = at_positions(rows, inverse)
        if self.append_weight and weights is not None:
            count = tf.range(tf.size(inverse))
            appended = at_positions(weights[:, tf.newaxis], count)
            output = tf.concat([output, appended], 1)
        if self.ragged:
            return tf.RaggedTensor.from_row_splits(
                output, row_splits, validate=False
            )
        shape = tf.shape(mask)
        output = tf.reshape(output, [shape[0], shape[1], output.shape[1]])
        output.set_shape([*mask.shape, None])
        return output

    def get_config(self) -> dict[str, typing.Any]:
        """The arguments of `sequence_category_column`, for Keras's savers."""
        column = keras.utils.serialize_keras_object(self.column)
        return super().get_config() | {"column": column}

    @classmethod
    def from_config(cls, config: dict[str, typing.Any]) -> typing.Self:
        """The column that `get_config` describes."""
        column = keras.utils.deserialize_keras_object(config["column"])
        return cls(**{**config, "column": column})


def _to_max_length(length: int | None) -> int | None:
    if length is None:
        return None
    if not is_int(length) or not 1 <= length <= _MAX_LENGTH:
        refuse(
            _NAME,
            "max_length",
            f"an int from 1 to {_MAX_LENGTH}, or None for no limit",
            length,
        )
    return int(length)


def sequence_category_column(
    column: Column | str,
    *,
    max_length: int | None = None,
    truncating: str = "pre",
    ragged: bool = False,
    append_weight: bool = False,
    name: str | None = None,
) -> SequenceColumn:
    """A feature that is a sequence of ids, such as the last items of a user.

    Its output has one embedding for each position: `[batch_size, length, dim]`,
    with a Keras mask, `[batch_size, length]`, that is True where there is an
    id. Elsewhere the embedding is zeros, and no row is read, created or
    trained. `length` is `max_length`; without it, the width of a dense feature,
    or the length of the batch's longest sequence, but at least 1.

    The feature is a `tf.RaggedTensor` `[batch_size, None]`; a `tf.SparseTensor`
    `[batch_size, n]` without gaps; or dense `[batch_size, n]`, padded with the
    column's `missing`, or `[batch_size]`. A missing value has a position, so
    that sequences of one length stay in step; at the end of the rows of a
    dense feature it is padding, which does not count in `truncating`.

    A cross combines the values that its parts have at the same position; they
    need the same structure.

    Args:
      column: column of `category_column` or `crossed_column`, or a key. Its
        combiner is not used. Its embeddings are multiplied by its weights.
      max_length: int, the length of the output: longer sequences are cut,
        shorter ones padded at the end. None: as above.
      truncating: which end of a longer sequence is cut off, as in
        `keras.utils.pad_sequences`: "pre", so that the last ids remain, or
        "post".
      ragged: bool. If True the output is a `tf.RaggedTensor` `[batch_size,
        None, dim]` of the positions that have an id, without a mask.
      append_weight: bool. If True the weight of an id, such as the time since
        it occurred or a rating, is not multiplied but appended to its
        embedding, whose width becomes `dim + 1`.
      name: string, the name of the output. None: the column's name.

    Returns:
      A `SequenceColumn`, for an `EmbeddingFeatures` with `concatenate=False`.

    Raises:
      ValueError: an argument is not as above; the sentence names it.

    Example:
      >>> history = tf_ext.feature_column.sequence_category_column(
      ...     tf_ext.feature_column.category_column(
      ...         "history", namespace="item"), max_length=3)
      >>> item = tf_ext.feature_column.category_column("item")
      >>> layer = tf_ext.layers.EmbeddingFeatures(
      ...     [history, item], tf_ext.SparseTable("item", 4),
      ...     concatenate=False)
      >>> features = {
      ...     "history": tf.ragged.constant([["a", "b"], ["a", "b", "c", "d"]]),
      ...     "item": tf.constant(["c", "a"])}
      >>> outputs = layer(features)
      >>> outputs["history"].shape, outputs["item"].shape
      (TensorShape([2, 3, 4]), TensorShape([2, 4]))
      >>> layer.compute_mask(features)["history"].numpy()
      array([[ True,  True, False],
             [ True,  True,  True]])
      >>> keras.layers.GRU(8)(outputs["history"]).shape  # Skips padding.
      TensorShape([2, 8])
    """
    return SequenceColumn(
        column=column,
        max_length=max_length,
        truncating=truncating,
        ragged=ragged,
        append_weight=append_weight,
        name=name,
    )
