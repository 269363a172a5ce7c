# SPDX-License-Identifier: Apache-2.0
"""The columns that a manifest describes.

A new kind of column is a function that reads its configuration, and a line in
the list at the end.
"""

import typing
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from tf_ext._missing import missing_text
from tf_ext._times import FAR, MISSING_TIME, UNITS
from tf_ext.serving.sinks.sink import SinkError

_Array: typing.TypeAlias = npt.NDArray[typing.Any]
_Config: typing.TypeAlias = Mapping[str, typing.Any]
# Of the values of a part, and of its reference, one for each value.
Convert: typing.TypeAlias = Callable[[_Array, _Array | None], _Array]

_COMBINERS = ("sum", "mean", "sqrtn", "max")


class Part(typing.NamedTuple):
    """A feature that a column reads, and what is hashed of its values.

    Attributes:
      key: string, the key of the feature in the column.
      name: string, the column's that it is.
      weights: string, the key of the weights; or None.
      reference: string, the key of a feature of one value for each sample; or
        None.
      optional: bool, whether the feature may be absent.
      missing: string, the text of the value that is left out; or None.
      boundaries: list of floats, or None.
      bucket_size: int, or None.
      identity: bool, whether its integers are signs.
      convert: Convert, or None for values as they are.
      conversion: string, which tells conversions apart.
    """

    key: str
    name: str
    weights: str | None = None
    reference: str | None = None
    optional: bool = False
    missing: str | None = None
    boundaries: list[float] | None = None
    bucket_size: int | None = None
    identity: bool = False
    convert: Convert | None = None
    conversion: str = ""

    @property
    def keys(self) -> list[str]:
        """The keys of all features that the part reads."""
        found = (self.key, self.weights, self.reference)
        return [key for key in found if key is not None]


class Layout(typing.NamedTuple):
    """How the ids of a sequence are placed.

    Attributes:
      max_length: int, or None.
      truncating: "pre" or "post".
      ragged: bool, whether the output has row splits.
      append_weight: bool, whether weights are appended and not factors.
    """

    max_length: int | None
    truncating: str
    ragged: bool
    append_weight: bool


class Column(typing.NamedTuple):
    """What is hashed, and how rows are combined.

    Attributes:
      name: string.
      namespace: string.
      bucket_size: int, or None.
      parts: list of Part.
      combiner: string; None for a sequence.
      sequence: Layout; None for other columns.
    """

    name: str
    namespace: str
    bucket_size: int | None
    parts: list[Part]
    combiner: str | None
    sequence: Layout | None = None

    @property
    def is_weighted(self) -> bool:
        """Whether the values have weights."""
        return any(part.weights is not None for part in self.parts)

    def described(self, places: list[int]) -> tuple[typing.Any, ...]:
        """The column as the core takes it, whose parts read inputs."""
        crossed = len(self.parts) > 1
        parts = [
            (
                place,
                part.bucket_size or 0 if crossed else 0,
                part.missing,
                part.boundaries or [],
            )
            for place, part in zip(places, self.parts, strict=True)
        ]
        identity = not crossed and self.parts[0].identity
        return self.namespace, self.bucket_size or 0, identity, parts


def read_column(name: str, kind: str, config: _Config) -> Column:
    """The column that a manifest describes.

    Args:
      name: string, the column's.
      kind: string, the class of the column.
      config: dict of its arguments.

    Raises:
      SinkError: an unknown kind, or unknown arguments.
      KeyError, TypeError, ValueError: damaged ones.
    """
    if kind not in _KINDS:
        raise _unknown(name, f"it is a {kind}")
    read, arguments = _KINDS[kind]
    if others := sorted({*config} ^ {*arguments.split()}):
        raise _unknown(name, f"a {kind} with {', '.join(others)}")
    column = read(name, config)
    if column.combiner not in (*_COMBINERS, None):
        raise ValueError(f"the combiner of {name!r} is {column.combiner!r}")
    return column


def _unknown(name: str, what: str) -> SinkError:
    return SinkError(
        f"Column {name!r} cannot be computed without the program that trained "
        f"it: {what}, which this version of tf_ext does not know. Update "
        "tf_ext; or export a model with columns of your own by "
        "tf_ext.serving.export."
    )


