# SPDX-License-Identifier: Apache-2.0
"""What records have, and what a dataset makes of them."""

import collections
import dataclasses
import typing
from collections.abc import Sequence

from tf_ext._checks import refuse
from tf_ext.data.field import UNUSED, WEIGHT_SUFFIX, Field


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
