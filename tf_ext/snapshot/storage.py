"""The file systems that snapshots are on.

This machine's needs nothing; all others are TensorFlow's, which is imported
when a path with a scheme (`gs://...`) is met.
"""

import contextlib
import errno
import fcntl
import os
import posixpath
import stat
import time

from tf_ext._sealed_json import DamagedSnapshotError

# Who holds a lock needs it for as long as it takes to write one small file and
# to remove others.
_LOCK_TIMEOUT_SECONDS = 60


def normalised(path):
    """A path-like as a string: absolute, or with its scheme."""
    path = os.fspath(path).removeprefix("file://")
    return path.rstrip("/") if "://" in path else os.path.abspath(path)


def join(path, name):
    """A path that begins at another one, unless it is absolute or elsewhere."""
    if "://" in name:
        return normalised(name)
    joined = posixpath.join(path, name)
    return joined if "://" in joined else normalised(joined)


def storage_of(path):
    """The file system of a path: its methods take paths that are on it.

    Raises:
      ModuleNotFoundError: it is TensorFlow's, and that is not installed.
    """
    if "://" not in path:
        return _Local
    try:
        import tensorflow
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{path} is not on this machine; other file systems are reached "
            f"through TensorFlow, which cannot be imported: {error}"
        ) from None
    return _TensorFlow(tensorflow)


class _Local:
    """Files of this machine."""

    @staticmethod
    @contextlib.contextmanager
    def reader(name):
        """Gives `(size, read)`; `read(offset, size)` are bytes.

        Raises:
          DamagedSnapshotError: it is no regular file, of this directory.
        """
        with open(name, "rb", buffering=0, opener=_open_regular) as file:
            yield (
                os.fstat(file.fileno()).st_size,
                lambda offset, size: os.pread(file.fileno(), size, offset),
            )

    @staticmethod
    @contextlib.contextmanager
    def writer(name):
        """Gives `write`; the file is durable afterwards."""
        with _naming(name), open(name, "xb") as file:
            yield file.write
            file.flush()
            os.fsync(file.fileno())

    @staticmethod
    def touch(name):
        """Makes an empty file; it need not outlive a power cut."""
        with open(name, "xb"):
            pass

    @staticmethod
    @contextlib.contextmanager
    def lock(directory):
        """Lets one process at a time run the block, where that is possible.

        The system frees the lock of a process that ends, however it ends.

        Raises:
          TimeoutError: another process does not free it.
        """
        opened = os.open(directory, os.O_RDONLY)
        try:
            _lock(opened, directory)
            yield
        finally:
            # Closing would not free it if the process was forked meanwhile.
            with contextlib.suppress(OSError):
                fcntl.flock(opened, fcntl.LOCK_UN)
            os.close(opened)

    @staticmethod
    def commit(name, data):
        """Writes a file that is there whole or not at all, durably."""
        directory = os.path.dirname(name)
        with _Local.writer(name + ".part") as write:
            write(data)
        _sync_directory(directory)
        os.rename(name + ".part", name)
        _sync_directory(directory)

    @staticmethod
    def replace(part, name):
        """Gives a whole file the name of one that may be there, durably."""
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, name)
        _sync_directory(os.path.dirname(name))

    @staticmethod
    def names(directory):
        """The names in a directory; none if it does not exist."""
        return os.listdir(directory) if os.path.exists(directory) else []

    @staticmethod
    def make_directory(path):
        """Whether a directory had to be made, and should go after an error.

        It is durable afterwards.
        """
        parents, missing = [], path
        while not os.path.isdir(missing):
            missing = os.path.dirname(missing)
            parents.append(missing)
        os.makedirs(path, exist_ok=True)
        for parent in reversed(parents):
            _sync_directory(parent)
        return bool(parents)

    @staticmethod
    def remove(name):
        """Removes a file, or a directory that is empty."""
        (os.rmdir if os.path.isdir(name) else os.remove)(name)


class _TensorFlow:
    """Files of TensorFlow's file systems; errors are the same as above."""

    def __init__(self, tensorflow):
        self._tf = tensorflow

    @contextlib.contextmanager
    def reader(self, name):
        with self._errors(), self._tf.io.gfile.GFile(name, "rb") as file:

            def read(offset, size):
                file.seek(offset)
                return file.read(size)

            yield file.size(), read

    @contextlib.contextmanager
    def writer(self, name):
        with self._errors(), self._tf.io.gfile.GFile(name, "wb") as file:
            yield file.write

    def touch(self, name):
        with self._errors(), self._tf.io.gfile.GFile(name, "wb") as file:
            file.write(b"")

    def lock(self, directory):
        del directory  # There are no locks.
        return contextlib.nullcontext()

    def commit(self, name, data):
        from tf_ext import ops

        with self._errors():
            ops.write_file_atomically(name, data)

    def replace(self, part, name):
        with self._errors():
            self._tf.io.gfile.rename(part, name, overwrite=True)

    def names(self, directory):
        with self._errors():
            gfile = self._tf.io.gfile
            return gfile.listdir(directory) if gfile.exists(directory) else []

    def make_directory(self, path):
        with self._errors():
            self._tf.io.gfile.makedirs(path)
        return False  # Mostly, directories there are not of their own.

    def remove(self, name):
        with self._errors():
            self._tf.io.gfile.remove(name)

    @contextlib.contextmanager
    def _errors(self):
        errors = self._tf.errors
        try:
            yield
        except (errors.NotFoundError, errors.FailedPreconditionError) as error:
            raise FileNotFoundError(error.message) from None
        except errors.UnimplementedError as error:
            raise OSError(errno.EPROTONOSUPPORT, error.message) from None
        except errors.OpError as error:
            raise OSError(error.message) from None


def _lock(opened, directory):
    """Locks an open directory, if its file system can."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_SECONDS
    while True:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{directory} is locked by another process, for more than "
                    f"{_LOCK_TIMEOUT_SECONDS} s. If that one is stopped, end "
                    f"it: `fuser -v {directory}` names it."
                ) from None
            time.sleep(0.01)
        except OSError:  # Network file systems do not lock directories.
            return


def _open_regular(name, flags):
    # Opening a pipe would wait for its other end, and a link leads out of the
    # directory.
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
        f"{name} is damaged at byte 0: it is no regular file."
    )


def _sync_directory(path):
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
def _naming(name):
    """Adds the file's name to errors of writing, which have none."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, name) from None