def _nested(config: _Config) -> Column:
    """The column of a serialized object of Keras."""
    if "class_name" not in config:  # Of category_column, in a cross.
        return read_column(config["key"], "CategoryColumn", config)
    kind = str(config["class_name"]).rpartition(">")[2]
    inner = config["config"]
    return read_column(inner.get("name") or inner.get("key"), kind, inner)


def _category(name: str, config: _Config) -> Column:
    boundaries = config["boundaries"]
    missing = config["missing"]
    part = Part(
        key=_text(config["key"]),
        name=name,
        weights=_optional(config["weights"], _text),
        optional=bool(config["optional"]),
        missing=None if missing is None else missing_text(missing),
        boundaries=None if boundaries is None else [*map(float, boundaries)],
        bucket_size=_optional(config["bucket_size"], _count),
        identity=config["hashing"] == "identity",
    )
    return Column(
        name,
        _text(config["namespace"]),
        part.bucket_size,
        [part],
        config["combiner"],
    )


def _cross(name: str, config: _Config) -> Column:
    columns = [_nested(one) for one in config["columns"]]
    if len(columns) < 2 or any(len(one.parts) != 1 for one in columns):
        raise ValueError(f"the cross {name!r} has {len(columns)} parts")
    return Column(
        name,
        _text(config["namespace"]),
        _optional(config["bucket_size"], _count),
        # Texts also of integers that are signs, as in training.
        [column.parts[0]._replace(identity=False) for column in columns],
        config["combiner"],
    )


def _sequence(name: str, config: _Config) -> Column:
    column = _nested(config["column"])
    truncating = config["truncating"]
    if truncating not in ("pre", "post"):
        raise ValueError(f"truncating of {name!r} is {truncating!r}")
    layout = Layout(
        _optional(config["max_length"], _count),
        truncating,
        bool(config["ragged"]),
        bool(config["append_weight"]),
    )
    return column._replace(name=name, combiner=None, sequence=layout)


def _time(name: str, config: _Config) -> Column:
    unit = UNITS[config["unit"]]
    offset, missing = int(config["utc_offset_minutes"]), config["missing"]

    def convert(times: _Array, _: _Array | None) -> _Array:
        minutes = times // 60 + offset
        ids = (minutes // unit.minutes + unit.first) % unit.period
        if missing is None:
            return ids
        return np.where(times == missing, MISSING_TIME, ids)

    described = (config["unit"], offset, missing)
    return _of_times(name, config, None, convert, described)


def _age(name: str, config: _Config) -> Column:
    limits = np.array(config["boundaries"], np.int64)
    missing = config["missing"]

    def convert(times: _Array, until: _Array | None) -> _Array:
        assert until is not None
        ages = until.clip(-FAR, FAR) - times.clip(-FAR, FAR)
        ids = np.searchsorted(limits, ages, side="right")
        if missing is None:
            return ids
        is_absent = (times == missing) | (until == missing)
        return np.where(is_absent, MISSING_TIME, ids)

    described = (config["until"], limits.tolist(), missing)
    return _of_times(name, config, _text(config["until"]), convert, described)


def _of_times(
    name: str,
    config: _Config,
    reference: str | None,
    convert: Convert,
    described: tuple[object, ...],
) -> Column:
    part = Part(
        key=_text(config["key"]),
        name=name,
        reference=reference,
        optional=bool(config["optional"]),
        missing=None if config["missing"] is None else str(MISSING_TIME),
        convert=convert,
        conversion=repr(described),
    )
    namespace = _text(config["namespace"])
    return Column(name, namespace, None, [part], config["combiner"])


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{value!r} is not a text")
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 < value < 2**63:
        raise TypeError(f"{value!r} is not a size")
    return value


def _optional(
    value: object, read: Callable[[object], typing.Any]
) -> typing.Any:
    return None if value is None else read(value)


# Of each kind, what reads its arguments, and their names.
_KINDS: dict[str, tuple[Callable[[str, _Config], Column], str]] = {
    "AgeColumn": (
        _age,
        "key until boundaries missing optional combiner name namespace",
    ),
    "CategoryColumn": (
        _category,
        "key bucket_size hashing boundaries missing namespace optional "
        "combiner weights",
    ),
    "CrossedColumn": (_cross, "columns bucket_size name namespace combiner"),
    "SequenceColumn": (
        _sequence,
        "column max_length truncating ragged append_weight name",
    ),
    "TimeColumn": (
        _time,
        "key unit utc_offset_minutes missing optional combiner name namespace",
    ),
}
