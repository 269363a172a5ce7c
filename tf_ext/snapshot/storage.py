# SPDX-License-Identifier: Apache-2.0
"""The file systems of snapshots.

Local files are accessed directly. All other file systems are TensorFlow's,
which is imported for the first path with a scheme (`gs://...`).
"""

import contextlib
import errno
import fcntl
import os
import posixpath
import stat
import threading
import time
import types
import typing
from collections.abc import Callable, Iterator

from tf_ext.snapshot.sealed_json import DamagedSnapshotError

Storage: typing.TypeAlias = "type[_Local] | _TensorFlow"

# A lock is only held while one small file is written and others are removed.
_LOCK_TIMEOUT_SECONDS = 60


def normalised(
    path: str | os.PathLike[str],
    owner: str = "a snapshot",
    argument: str = "path",
) -> str:
    """Converts a path-like to an absolute path or one with a scheme.

    Args:
      path: string or path-like.
      owner: string, what takes the argument, for the error.
      argument: string, the name of the argument, for the error.

    Raises:
      TypeError: if it is neither.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"Argument `{argument}` of {owner} must be a string or a path-like "
            "object, such as pathlib.Path. Received: "
            f"{argument}={path!r}"
        )
    path = os.fspath(path).removeprefix("file://")
    return path.rstrip("/") if "://" in path else os.path.abspath(path)


def join(path: str, name: str) -> str:
    """Resolves `name` relative to `path`, unless it is absolute or a URL."""
    if "://" in name:
        return normalised(name)
    joined = posixpath.join(path, name)
    return joined if "://" in joined else normalised(joined)


def resolved(path: str) -> str:
    """`path`, where it is local, without symbolic links: so its `..` are right.

    What need not exist is left as it is.

    Args:
      path: string, as returned by `normalised`.
    """
    return path if "://" in path else os.path.realpath(path)


def storage_of(path: str) -> Storage:
    """The file system of a path.

    Raises:
      ModuleNotFoundError: if the path is not local and TensorFlow is not
        installed.
    """
    if "://" not in path:
        return _Local
    try:
        import tensorflow
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{path} is not local; other file systems are accessed through "
            f"TensorFlow, which cannot be imported: {error}"
        ) from None
    return _TensorFlow(tensorflow)


class _Local:
    """Local files."""

    # Whether what was written to a file is there before the file is closed.
    keeps_open_files = True

    @staticmethod
    @contextlib.contextmanager
    def reader(name: str) -> Iterator[tuple[int, Callable[[int, int], bytes]]]:
        """Yields `(size, read)`; `read(offset, size)` returns bytes.

        Raises:
          DamagedSnapshotError: if it is not a regular file, or a symbolic link.
        """
        with open(name, "rb", buffering=0, opener=_open_regular) as file:
            yield (
                os.fstat(file.fileno()).st_size,
                lambda offset, size: os.pread(file.fileno(), size, offset),
            )

    @staticmethod
    @contextlib.contextmanager
    def writer(name: str) -> Iterator[Callable[[bytes], object]]:
        """Yields `write`; the file is durable when the block has ended."""
        with _naming(name), open(name, "xb") as file:

            def write(data: bytes) -> None:
                file.write(data)
                file.flush()

            yield write
            os.fsync(file.fileno())

    @staticmethod
    def sync(name: str) -> None:
        """Makes what was written to a file durable; it may still be open."""
        with open(name, "rb") as file:
            os.fsync(file.fileno())

    @staticmethod
    def touch(name: str) -> None:
        """Creates an empty file, which need not survive a power failure."""
        with open(name, "xb"):
            pass

    @staticmethod
    def lock(directory: str) -> "_DirectoryLock":
        """Runs the block under a lock, if the file system supports locks.

        The operating system releases the lock if the process ends.

        Raises:
          TimeoutError: if another process does not release the lock.
        """
        return _DirectoryLock(directory)

    @staticmethod
    def commit(name: str, data: bytes) -> None:
        """Writes a file atomically and durably."""
        directory = os.path.dirname(name)
        with _Local.writer(name + ".part") as write:
            write(data)
        _sync_directory(directory)
        os.rename(name + ".part", name)
        _sync_directory(directory)

    @staticmethod
    def replace(part: str, name: str) -> None:
        """Renames a complete file, replacing an existing one, durably."""
        _Local.sync(part)
        os.replace(part, name)
        _sync_directory(os.path.dirname(name))

    @staticmethod
    def exists(path: str) -> bool:
        """Whether there is a file or a directory."""
        return os.path.exists(path)

    @staticmethod
    def names(directory: str) -> list[str]:
        """The names in a directory; none if it does not exist."""
        return os.listdir(directory) if os.path.exists(directory) else []

    @staticmethod
    def make_directory(path: str) -> bool:
        """Creates a directory durably, unless it exists.

        Returns:
          Whether it was created, so that it should be removed after an error.
        """
        if os.path.isfile(path):
            raise FileExistsError(
                f"A directory is needed, but {path!r} is a file. Give the path "
                "of a directory, which need not exist."
            )
        parents, missing = [], path
        while not os.path.isdir(missing):
            missing = os.path.dirname(missing)
            parents.append(missing)
        os.makedirs(path, exist_ok=True)
        for parent in reversed(parents):
            _sync_directory(parent)
        return bool(parents)

    @staticmethod
    def remove(name: str) -> None:
        """Removes a file, or a directory that is empty."""
        (os.rmdir if os.path.isdir(name) else os.remove)(name)


class _TensorFlow:
    """Files of TensorFlow's file systems, with the errors of `_Local`."""

    keeps_open_files = False  # An object is there when it is complete.

    def __init__(self, tensorflow: types.ModuleType) -> None:
        self._tf = tensorflow

    @contextlib.contextmanager
    def reader(
        self, name: str
    ) -> Iterator[tuple[int, Callable[[int, int], bytes]]]:
        with self._errors(), self._tf.io.gfile.GFile(name, "rb") as file:

            def read(offset: int, size: int) -> bytes:
                file.seek(offset)
                return file.read(size)

            yield file.size(), read

    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[Callable[[bytes], object]]:
        with self._errors(), self._tf.io.gfile.GFile(name, "wb") as file:
            yield file.write

    def sync(self, name: str) -> None:
        pass  # Files are closed, and so durable, before they count.

    def touch(self, name: str) -> None:
        with self._errors(), self._tf.io.gfile.GFile(name, "wb") as file:
            file.write(b"")

    def lock(self, directory: str) -> contextlib.AbstractContextManager[None]:
        del directory  # These file systems have no locks.
        return contextlib.nullcontext()

    def commit(self, name: str, data: bytes) -> None:
        from tf_ext.ops.snapshot import snapshot_ops

        with self._errors():
            snapshot_ops.write_file_atomically(name, data)

    def replace(self, part: str, name: str) -> None:
        with self._errors():
            self._tf.io.gfile.rename(part, name, overwrite=True)

    def exists(self, path: str) -> bool:
        with self._errors():
            return bool(self._tf.io.gfile.exists(path))

    def names(self, directory: str) -> list[str]:
        with self._errors():
            gfile = self._tf.io.gfile
            return gfile.listdir(directory) if gfile.exists(directory) else []

    def make_directory(self, path: str) -> bool:
        with self._errors():
            self._tf.io.gfile.makedirs(path)
        return False  # Most of these file systems have no real directories.

    def remove(self, name: str) -> None:
        with self._errors():
            self._tf.io.gfile.remove(name)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        errors = self._tf.errors
        try:
            yield
        except (errors.NotFoundError, errors.FailedPreconditionError) as error:
            raise FileNotFoundError(error.message) from None
        except errors.UnimplementedError as error:
            raise OSError(errno.EPROTONOSUPPORT, error.message) from None
        except errors.OpError as error:
            raise OSError(error.message) from None


