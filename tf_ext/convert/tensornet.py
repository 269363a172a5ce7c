# SPDX-License-Identifier: Apache-2.0
"""The rows of TensorNet in tables."""

import time
import typing
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tf_ext._checks import refuse
from tf_ext.convert.rows_in import ConvertedRows, check_table, log_notes
from tf_ext.convert.slots import notes_of_iterations, notes_of_weights
from tf_ext.convert.tensornet_files import Block, Form, Rows, blocks_of
from tf_ext.snapshot.adam_steps import LATE
from tf_ext.snapshot.storage import normalised
from tf_ext.tables.sparse_optimizers import (
    SparseAdam,
    SparseFtrl,
    SparseRowWiseAdagrad,
)
from tf_ext.tables.sparse_table import SparseTable

_NAME = "from_tensornet"
_RULES = {
    "AdaGrad": SparseRowWiseAdagrad,
    "Adam": SparseAdam,
    "Ftrl": SparseFtrl,
}
_SECONDS_OF_DAY = 86_400
_STEP = "step"
# So many that the bias, which TensorNet does not correct, is gone.
_LAST_STEP = 2**31 - 1


def from_tensornet(
    directory: typing.Any,
    tables: Mapping[str, SparseTable],
    *,
    slots: bool = True,
) -> dict[str, ConvertedRows]:
    r"""Puts the rows of TensorNet's dictionary files into tables.

    TensorNet is not needed. Text and binary files of all its versions are read.
    Rows that a table has for other signs stay. Under a strategy of several
    workers all of them call it.

    - **Signs** are TensorNet's, as signed numbers: a column reads the rows with
      `hashing="identity"`, from the same integers.
    - **Slots** are taken if the table's rule is that of the files:
      `SparseRowWiseAdagrad` for AdaGrad, `SparseAdam` for Adam, whose bias then
      counts as gone, as TensorNet does not correct it, and `SparseFtrl` for
      Ftrl. With `bias_correction="global"`, `notes` has the `iterations` at
      which it is gone. TensorNet's Ftrl with `learning_rate`, `lambda1`,
      `lambda2` and `beta` is `SparseFtrl(1 / learning_rate,
      l1_regularization_strength=lambda1, l2_regularization_strength=lambda2 /
      2, beta=beta)`: with other numbers, pass `slots=False`.
    - **Shows and clicks** are taken if the table has these `statistics`, and
      days without a show if its eviction depends on seconds.

    Files are read in chunks of bounded size, twice: first all is checked, so
    the tables are as they were if anything is wrong. If an interrupt ends the
    second reading, rows that were taken stay; call it again.

    Args:
      directory: string or path-like, the folder of a day, or the `sparse_table`
        in it, with the files of all ranks.
      tables: dict from the name of a table of TensorNet, which is that of the
        layer, or its number, to a `tf_ext.SparseTable` of its dim.
      slots: bool, whether slots are taken.

    Returns:
      Dict of `ConvertedRows` by the names of `tables`.

    Raises:
      DamagedFilesError: files are missing, cut off or damaged, or a row has a
        number that is not finite.
      FileNotFoundError: `directory` is none.
      ValueError: an argument is not as above; the sentence names it.

    Example:
    A table of two rows, of TensorNet's text, in one rank:

      >>> import gzip, pathlib, tempfile
      >>> import tf_ext
      >>> day = pathlib.Path(tempfile.mkdtemp())
      >>> rank = day / "sparse_table" / "deep" / "rank_0"
      >>> rank.mkdir(parents=True)
      >>> for block in range(8):
      ...     rows = ["7\t2\t0.5\t-1\t0.1\t3\t0\t"] if block == 0 else []
      ...     lines = ["opt_name:AdaGrad", "dim:2", *rows, "", ""]
      ...     data = gzip.compress("\n".join(lines).encode())
      ...     _ = (rank / f"block_{block}.gz").write_bytes(data)
      >>> table = tf_ext.SparseTable("deep", dim=2)
      >>> done = tf_ext.convert.from_tensornet(day, {"deep": table})
      >>> done["deep"].taken, done["deep"].slots
      (1, ('accumulator',))
      >>> table.pull([7]).numpy()
      array([[ 0.5, -1. ]], dtype=float32)
    """
    if not isinstance(tables, Mapping) or not tables:
        refuse(_NAME, "tables", "a dict of tf_ext.SparseTable by names", tables)
    for table in tables.values():
        check_table(_NAME, table, None)
    if not isinstance(slots, bool):
        refuse(_NAME, "slots", "True or False", slots)
    directory = normalised(directory, _NAME, "directory")
    blocks = {name: blocks_of(directory, name) for name in tables}
    forms = {name: _forms(blocks[name], tables[name].dim) for name in tables}
    done = {}
    for name, table in tables.items():
        source = _Source(table, forms[name], slots)
        taken = 0
        # TensorNet does not correct the bias.
        factors = {}
        if "m" in source.names:
            factors = table.rows.take_adam_step(LATE)
            source.notes += notes_of_iterations(table, LATE)
        for block in blocks[name]:
            for rows in block.rows(source.form, table.dim):
                signs = rows["sign"].astype(np.uint64).view(np.int64)
                fields = source.fields(rows)
                for field, factor in factors.items():
                    fields[field] *= factor
                table.rows.import_rows(signs, fields)
                # Of several workers, each sets only some of them.
                taken += len(signs)
        done[name] = ConvertedRows(
            taken,
            0,
            np.zeros((0, table.dim), np.float32),
            source.names,
            tuple(source.notes),
        )
        log_notes(done[name].notes)
    return done


