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
