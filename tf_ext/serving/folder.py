# SPDX-License-Identifier: Apache-2.0
"""Folders of versions, which are created atomically."""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import re
import secrets
import shutil
import socket
import typing
from collections.abc import Iterator

from tf_ext.snapshot.files import Progress
from tf_ext.snapshot.manifest import FIELDS_OF_STATISTICS
from tf_ext.snapshot.storage import storage_of

# TensorFlow's folder for files that are not part of the model.
EXTRA = "assets.extra"
MANIFEST = "manifest.json"
FORMAT = 1

# Prefix of folders in which an export is being written. Servers ignore them,
# because they only consider names that are numbers.
_PART = "exporting-"
_VERSION = re.compile(r"[1-9][0-9]*")


def versions(path: str | os.PathLike[str]) -> list[int]:
    """The versions in a folder, in ascending order.

    Args:
      path: path-like; it need not exist.

    Returns:
      List of int.
    """
    with contextlib.suppress(FileNotFoundError):
        return sorted(
            int(entry.name)
            for entry in os.scandir(path)
            if _VERSION.fullmatch(entry.name) and entry.is_dir()
        )
    return []


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, typing.Any]:
    """Reads the manifest of an export, `assets.extra/manifest.json`.

    Args:
      folder: path-like, the folder of a version.

    Returns:
      dict: see docs/serving.md.

    Raises:
      FileNotFoundError: if there is no manifest.
      ValueError: if the manifest is damaged, or of a format that this version
        of tf_ext does not read.
    """
    path = pathlib.Path(folder, EXTRA, MANIFEST)
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        known = manifest["format"] == FORMAT
        if known:
            _check_members(manifest)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"There is no version of an export in {os.fspath(folder)!r}: it "
            f"has no {EXTRA}/{MANIFEST}. Give the path that "
            "tf_ext.serving.export returned."
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error!r}.") from None
    if not known:
        raise ValueError(
            f"{path} is of format {manifest['format']!r}; this version of "
            f"tf_ext reads format {FORMAT}."
        )
    return manifest


# Required members of a manifest, of its files and of its tables.
_MEMBERS: dict[str, type] = {
    "model": str,
    "tf_ext_version": str,
    "tensorflow_version": str,
    "files": list,
    "tables": list,
}
# Optional members of any of these.
_OPTIONAL: dict[str, tuple[type, ...]] = {
    "base": (int,),
    "dense": (str,),
    "dtype": (str,),
    "kind": (str,),
    "snapshot": (str, type(None)),
    "statistics": (list,),
    "step": (int, type(None)),
    "unknown": (str,),
}
_OF_FILE: dict[str, type] = {"name": str, "bytes": int, "sha256": str}
_OF_TABLE: dict[str, type] = {
    "name": str,
    "rows": int,
    "dim": int,
    "bytes": int,
}


def _check_members(manifest: dict[str, typing.Any]) -> None:
    """Raises KeyError or TypeError for missing members and wrong types."""
    objects: list[tuple[typing.Any, dict[str, type]]] = [
        (manifest, _MEMBERS),
        *((file, _OF_FILE) for file in manifest["files"]),
        *((table, _OF_TABLE) for table in manifest["tables"]),
    ]
    for found, members in objects:
        for name, kind in members.items():
            if type(found[name]) is not kind:
                raise TypeError(f"{name} is {found[name]!r}")
        for name, kinds in _OPTIONAL.items():
            if name in found and type(found[name]) not in kinds:
                raise TypeError(f"{name} is {found[name]!r}")
        for name in found.get("statistics", []):
            if name not in FIELDS_OF_STATISTICS:
                raise ValueError(f"statistics has {name!r}")
    if manifest.get("kind", "model") != "model" and "dense" not in manifest:
        raise KeyError("dense")


def damaged_files(
    folder: str | os.PathLike[str], progress: Progress | None = None
) -> list[str]:
    """Finds the files of an export that are missing or have changed.

    Args:
      folder: path-like, the folder of a version.
      progress: function that is called with the size in bytes of each file
        after it was read; or None.

    Returns:
      List of strings, one sentence for each damaged file.

    Raises:
      FileNotFoundError: if there is no manifest.
    """
    sentences = []
    for file in read_manifest(folder)["files"]:
        path = pathlib.Path(folder, file["name"])
        if not path.is_file():
            sentences.append(f"{path} is missing.")
            continue
        size, digest = path.stat().st_size, _digest(path)
        if progress is not None:
            progress(size)
        if size != file["bytes"]:
            sentences.append(
                f"{path} has {size} bytes, but was written with "
                f"{file['bytes']}."
            )
        elif digest != file["sha256"]:
            sentences.append(f"{path} differs from what was written.")
    return sentences


