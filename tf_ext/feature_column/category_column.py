# SPDX-License-Identifier: Apache-2.0
"""The column of one feature."""

import dataclasses
import math
import typing
from collections.abc import Iterable

import numpy as np

from tf_ext._checks import is_finite, refuse
from tf_ext._keras import keras
from tf_ext.feature_column import checks
from tf_ext.feature_column.column import Column
from tf_ext.feature_column.part import Part

_NAME = "category_column"
_HASHINGS = ("fingerprint", "identity")


@keras.utils.register_keras_serializable(package="tf_ext")
@dataclasses.dataclass(frozen=True)
class CategoryColumn(Column, Part):
    """One feature of a model; made by `category_column`.

    Equal columns are equal and hash alike. The fields are the arguments of
    `category_column`, with `namespace` filled in and `boundaries` a tuple.
    """

    key: str
    bucket_size: int | None = None
    hashing: str = "fingerprint"
    # Any, as __post_init__ converts what it is given.
    boundaries: tuple[float, ...] | typing.Any | None = None
    missing: str | int | float | None = None
    namespace: str | typing.Any = None
    optional: bool = False
    combiner: str = "sum"
    weights: str | None = None

    def __post_init__(self) -> None:
        checks.check_text(_NAME, "key", self.key)
        if self.namespace is None:
            object.__setattr__(self, "namespace", self.key)
        checks.check_namespace(_NAME, self.namespace)
        bucket_size = checks.to_bucket_size(_NAME, self.bucket_size)
        object.__setattr__(self, "bucket_size", bucket_size)
        checks.check_combiner(_NAME, self.combiner)
        object.__setattr__(self, "boundaries", _to_boundaries(self.boundaries))
        self._check_hashing()
        if isinstance(self.missing, np.generic):
            object.__setattr__(self, "missing", self.missing.item())
        self._check_missing()
        self._check_weights()
        if not isinstance(self.optional, bool):
            refuse(_NAME, "optional", "True or False", self.optional)

    def _check_hashing(self) -> None:
        if self.hashing not in _HASHINGS:
            refuse(
                _NAME, "hashing", f"one of {', '.join(_HASHINGS)}", self.hashing
            )
        if self.hashing != "identity":
            return
        for argument in ("bucket_size", "boundaries"):
            value = getattr(self, argument)
            if value is not None:
                refuse(
                    _NAME,
                    argument,
                    'None with hashing="identity", which takes integers as '
                    "they are",
                    value,
                )

    def _check_missing(self) -> None:
        types: typing.Any
        allowed, types = "a string, an int or None", str | int
        if self.boundaries is not None:
            allowed = "a number or None, as values with boundaries are numbers"
            types = int | float
        elif self.hashing == "identity":
            allowed = 'an int or None with hashing="identity"'
            types = int
        if self.missing is None:
            return
        if isinstance(self.missing, bool) or not isinstance(
            self.missing, types
        ):
            refuse(_NAME, "missing", allowed, self.missing)
        if isinstance(self.missing, float) and not math.isfinite(self.missing):
            refuse(
                _NAME,
                "missing",
                "finite; NaN is always missing without being named",
                self.missing,
            )

    def _check_weights(self) -> None:
        if self.weights is None:
            return
        checks.check_text(_NAME, "weights", self.weights)
        if self.combiner == "max":
            refuse(
                _NAME,
                "weights",
                'None with combiner="max", which has no use for them',
                self.weights,
            )

    @property
    def name(self) -> str:
        """The name of its output: the key."""
        return self.key

    @property
    def parts(self) -> tuple[Part, ...]:
        """The columns that are hashed together: this one alone."""
        return (self,)

    def get_config(self) -> dict[str, typing.Any]:
        """The arguments of `category_column`, for Keras's savers."""
        config = super().get_config()
        if self.boundaries is not None:
            config["boundaries"] = list(self.boundaries)
        return config


def _to_boundaries(
    boundaries: Iterable[float] | None,
) -> tuple[float, ...] | None:
    """A strictly rising tuple of floats, also after rounding to float32."""
    if boundaries is None:
        return None
    allowed = (
        "a list of at least one finite number, strictly increasing as "
        "float32, or None"
    )
    if isinstance(boundaries, str | bytes):
        refuse(_NAME, "boundaries", allowed, boundaries)
    try:
        values = list(boundaries)
    except TypeError:
        refuse(_NAME, "boundaries", allowed, boundaries)
    for value in values:
        if not is_finite(value):
            refuse(_NAME, "boundaries", allowed, boundaries)
    with np.errstate(over="ignore"):
        rounded = np.asarray(values, np.float64).astype(np.float32)
    if (
        not values
        or not np.all(np.isfinite(rounded))
        or not np.all(rounded[:-1] < rounded[1:])
    ):
        refuse(_NAME, "boundaries", allowed, boundaries)
    return tuple(float(value) for value in values)


def category_column(
    key: str,
    *,
    bucket_size: int | None = None,
    hashing: str = "fingerprint",
    boundaries: Iterable[float] | None = None,
    missing: str | int | float | None = None,
    namespace: str | None = None,
    optional: bool = False,
    combiner: str = "sum",
    weights: str | None = None,
) -> CategoryColumn:
    """A feature whose values are ids: strings, integers, or numbers in buckets.

    The feature is dense `[batch_size, ...]`, where the other dimensions are the
    bag of an example; a `tf.SparseTensor` `[batch_size, n]`; or a
    `tf.RaggedTensor` `[batch_size, None]`. Its values are strings, integers,
    booleans (0 and 1), or, with `boundaries`, floats.

    Args:
      key: string, the feature's key in the dict of inputs.
      bucket_size: int, the number of different signs, or None for unbounded: no
        two values then share a sign.
      hashing: "fingerprint", see `tf_ext.hashing`; or "identity", which takes
        integers as signs, without the namespace: different columns on one
        table then share rows.
      boundaries: rising list of finite numbers. The id is the number of
        boundaries that are not above the value, as in
        `keras.layers.Discretization`.
      missing: string, int or, with boundaries, number: the value that marks a
        missing one and is left out of the bag. NaN is always left out. None:
        all other values count, including "" and -1.
      namespace: string. In columns of one namespace, equal values are the same
        id. None: the key.
      optional: bool, whether a batch without the key gives empty bags instead
        of an error.
      combiner: how a bag's rows become one: "sum", "mean", "sqrtn" (the sum
        divided by the root of the number of values) or "max".
      weights: string, the key of a feature of floats with a weight for each
        value, of the same structure. None: all have weight 1.

    Returns:
      A `CategoryColumn`.

    Raises:
      ValueError: an argument is not as above; the sentence names it.

    Example:
      >>> user = tf_ext.feature_column.category_column("user")
      >>> age = tf_ext.feature_column.category_column(
      ...     "age", boundaries=[18, 30, 65])
      >>> user.name, age.boundaries
      ('user', (18.0, 30.0, 65.0))
    """
    return CategoryColumn(
        key=key,
        bucket_size=bucket_size,
        hashing=hashing,
        boundaries=boundaries,
        missing=missing,
        namespace=namespace,
        optional=optional,
        combiner=combiner,
        weights=weights,
    )
