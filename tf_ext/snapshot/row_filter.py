# SPDX-License-Identifier: Apache-2.0
"""Selects rows of a snapshot, by their signs or their fields."""

import hashlib
import operator
import os
import re
import typing
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tf_ext import _core
from tf_ext._checks import refuse

Mask = npt.NDArray[np.bool_]
Signs = npt.NDArray[np.int64]
Fields = Mapping[str, npt.NDArray[typing.Any]]
Predicate = Callable[[Signs, Fields], Mask]
Condition = str | npt.NDArray[np.int64] | Predicate

_OPERATORS: dict[str, Callable[..., typing.Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_CONDITION = re.compile(r"\s*([a-z0-9_]+)\s*([<>=!]=|[<>])\s*(\S+)\s*")
_SIGN, _NORM = "sign", "norm"


class RowFilter:
    """Which rows stay.

    Args:
      keep: a condition, or a list of conditions that must all hold: a string
        such as "show >= 3"; the path of a file of NumPy, `*.npy`, with signs;
        an array of signs; or a function of the signs and the fields, as
        `Snapshot.chunks` yields them, that returns which rows it holds for.
      drop: the same; rows stay for which none of these holds.
      fields: dict from the name of a field to `(dtype, count)`.

    Attributes:
      is_trivial: bool, whether all rows stay.
      reads_fields: bool, whether conditions depend on more than signs.
      identity: list of strings, equal for those that select the same rows;
        None if that is not known, as of a function.

    Raises:
      ValueError: for anything else.
    """

    def __init__(
        self,
        keep: Condition | Sequence[Condition],
        drop: Condition | Sequence[Condition],
        fields: Mapping[str, tuple[str, int]],
    ) -> None:
        self._tests = [
            (test, wanted)
            for argument, given, wanted in (
                ("keep", keep, True),
                ("drop", drop, False),
            )
            for test in map(
                lambda one: _test(argument, one, fields), _listed(given)
            )
        ]
        self.is_trivial = not self._tests
        self.reads_fields = any(test.fields for test, _ in self._tests)
        found = [(test.identity, wanted) for test, wanted in self._tests]
        self.identity = (
            None
            if any(identity is None for identity, _ in found)
            else [f"{identity} {wanted}" for identity, wanted in found]
        )

    def __call__(self, signs: Signs, fields: Fields) -> Mask:
        """Which rows stay: bool `[n]`."""
        stay = np.ones(len(signs), bool)
        for test, wanted in self._tests:
            stay &= test(signs, fields) == wanted
        return stay

    def of_signs(self, signs: Signs) -> Mask:
        """Which signs without rows stay: those that signs alone do not drop."""
        stay = np.ones(len(signs), bool)
        for test, wanted in self._tests:
            if not test.fields:
                stay &= test(signs, {}) == wanted
        return stay


class _Test(typing.NamedTuple):
    """A condition.

    `fields` is whether it depends on more than the sign; `identity` is None if
    it is not known when two of them are the same.
    """

    predicate: Predicate
    fields: bool
    argument: str
    identity: str | None

    def __call__(self, signs: Signs, fields: Fields) -> Mask:
        found = np.asarray(self.predicate(signs, fields))
        if found.dtype != bool or found.shape != signs.shape:
            raise ValueError(
                f"The function of the argument `{self.argument}` of transform "
                f"must return bool [{len(signs)}], one for each sign, but "
                f"returned {found.dtype} {list(found.shape)}."
            )
        return found


def _listed(
    given: Condition | Sequence[Condition],
) -> Sequence[Condition]:
    if isinstance(given, list | tuple):
        return given
    return [typing.cast(Condition, given)]


def _test(
    argument: str, one: Condition, fields: Mapping[str, tuple[str, int]]
) -> _Test:
    if isinstance(one, str | os.PathLike):
        text = os.fspath(one)
        if text.endswith(".npy"):
            return _among(argument, _read_signs(argument, text), text)
        return _compared(argument, text, fields)
    if isinstance(one, np.ndarray):
        return _among(argument, one, one)
    if callable(one):
        return _Test(one, True, argument, None)
    return _refuse(argument, fields, one)


def _read_signs(argument: str, path: str) -> npt.NDArray[typing.Any]:
    try:
        with open(path, "rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError:
        raise
    except (ValueError, OSError) as error:
        raise ValueError(
            f"Argument `{argument}` of transform must name a file that "
            f"numpy.save wrote. Received: {argument}={path!r} ({error})"
        ) from None


def _among(
    argument: str, signs: npt.NDArray[typing.Any], given: object
) -> _Test:
    if signs.dtype not in (np.int64, np.uint64):
        refuse(
            "transform",
            argument,
            "signs as int64, as those of tf_ext.hashing and of columns are "
            f"(these are {signs.dtype})",
            given,
        )
    wanted, chosen = _core.SignSet(), np.ascontiguousarray(signs.ravel())
    wanted.add(chosen.view(np.int64))
    return _Test(
        lambda found, _: wanted.contains(found),
        False,
        argument,
        hashlib.sha256(chosen.data).hexdigest(),
    )


def _compared(
    argument: str, text: str, fields: Mapping[str, tuple[str, int]]
) -> _Test:
    match = _CONDITION.fullmatch(text)
    if match is None:
        return _refuse(argument, fields, text)
    name, sign, number_text = match.groups()
    compare = _OPERATORS[sign]
    try:
        number = float(number_text)
        # Of 64 bits, which a float does not have.
        of_sign = np.int64(int(number_text)) if name == _SIGN else np.int64(0)
    except (OverflowError, ValueError):
        return _refuse(argument, fields, text)
    if name == _SIGN:
        return _Test(
            lambda signs, _: compare(signs, of_sign), False, argument, text
        )
    if name == _NORM:
        return _Test(
            lambda _, values: compare(norms(values["weights"]), number),
            True,
            argument,
            text,
        )
    if fields.get(name, ("", 0))[1] != 1:
        return _refuse(argument, fields, text)
    return _Test(
        lambda _, values: compare(values[name][:, 0].astype(float), number),
        True,
        argument,
        text,
    )


def norms(weights: npt.NDArray[typing.Any]) -> npt.NDArray[np.float64]:
    """The Euclidean norms of weights `[n, dim]`."""
    # Squares of large float16 and float32 would be infinite.
    exact = weights.astype(np.float64)
    return np.sqrt(np.einsum("ij,ij->i", exact, exact))


def _refuse(
    argument: str, fields: Mapping[str, tuple[str, int]], given: object
) -> typing.NoReturn:
    names = [name for name, (_, count) in fields.items() if count == 1]
    allowed = (
        "a condition such as 'show >= 3', with one of "
        f"{', '.join([_SIGN, _NORM, *names])} before one of "
        f"{' '.join(_OPERATORS)} and a number; a file *.npy or an int64 array "
        "of signs; a function; or a list of these"
    )
    refuse("transform", argument, allowed, given)