class NewVersion:
    """A version that is being written.

    Attributes:
      part: pathlib.Path, the temporary folder into which it is written.
      manifest: dict, what its manifest says beside its files.
      folder: pathlib.Path, its final folder; None until it is complete.
    """

    def __init__(self, part: pathlib.Path) -> None:
        self.part = part
        self.manifest: dict[str, typing.Any] = {}
        self.folder: pathlib.Path | None = None


@contextlib.contextmanager
def new_version(
    path: str | os.PathLike[str], version: int | None, function: str
) -> Iterator[NewVersion]:
    """Creates a version from the files that the block writes, atomically.

    The manifest is written after the block, with the checksums of all files. If
    the block fails, or the process or the machine stops, the version does not
    exist, and the next export to `path` removes the temporary files.

    Args:
      path: path-like, the folder of all versions; created if necessary.
      version: int, or None for one more than the highest.
      function: string, the name of the public function, for errors.

    Yields:
      NewVersion.

    Raises:
      FileExistsError: if the version exists.
      OSError: if the folder cannot be written.
      ValueError: if `path` is a URL.
    """
    parent = str(path)
    if "://" in parent:
        raise ValueError(
            f"Argument `path` of {function} must be a folder of this machine: "
            "others have no atomic rename. Received: "
            f"path={parent!r}"
        )
    parent = os.path.abspath(parent)
    storage = storage_of(parent)
    created = storage.make_directory(parent)
    _refuse_existing(parent, version)
    part = _Part(parent)
    try:
        part.make()
        new = NewVersion(part.path)
        yield new
        _write_manifest(new)
        _sync(part.path)
        with storage.lock(parent):
            _refuse_existing(parent, version)
            number = version or max([0, *versions(parent)]) + 1
            new.folder = pathlib.Path(parent, str(number))
            part.path.rename(new.folder)
            _sync_one(parent)
    except BaseException:
        part.remove()
        if created:
            # Not if another process has written to it since.
            with contextlib.suppress(OSError):
                os.rmdir(parent)
        raise
    finally:
        part.close()


@contextlib.contextmanager
def temporary_folder(parent: str) -> Iterator[pathlib.Path]:
    """A folder in another one, which the next call removes after a kill."""
    part = _Part(parent)
    try:
        part.make()
        yield part.path
    finally:
        part.remove()
        part.close()


class _Part:
    """A temporary folder, which is locked while it is open.

    Args:
      parent: string, the folder in which it will be.

    Attributes:
      path: pathlib.Path.
    """

    def __init__(self, parent: str) -> None:
        name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"
        self.path = pathlib.Path(parent, _PART + name)
        self._opened = -1

    def make(self) -> None:
        """Makes the folder, and removes those of exports that were killed."""
        parent = os.fspath(self.path.parent)
        with storage_of(parent).lock(parent):
            _remove_leftovers(parent)
            self.path.mkdir()
            # So that no other process removes it as a leftover.
            self._opened = os.open(self.path, os.O_RDONLY)
            _try_lock(self._opened)

    def remove(self) -> None:
        """Removes what there is of it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """Ends the lock."""
        if self._opened >= 0:
            os.close(self._opened)
            self._opened = -1


def _write_manifest(new: NewVersion) -> None:
    files = [
        {
            "name": path.relative_to(new.part).as_posix(),
            "bytes": path.stat().st_size,
            "sha256": _digest(path),
        }
        for path in sorted(new.part.rglob("*"))
        if path.is_file()
    ]
    text = json.dumps(
        {"format": FORMAT, **new.manifest, "files": files},
        indent=2,
        ensure_ascii=False,
    )
    path = new.part / EXTRA / MANIFEST
    path.parent.mkdir(exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def _refuse_existing(parent: str, version: int | None) -> None:
    folder = os.path.join(parent, str(version))
    if version is not None and os.path.lexists(folder):
        raise FileExistsError(
            f"Argument `version` must be one that does not exist. Received: "
            f"version={version}, and {folder} exists"
        )


def _remove_leftovers(parent: str) -> None:
    """Removes the temporary folders of exports that were killed."""
    for entry in os.scandir(parent):
        if not entry.name.startswith(_PART) or not entry.is_dir():
            continue
        with contextlib.suppress(FileNotFoundError):
            opened = os.open(entry.path, os.O_RDONLY)
            try:
                if _try_lock(opened):
                    shutil.rmtree(entry.path, ignore_errors=True)
            finally:
                os.close(opened)


def _try_lock(opened: int) -> bool:
    """Tries to lock an open folder, until it is closed or the process ends."""
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # Locked, or on a file system without locks.
        return False
    return True


def _digest(path: pathlib.Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(folder: pathlib.Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        _sync_one(path)


def _sync_one(path: str | os.PathLike[str]) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    finally:
        os.close(opened)
