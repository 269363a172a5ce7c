# SPDX-License-Identifier: Apache-2.0
"""The column of a time: its hour or its day of the week."""

import dataclasses
import typing

import tensorflow as tf

from tf_ext._checks import is_int, refuse
from tf_ext._keras import keras
from tf_ext._times import MINUTES_OF_DAY, MISSING_TIME, UNITS
from tf_ext.feature_column import checks
from tf_ext.feature_column.column import Column
from tf_ext.feature_column.part import Part

_NAME = "time_column"


@dataclasses.dataclass(frozen=True)
class _TimePart(Part):
    """The times of a column, converted to ids of at least 0."""

    key: str
    unit: str
    utc_offset_minutes: int
    missing_time: int | None
    name: str = ""
    optional: bool = False
    missing: int | None = None
    conversion: str = ""

    def converted_type(self, dtype: tf.DType) -> tf.DType:
        if not dtype.is_integer or dtype == tf.uint64:
            raise ValueError(
                f"The feature {self.key!r} of column {self.name!r} must be "
                "integers of at most int64, seconds since 1970, but is of "
                f"{dtype.name}: cast it to int64."
            )
        return tf.int64

    def type_of_absent(self) -> tf.DType:
        return tf.int64

    def convert(self, values: tf.Tensor) -> tf.Tensor:
        unit = UNITS[self.unit]
        times = tf.cast(values, tf.int64)
        # Divided first, so that no time overflows.
        minutes = times // 60 + self.utc_offset_minutes
        units = minutes // unit.minutes + unit.first
        ids = tf.math.floormod(units, unit.period)
        if self.missing is None:
            return ids
        is_there = tf.not_equal(times, self.missing_time)
        return tf.where(is_there, ids, tf.constant(self.missing, tf.int64))


@keras.utils.register_keras_serializable(package="tf_ext")
@dataclasses.dataclass(frozen=True)
class TimeColumn(Column):
    """The hour or weekday of a time; made by `time_column`.

    Equal columns are equal and hash alike. The fields are the arguments of
    `time_column`, with the name and the namespace filled in.
    """

    key: str
    unit: str = "hour"
    utc_offset_minutes: int = 0
    missing: int | None = None
    optional: bool = False
    combiner: str = "sum"
    # Any, as __post_init__ converts what it is given.
    name: str | typing.Any = None
    namespace: str | typing.Any = None

    def __post_init__(self) -> None:
        checks.check_text(_NAME, "key", self.key)
        if self.unit not in UNITS:
            refuse(_NAME, "unit", f"one of {', '.join(UNITS)}", self.unit)
        offset = self.utc_offset_minutes
        if not is_int(offset) or abs(offset) >= MINUTES_OF_DAY:
            refuse(
                _NAME,
                "utc_offset_minutes",
                f"an int from {1 - MINUTES_OF_DAY} to {MINUTES_OF_DAY - 1}",
                offset,
            )
        object.__setattr__(self, "utc_offset_minutes", int(offset))
        fields = checks.times_fields(_NAME, self, f"{self.key}_{self.unit}")
        for field, value in fields.items():
            object.__setattr__(self, field, value)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The times, as a feature of which hours or weekdays are hashed."""
        described = (self.unit, self.utc_offset_minutes, self.missing)
        return (
            _TimePart(
                self.key,
                *described,
                name=self.name,
                optional=self.optional,
                missing=None if self.missing is None else MISSING_TIME,
                conversion=" ".join(map(str, described)),
            ),
        )


def time_column(
    key: str,
    unit: str = "hour",
    *,
    utc_offset_minutes: int = 0,
    missing: int | None = None,
    optional: bool = False,
    combiner: str = "sum",
    name: str | None = None,
    namespace: str | None = None,
) -> TimeColumn:
    """A feature of times, of which the hour or the day of the week counts.

    The feature is as that of `category_column`, of integers: seconds since 1970
    in UTC, of any sign. Divide milliseconds by 1000 before.

    Args:
      key: string, the feature's key in the dict of inputs.
      unit: "hour", 0 to 23; "weekday", 0 (Monday) to 6; or "hour_of_week", 0 to
        167. The ids are hashed as those of a `category_column`.
      utc_offset_minutes: int, how many minutes local time is ahead of UTC, such
        as 330 in India and -300 in New York in winter. It is the same all year.
      missing: int that marks a missing time, such as 0, and is left out of the
        bag. None: all times count.
      optional: bool, as in `category_column`.
      combiner: string, as in `category_column`.
      name: string, the name of the column's output. None: the key and the unit,
        joined by "_".
      namespace: string, as in `category_column`. None: the name.

    Returns:
      A `TimeColumn`, which may be in `crossed_column` and
      `sequence_category_column`.

    Raises:
      ValueError: an argument is not as above; the sentence names it.

    Example:
      >>> hour = tf_ext.feature_column.time_column("time", "hour")
      >>> by_user = tf_ext.feature_column.crossed_column(["user", hour])
      >>> by_user.name
      'user_X_time_hour'
      >>> noon, later = 1_767_268_800, 1_767_270_000  # January 1, 2026.
      >>> signs = hour.signs([noon, later, noon + 3600])
      >>> bool(signs[0] == signs[1]), bool(signs[0] == signs[2])
      (True, False)
    """
    return TimeColumn(
        key=key,
        unit=unit,
        utc_offset_minutes=utc_offset_minutes,
        missing=missing,
        optional=optional,
        combiner=combiner,
        name=name,
        namespace=namespace,
    )
