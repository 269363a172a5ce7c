"""Files that the first of several workers writes, with rows of all."""

import contextlib
import os
import tempfile

import tensorflow as tf

from tf_ext.distribute.collectives import collectives_of
from tf_ext.snapshot.storage import normalised, storage_of

_FILES = (".h5", ".keras")


@contextlib.contextmanager
def file_of_all_workers(model, filepath):
    """Where a worker is to save a model, so that there is one file in the end.

    All workers have to save at the same time: the first writes `filepath`, the
    others into a temporary folder. When all are through, or one has failed,
    all know.

    Args:
      model: keras.Model.
      filepath: string, what the user asked for.

    Yields:
      string, the path to save to.

    Raises:
      RuntimeError: another worker failed; its own error says why.
    """
    collectives = collectives_of(getattr(model, "distribute_strategy", None))
    if collectives is None:
        yield filepath
        return
    first = collectives.rank == 0
    with tempfile.TemporaryDirectory(prefix="tf_ext_save_") as folder:
        path = filepath
        if not first:
            path = os.path.join(folder, os.path.basename(filepath.rstrip("/")))
        # Nobody waits for rows of one who cannot even begin.
        with _agreement(collectives, filepath):
            if first and filepath.endswith(_FILES):
                _check_writable(filepath)
        with _agreement(collectives, filepath):
            yield path


@contextlib.contextmanager
def replaced_when_whole(filepath, suffix):
    """Where to write a file that takes the place of one that may be there.

    Whenever the process or the machine stops, `filepath` is the old file or the
    new one.

    Args:
      filepath: string.
      suffix: string, its end, which Keras wants of every name.

    Yields:
      string, the path to write to.
    """
    path = normalised(filepath)
    if "://" not in path:
        path = os.path.realpath(path)  # A link goes on being one.
    part = f"{path.removesuffix(suffix)}.part{suffix}"
    try:
        yield part
        storage_of(path).replace(part, path)
    except BaseException:
        with contextlib.suppress(tf.errors.NotFoundError):
            tf.io.gfile.remove(part)
        raise


@contextlib.contextmanager
def _agreement(collectives, filepath):
    failed = True
    try:
        yield
        failed = False
    finally:
        mine = tf.constant([failed], tf.int64)
        states = collectives.gather(mine).numpy().ravel()
    if states.any():
        raise RuntimeError(
            f"Worker {states.argmax()} could not save {filepath!r}; its own "
            "error says why."
        )


def _check_writable(filepath):
    there = tf.io.gfile.exists(filepath)
    with tf.io.gfile.GFile(filepath, "ab") as file:
        file.write(b"")
    if not there:
        tf.io.gfile.remove(filepath)