def _forms(blocks: list[Block], dim: int) -> list[Form]:
    """Reads all files; the forms that fit their rows."""
    forms = None
    for block in blocks:
        forms = block.scan(dim, forms)
    return forms or []


class _Source:
    """What of rows a table takes.

    Attributes:
      form: Form, of those that fit.
      names: tuple of strings, the fields besides "weights".
      notes: list of strings, as of ConvertedRows.
    """

    def __init__(
        self, table: SparseTable, forms: list[Form], slots: bool
    ) -> None:
        rule = type(table.optimizer)
        alike = [one for one in forms if _RULES[one.optimizer] is rule]
        form = self.form = (alike or forms)[0]
        self._now = int(time.time())
        self.notes: list[str] = []
        present = [field.name for field in table.rows.fields]
        empty = np.empty(0, form.dtype)
        wanted = []
        if slots and alike:
            wanted = [f for f, _, _ in table.optimizer.slots(table.dim)]
        elif slots:
            names = dict.fromkeys(
                f"TensorNet's {one.optimizer} is like "
                f"{_RULES[one.optimizer].__name__}"
                for one in forms
            )
            self.notes.append(
                f"The slots of table {table.name!r} start from their initial "
                f"values: its rule is {rule.__name__}. {', '.join(names)}."
            )
        wanted += [one for one in ("show", "click") if one in present]
        self.names = tuple(
            name
            for name in wanted
            if name == _STEP or form.field(empty, name) is not None
        )
        self.notes += notes_of_weights(table, self.names)
        if table.rows.table_config.last_seen == "second":
            if form.field(empty, "days") is not None:
                self.names += ("last_seen",)

    def fields(self, rows: Rows) -> dict[str, npt.NDArray[typing.Any]]:
        """The fields of rows, as of `SparseTable.import_rows`."""
        found: dict[str, npt.NDArray[typing.Any]] = {}
        for name in ("weights", *self.names):
            if name == _STEP:
                found[name] = np.full((len(rows), 1), _LAST_STEP, np.int32)
                continue
            if name == "last_seen":
                days = self.form.field(rows, "days")
                assert days is not None
                seen = self._now - days.astype(np.int64) * _SECONDS_OF_DAY
                found[name] = np.clip(seen, 0, _LAST_STEP).astype(np.int32)
                continue
            field = self.form.field(rows, name)
            assert field is not None
            found[name] = np.ascontiguousarray(field, np.float32)
        return found
