# SPDX-License-Identifier: Apache-2.0
"""Initializers of table rows.

A row's initial weights depend on the table's seed and name, the sign and the
position alone: not on the order in which signs arrive, the number of threads
or the machine. That is why these are not Keras initializers.
"""

import typing

from tf_ext._checks import is_finite, refuse
from tf_ext._keras import keras

__all__ = [
    "Constant",
    "Initializer",
    "Normal",
    "TruncatedNormal",
    "Uniform",
    "Zeros",
    "get",
]


def __dir__() -> list[str]:
    return sorted(__all__)


class Initializer:
    """Base class of initializers: a `kind` and its float parameters.

    Args:
      **parameters: the parameters of the distribution.
    """

    kind = ""

    def __init__(self, **parameters: float) -> None:
        for name, value in parameters.items():
            if not is_finite(value):
                refuse(type(self).__name__, name, "a finite number", value)
        self._parameters = {k: float(v) for k, v in parameters.items()}

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments."""
        return dict(self._parameters)

    @classmethod
    def from_config(cls, config: dict[str, typing.Any]) -> typing.Self:
        """The initializer that `get_config` describes."""
        return cls(**config)

    def table_config(self) -> dict[str, str]:
        """The entries of a table's configuration, as a dict of strings."""
        entries = {"initializer": self.kind}
        for name, value in self._parameters.items():
            entries[f"initializer.{name}"] = repr(value)
        return entries

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and (
            self._parameters == other._parameters
        )

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted(self._parameters.items()))))

    def __repr__(self) -> str:
        args = ", ".join(f"{k}={v}" for k, v in self._parameters.items())
        return f"{type(self).__name__}({args})"


@keras.utils.register_keras_serializable(package="tf_ext")
class Zeros(Initializer):
    """All weights start at 0; the usual choice for a wide (linear) part.

    Example:
    >>> import tf_ext
    >>> tf_ext.initializers.Zeros()
    Zeros()
    """

    kind = "zeros"

    def __init__(self) -> None:
        super().__init__()


@keras.utils.register_keras_serializable(package="tf_ext")
class Constant(Initializer):
    """All weights start at `value`.

    Args:
      value: float, the start value.

    Example:
    >>> import tf_ext
    >>> tf_ext.initializers.Constant(0.5)
    Constant(value=0.5)
    """

    kind = "constant"

    def __init__(self, value: float = 0.0) -> None:
        super().__init__(value=value)


@keras.utils.register_keras_serializable(package="tf_ext")
class Uniform(Initializer):
    """Weights uniform in [minval, maxval).

    Args:
      minval: float, lower bound (included).
      maxval: float, upper bound (excluded); greater than `minval`.

    Example:
    >>> import tf_ext
    >>> tf_ext.initializers.Uniform(-0.05, 0.05)
    Uniform(minval=-0.05, maxval=0.05)
    """

    kind = "uniform"

    def __init__(self, minval: float = -0.05, maxval: float = 0.05) -> None:
        super().__init__(minval=minval, maxval=maxval)
        if not minval < maxval:
            raise ValueError(
                "Argument `minval` of Uniform must be less than `maxval`. "
                f"Received: minval={minval}, maxval={maxval}"
            )


class _Gaussian(Initializer):
    def __init__(self, mean: float, stddev: float) -> None:
        super().__init__(mean=mean, stddev=stddev)
        if stddev < 0:
            raise ValueError(
                f"Argument `stddev` of {type(self).__name__} must be at least "
                f"0. Received: stddev={stddev}"
            )


@keras.utils.register_keras_serializable(package="tf_ext")
class Normal(_Gaussian):
    """Weights from a normal distribution.

    Args:
      mean: float, the mean.
      stddev: float, the standard deviation; not negative.

    Example:
    >>> import tf_ext
    >>> tf_ext.initializers.Normal(stddev=0.01)
    Normal(mean=0.0, stddev=0.01)
    """

    kind = "normal"

    def __init__(self, mean: float = 0.0, stddev: float = 0.05) -> None:
        super().__init__(mean, stddev)


@keras.utils.register_keras_serializable(package="tf_ext")
class TruncatedNormal(_Gaussian):
    """Weights from a normal distribution cut at two standard deviations.

    Args:
      mean: float, the mean of the distribution before the cut.
      stddev: float, its standard deviation before the cut; not negative.

    Example:
    >>> import tf_ext
    >>> tf_ext.initializers.TruncatedNormal()
    TruncatedNormal(mean=0.0, stddev=0.05)
    """

    kind = "truncated_normal"

    def __init__(self, mean: float = 0.0, stddev: float = 0.05) -> None:
        super().__init__(mean, stddev)


_BY_NAME = {
    cls.kind: cls for cls in (Zeros, Constant, Uniform, Normal, TruncatedNormal)
}
# Keras's with the same distribution, and the parameters of both.
_OF_KERAS: dict[typing.Any, tuple[type[Initializer], tuple[str, ...]]] = {
    keras.initializers.Zeros: (Zeros, ()),
    keras.initializers.Constant: (Constant, ("value",)),
    keras.initializers.RandomUniform: (Uniform, ("minval", "maxval")),
    keras.initializers.RandomNormal: (Normal, ("mean", "stddev")),
    keras.initializers.TruncatedNormal: (TruncatedNormal, ("mean", "stddev")),
}


def from_keras(theirs: typing.Any) -> Initializer | None:
    """The initializer with the distribution of one of Keras; None without."""
    if type(theirs) not in _OF_KERAS:
        return None
    mine, names = _OF_KERAS[type(theirs)]
    config = theirs.get_config()
    parameters = [config[name] for name in names]
    if not all(isinstance(one, int | float) for one in parameters):
        return None
    return mine(*parameters)


def get(
    identifier: str
    | Initializer
    | keras.initializers.Initializer
    | dict[str, typing.Any]
    | None,
) -> Initializer:
    """The initializer of a name, an instance or a Keras configuration.

    Args:
      identifier: an `Initializer`; one of "zeros", "constant", "uniform",
        "normal", "truncated_normal"; `Zeros`, `Constant`, `RandomUniform`,
        `RandomNormal` or `TruncatedNormal` of Keras, which become those of this
        module with the same distribution, but the draws and the seed of the
        table; or what `keras.saving` made of any of these.

    Returns:
      An `Initializer`.

    Raises:
      ValueError: for anything else; the message lists the names.

    Example:
    >>> import tf_ext
    >>> tf_ext.initializers.get("normal")
    Normal(mean=0.0, stddev=0.05)
    """
    if isinstance(identifier, dict):
        identifier = keras.utils.deserialize_keras_object(identifier)
    if isinstance(identifier, Initializer):
        return identifier
    if isinstance(identifier, str) and identifier in _BY_NAME:
        return _BY_NAME[identifier]()
    found = from_keras(identifier)
    if found is not None:
        return found
    raise ValueError(
        "Argument `initializer` of SparseTable must be a "
        f"tf_ext.initializers.Initializer, one of {sorted(_BY_NAME)}, or one "
        f"of Keras's {sorted(cls.__name__ for cls in _OF_KERAS)} with numbers: "
        "others depend on the shape of a matrix. Received: "
        f"initializer={identifier!r}"
    )