class _DirectoryLock:
    """A context that holds the lock of a directory."""

    # The open directories, by thread and path. A thread that locks a directory
    # again was interrupted before it had released the lock.
    _held: typing.ClassVar[dict[tuple[int, str], int]] = {}

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __enter__(self) -> None:
        self._release()
        opened = os.open(self._directory, os.O_RDONLY)
        self._held[self._key] = opened
        try:
            _lock(opened, self._directory)
        except BaseException:
            self._release()
            raise

    def __exit__(self, *_: object) -> None:
        self._release()

    @property
    def _key(self) -> tuple[int, str]:
        return threading.get_ident(), self._directory

    def _release(self) -> None:
        opened = self._held.get(self._key)
        if opened is None:
            return
        # Closing would not release it if the process was forked meanwhile.
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_UN)
        del self._held[self._key]  # Its number may be another file's soon.
        os.close(opened)


def _lock(opened: int, directory: str) -> None:
    """Locks an open directory, if its file system supports it."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_SECONDS
    while True:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{directory} has been locked by another process for more "
                    f"than {_LOCK_TIMEOUT_SECONDS} s. If that process hangs, "
                    f"kill it: `fuser -v {directory}` names it."
                ) from None
            time.sleep(0.01)
        except OSError:  # Network file systems do not lock directories.
            return


def _open_regular(name: str, flags: int) -> int:
    # Opening a pipe would wait for its other end, and a symbolic link may point
    # out of the directory.
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(name, flags)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
    else:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    raise DamagedSnapshotError(
        f"{name} is damaged at byte 0: it is not a regular file."
    )


def _sync_directory(path: str) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    except OSError as error:
        # Some file systems do not sync directories.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(directory)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Adds the file's name to errors of writing, which do not have it."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, name) from None
