# SPDX-License-Identifier: Apache-2.0
"""The interface of columns.

`columns_to_bags` asks a column how its features become signs, a table's record
of columns what determines the signs, and `EmbeddingFeatures` how a bag's rows
become the output. They use columns through this interface alone: a new kind of
column needs a subclass and no other change.
"""

import abc
import dataclasses
import typing
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf_ext import ops
from tf_ext._checks import refuse
from tf_ext._missing import missing_text
from tf_ext.feature_column import checks, structure
from tf_ext.feature_column.part import Part
from tf_ext.feature_column.sequences import SequenceLayout


class Column(abc.ABC):
    """One output of a layer: the features that it reads, and its output.

    Subclasses are columns of other kinds than `category_column` and
    `crossed_column` make. A column is hashable, and equal columns make the same
    signs. To be saved with a model it is registered with
    `keras.utils.register_keras_serializable`; and it is a dataclass of fields
    that JSON can hold, or has its own `get_config` and `from_config`.

    A column of one part that has a combiner can be in `crossed_column` and
    `sequence_category_column`. What converts values before they are hashed is
    a `tf_ext.feature_column.Part` of its own.

    Example:
    A column whose rows are not combined: the first rows of each bag, followed
    by zeros.

      >>> import dataclasses
      >>> @keras.utils.register_keras_serializable("my_project")
      ... @dataclasses.dataclass(frozen=True)
      ... class FirstValues(tf_ext.feature_column.Column):
      ...     key: str
      ...     length: int
      ...     combiner = None  # So that `arrange` is called.
      ...
      ...     @property
      ...     def parts(self):
      ...         return (tf_ext.feature_column.category_column(self.key),)
      ...
      ...     @property
      ...     def name(self):
      ...         return self.key
      ...
      ...     @property
      ...     def namespace(self):
      ...         return self.key
      ...
      ...     def output_shape(self, dim):
      ...         return (self.length, dim)
      ...
      ...     def arrange(self, rows, row_splits, weights):
      ...         bags = tf.RaggedTensor.from_row_splits(rows, row_splits)
      ...         shape = [None, self.length, rows.shape[1]]
      ...         return bags[:, : self.length].to_tensor(shape=shape)
      >>> layer = tf_ext.layers.EmbeddingFeatures(
      ...     [FirstValues("clicks", 3)], tf_ext.SparseTable("item", 4),
      ...     concatenate=False)
      >>> clicks = tf.ragged.constant([["a", "b", "c", "d"], ["e"]])
      >>> layer({"clicks": clicks})["clicks"].shape
      TensorShape([2, 3, 4])
    """

    def get_config(self) -> dict[str, typing.Any]:
        """The fields of a column that is a dataclass, for Keras's savers."""
        fields = dataclasses.fields(typing.cast(typing.Any, self))
        return {field.name: getattr(self, field.name) for field in fields}

    @classmethod
    def from_config(cls, config: dict[str, typing.Any]) -> typing.Self:
        """The column that `get_config` describes."""
        return cls(**config)

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name of the column's output."""

    @property
    @abc.abstractmethod
    def parts(self) -> tuple[Part, ...]:
        """The features that the column reads; one value of each makes a sign.

        Several parts are crossed. Columns of `category_column` are parts, whose
        combiners are not used.
        """

    @property
    @abc.abstractmethod
    def namespace(self) -> str:
        """In columns of one namespace, equal values are the same id."""

    @property
    @abc.abstractmethod
    def combiner(self) -> str | None:
        """How a bag's rows are combined: "sum", "mean", "sqrtn" or "max".

        None: they are not combined, and `arrange` makes the output.
        """

    @property
    def bucket_size(self) -> int | None:
        """The number of different signs; None for unbounded."""
        return None

    @property
    def hashing_identity(self) -> str:
        """A JSON text of everything that determines a value's sign."""
        if self.takes_signs:
            return checks.identity_text(hashing=self.parts[0].hashing)
        described: dict[str, typing.Any] = {
            "namespace": self.namespace,
            "bucket_size": self.bucket_size,
        }
        [first, *others] = [
            {"boundaries": part.boundaries}
            | ({"conversion": part.conversion} if part.conversion else {})
            for part in self.parts
        ]
        if not others:
            return checks.identity_text(**described, **first)
        parts = [
            {"bucket_size": part.bucket_size, **one}
            for part, one in zip(self.parts, [first, *others])
        ]
        return checks.identity_text(**described, parts=parts)

    @property
    def takes_signs(self) -> bool:
        """Whether the values are integers that are used as signs."""
        return len(self.parts) == 1 and self.parts[0].hashing == "identity"

    @property
    def is_weighted(self) -> bool:
        """Whether the values have weights."""
        return any(part.weights is not None for part in self.parts)

    @property
    def sequence(self) -> SequenceLayout | None:
        """How the ids of a bag are put at the positions of the output.

        None but for columns of `sequence_category_column`.
        """
        return None

    @property
    def ragged(self) -> bool:
        """Whether the output is a `tf.RaggedTensor`."""
        return False

    @property
    def has_mask(self) -> bool:
        """Whether the output has a Keras mask, where its ids are."""
        return False

    def signs(self, values: typing.Any) -> tf.Tensor:
        """The signs of values: the ids of their rows in a table.

        They are those that `EmbeddingFeatures` reads for the same values.

        Args:
          values: tensor, array or list `[...]` of what the feature holds:
            strings, integers or, with boundaries, floats. For a cross, a list
            of one of these for each part, of one shape, which are combined
            element by element.

        Returns:
          int64 tensor `[...]`.

        Raises:
          ValueError: values of a type that the column does not take, or
            missing ones, which have no sign.

        Example:
          >>> user = tf_ext.feature_column.category_column("user")
          >>> table = tf_ext.SparseTable("user", dim=2)
          >>> table.import_rows(user.signs(["ann"]), {"weights": [[1.0, 2.0]]})
          1
          >>> layer = tf_ext.layers.EmbeddingFeatures([user], table)
          >>> layer({"user": tf.constant(["ann"])}).numpy()
          array([[1., 2.]], dtype=float32)
        """
        parts = self.parts
        given = [values] if len(parts) == 1 else values
        if not isinstance(given, list | tuple) or len(given) != len(parts):
            refuse(
                "signs",
                "values",
                f"a list of {len(parts)} arrays, one for each part of the cross"
                f" {self.name!r}",
                values,
            )
        tensors = [
            structure.to_tensor(part.key, one)
            for part, one in zip(parts, given)
        ]
        first = tensors[0]
        shape = tf.shape(first)
        for one in tensors:
            if not isinstance(
                one, tf.Tensor
            ) or not one.shape.is_compatible_with(first.shape):
                refuse(
                    "signs",
                    "values",
                    "dense, and of one shape for all parts of a cross",
                    values,
                )
        if first.shape.num_elements() == 0:
            # Nothing tells the type of an empty list.
            return tf.zeros(shape, tf.int64)
        flat = []
        for part, one in zip(parts, tensors):
            part.converted_type(one.dtype)
            flat.append(tf.reshape(part.convert(one), [-1]))
        places = list(range(len(parts)))
        found = ops.hash_category(flat, **describe([self], places)).signs
        if tf.executing_eagerly() and found.shape != flat[0].shape:
            missing = flat[0].shape[0] - found.shape[0]
            raise ValueError(
                "Argument `values` of signs must hold no missing values, which "
                f"have no sign: column {self.name!r} leaves out NaN and what "
                f"its `missing` says. Received: {missing} of them"
            )
        return tf.reshape(found, shape)

    def output_shape(self, dim: int) -> tuple[int | None, ...]:
        """The shape of the output, without the batch.

        Args:
          dim: int, the table's.

        Returns:
          Tuple of int, and None for sizes that depend on the batch: `(dim,)`
          for combined rows. Shapes of one dimension can be concatenated.
        """
        return (dim,)

    def symbolic_shape(
        self,
        shape: tuple[int | None, ...],
        inputs: Mapping[str, typing.Any],
        mask: typing.Any,
    ) -> tuple[int | None, ...]:
        """A shape of `output_shape`, of which symbolic inputs may tell more.

        Args:
          shape: tuple of int and None.
          inputs: dict of `keras.Input` by key.
          mask: `keras.Input` of the mask of a `sequence` that has been hashed;
            else None.
        """
        del inputs, mask
        return shape

    def check(self, inputs: Mapping[str, typing.Any]) -> None:
        """Checks that the features of a batch are what the column needs.

        Args:
          inputs: dict of features by key, or of objects with their `dtype` and
            `shape`, such as `keras.Input`.

        Raises:
          ValueError: a feature is missing, or of a type that the column does
            not take; the message names both.
        """
        for part in self.parts:
            part.check_present(inputs)
            if part.key in inputs:
                part.check_feature(inputs)

    def arrange(
        self,
        rows: tf.Tensor,
        row_splits: tf.Tensor,
        weights: tf.Tensor | None,
    ) -> tf.Tensor:
        """Makes the output from a batch's rows, where `combiner` is None.

        Args:
          rows: float `[n, dim]`, one for each value of the batch, in the order
            of the bags.
          row_splits: int64 `[batch_size + 1]`: bag b has the rows from
            `row_splits[b]` up to, but not including, `row_splits[b + 1]`.
          weights: float32 `[n]`; None if `is_weighted` is False.

        Returns:
          Tensor `[batch_size, *output_shape(dim)]` of the dtype of `rows`.
        """
        raise NotImplementedError(
            f"Column {self.name!r} has combiner=None, so {type(self).__name__} "
            "must have a method `arrange`."
        )

    def place(
        self,
        rows: tf.Tensor,
        inverse: tf.Tensor,
        row_splits: tf.Tensor,
        weights: tf.Tensor | None,
        mask: tf.Tensor | None,
    ) -> tf.Tensor | tf.RaggedTensor:
        """Makes the output of the distinct rows, where `combiner` is None.

        Args:
          rows: float `[u, dim]`, distinct.
          inverse: int32 `[n]`, the row of each value.
          row_splits: as of `arrange`.
          weights: as of `arrange`.
          mask: bool `[batch_size, length]`, where the ids of a `sequence` are;
            else None.

        Raises:
          ValueError: the output of `arrange` has another shape than
            `output_shape`.
        """
        del mask
        output = self.arrange(tf.gather(rows, inverse), row_splits, weights)
        wanted = [None, *self.output_shape(rows.shape[1])]
        if not output.shape.is_compatible_with(wanted):
            raise ValueError(
                f"Method `arrange` of column {self.name!r} must return a "
                f"tensor of shape {wanted}, as `output_shape` says. Received: "
                f"a tensor of shape {output.shape}"
            )
        return output


def describe(
    columns: Sequence[Column], places: Sequence[int]
) -> dict[str, typing.Any]:
    """The op's attributes for columns whose parts read inputs at `places`."""
    parts = [part for column in columns for part in column.parts]
    crossed = [
        len(column.parts) > 1 for column in columns for _ in column.parts
    ]
    boundaries = [part.boundaries or () for part in parts]
    return {
        "namespaces": [column.namespace for column in columns],
        "bucket_sizes": [column.bucket_size or 0 for column in columns],
        "identity": [column.takes_signs for column in columns],
        "part_counts": [len(column.parts) for column in columns],
        "part_inputs": places,
        "part_bucket_sizes": [
            part.bucket_size or 0 if is_crossed else 0
            for part, is_crossed in zip(parts, crossed)
        ],
        "part_has_missing": [part.missing is not None for part in parts],
        "part_missing": [missing_text(part.missing) for part in parts],
        "part_boundary_counts": [len(b) for b in boundaries],
        "part_boundaries": [value for b in boundaries for value in b],
    }
