# SPDX-License-Identifier: Apache-2.0
"""What a store implements so that versions are published into it."""

import abc
import dataclasses
import hashlib
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tf_ext._checks import check_count

Signs: typing.TypeAlias = npt.NDArray[np.int64]
Rows: typing.TypeAlias = npt.NDArray[np.uint8]
Manifest: typing.TypeAlias = dict[str, typing.Any]


class SinkError(RuntimeError):
    """A store cannot be read or written now, or holds something else."""


class DamagedVersionError(SinkError):
    """A version is not what was written."""


class SinkConflictError(SinkError):
    """Another process has begun to publish into the same place."""


class RowChanges(typing.NamedTuple):
    """A part of the changes of a table.

    Attributes:
      signs: int64 `[n]`, of rows that are inserted or replaced.
      rows: uint8 `[n, width]`, the bytes of each.
      erased: int64 `[m]`, signs that have no row any more.
    """

    signs: Signs
    rows: Rows
    erased: Signs


class FoundRows(typing.NamedTuple):
    """What a sink has of some signs.

    Attributes:
      rows: uint8 `[m, width]`, the bytes of those that were found, in the order
        of the signs.
      found: bool `[n]`, whether there is a row.
    """

    rows: Rows
    found: npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class TableChanges:
    """How the rows of a table differ from those of the current version.

    Attributes:
      name: string, which tells it from the version's other tables: what its
        member `file` in the manifest begins with.
      width: int, the bytes of a row.
      whole: bool, whether these are all rows, and no others remain.
      parts: function that returns an iterator of RowChanges, with each sign
        once in all of them. It can be called again.
    """

    name: str
    width: int
    whole: bool
    parts: Callable[[], Iterator[RowChanges]]


@dataclasses.dataclass(frozen=True)
class Versions:
    """The versions that a sink holds.

    Attributes:
      current: int, the one that is served; 0 if there is none.
      retained: tuple of int, in ascending order: those that `select` takes.
      pinned: bool, whether nothing else is published for now.
    """

    current: int = 0
    retained: tuple[int, ...] = ()
    pinned: bool = False


