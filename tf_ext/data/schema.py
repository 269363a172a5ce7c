# SPDX-License-Identifier: Apache-2.0
"""What the fields of records are, and what a dataset makes of them."""

import collections
import dataclasses
import math
import typing
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf_ext._checks import refuse

Number: typing.TypeAlias = int | float
UNUSED = "unused"
DTYPES = {
    "string": tf.string,
    "int32": tf.int32,
    "int64": tf.int64,
    "float32": tf.float32,
}
# Appended to the name of a bag for the feature that has its weights.
WEIGHT_SUFFIX = "_weight"


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of the records of a file.

    Attributes:
      name: string, also the name of the feature.
      dtype: "string", "int32", "int64", "float32" (or the tf.DType or NumPy
        dtype of that name), or "unused" for a field that is left out of the
        dataset, where the position of fields matters.
      default: what a missing value is read as; for strings "" unless given. A
        number without a default must be present: a record without it is
        malformed. Of a bag, None: a missing bag is empty.
      bag: bool, whether a record has a list of values; the feature is ragged.
        True if there is a separator.
      separator: string, what is between the values of a bag in a field of text;
        None where the format has lists (JSON, TFRecord, Parquet).
      weight_separator: string, what is between a value and its weight in a
        field of text: with ":" and separator "|", "a:0.5|b:2". The weights are
        the feature `<name>_weight`, float32.
      values: dict from texts to numbers, for a field of text that is read as
        numbers; a record with another text is malformed.
    """

    name: str
    dtype: str = "string"
    default: str | Number | None = None
    bag: bool = False
    separator: str | None = None
    weight_separator: str | None = None
    values: Mapping[str, Number] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            refuse("Field", "name", "a string that is not empty", self.name)
        if isinstance(self.dtype, type) and issubclass(self.dtype, np.generic):
            object.__setattr__(self, "dtype", np.dtype(self.dtype))
        if isinstance(self.dtype, tf.DType | np.dtype):
            object.__setattr__(self, "dtype", self.dtype.name)
        dtypes = (*DTYPES, UNUSED)
        if not isinstance(self.dtype, str) or self.dtype not in dtypes:
            names = ", ".join(map(repr, dtypes))
            refuse(self._owner, "dtype", f"one of {names}", self.dtype)
        for argument in ("separator", "weight_separator"):
            value = getattr(self, argument)
            if value is not None and not (isinstance(value, str) and value):
                allowed = "a string that is not empty, or None"
                refuse(self._owner, argument, allowed, value)
        if self.weight_separator is not None and (
            self.separator in (None, self.weight_separator)
        ):
            allowed = "None without another `separator`"
            refuse(
                self._owner, "weight_separator", allowed, self.weight_separator
            )
        if self.separator is not None:
            object.__setattr__(self, "bag", True)
        self._check_values()
        self._check_default()

    @property
    def _owner(self) -> str:
        return f"Field {self.name!r}"

    def _check_values(self) -> None:
        if self.values is None:
            return
        is_dict = isinstance(self.values, Mapping) and len(self.values) > 0
        if (
            self.bag
            or self.dtype in ("string", UNUSED)
            or not is_dict
            or not all(isinstance(text, str) for text in self.values)
            or not all(self._fits(number) for number in self.values.values())
        ):
            allowed = (
                "None, or a dict from texts to numbers of `dtype`, for one "
                "number a record"
            )
            refuse(self._owner, "values", allowed, self.values)

    def _check_default(self) -> None:
        if self.bag or self.dtype == UNUSED:
            if self.default is not None:
                allowed = "None for a bag or a field that is unused"
                refuse(self._owner, "default", allowed, self.default)
        elif self.dtype == "string":
            if not isinstance(self.default, str | None):
                refuse(self._owner, "default", "a string", self.default)
        elif self.default is not None and not self._fits(self.default):
            allowed = f"None or a number that fits into {self.dtype}"
            refuse(self._owner, "default", allowed, self.default)

    def _fits(self, number: object) -> bool:
        if isinstance(number, bool) or not isinstance(number, int | float):
            return False
        if self.dtype == "float32":
            return not math.isfinite(number) or abs(number) <= (tf.float32.max)
        dtype = DTYPES[self.dtype]
        return isinstance(number, int) and dtype.min <= number <= dtype.max


@dataclasses.dataclass(frozen=True)
class Schema:
    """The fields of records, and which of them are labels and weights.

    Attributes:
      fields: list of Field. Without a header, these are all fields of a line,
        in order; where fields have names, others are left out, and the order
        does not matter.
      label: name or list of names of fields that are labels, not features; a
        list gives a dict of labels. None: the dataset has features only.
      sample_weight: name of the field that weighs samples, or None.
      missing: list of strings, texts that mean that a value is missing; of
        text formats only. By default an empty field.

    Example:
      >>> schema = tf_ext.data.Schema(
      ...     [tf_ext.data.Field("label", "float32"),
      ...      tf_ext.data.Field("price", "float32", default=0.0),
      ...      tf_ext.data.Field("user"),
      ...      tf_ext.data.Field("genres", separator="|")],
      ...     label="label")
      >>> [field.name for field in schema.features]
      ['price', 'user', 'genres']
    """

    fields: Sequence[Field]
    label: str | Sequence[str] | None = None
    sample_weight: str | None = None
    missing: Sequence[str] = ("",)

    def __post_init__(self) -> None:
        fields = self.fields
        if (
            not isinstance(fields, Sequence)
            or not fields
            or not all(isinstance(field, Field) for field in fields)
        ):
            refuse("Schema", "fields", "a list of Field", fields)
        names = [field.name for field in self.used]
        names += [
            field.name + WEIGHT_SUFFIX
            for field in self.used
            if field.weight_separator is not None
        ]
        twice = [n for n, c in collections.Counter(names).items() if c > 1]
        if twice:
            refuse(
                "Schema", "fields", f"named once, but {twice} are not", names
            )
        for argument, chosen in (
            ("label", self._labels),
            ("sample_weight", [self.sample_weight]),
        ):
            for name in chosen:
                if name is not None and name not in names:
                    allowed = f"None or of the names of fields, {names}"
                    refuse("Schema", argument, allowed, name)
        if self.sample_weight is not None and self.label is None:
            allowed = "None without a label"
            refuse("Schema", "sample_weight", allowed, self.sample_weight)
        if isinstance(self.missing, str) or not all(
            isinstance(text, str) for text in self.missing
        ):
            refuse("Schema", "missing", "a list of strings", self.missing)

    @property
    def used(self) -> list[Field]:
        """The fields that are read."""
        return [field for field in self.fields if field.dtype != UNUSED]

    @property
    def _labels(self) -> list[str | None]:
        if self.label is None or isinstance(self.label, str):
            return [self.label]
        return list(self.label)

    @property
    def features(self) -> list[Field]:
        """The fields that are neither labels nor weights of samples."""
        apart = {*self._labels, self.sample_weight}
        return [field for field in self.used if field.name not in apart]

    def split(self, values: dict[str, typing.Any]) -> typing.Any:
        """What a dataset has of a batch.

        Args:
          values: dict from names of fields to what they are.

        Returns:
          `features`, `(features, labels)` or `(features, labels, weights)`.
        """
        apart = {*self._labels, self.sample_weight}
        features = {k: v for k, v in values.items() if k not in apart}
        if self.label is None:
            return features
        labels: typing.Any = {n: values[n] for n in self._labels if n}
        if isinstance(self.label, str):
            labels = values[self.label]
        if self.sample_weight is None:
            return features, labels
        return features, labels, values[self.sample_weight]


def is_list(field: Field) -> bool:
    """Whether a format with lists has one of the field's values."""
    return field.bag and field.separator is None


def is_text(field: Field) -> bool:
    """Whether files have a field, or the values of its list, as text."""
    return (
        field.dtype == "string"
        or field.values is not None
        or field.separator is not None
    )
