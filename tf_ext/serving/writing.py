# SPDX-License-Identifier: Apache-2.0
"""Writes exports with rows from any source."""

import collections
import contextlib
import dataclasses
import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_ext._keras import keras
from tf_ext._version import __version__
from tf_ext.regimes import regime_of_model
from tf_ext.serving import folder, row_dtypes, warmup
from tf_ext.serving.copies import copy_of, outside_of_strategies
from tf_ext.serving.row_sources import Chunks, RowSource, counted
from tf_ext.serving.served_model import ServedModel, check_built, step_of
from tf_ext.serving.signature import Signature, of_model
from tf_ext.serving.stock_table import StockTable
from tf_ext.serving.warmup_batches import WarmupBatches
from tf_ext.snapshot.files import Progress
from tf_ext.tables.find import tables_of

# The folder of rows that are on their way into the checkpoint.
_ROWS = "rows"


@dataclasses.dataclass(frozen=True)
class Options:
    """The user's arguments; see `tf_ext.serving.export`.

    Attributes:
      function: string, the public function, for errors.
      dtype: string.
      unknown: "zeros" or None.
      version: int or None.
      warmup: a batch, a list of batches, or None.
      signature: structure of specs, or None.
    """

    function: str
    dtype: str
    unknown: str | None
    version: int | None
    warmup: Any
    signature: Any

    def __post_init__(self) -> None:
        row_dtypes.check_name(self.dtype, self.function)
        if self.unknown not in (None, "zeros"):
            raise ValueError(
                f"Argument `unknown` of {self.function} must be None or "
                f"'zeros'. Received: unknown={self.unknown!r}"
            )
        folder.check_version(self.version, self.function)

    @property
    def batches(self) -> list[Any]:
        """The warm-up batches, a list."""
        if self.warmup is None:
            return []
        several = isinstance(self.warmup, list) and all(
            isinstance(batch, Mapping) for batch in self.warmup
        )
        batches = self.warmup if several else [self.warmup]
        if len(batches) > warmup.MAX_BATCHES:
            raise ValueError(
                f"Argument `warmup` of {self.function} must hold at most "
                f"{warmup.MAX_BATCHES} batches, the most that a server "
                f"accepts. Received: {len(batches)}"
            )
        return batches

    def signature_of(self, model: keras.Model) -> Signature:
        """The signature of a model's inputs."""
        batches = self.batches
        example = batches[0] if batches else None
        return of_model(model, self.signature, example)


class _Export:
    """An export in progress, in the process that writes it.

    Args:
      model: keras.Model that is local to this process.
      signature: Signature of its inputs. Of a copy, it is that of the original:
        Keras 3 forgets which inputs are ragged.
      options: Options.
      holds_rows: bool, whether the model's own tables contain the rows.

    Attributes:
      new: NewVersion that is written, set by the user of the class.

    Raises:
      ValueError: if the model cannot be exported.
    """

    new: folder.NewVersion

    def __init__(
        self,
        model: keras.Model,
        signature: Signature,
        options: Options,
        holds_rows: bool,
    ) -> None:
        self._model, self._options = model, options
        # Even in the scope of a strategy, the variables must not be replicated.
        self._tables = outside_of_strategies(
            lambda: {
                table: StockTable(
                    table.rows.config,
                    options.dtype,
                    options.unknown,
                    table.rows.served.names[1:],
                )
                for table in tables_of(model)
            }
        )
        self._served = ServedModel(model, self._tables, signature)
        self._warmup = WarmupBatches(
            model, signature, options.batches, self._tables, holds_rows
        )

    def fill(self, index: int, source: RowSource, chunks: Chunks) -> None:
        """Copies the rows of a table to files of the export."""
        table = list(self._tables)[index]
        chunks = self._warmup.watched(table, chunks)
        where = self.new.part / _ROWS / str(index)
        self._tables[table].fill(chunks, source.at_most, where)

    def write(self, step: int | None, snapshots: Sequence[str | None]) -> None:
        """Writes all files.

        Args:
          step: int or None, how far the model was trained.
          snapshots: the id of the snapshot of each table's rows, or None.
        """
        new = self.new
        self._served.save(new.part)
        if self._tables:
            shutil.rmtree(new.part / _ROWS)
        answered = self._warmup.answered()
        if answered:
            warmup.write(new.extra / warmup.NAME, self._model.name, answered)
        new.write_manifest(
            {
                "model": self._model.name,
                "step": step,
                "tf_ext_version": __version__,
                "tensorflow_version": tf.__version__,
                "dtype": self._options.dtype,
                "tables": [
                    {**table.description, "snapshot": snapshot}
                    for table, snapshot in zip(self._tables.values(), snapshots)
                ],
            }
        )


def write(
    model: keras.Model,
    sources: Sequence[RowSource],
    path: str | os.PathLike[str],
    options: Options,
    holds_rows: bool = True,
    progress: Progress | None = None,
) -> str:
    """Writes an export; all processes of the model call it, the first writes.

    Args:
      model: keras.Model.
      sources: a RowSource for each of `tables_of(model)`.
      path: path-like, the folder of all versions.
      options: Options.
      holds_rows: bool, whether the model's own tables contain the rows.
      progress: function that is called with the number of bytes of rows that
        were read, after each chunk; or None.

    Returns:
      string, the folder of the version.
    """
    regime = regime_of_model(model)
    # Reading a variable with a part in each process is a collective operation.
    weights = None if regime.placement.has_all else model.get_weights()
    step = step_of(model)
    made = None  # By the first process alone.
    with _os_errors(path), contextlib.ExitStack() as stack:
        with regime.processes.together(options.function):
            if regime.processes.rank == 0:
                check_built(model, options.function)
                made = _export_of(model, options, holds_rows, weights)
                made.new = stack.enter_context(
                    folder.new_version(path, options.version, options.function)
                )
        for index, source in enumerate(sources):
            with (
                regime.processes.together(options.function),
                contextlib.closing(source.chunks()) as chunks,
            ):
                if made is None:
                    collections.deque(chunks, maxlen=0)
                else:
                    made.fill(index, source, counted(chunks, progress))
        with regime.processes.together(options.function):
            if made is not None:
                made.write(step, [source.snapshot for source in sources])
                stack.close()
    return regime.processes.from_first(
        "" if made is None else str(made.new.folder)
    )


def _export_of(
    model: keras.Model,
    options: Options,
    holds_rows: bool,
    weights: list[Any] | None,
) -> _Export:
    """The export of a model, or of a copy with `weights` unless None."""
    signature = options.signature_of(model)
    if weights is None:
        return _Export(model, signature, options, holds_rows)
    return outside_of_strategies(
        lambda: _Export(
            copy_of(model, signature, weights),
            signature,
            options,
            holds_rows=False,
        )
    )


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
