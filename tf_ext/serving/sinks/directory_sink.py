# SPDX-License-Identifier: Apache-2.0
"""Versions of rows in a directory."""

import contextlib
import json
import os
import pathlib
import shutil
import typing
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tf_ext import _core
from tf_ext._checks import refuse
from tf_ext.serving import folder
from tf_ext.serving.sinks.sink import (
    Manifest,
    RowChanges,
    Rows,
    Signs,
    Sink,
    SinkConflictError,
    SinkError,
    TableChanges,
    Versions,
    check_base,
    check_selectable,
)
from tf_ext.snapshot import parquet as row_groups
from tf_ext.snapshot.claims import Claim
from tf_ext.snapshot.manifest import SnapshotConflictError
from tf_ext.snapshot.storage import storage_of

_OWNER = "DirectorySink"
# Says which version is current. A folder that it does not name is not there.
_STATE = "versions.json"
_FORMAT = 1
_NONE = np.empty(0, np.int64)


class DirectorySink(Sink):
    """Versions of rows in a directory, for `tf_ext.serving.publish`.

    Each version is a folder, as `tf_ext.serving.export_split` writes it, with
    rows as bytes: `TABLE.parquet` has `sign`, int64, and `row`, binary. If its
    table in the manifest has a `base`, these are those that differ from that
    version's, a `row` of null being erased. `versions.json` says which version
    is current. A version with all rows is written when the changes since the
    last one are as many.

    It needs pyarrow: `pip install 'tf-ext[parquet]'`.

    Args:
      path: path-like, a folder of a local file system, for nothing else.
      keep: int, how many versions are retained, the current one included, and
        those that they continue.

    Example:
      >>> import tempfile
      >>> sink = tf_ext.serving.DirectorySink(tempfile.mkdtemp())
      >>> sink.versions().current
      0
    """

    def __init__(self, path: str | os.PathLike[str], keep: int = 3) -> None:
        super().__init__(keep)
        self._modules = row_groups.import_pyarrow()
        if not isinstance(path, str | os.PathLike) or "://" in str(path):
            refuse(_OWNER, "path", "a folder of this machine", path)
        self.path = pathlib.Path(os.path.abspath(path))
        self._claim: Claim | None = None
        # Manifests that were read, and what tells their files from others.
        self._manifests: dict[int, tuple[tuple[int, ...], Manifest]] = {}

    def versions(self) -> Versions:
        """The versions that can be read."""
        return self._read()[0]

    def manifest(self, version: int) -> Manifest:
        """The manifest of a version that is retained."""
        self._check_retained(version)
        with self._errors():
            return folder.read_manifest(self.path / str(version))

    def read_file(self, version: int, name: str) -> bytes:
        """The contents of a file of a version."""
        self._check_retained(version)
        with self._errors():
            return (self.path / str(version) / name).read_bytes()

    def select(self, version: int, pinned: bool) -> None:
        """Makes a retained version the current one, in one atomic step."""
        with self._errors():
            storage_of(str(self.path)).make_directory(str(self.path))
            with storage_of(str(self.path)).lock(str(self.path)):
                found, last = self._read()
                check_selectable(_OWNER, found, version)
                self._commit(Versions(version, found.retained, pinned), last)

    def write(
        self,
        manifest: Manifest,
        files: Mapping[str, bytes],
        tables: Sequence[TableChanges],
        base: int,
    ) -> int:
        """Writes a version, which then is the current one."""
        with self._errors():
            claim = self._claimed()
            _, last = self._check(base)
            # Folders that were written and not committed have numbers, too.
            last = max([last, *folder.versions(self.path)]) + 1
            with folder.new_version(self.path, last, _OWNER) as new:
                for name, data in files.items():
                    path = new.part / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
                about = {one["file"]: one for one in manifest["tables"]}
                written = [
                    about[f"{one.name}.parquet"]
                    | self._write_table(new.part, one, base)
                    for one in tables
                ]
                new.manifest = {
                    **manifest,
                    "version": last,
                    "tables": written,
                }
            with claim.held():
                now, _ = self._check(base)
                kept = [v for v in now.retained if v <= base] + [last]
                kept = kept[-self.keep :]
                self._commit(Versions(last, tuple(kept)), last)
            self._remove(kept)
        return last

    def read_rows(
        self, version: int, table: str
    ) -> Iterator[tuple[Signs, Rows]]:
        """Reads all rows of a table in a version, each once."""
        self._check_retained(version)
        settled = _core.SignSet()
        with self._errors():
            for number in self._chain(version, table):
                path = self.path / str(number) / f"{table}.parquet"
                for signs, rows, _ in self._parts(path, settled):
                    yield signs, rows

    def needs_whole(self, table: str) -> bool:
        """Whether the changes since the last whole version are as many."""
        current = self.versions().current
        if not current:
            return True
        counts = [
            self._about(number, table)["rows"]
            for number in self._chain(current, table)
        ]
        return sum(counts[:-1]) > counts[-1]

    def _read(self) -> tuple[Versions, int]:
        """The versions, and the highest number of one."""
        path = self.path / _STATE
        try:
            with self._errors():
                members = json.loads(path.read_bytes())
            if members["format"] != _FORMAT:
                raise ValueError(f"its format is {members['format']!r}")
            retained = tuple(map(int, members["retained"]))
            current = int(members["current"])
            if current not in retained or list(retained) != sorted(retained):
                raise ValueError(f"its current version is {current}")
            pinned = bool(members["pinned"])
            return Versions(current, retained, pinned), int(members["last"])
        except SinkError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return Versions(), 0
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise SinkError(f"{path} is damaged: {error!r}.") from None

    def _check_retained(self, version: int) -> None:
        if version not in self.versions().retained:
            raise SinkError(
                f"Version {version} in {self.path} is not retained."
            )

    def _manifest(self, version: int) -> Manifest:
        path = self.path / str(version)
        with self._errors():
            found = (path / folder.EXTRA / folder.MANIFEST).stat()
            key = found.st_ino, found.st_mtime_ns, found.st_size
            kept = self._manifests.get(version)
            if kept is None or kept[0] != key:
                kept = key, folder.read_manifest(path)
                self._manifests[version] = kept
            return kept[1]

    def _check(self, base: int) -> tuple[Versions, int]:
        """What is there, unless it is not what a version can follow."""
        found, last = self._read()
        check_base(found, base, str(self.path))
        return found, last

    def _claimed(self) -> Claim:
        """The claim on the directory, which the first `write` takes."""
        if self._claim is None:
            storage_of(str(self.path)).make_directory(str(self.path))
            claim = Claim(str(self.path), f"Publishing into {self.path}")
            with claim.taken():
                self._claim = claim
        self._claim.check()
        return self._claim

    def _commit(self, versions: Versions, last: int) -> None:
        members = {
            "format": _FORMAT,
            "current": versions.current,
            "retained": versions.retained,
            "pinned": versions.pinned,
            "last": last,
        }
        path = str(self.path / _STATE)
        with contextlib.suppress(FileNotFoundError):
            os.remove(f"{path}.part")  # Of a process that was killed.
        storage_of(path).commit(path, json.dumps(members).encode())

    def _remove(self, kept: Sequence[int]) -> None:
        """Removes all folders of versions but these, and what they continue."""
        needed = set(kept)
        for version in kept:
            for about in self._manifest(version)["tables"]:
                name = about["file"].removesuffix(".parquet")
                needed.update(self._chain(version, name))
        for version in folder.versions(self.path):
            if version not in needed:
                self._manifests.pop(version, None)
                shutil.rmtree(self.path / str(version), ignore_errors=True)

    def _about(self, version: int, table: str) -> dict[str, typing.Any]:
        """What the manifest of a version says of a table."""
        for one in self._manifest(version)["tables"]:
            if one["file"] == f"{table}.parquet":
                return dict(one)
        raise SinkError(f"{self.path / str(version)} has no table {table!r}.")

    def _chain(self, version: int, table: str) -> list[int]:
        """The versions whose files have a table's rows, the newest first."""
        chain = [version]
        while base := self._about(chain[-1], table).get("base"):
            if not isinstance(base, int) or not 0 < base < chain[-1]:
                raise SinkError(
                    f"{self.path / str(chain[-1])} is damaged: its base is "
                    f"version {base!r}."
                )
            chain.append(base)
        return chain

    def _write_table(
        self, part: pathlib.Path, table: TableChanges, base: int
    ) -> dict[str, typing.Any]:
        pyarrow, parquet = self._modules
        schema = pyarrow.schema(
            [("sign", pyarrow.int64()), ("row", pyarrow.binary(table.width))]
        )
        path = part / f"{table.name}.parquet"
        # Signs and weights rarely repeat, so a dictionary saves nothing.
        with parquet.ParquetWriter(path, schema, use_dictionary=False) as out:
            rows = row_groups.write_batches(
                pyarrow,
                out,
                (_batch(pyarrow, schema, one) for one in table.parts()),
            )
        base = 0 if table.whole else base
        return {"rows": rows, "bytes": path.stat().st_size} | (
            {"base": base} if base else {}
        )

    def _parts(
        self, path: pathlib.Path, settled: typing.Any
    ) -> Iterator[RowChanges]:
        """The changes in a file of signs that are not settled."""
        pyarrow, parquet = self._modules
        try:
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches():
                    signs = batch["sign"].to_numpy()
                    new = settled.add_from_the_end(signs)
                    there = new & batch["row"].is_valid().to_numpy(False)
                    kept = batch.filter(pyarrow.array(there))
                    width = kept["row"].type.byte_width
                    data = b"".join(kept["row"].to_pylist())
                    rows = np.frombuffer(data, np.uint8).reshape(-1, width)
                    yield RowChanges(signs[there], rows, signs[new & ~there])
        except pyarrow.ArrowException as error:
            raise SinkError(f"{path} is damaged: {error}") from None

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except SnapshotConflictError as error:
            raise SinkConflictError(str(error)) from None
        except OSError as error:
            raise SinkError(f"{self.path}: {error}") from error


def _batch(
    pyarrow: typing.Any, schema: typing.Any, part: RowChanges
) -> typing.Any:
    """Rows, and erased signs with a row of null, as Arrow has them."""
    count, width = part.rows.shape
    data = pyarrow.py_buffer(np.ascontiguousarray(part.rows))
    kind = pyarrow.binary(width)
    rows = pyarrow.Array.from_buffers(kind, count, [None, data])
    none = pyarrow.nulls(len(part.erased), kind)
    return pyarrow.record_batch(
        [
            pyarrow.array(np.concatenate([part.signs, part.erased])),
            pyarrow.concat_arrays([rows, none]),
        ],
        schema=schema,
    )
