# SPDX-License-Identifier: Apache-2.0
"""JSON files that end with their own CRC32C, and checks of their contents.

A correct CRC shows that a file is unchanged, not who wrote it: its contents are
checked before anything is allocated, opened or changed. Needs no TensorFlow, so
that snapshots can be read without it.
"""

import builtins
import json
import re
import reprlib
import typing
from collections.abc import Sequence

from tf_ext import _core

FORMAT = 1
INT64_MAX = 2**63 - 1

_ENDING = ',\n  "crc32c": "{:08x}"\n}}\n'
_ENDING_BYTES = len(_ENDING.format(0))

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = 100
_SHOWN.maxlevel = 2


class DamagedSnapshotError(ValueError):
    """A snapshot that cannot be read: which file, where and what is wrong."""


def seal(members: dict[str, typing.Any]) -> bytes:
    """The bytes of a JSON file that ends with its own CRC32C.

    Args:
      members: dict, not empty.
    """
    text = json.dumps(members, indent=2, ensure_ascii=False)
    body = text.removesuffix("\n}").encode()
    return body + _ENDING.format(_core.crc32c(body)).encode()


def unseal(
    data: bytes, where: str, formats: Sequence[int] = (FORMAT,)
) -> "Members":
    """The members that `seal` was given.

    Args:
      data: bytes.
      where: string, the file, for messages.
      formats: list of ints, the formats that the caller can read.

    Returns:
      Members.

    Raises:
      DamagedSnapshotError: the bytes were not made by `seal`.
      ValueError: members of a format that is not among `formats`.
    """
    body, ending = data[:-_ENDING_BYTES], data[-_ENDING_BYTES:]
    crc = _core.crc32c(body)
    if ending != _ENDING.format(crc).encode():
        raise DamagedSnapshotError(
            f"{where} is damaged: it should end with its CRC32C {crc:08x}, "
            f"but the last of its {len(data)} bytes, from byte {len(body)} "
            f"on, are {ending!r}."
        )
    try:
        text = body.decode() + "}"
        members = json.loads(text, object_pairs_hook=_without_repetition)
    except (RecursionError, ValueError) as error:
        raise DamagedSnapshotError(
            f"{where} is damaged: it is not JSON of a snapshot: {error}"
        ) from None
    members = Members(members, where)
    if members.integer("format") not in formats:
        *others, last = map(str, formats)
        known = " and ".join([", ".join(others), last] if others else [last])
        raise ValueError(
            f"{where} is of format {members.integer('format')}; this version "
            f"of tf_ext reads format{'s' * (len(formats) > 1)} {known}. It was "
            f"written by tf_ext {members.text('tf_ext_version')}."
        )
    return members


def _without_repetition(
    pairs: list[tuple[str, typing.Any]],
) -> dict[str, typing.Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the member {_SHOWN.repr(twice)} occurs twice.")
    return members


class Members:
    """The members of a JSON object, which are checked as they are taken.

    Methods raise DamagedSnapshotErrors that name the file and the member.

    Args:
      members: the decoded JSON, which need not be an object.
      where: string, the file.
      path: string, the object's place in the file, such as `row.fields[1]`.
    """

    def __init__(self, members: typing.Any, where: str, path: str = "") -> None:
        self._where, self._path = where, path
        if not isinstance(members, dict):
            raise DamagedSnapshotError(
                f"{where} is damaged: "
                f"{f'its member {path}' if path else 'it'} must be a JSON "
                f"object, but is {_SHOWN.repr(members)}."
            )
        self._members = members

    def names(self) -> builtins.list[str]:
        """The names of all members."""
        return list(self._members)

    def refuse(self, name: str, allowed: str) -> typing.NoReturn:
        """Raises an error that says what a member must be."""
        member = self._path_of(name)
        found = (
            f"is {_SHOWN.repr(self._members[name])}"
            if name in self._members
            else "is missing"
        )
        raise DamagedSnapshotError(
            f"{self._where} is damaged: its member {member} must be {allowed}, "
            f"but {found}."
        )

    def is_null(self, name: str) -> bool:
        """Whether a member, which must be there, is null."""
        if name not in self._members:
            self.refuse(name, "null or a value")
        return self._members[name] is None

    def integer(
        self, name: str, least: int | None = None, most: int | None = None
    ) -> int:
        """An integer; from `least` to `most`, if they are given."""
        value = self._members.get(name)
        if (
            type(value) is not int
            or (least is not None and value < least)
            or (most is not None and value > most)
        ):
            allowed = "" if least is None else f" from {least} to {most}"
            self.refuse(name, f"an integer{allowed}")
        return value

    def text(
        self,
        name: str,
        pattern: str | None = None,
        allowed: str = "a printable text",
    ) -> str:
        """A string: one that fits a pattern, or whose characters are visible.

        Args:
          name: string.
          pattern: string or None, a regular expression for all of it.
          allowed: string, the same in words.
        """
        value = self._members.get(name)
        if (
            not isinstance(value, str)
            or (pattern is None and not value.isprintable())
            or (pattern is not None and not re.fullmatch(pattern, value))
        ):
            self.refuse(name, allowed)
        return value

    def number(self, name: str, digits: int) -> int:
        """An unsigned integer, written in this number of hex digits."""
        return int(self.hexadecimal(name, digits), 16)

    def hexadecimal(self, name: str, digits: int) -> str:
        """A string of this number of lower-case hexadecimal digits."""
        return self.text(
            name,
            f"[0-9a-f]{{{digits}}}",
            f"{digits} lower-case hexadecimal digits",
        )

    def object(self, name: str) -> "Members":
        """An object, as Members."""
        if name not in self._members:
            self.refuse(name, "a JSON object")
        return Members(self._members[name], self._where, self._path_of(name))

    def objects(self, name: str) -> builtins.list["Members"]:
        """A list of objects, as a list of Members."""
        return [
            Members(value, self._where, f"{self._path_of(name)}[{index}]")
            for index, value in enumerate(self.list(name))
        ]

    def list(self, name: str) -> builtins.list[typing.Any]:
        """A list of anything."""
        value = self._members.get(name)
        if not isinstance(value, list):
            self.refuse(name, "a list")
        return value

    def _path_of(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name
