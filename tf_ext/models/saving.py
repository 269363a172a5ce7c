"""Replaces files atomically."""

import contextlib
import os
from collections.abc import Iterator

import tensorflow as tf

from tf_ext.snapshot.storage import normalised, storage_of


@contextlib.contextmanager
def replaced_when_whole(filepath: str, suffix: str) -> Iterator[str]:
    """Yields a path to write to, and then replaces a file.

    If the process or the machine stops at any time, `filepath` is the old file
    or the new one, complete.

    Args:
      filepath: string.
      suffix: string, the suffix that Keras requires of the name.

    Yields:
      string, the path to write to.
    """
    path = normalised(filepath)
    if "://" not in path:
        path = os.path.realpath(path)  # A link remains a link.
    part = f"{path.removesuffix(suffix)}.part{suffix}"
    try:
        yield part
        storage_of(path).replace(part, path)
    except BaseException:
        with contextlib.suppress(tf.errors.NotFoundError):
            tf.io.gfile.remove(part)
        raise


def refuse_hdf5(filepath: str | os.PathLike[str], instead: str) -> None:
    """Refuses the files of Keras's old format, which hold no rows.

    Args:
      filepath: string or path.
      instead: string, what its name must end in.

    Raises:
      ValueError: it is the name of such a file.
    """
    path = str(filepath)
    if path.endswith((".h5", ".hdf5")) and not path.endswith(".weights.h5"):
        raise ValueError(
            f"Argument `filepath` must end in {instead!r}: HDF5 files of "
            "Keras's old format hold variables but no rows. Received: "
            f"filepath={path!r}"
        )
