# SPDX-License-Identifier: Apache-2.0
"""Writes exports with rows from any source."""

import collections
import concurrent.futures
import contextlib
import errno
import functools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_ext._keras import keras
from tf_ext._version import __version__
from tf_ext.regimes import regime_of_model
from tf_ext.serving import folder, served_model, warmup
from tf_ext.serving.arguments import Arguments
from tf_ext.serving.copies import copy_of
from tf_ext.serving.row_sources import Chunks, RowSource, counted
from tf_ext.serving.signature import of_model
from tf_ext.serving.stock_table import StockTables
from tf_ext.serving.variable_files import ValueFile, fill_variables
from tf_ext.serving.warmup_rows import WarmupRows
from tf_ext.tables.find import tables_of
from tf_ext.tables.sparse_table import SparseTable

# The folder of rows that are on their way into the checkpoint.
_ROWS = "rows"


class _Export:
    """An export in progress, in the process that writes it.

    Args:
      given: Arguments.
      weights: those of the model, of which a copy is exported; or None.
      holds_rows: bool, whether the model's own tables contain the rows.
      new: folder.NewVersion that is written.

    Raises:
      ValueError: if the model cannot be exported.
    """

    def __init__(
        self,
        given: Arguments,
        weights: list[Any] | None,
        holds_rows: bool,
        new: folder.NewVersion,
    ) -> None:
        self._dtype, self._new = given.dtype, new
        example = given.batches[0] if given.batches else None
        # A copy has that of the original: Keras 3 forgets which inputs are
        # ragged.
        signature = of_model(given.model, given.signature, example)
        batches = [signature.convert(batch) for batch in given.batches]
        model = given.model
        if weights is not None:
            model, holds_rows = copy_of(model, signature, weights), False
        answer = functools.partial(signature.answers, model, batches)
        self._answers = answer() if holds_rows else []
        tables = StockTables(tables_of(model), given.dtype, given.unknown)
        self._warmup = None if holds_rows else WarmupRows(tables.of, answer)
        served_model.save(new.part, model, tables, signature)
        self._tables = list(tables.of.items())
        self._files: dict[Sequence[str], ValueFile] = {}
        self._described: list[dict[str, Any]] = []

    def fill(self, index: int, source: RowSource, chunks: Chunks) -> None:
        """Copies the rows of a table to files beside the SavedModel."""
        table, stock = self._tables[index]
        if self._warmup is not None:
            chunks = self._warmup.watched(table, chunks)
        where = self._new.part / _ROWS / str(index)
        files, description = stock.fill(chunks, source.at_most, where)
        for name, file in files.items():
            self._files["tables", str(index), name] = file
        self._described.append({**description, "snapshot": source.snapshot})

    def finish(self, header: dict[str, Any]) -> None:
        """Moves the rows into the SavedModel, and writes the other files.

        Args:
          header: dict, what `header_of` returned.
        """
        part = self._new.part
        fill_variables(part, self._files)
        if self._files:
            shutil.rmtree(part / _ROWS)
        answers = self._answers
        if self._warmup is not None:
            answers = self._warmup.answers()
        if answers:
            warmup.write(part, header["model"], answers)
        self._new.manifest = {
            **header,
            "dtype": self._dtype,
            "tables": self._described,
        }


def header_of(model: keras.Model) -> dict[str, Any]:
    """What the manifest of each export of a model begins with.

    "step", the training step of a model, is None if it is not compiled.
    """
    optimizer = getattr(model, "optimizer", None)
    iterations = getattr(optimizer, "iterations", None)
    step = None if iterations is None else int(tf.convert_to_tensor(iterations))
    return {
        "model": model.name,
        "step": step,
        "tf_ext_version": __version__,
        "tensorflow_version": tf.__version__,
    }


def write(
    given: Arguments,
    source_of: Callable[[SparseTable], RowSource],
    holds_rows: bool = True,
) -> str:
    """Writes an export; all processes of the model call it, the first writes.

    Args:
      given: Arguments.
      source_of: function to the source of a table's rows.
      holds_rows: bool, whether the model's own tables contain the rows.

    Returns:
      string, the folder of the version.
    """
    model, function = given.model, given.function
    regime = regime_of_model(model)
    together = functools.partial(regime.processes.together, function)
    # Reading a variable with a part in each process is a collective operation.
    weights = None if regime.placement.has_all else model.get_weights()
    header = header_of(model)
    new, export = None, None  # In the first process alone.
    with _os_errors(given.path), contextlib.ExitStack() as stack:
        with together():
            if regime.processes.rank == 0:
                new = stack.enter_context(
                    folder.new_version(given.path, given.version, function)
                )
                # Variables must not be replicated, and only another thread is
                # outside of the scope of a strategy.
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    export = pool.submit(
                        _Export, given, weights, holds_rows, new
                    ).result()
        for index, table in enumerate(tables_of(model)):
            with together():
                source = source_of(table)
                with contextlib.closing(source.chunks()) as chunks:
                    if export is None:
                        collections.deque(chunks, maxlen=0)
                    else:
                        watched = counted(chunks, given.progress)
                        export.fill(index, source, watched)
        with together():
            if export is not None:
                export.finish(header)
                stack.close()
    return regime.processes.from_first("" if new is None else str(new.folder))


@contextlib.contextmanager
def _os_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raises TensorFlow's errors of writing as OSError, all with a path."""
    numbers = {
        tf.errors.ResourceExhaustedError: errno.ENOSPC,
        tf.errors.PermissionDeniedError: errno.EACCES,
    }
    try:
        yield
    except tuple(numbers) as error:
        number = numbers[type(error)]
        raise OSError(number, os.strerror(number), os.fspath(path)) from error
    except OSError as error:  # Those of `write` do not name the file.
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
