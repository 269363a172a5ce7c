# SPDX-License-Identifier: Apache-2.0
"""What columns are made of: features, and how their values become ids."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_ext._checks import listed

_AS_INT64 = (tf.bool, tf.int8, tf.int16, tf.uint8, tf.uint16, tf.uint32)
_AS_IS = (tf.string, tf.int32, tf.int64)


class Part:
    """A feature that a column reads, and what is hashed of its values.

    A column has one part, a cross several. Each column of `category_column` is
    a part itself. Subclasses have values of other types, or convert them.

    Attributes:
      key: string, the key of the feature in the dict of inputs.
      weights: string, the key of the feature with a weight for each value.
      reference: string, the key of a dense feature with one value for each
        sample, which `relate` gets, too.
      optional: bool, whether a batch without the feature is no error.
      missing: string, int or float, which of the values that `convert` returns
        is left out. None: none is.
      boundaries: tuple of floats, which put the values that `convert` returns
        into buckets. None: they are no numbers to be put in buckets.
      bucket_size: int, the number of different ids within a cross. None: no
        limit.
      hashing: "fingerprint", or "identity" for integers that are signs.
      conversion: string that tells conversions of `convert` apart, whose signs
        differ. "" for values as they are.

    Example:
    A column that does not tell upper from lower case:

      >>> import dataclasses
      >>> @dataclasses.dataclass(frozen=True)
      ... class LowerCase(tf_ext.feature_column.Part):
      ...     key: str
      ...     conversion = "lower case"
      ...
      ...     def convert(self, values):
      ...         return tf.strings.lower(super().convert(values))
      >>> @keras.utils.register_keras_serializable("my_project")
      ... @dataclasses.dataclass(frozen=True)
      ... class Word(tf_ext.feature_column.Column):
      ...     key: str
      ...     combiner: str = "sum"
      ...
      ...     @property
      ...     def parts(self):
      ...         return (LowerCase(self.key),)
      ...
      ...     @property
      ...     def name(self):
      ...         return self.key
      ...
      ...     @property
      ...     def namespace(self):
      ...         return self.key
      >>> layer = tf_ext.layers.EmbeddingFeatures(
      ...     [Word("query")], tf_ext.SparseTable("words", 4))
      >>> output = layer({"query": tf.constant(["Shoes", "shoes"])})
      >>> bool(tf.reduce_all(output[0] == output[1]))
      True
    """

    key: str
    weights: str | None = None
    reference: str | None = None
    optional: bool = False
    missing: str | int | float | None = None
    boundaries: tuple[float, ...] | None = None
    bucket_size: int | None = None
    hashing: str = "fingerprint"
    conversion: str = ""

    @property
    def name(self) -> str:
        """The name of the column, for messages."""
        return self.key

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all features that the part reads."""
        keys = (self.key, self.weights, self.reference)
        return tuple(key for key in keys if key is not None)

    def relate(self, values: tf.Tensor, reference: tf.Tensor) -> tf.Tensor:
        """What `convert` is given, where there is a reference.

        Args:
          values: tensor of any shape.
          reference: tensor of the same rank, the value of each one's sample.

        Returns:
          Tensor of the shape of `values`.
        """
        del reference
        return values

    def converted_type(self, dtype: tf.DType) -> tf.DType:
        """The type of what `convert` returns for values of a type.

        Args:
          dtype: tf.DType.

        Returns:
          `tf.string`, `tf.int64`, `tf.int32` or, with boundaries, `tf.float32`.

        Raises:
          ValueError: the part takes no values of the type.
        """
        converted = self._type_of(dtype)
        if converted == tf.float32 and self.boundaries is None:
            raise ValueError(
                f"The feature {self.key!r} has floats, which cannot be ids, and"
                f" column {self.name!r} has no boundaries: give it some, or "
                "cast the feature to integers or strings."
            )
        if converted == tf.string and self.boundaries is not None:
            raise ValueError(
                f"The feature {self.key!r} is of strings, but column "
                f"{self.name!r} has boundaries, which need numbers: use "
                "tf.strings.to_number."
            )
        if converted == tf.string and self.hashing == "identity":
            raise ValueError(
                f"The feature {self.key!r} is of strings, but column "
                f'{self.name!r} has hashing="identity", which needs integers.'
            )
        return converted

    def convert(self, values: tf.Tensor) -> tf.Tensor:
        """What is hashed in place of the values of a batch.

        A uint64 has the sign of its decimal text, or of its bits if it is a
        sign itself.

        Args:
          values: tensor of any shape.

        Returns:
          Tensor of the same shape.
        """
        dtype = self._type_of(values.dtype)
        if values.dtype != tf.uint64:
            return tf.cast(values, dtype)
        if dtype == tf.string:
            return tf.strings.as_string(values)
        if dtype == tf.int64:
            return tf.bitcast(values, tf.int64)
        return tf.cast(values, dtype)

    def type_of_absent(self) -> tf.DType:
        """A type of converted values, where the feature is not in a batch."""
        if self.boundaries is not None:
            return tf.float32
        return tf.int64 if self.hashing == "identity" else tf.string

    def _type_of(self, dtype: tf.DType) -> tf.DType:
        if dtype in _AS_IS:
            return dtype
        if dtype in _AS_INT64:
            return tf.int64
        if dtype.is_floating:
            return tf.float32
        if dtype == tf.uint64:
            return self.type_of_absent()
        raise ValueError(
            f"The feature {self.key!r} must be of strings, integers, booleans "
            f"or floats, but is of {dtype.name}: cast it to one of them."
        )

    def check_present(self, inputs: Mapping[str, Any]) -> None:
        """Raises ValueError if inputs lack the feature, or its weights."""
        if self.key not in inputs:
            if not self.optional:
                raise ValueError(
                    f"The feature {self.key!r} of column {self.name!r} is "
                    "missing from the inputs. Present are: "
                    f"{listed(inputs)}. Pass it, or make the column "
                    "with optional=True for an empty bag."
                )
            return
        if self.reference is not None and self.reference not in inputs:
            raise ValueError(
                f"The feature {self.reference!r} of column {self.name!r} is "
                "missing from the inputs. Present are: "
                f"{listed(inputs)}."
            )
        if self.weights is not None and self.weights not in inputs:
            raise ValueError(
                f"The weights {self.weights!r} of column {self.name!r} are "
                "missing from the inputs. Present are: "
                f"{listed(inputs)}."
            )

    def check_feature(self, inputs: Mapping[str, Any]) -> None:
        """Raises ValueError if the feature, which is present, is not as needed.

        Args:
          inputs: dict of objects with their `dtype` and `shape`, by key.
        """
        feature = inputs[self.key]
        if tf.TensorShape(feature.shape).rank == 0:
            raise ValueError(
                f"The feature {self.key!r} must have a batch dimension, but is "
                "a scalar."
            )
        self.converted_type(tf.as_dtype(feature.dtype))
        if self.reference is not None:
            self._check_reference(inputs[self.reference])
        if self.weights is None:
            return
        dtype = tf.as_dtype(inputs[self.weights].dtype)
        if not dtype.is_floating:
            raise ValueError(
                f"The weights {self.weights!r} of column {self.name!r} must be "
                f"floats, but are of {dtype.name}."
            )

    def _check_reference(self, reference: Any) -> None:
        shape = tf.TensorShape(reference.shape)
        is_dense = not isinstance(reference, tf.SparseTensor | tf.RaggedTensor)
        if not is_dense or (
            shape.rank is not None
            and (shape.rank == 0 or shape[1:].num_elements() not in (1, None))
        ):
            raise ValueError(
                f"The feature {self.reference!r} of column {self.name!r} must "
                "be dense, with one value for each sample, but is of shape "
                f"{shape}."
            )
        self.converted_type(tf.as_dtype(reference.dtype))
