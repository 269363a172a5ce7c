# SPDX-License-Identifier: Apache-2.0
"""One field of the records of a file."""

import dataclasses
import math
import typing
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tf_ext._checks import refuse
from tf_ext.data.times import UNITS

Number: typing.TypeAlias = int | float
UNUSED = "unused"
DTYPES = {
    "string": tf.string,
    "int32": tf.int32,
    "int64": tf.int64,
    "uint64": tf.uint64,
    "float32": tf.float32,
}
# Appended to the name of a bag for the feature that has its weights.
WEIGHT_SUFFIX = "_weight"


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of the records of a file.

    Attributes:
      name: string, also the name of the feature. In JSON, "user.geo.country" is
        the field of an object within an object.
      dtype: "string", "int32", "int64", "uint64", "float32" (or the tf.DType or
        NumPy dtype of that name), or "unused" for a field that is left out of
        the dataset, where the position of fields matters. Ids that pandas made
        floats of, as `7.0`, are integers in a field of integers.
      default: what a missing value is read as; for strings "" unless given. A
        number without a default must be present: a record without it is
        malformed. Of a bag, None: a missing bag is empty.
      bag: bool, whether a record has a list of values; the feature is ragged.
        True if there is a separator.
      separator: string, what is between the values of a bag in a field of text,
        and may be behind the last one, as in "a|b|"; None where the format has
        lists (JSON, TFRecord, Parquet).
      weight_separator: string, what is between a value and its weight in a
        field of text: with ":" and separator "|", "a:0.5|b:2". The weights are
        the feature `<name>_weight`, float32.
      time: string, for a field of times, of dtype "int64": what numbers in
        files count since 1970, "s", "ms", "us" or "ns". Texts of ISO 8601 and
        columns of timestamps or dates are read as what they say, without a time
        zone as UTC. The feature is in whole seconds since 1970, as
        `tf_ext.feature_column.time_column` takes it.
      optional: bool, whether a file may lack the field, as older ones do: it is
        missing in all its records then. Otherwise such a file is refused. In a
        file without names, optional fields are the last ones of a line. Each
        message of a stream may lack them.
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
    time: str | None = None
    optional: bool = False

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
        if self.time is not None:
            if self.time not in UNITS:
                allowed = f"one of {', '.join(UNITS)}, or None"
                refuse(self._owner, "time", allowed, self.time)
            if self.dtype != "int64" or self.values is not None:
                allowed = 'None unless dtype is "int64", without `values`'
                refuse(self._owner, "time", allowed, self.time)
        if not isinstance(self.optional, bool):
            refuse(self._owner, "optional", "True or False", self.optional)
        is_number = not self.bag and self.dtype not in ("string", UNUSED)
        if self.optional and is_number and self.default is None:
            allowed = "False for a number without a `default`"
            refuse(self._owner, "optional", allowed, self.optional)

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
            if isinstance(number, float) and not math.isfinite(number):
                return True
            return abs(number) <= float(tf.float32.max)
        dtype = DTYPES[self.dtype]
        return isinstance(number, int) and dtype.min <= number <= dtype.max


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
