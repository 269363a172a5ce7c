# SPDX-License-Identifier: Apache-2.0
"""The column of an age: the time from one moment to another, in buckets."""

import dataclasses
import typing
from collections.abc import Iterable

import tensorflow as tf

from tf_ext._checks import is_int, refuse
from tf_ext._keras import keras
from tf_ext._times import FAR, MISSING_TIME
from tf_ext.feature_column import checks
from tf_ext.feature_column.column import Column
from tf_ext.feature_column.part import Part

_NAME = "age_column"
_NO_AGE = -(1 << 63)


@dataclasses.dataclass(frozen=True)
class _AgePart(Part):
    """The ages of a column as the numbers of their buckets."""

    key: str
    limits: tuple[int, ...]
    missing_time: int | None
    reference: str | None = None
    name: str = ""
    optional: bool = False
    missing: int | None = None
    conversion: str = ""

    def converted_type(self, dtype: tf.DType) -> tf.DType:
        if not dtype.is_integer or dtype == tf.uint64:
            raise ValueError(
                f"The features {self.key!r} and {self.reference!r} of column "
                f"{self.name!r} must be integers of at most int64, seconds "
                f"since 1970, but one is of {dtype.name}: cast it to int64."
            )
        return tf.int64

    def type_of_absent(self) -> tf.DType:
        return tf.int64

    def relate(self, values: tf.Tensor, reference: tf.Tensor) -> tf.Tensor:
        begin, end = (
            tf.clip_by_value(tf.cast(times, tf.int64), -FAR, FAR)
            for times in (values, reference)
        )
        ages = end - begin
        if self.missing_time is None:
            return ages
        there = [
            tf.not_equal(tf.cast(times, tf.int64), self.missing_time)
            for times in (values, reference)
        ]
        nothing = tf.constant(_NO_AGE, tf.int64)
        return tf.where(tf.logical_and(*there), ages, nothing)

    def convert(self, values: tf.Tensor) -> tf.Tensor:
        ages = tf.cast(values, tf.int64)
        limits = tf.constant(self.limits, tf.int64)
        flat = tf.searchsorted(
            limits, tf.reshape(ages, [-1]), side="right", out_type=tf.int64
        )
        ids = tf.reshape(flat, tf.shape(ages))
        ids.set_shape(ages.shape)
        if self.missing is None:
            return ids
        absent = tf.constant(self.missing, tf.int64)
        return tf.where(tf.equal(ages, _NO_AGE), absent, ids)


@keras.utils.register_keras_serializable(package="tf_ext")
@dataclasses.dataclass(frozen=True)
class AgeColumn(Column):
    """The time from one moment to another; made by `age_column`.

    Equal columns are equal and hash alike. The fields are the arguments of
    `age_column`, with the name and the namespace filled in.
    """

    key: str
    until: str
    # Any, as __post_init__ converts what it is given.
    boundaries: tuple[int, ...] | typing.Any
    missing: int | None = None
    optional: bool = False
    combiner: str = "sum"
    name: str | typing.Any = None
    namespace: str | typing.Any = None

    def __post_init__(self) -> None:
        checks.check_text(_NAME, "key", self.key)
        checks.check_text(_NAME, "until", self.until)
        if self.key == self.until:
            refuse(_NAME, "until", "another feature than `key`", self.until)
        limits = _to_limits(self.boundaries)
        object.__setattr__(self, "boundaries", limits)
        fields = checks.times_fields(_NAME, self, f"{self.key}_age")
        for field, value in fields.items():
            object.__setattr__(self, field, value)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The times, as a feature of which buckets of ages are hashed."""
        described = (self.until, self.boundaries, self.missing)
        return (
            _AgePart(
                self.key,
                self.boundaries,
                self.missing,
                reference=self.until,
                name=self.name,
                optional=self.optional,
                missing=None if self.missing is None else MISSING_TIME,
                conversion=f"age {' '.join(map(str, described))}",
            ),
        )

    def get_config(self) -> dict[str, typing.Any]:
        """The arguments of `age_column`, for Keras's savers."""
        return {**super().get_config(), "boundaries": list(self.boundaries)}


def _to_limits(boundaries: typing.Any) -> tuple[int, ...]:
    allowed = "rising integers, at least one, seconds"
    if isinstance(boundaries, str | bytes) or not isinstance(
        boundaries, Iterable
    ):
        refuse(_NAME, "boundaries", allowed, boundaries)
    values = list(boundaries)
    if not values or not all(
        is_int(value) and abs(value) < FAR for value in values
    ):
        refuse(_NAME, "boundaries", allowed, boundaries)
    limits = tuple(int(value) for value in values)
    if sorted(set(limits)) != list(limits):
        refuse(_NAME, "boundaries", allowed, boundaries)
    return limits


def age_column(
    key: str,
    until: str,
    boundaries: Iterable[int],
    *,
    missing: int | None = None,
    optional: bool = False,
    combiner: str = "sum",
    name: str | None = None,
    namespace: str | None = None,
) -> AgeColumn:
    """How long after the times of one feature that of another is.

    Both are as the features of `time_column`, integers of seconds since 1970:
    when an item was published, and when it was shown.

    Args:
      key: string, the feature's key in the dict of inputs: of one time for each
        sample, or of a bag of times.
      until: string, the key of a dense feature with one time for each sample,
        `[batch_size]` or `[batch_size, 1]`.
      boundaries: rising list of int, seconds. The id of an age is the number of
        boundaries that are not above it: with `[3600, 86400]`, 0 up to an hour,
        1 up to a day, and 2. It is hashed as one of a `category_column`.
      missing: int that marks a missing time in either feature, such as 0; its
        age is left out of the bag. None: all times count.
      optional: bool, as in `category_column`, of `key`.
      combiner: string, as in `category_column`.
      name: string, the name of the column's output. None: the key and "_age".
      namespace: string, as in `category_column`. None: the name.

    Returns:
      An `AgeColumn`, which may be in `crossed_column`. Its `signs` are those of
      ages in seconds.

    Raises:
      ValueError: an argument is not as above; the sentence names it.

    Example:
      >>> age = tf_ext.feature_column.age_column(
      ...     "published", "shown", [3600, 86400])
      >>> shown = tf.constant([100_000, 100_000, 900_000])
      >>> bags = tf_ext.feature_column.columns_to_bags(
      ...     [age], {"published": shown - [60, 7200, 90_000], "shown": shown})
      >>> bool(tf.reduce_all(bags.signs == age.signs([0, 3600, 86400])))
      True
    """
    return AgeColumn(
        key=key,
        until=until,
        boundaries=boundaries,
        missing=missing,
        optional=optional,
        combiner=combiner,
        name=name,
        namespace=namespace,
    )
