# SPDX-License-Identifier: Apache-2.0
"""The interface of columns.

`columns_to_bags` asks a column how its features become signs, a table's record
of columns what determines the signs, and `EmbeddingFeatures` how a bag's rows
become the output. They use columns through this interface alone: a new kind of
column needs a subclass and no other change.
"""

import abc
import typing
from collections.abc import Mapping

import tensorflow as tf

from tf_ext.feature_column import features

if typing.TYPE_CHECKING:
    from tf_ext.feature_column.category_column import CategoryColumn


class Column(abc.ABC):
    """One output of a layer: the features that it reads, and its output.

    Subclasses are columns of other kinds than `category_column` and
    `crossed_column` make. A column is hashable, and equal columns make the same
    signs. To be saved with a model it has `get_config` and `from_config`, and
    is registered with `keras.utils.register_keras_serializable`.

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
      ...     bucket_size = None
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
      ...         return self.parts[0].namespace
      ...
      ...     @property
      ...     def hashing_identity(self):
      ...         return self.parts[0].hashing_identity
      ...
      ...     def output_shape(self, dim):
      ...         return (self.length, dim)
      ...
      ...     def arrange(self, rows, row_splits, weights):
      ...         bags = tf.RaggedTensor.from_row_splits(rows, row_splits)
      ...         shape = [None, self.length, rows.shape[1]]
      ...         return bags[:, : self.length].to_tensor(shape=shape)
      ...
      ...     def get_config(self):
      ...         return dataclasses.asdict(self)
      ...
      ...     @classmethod
      ...     def from_config(cls, config):
      ...         return cls(**config)
      >>> layer = tf_ext.layers.EmbeddingFeatures(
      ...     [FirstValues("clicks", 3)], tf_ext.SparseTable("item", 4),
      ...     concatenate=False)
      >>> clicks = tf.ragged.constant([["a", "b", "c", "d"], ["e"]])
      >>> layer({"clicks": clicks})["clicks"].shape
      TensorShape([2, 3, 4])
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name of the column's output."""

    @property
    @abc.abstractmethod
    def parts(self) -> "tuple[CategoryColumn, ...]":
        """The features that the column reads; one value of each makes a sign.

        Several parts are crossed. Their combiners are not used.
        """

    @property
    @abc.abstractmethod
    def namespace(self) -> str:
        """In columns of one namespace, equal values are the same id."""

    @property
    @abc.abstractmethod
    def bucket_size(self) -> int | None:
        """The number of different signs; None for unbounded."""

    @property
    @abc.abstractmethod
    def hashing_identity(self) -> str:
        """A JSON text of everything that determines a value's sign."""

    @property
    @abc.abstractmethod
    def combiner(self) -> str | None:
        """How a bag's rows are combined: "sum", "mean", "sqrtn" or "max".

        None: they are not combined, and `arrange` makes the output.
        """

    @property
    def takes_signs(self) -> bool:
        """Whether the values are integers that are used as signs."""
        return len(self.parts) == 1 and self.parts[0].hashing == "identity"

    @property
    def is_weighted(self) -> bool:
        """Whether the values have weights."""
        return any(part.weights is not None for part in self.parts)

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
        # They use columns.
        from tf_ext.feature_column.signs import signs_of

        return signs_of(self, values)

    def output_shape(self, dim: int) -> tuple[int | None, ...]:
        """The shape of the output, without the batch.

        Args:
          dim: int, the table's.

        Returns:
          Tuple of int, and None for sizes that depend on the batch: `(dim,)`
          for combined rows. Shapes of one dimension can be concatenated.
        """
        return (dim,)

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
            features.check_present(part, inputs)
            if part.key in inputs:
                features.check_feature(part, inputs)

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