class Sink(abc.ABC):
    """Where `tf_ext.serving.publish` writes versions; a base class.

    A version has rows of tables, files of the dense part, and a manifest. A
    reader sees all of a version or nothing of it. An object is used by one
    thread at a time. All methods raise SinkError for a store that is away, full
    or damaged; the same call may be made again.

    Each object of a sink is a writer of its own, from its first `write` on. The
    one that began last wins: `write` of another raises SinkConflictError.

    Args:
      keep: int, how many versions are retained, the current one included.

    Example:
      A sink that counts, and writes nothing.

      >>> class Counter(tf_ext.serving.Sink):
      ...     manifests = []
      ...     def versions(self):
      ...         n = len(self.manifests)
      ...         return tf_ext.serving.Versions(n, tuple(range(1, n + 1)))
      ...     def write(self, manifest, files, tables, base):
      ...         rows = sum(len(p.signs) for t in tables for p in t.parts())
      ...         self.manifests.append({**manifest, "changed": rows})
      ...         return len(self.manifests)
      ...     def manifest(self, version):
      ...         return self.manifests[version - 1]
      ...     def select(self, version, pinned):
      ...         raise NotImplementedError
      ...     def read_file(self, version, name):
      ...         raise NotImplementedError
      ...     def read_rows(self, version, table):
      ...         raise NotImplementedError
      >>> Counter().versions().current
      0
    """

    def __init__(self, keep: int = 3) -> None:
        check_count(type(self).__name__, "keep", keep, 1)
        self.keep = keep

    @abc.abstractmethod
    def versions(self) -> Versions:
        """The versions that can be read."""

    @abc.abstractmethod
    def write(
        self,
        manifest: Manifest,
        files: Mapping[str, bytes],
        tables: Sequence[TableChanges],
        base: int,
    ) -> int:
        """Writes a version, which then is the current one.

        Until it returns, and after an error, readers see the previous version.
        The number of a version is never used again. Versions behind `base`,
        which a rollback has left, are removed, and the oldest ones but `keep`.

        Args:
          manifest: dict that JSON can hold.
          files: dict from names to contents.
          tables: list of TableChanges.
          base: int, the version that the changes continue, which must be the
            current one; 0 for none, where all tables are whole.

        Returns:
          int, the number of the version.

        Raises:
          SinkConflictError: another object writes; nothing was written.
        """

    @abc.abstractmethod
    def manifest(self, version: int) -> Manifest:
        """The manifest of a version that is retained."""

    @abc.abstractmethod
    def select(self, version: int, pinned: bool) -> None:
        """Makes a retained version the current one, in one atomic step.

        Args:
          version: int.
          pinned: bool, whether publishers write no version until the next call.

        Raises:
          ValueError: the version is not retained.
        """

    @abc.abstractmethod
    def read_file(self, version: int, name: str) -> bytes:
        """The contents of a file of a version."""

    @abc.abstractmethod
    def read_rows(
        self, version: int, table: str
    ) -> Iterator[tuple[Signs, Rows]]:
        """Reads all rows of a table in a version, each once.

        Args:
          version: int.
          table: string, the name of its TableChanges.

        Yields:
          `(signs [n], rows [n, width])`.
        """

    def find_rows(
        self, manifest: Manifest, signs: Mapping[str, Signs]
    ) -> dict[str, FoundRows]:
        """Finds rows of a version, for `tf_ext.serving.Lookup`.

        It is optional: Lookup keeps all rows of other sinks in memory. Several
        threads call it at once.

        Args:
          manifest: dict, what `manifest` has returned of the version.
          signs: dict from tables to int64 `[n]`, distinct.

        Returns:
          dict from the tables to FoundRows, all of the version.

        Raises:
          SinkError: it is not retained, or was replaced by one of its number.
        """
        raise NotImplementedError(type(self).__name__)

    def changed_signs(
        self, before: Manifest, after: Manifest, most: int
    ) -> dict[str, Signs] | None:
        """The signs whose rows differ in two versions, of sinks that find rows.

        A Lookup that goes from one to the other keeps all others in its cache.

        Args:
          before: dict, as of `find_rows`.
          after: dict, that of the other version.
          most: int, above which the signs are not worth reading.

        Returns:
          dict from tables to int64 `[n]`, tables without changes left out; None
          if it is not known, and all rows may differ.
        """
        del before, after, most
        return None

    def needs_whole(self, table: str) -> bool:
        """Whether the next version must have all rows of a table."""
        del table
        return False


def checked(data: bytes, about: Manifest, version: int) -> bytes:
    """The contents of a file of a version.

    Args:
      data: bytes, as they were read.
      about: dict, what the manifest says of the file.
      version: int, for messages.

    Raises:
      DamagedVersionError: they are others.
    """
    if hashlib.sha256(data).hexdigest() != about["sha256"]:
        raise DamagedVersionError(
            f"{about['name']} of version {version} differs from what was "
            "written."
        )
    return data


def check_selectable(owner: str, versions: Versions, version: object) -> None:
    """Raises ValueError unless a version is retained."""
    if version not in versions.retained:
        kept = ", ".join(map(str, versions.retained)) or "none"
        raise ValueError(
            f"Argument `version` of {owner} must be one of those that are "
            f"retained ({kept}). Received: version={version!r}"
        )


def check_base(versions: Versions, base: int, where: str) -> None:
    """Raises SinkError unless a version is the current one, and not pinned."""
    if versions.current != base:
        raise SinkError(
            f"The current version of {where} has become {versions.current} "
            f"while changes since {base} were prepared. Prepare them again."
        )
    if versions.pinned:
        raise SinkError(
            f"{where} is pinned to version {base} by a rollback. Unpin it: "
            "`python -m tf_ext.serving unpin`."
        )


def without_empty(parts: Iterable[RowChanges]) -> Iterator[RowChanges]:
    """The parts that change something."""
    for part in parts:
        if len(part.signs) or len(part.erased):
            yield part
