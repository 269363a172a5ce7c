"""The column of one feature."""

import dataclasses
import math
import numbers

import numpy as np

from tf_ext._keras import keras
from tf_ext.feature_column import checks

_NAME = "category_column"
_HASHINGS = ("fingerprint", "identity")


@keras.utils.register_keras_serializable(package="tf_ext")
@dataclasses.dataclass(frozen=True)
class CategoryColumn:
    """One feature of a model; made by `category_column`.

    Equal columns are equal and hash alike. The fields are the arguments of
    `category_column`, with `namespace` filled in and `boundaries` a tuple.
    """

    key: str
    bucket_size: int | None = None
    hashing: str = "fingerprint"
    boundaries: tuple[float, ...] | None = None
    missing: str | int | float | None = None
    namespace: str | None = None
    optional: bool = False
    combiner: str = "sum"
    weights: str | None = None

    def __post_init__(self):
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
            checks.refuse(_NAME, "optional", "True or False", self.optional)

    def _check_hashing(self):
        if self.hashing not in _HASHINGS:
            checks.refuse(
                _NAME, "hashing", f"one of {', '.join(_HASHINGS)}", self.hashing
            )
        if self.hashing != "identity":
            return
        for argument in ("bucket_size", "boundaries"):
            value = getattr(self, argument)
            if value is not None:
                checks.refuse(
                    _NAME,
                    argument,
                    'None with hashing="identity", which takes integers as '
                    "they are",
                    value,
                )

    def _check_missing(self):
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
            checks.refuse(_NAME, "missing", allowed, self.missing)
        if isinstance(self.missing, float) and not math.isfinite(self.missing):
            checks.refuse(
                _NAME,
                "missing",
                "finite; NaN is always missing without being named",
                self.missing,
            )

    def _check_weights(self):
        if self.weights is None:
            return
        checks.check_text(_NAME, "weights", self.weights)
        if self.combiner == "max":
            checks.refuse(
                _NAME,
                "weights",
                'None with combiner="max", which has no use for them',
                self.weights,
            )

    @property
    def name(self):
        """What the column is called in outputs: its key."""
        return self.key

    @property
    def parts(self):
        """The columns that are hashed together: this one alone."""
        return (self,)

    @property
    def hashing_identity(self):
        """What decides which sign a value gets: a JSON text."""
        if self.hashing == "identity":
            return checks.identity_text(hashing=self.hashing)
        return checks.identity_text(
            namespace=self.namespace,
            bucket_size=self.bucket_size,
            boundaries=self.boundaries,
        )

    def get_config(self):
        """The arguments of `category_column`, for Keras's savers."""
        config = dataclasses.asdict(self)
        if self.boundaries is not None:
            config["boundaries"] = list(self.boundaries)
        return config

    @classmethod
    def from_config(cls, config):
        """The column that `get_config` describes."""
        return cls(**config)


def _to_boundaries(boundaries):
    """A tuple of floats that rise, as the op's float32, too."""
    if boundaries is None:
        return None
    allowed = "a list of at least one finite number, rising as float32, or None"
    if isinstance(boundaries, str | bytes):
        checks.refuse(_NAME, "boundaries", allowed, boundaries)
    try:
        values = list(boundaries)
    except TypeError:
        checks.refuse(_NAME, "boundaries", allowed, boundaries)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            checks.refuse(_NAME, "boundaries", allowed, boundaries)
    with np.errstate(over="ignore"):
        rounded = np.asarray(values, np.float64).astype(np.float32)
    if (
        not values
        or not np.all(np.isfinite(rounded))
        or not np.all(rounded[:-1] < rounded[1:])
    ):
        checks.refuse(_NAME, "boundaries", allowed, boundaries)
    return tuple(float(value) for value in values)


def category_column(
    key,
    *,
    bucket_size=None,
    hashing="fingerprint",
    boundaries=None,
    missing=None,
    namespace=None,
    optional=False,
    combiner="sum",
    weights=None,
):
    """A feature whose values are ids: strings, integers, or numbers in buckets.

    The feature is dense `[batch_size, ...]`, where the other dimensions are the
    bag of an example; a `tf.SparseTensor` `[batch_size, n]`; or a
    `tf.RaggedTensor` `[batch_size, None]`. Its values are strings, integers
    that fit in int64, or, with `boundaries`, floats.

    Args:
      key: string, the feature's key in the dict of inputs.
      bucket_size: int, the number of different signs, or None for unbounded: no
        two values then share a sign.
      hashing: "fingerprint", see `tf_ext.hashing`; or "identity", which takes
        integers as signs, without the namespace: different columns on one
        table then share rows.
      boundaries: rising list of finite numbers. The id is how many of them are
        not above the value, as in `keras.layers.Discretization`.
      missing: string, int or, with boundaries, number: the value that stands
        for none and is left out of the bag. NaN always is. None: all others
        count, "" and -1 as well.
      namespace: string. Columns of one namespace mean the same ids by the same
        values. None: the key.
      optional: bool, whether a batch without the key has empty bags instead of
        being an error.
      combiner: how a bag's rows become one: "sum", "mean", "sqrtn" (the sum
        divided by the root of the number of values) or "max".
      weights: string, the key of a feature of floats with a weight for each
        value, of the same structure. None: all count alike.

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
