# SPDX-License-Identifier: Apache-2.0
"""The column of a cross of features."""

import dataclasses
import typing
from collections.abc import Sequence

from tf_ext._checks import refuse
from tf_ext._keras import keras
from tf_ext.feature_column import checks
from tf_ext.feature_column.category_column import (
    CategoryColumn,
    category_column,
)
from tf_ext.feature_column.column import Column
from tf_ext.feature_column.part import Part

_NAME = "crossed_column"
_JOINT = "_X_"


@keras.utils.register_keras_serializable(package="tf_ext")
@dataclasses.dataclass(frozen=True)
class CrossedColumn(Column):
    """A cross of features; made by `crossed_column`.

    Equal columns are equal and hash alike. The fields are the arguments of
    `crossed_column`, with keys replaced by columns and names filled in.
    """

    # Any, as __post_init__ converts what it is given.
    columns: tuple[Column, ...] | typing.Any
    bucket_size: int | None = None
    name: str | typing.Any = None
    namespace: str | typing.Any = None
    combiner: str = "sum"

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _to_columns(self.columns))
        for field, of_part in (("name", "name"), ("namespace", "namespace")):
            if getattr(self, field) is None:
                joined = _JOINT.join(getattr(p, of_part) for p in self.columns)
                object.__setattr__(self, field, joined)
        checks.check_text(_NAME, "name", self.name)
        checks.check_namespace(_NAME, self.namespace)
        bucket_size = checks.to_bucket_size(_NAME, self.bucket_size)
        object.__setattr__(self, "bucket_size", bucket_size)
        checks.check_combiner(_NAME, self.combiner)
        if self.combiner == "max" and self.weights:
            refuse(
                _NAME,
                "combiner",
                "sum, mean or sqrtn, as a part has weights",
                self.combiner,
            )

    @property
    def parts(self) -> tuple[Part, ...]:
        """The features that are hashed together."""
        return tuple(_part_of(column) for column in self.columns)

    @property
    def weights(self) -> tuple[str, ...]:
        """The keys of the parts' weights, in a tuple."""
        return tuple(p.weights for p in self.parts if p.weights is not None)

    def get_config(self) -> dict[str, typing.Any]:
        """The arguments of `crossed_column`, for Keras's savers."""
        return {
            "columns": [_to_config(column) for column in self.columns],
            "bucket_size": self.bucket_size,
            "name": self.name,
            "namespace": self.namespace,
            "combiner": self.combiner,
        }

    @classmethod
    def from_config(cls, config: dict[str, typing.Any]) -> typing.Self:
        """The column that `get_config` describes."""
        columns = [_from_config(c) for c in config["columns"]]
        return cls(**{**config, "columns": tuple(columns)})


def _part_of(column: Column) -> Part:
    """The feature of a column, by texts also of integers that are signs."""
    [part] = column.parts
    if isinstance(part, CategoryColumn) and part.hashing == "identity":
        return dataclasses.replace(part, hashing="fingerprint")
    return part


def _to_config(column: Column) -> dict[str, typing.Any]:
    # Columns of category_column have been saved without their class.
    if type(column) is CategoryColumn:
        return column.get_config()
    return keras.utils.serialize_keras_object(column)


def _from_config(config: dict[str, typing.Any]) -> Column:
    if "class_name" not in config:
        return CategoryColumn.from_config(config)
    return keras.utils.deserialize_keras_object(config)


def _to_columns(columns: Sequence[Column | str]) -> tuple[Column, ...]:
    """A tuple of columns, from columns and keys."""
    allowed = (
        f"a list of 2 to {checks.MAX_CROSS_PARTS} columns of category_column, "
        "or keys"
    )
    if not isinstance(columns, list | tuple):
        refuse(_NAME, "columns", allowed, columns)
    made = tuple(
        category_column(column) if isinstance(column, str) else column
        for column in columns
    )
    if not 2 <= len(made) <= checks.MAX_CROSS_PARTS or not all(
        isinstance(column, Column)
        and len(column.parts) == 1
        and column.combiner is not None
        for column in made
    ):
        refuse(_NAME, "columns", allowed, columns)
    return made


def crossed_column(
    columns: Sequence[Column | str],
    *,
    bucket_size: int | None = None,
    name: str | None = None,
    namespace: str | None = None,
    combiner: str = "sum",
) -> CrossedColumn:
    """A feature that combines several others, such as user and hour.

    Its values are the Cartesian product of the bags of its parts, so that its
    bag is empty where a part's bag is. A part's `bucket_size`, `boundaries`,
    `missing`, `optional` and `weights` apply in the cross; weights are
    multiplied. Its `hashing` is not used: the decimal text of an integer is
    crossed.

    Args:
      columns: list of 2 to 64 columns of one feature each, such as those of
        `category_column`, or keys. Their order matters.
      bucket_size: int, the number of different signs, or None for unbounded.
      name: string, the name of the column's output. None: the parts' names
        joined by "_X_".
      namespace: string, as in `category_column`. None: the parts' namespaces
        joined by "_X_".
      combiner: as in `category_column`.

    Returns:
      A `CrossedColumn`.

    Raises:
      ValueError: an argument is not as above; the sentence names it.

    Example:
      >>> cross = tf_ext.feature_column.crossed_column(["user", "hour"])
      >>> cross.name, cross.combiner
      ('user_X_hour', 'sum')
    """
    return CrossedColumn(
        columns=columns,
        bucket_size=bucket_size,
        name=name,
        namespace=namespace,
        combiner=combiner,
    )
