# SPDX-License-Identifier: Apache-2.0
"""Replaces files atomically, and puts back what a damaged one changed."""

import contextlib
import inspect
import os
import typing
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from tf_ext._compat.optimizers import parts_of
from tf_ext.layers import adapted
from tf_ext.snapshot.storage import normalised, storage_of
from tf_ext.tables.shadow import holds_values


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


@contextlib.contextmanager
def variables_put_back(model: typing.Any) -> Iterator[None]:
    """After an error in its block, the model's variables are as before.

    Rows are not, of which there are too many for a copy.

    Args:
      model: keras.Model.
    """
    found = [v for v in model.variables if holds_values(v)]
    for optimizer, _ in parts_of(getattr(model, "optimizer", None), []):
        found += getattr(optimizer, "variables", ())
    variables = {id(variable): variable for variable in found}.values()
    before = [np.asarray(tf.convert_to_tensor(v)) for v in variables]
    try:
        yield
    except BaseException:
        for variable, value in zip(variables, before):
            variable.assign(value)
        adapted.finalize(model)
        raise


def save_whole(
    save: Callable[..., typing.Any],
    path: str,
    suffix: str,
    given: inspect.BoundArguments,
) -> None:
    """Calls Keras's `save`, whose file is then there whole or not at all.

    Args:
      save: Keras's method.
      path: string, where to.
      suffix: string, what names of this format end in.
      given: inspect.BoundArguments of the user's call.
    """
    # Keras asks before it overwrites if `overwrite` is False.
    if not path.endswith(suffix) or not given.arguments.get("overwrite", True):
        given.arguments["filepath"] = path
        return save(*given.args, **given.kwargs)
    with replaced_when_whole(path, suffix) as part:
        given.arguments["filepath"] = part
        return save(*given.args, **given.kwargs)
