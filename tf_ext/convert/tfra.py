# SPDX-License-Identifier: Apache-2.0
"""The rows of TensorFlow Recommenders Addons in a table."""

import typing
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext import _core
from tf_ext._checks import is_int, refuse
from tf_ext.convert.rows_in import (
    CHUNK_BYTES,
    ConvertedRows,
    check_column,
    check_table,
    log_notes,
    without_missing,
)
from tf_ext.convert.slots import notes_of_iterations, notes_of_weights
from tf_ext.convert.stored_array import DamagedFilesError
from tf_ext.convert.tfra_files import (
    KEY_TYPES,
    SLOTS,
    VALUE_TYPES,
    HashTable,
    Variables,
    open_variables,
)
from tf_ext.feature_column.column import Column
from tf_ext.snapshot.storage import normalised
from tf_ext.tables.sparse_table import SparseTable

_NAME = "from_tfra"
_STEP = "step"
_LAST_STEP = 2**31 - 1


def from_tfra(
    path: typing.Any,
    table: SparseTable,
    column: Column,
    name: str | None = None,
    *,
    slots: Mapping[str, str] | None = None,
    step: int | None = None,
    key_dtype: str | None = None,
    value_dtype: str | None = None,
) -> ConvertedRows:
    """Puts the rows of a variable of TFRA into a table.

    TFRA, TensorFlow Recommenders Addons, is not needed. The row of each key
    goes to the key's sign in the column, as float32, which the table stores in
    its own type. Rows that the table has for other signs stay. Under a strategy
    of several workers all of them call it.

    Files are read in chunks of bounded size, twice: first all is checked, so
    the table is as it was if anything is wrong. Files of `save_to_file_system`
    have no checksums: their sizes are checked, and that numbers are finite. If
    an interrupt ends the second reading, rows that were taken stay; call it
    again. Besides chunks, 11 to 22 bytes per row are needed until it returns.

    Args:
      path: string or path-like: a directory with files of
        `save_to_file_system` or of a `FileSystemSaver`, of all ranks; or a
        checkpoint, as for `tf.train.load_checkpoint`. For a SavedModel it ends
        in `variables/variables`.
      table: `tf_ext.SparseTable` of the variable's dim.
      column: the column that will read the rows, of `category_column` or
        `sequence_category_column`. It hashes as always, so strings and integers
        that were keys find their rows. If the keys are hashes that the model
        computes, give the column `hashing="identity"` and keep that step.
      name: string, the variable's name. Those of TFRA's Keras layers end in
        `-parameter`. None: the only one that is no slot.
      slots: dict from a field of the rule's rows to the name of TFRA's variable
        with it, such as `{"m": "user/lookup/m"}`; `{}` for the slots of new
        rows. None: they are found by their names. They are those of an
        optimizer of Keras with the formula of the table's rule.
      step: int, how many steps Adam has made. None: as a checkpoint has it.
        With `bias_correction="global"`, they are to be the `iterations` of the
        model that trains on: assign them, as `notes` says.
      key_dtype: "int64" or "int32", for files. None: "int64".
      value_dtype: "float32", "float16", "bfloat16" or "float64", for files.
        None: "float32".

    Returns:
      `ConvertedRows`. `left` counts keys that the column leaves out, and
      repeats of keys, of which the last counts.

    Raises:
      DamagedFilesError: files are missing, cut off or damaged.
      FileNotFoundError: `path` has no rows of TFRA.
      ValueError: an argument is not as above; the sentence names it.

    Example:
    Of a variable `de.get_variable("user", dim=2)` after
    `save_to_file_system(path)`:

      >>> import pathlib, tempfile
      >>> import tf_ext
      >>> path = pathlib.Path(tempfile.mkdtemp())
      >>> name = "user_mht_1of1_rank0_size1"
      >>> _ = (path / f"{name}-keys").write_bytes(np.int64([7, 9]).tobytes())
      >>> _ = (path / f"{name}-values").write_bytes(
      ...     np.float32([[1, 2], [3, 4]]).tobytes())
      >>> table = tf_ext.SparseTable("user", dim=2, optimizer="sgd")
      >>> user = tf_ext.feature_column.category_column("user")
      >>> tf_ext.convert.from_tfra(path, table, user).taken
      2
      >>> table.pull(user.signs([9])).numpy()
      array([[3., 4.]], dtype=float32)
    """
    check_table(_NAME, table, None)
    check_column(_NAME, column)
    if step is not None and (not is_int(step) or not 0 <= step < 2**63):
        refuse(_NAME, "step", "an integer of at least 0, or None", step)
    _check_type("key_dtype", key_dtype, KEY_TYPES)
    _check_type("value_dtype", value_dtype, VALUE_TYPES)
    path = normalised(path, _NAME)
    variables = open_variables(path, key_dtype, value_dtype)
    name = _name_of(path, variables, name)
    rows = variables.tables(name, table.dim)
    source = _Source(table, variables, name, slots, step)
    for part in [*rows, *(one for s in source.slots.values() for one in s)]:
        _check(part, _rows_of_chunk(table))
    done = _take(table, column, rows, source)
    log_notes(done.notes)
    return done


def _check_type(argument: str, given: object, allowed: Sequence[str]) -> None:
    if given is not None and given not in allowed:
        refuse(_NAME, argument, f"one of {', '.join(allowed)}, or None", given)


def _name_of(path: str, variables: Variables, name: str | None) -> str:
    """The name of the variable whose rows are wanted."""
    present = ", ".join(map(repr, variables.variables()))
    if name is None:
        if len(variables.variables()) != 1:
            raise ValueError(
                f"Argument `name` of {_NAME} must be the name of a variable, "
                f"as {path} has several: {present}. Received: name=None"
            )
        return variables.variables()[0]
    if (
        not isinstance(name, str)
        or variables.canonical(name) not in variables.names
    ):
        refuse(
            _NAME,
            "name",
            f"one of the variables of {path}: {present}",
            name,
        )
    return variables.canonical(name)


class _Source:
    """Which slots of a variable are taken.

    Attributes:
      slots: dict of lists of HashTable by field of rows.
      constants: dict of numbers by field, which all rows get.
      step: int, how many steps Adam has made; None if it is not known.
      note: string, why there are none; "" if there are, or none are needed.
    """

    def __init__(
        self,
        table: SparseTable,
        variables: Variables,
        name: str,
        given: Mapping[str, str] | None,
        step: int | None,
    ) -> None:
        self.slots: dict[str, list[HashTable]] = {}
        self.constants: dict[str, int] = {}
        self.note = ""
        wanted = {field: n for field, _, n in table.optimizer.slots(table.dim)}
        if given is not None:
            _check_slots(given, wanted, variables)
        names: dict[str, str] = {}
        for field in wanted:
            if field == _STEP:
                continue
            if given is not None:
                if field in given:
                    names[field] = variables.canonical(given[field])
                continue
            found = variables.slot_of(name, field)
            if len(found) > 1:
                raise ValueError(
                    f"Argument `slots` of {_NAME} must say which variable has "
                    f"field {field!r} of the rows: {', '.join(found)}. "
                    "Received: slots=None"
                )
            if found:
                names[field] = found[0]
        why = self._why_not(table, name, wanted, names, given)
        self.step = step
        if not why and "m" in names:
            if step is None:
                self.step = variables.step()
            counts = _STEP in wanted or table.rows.adam_step is not None
            if counts and self.step is None:
                why = "how many steps Adam has made is not known; pass `step`"
            elif self.step is not None and _STEP in wanted:
                self.constants[_STEP] = min(self.step, _LAST_STEP)
        if why:
            self.note = (
                f"The slots of table {table.name!r} start from their initial "
                f"values: {why}."
            )
            return
        self.slots = {
            field: variables.tables(one, wanted[field])
            for field, one in names.items()
        }

    @staticmethod
    def _why_not(
        table: SparseTable,
        name: str,
        wanted: Mapping[str, int],
        names: Mapping[str, str],
        given: Mapping[str, str] | None,
    ) -> str:
        if given is not None and not given:
            return ""
        rule = type(table.optimizer).__name__
        lacking = [f for f in wanted if f != _STEP and f not in names]
        if lacking:
            return f"no variable is field {lacking[0]!r} of {name!r} for {rule}"
        narrow = [f for f in names if wanted[f] != table.dim]
        if narrow:
            return (
                f"field {narrow[0]!r} of {rule} has {wanted[narrow[0]]} number "
                f"per row, and not {table.dim}"
            )
        return ""


def _check_slots(
    given: object, wanted: Mapping[str, int], variables: Variables
) -> None:
    fields = [field for field in wanted if field in SLOTS]
    if not isinstance(given, Mapping) or any(
        field not in fields
        or not isinstance(one, str)
        or variables.canonical(one) not in variables.names
        for field, one in given.items()
    ):
        refuse(
            _NAME,
            "slots",
            f"a dict from {', '.join(fields) or 'no field'} to names among "
            f"{', '.join(variables.names)}, or None",
            given,
        )


def _rows_of_chunk(table: SparseTable) -> int:
    return max(1, CHUNK_BYTES // table.rows.bytes_per_row)


def _chunks(
    part: HashTable, rows: int
) -> Iterator[tuple[npt.NDArray[typing.Any], npt.NDArray[np.float32]]]:
    """Yields `(keys [n], values [n, dim])`."""
    for keys, values in zip(
        part.keys.chunks(rows), part.values.chunks(rows), strict=True
    ):
        with np.errstate(over="ignore", invalid="ignore"):
            yield keys, values.astype(np.float32)


def _check(part: HashTable, rows: int) -> None:
    """Reads all of it; raises DamagedFilesError if it cannot be taken."""
    for keys, values in _chunks(part, rows):
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            at = int(np.argmin(finite))
            [key] = keys[at : at + 1].tolist()
            raise DamagedFilesError(
                f"{part.values.path} has a number that is NaN, infinite or "
                f"beyond float32 in the row of key {key!r}"
                + (f" of {part.values.name}." if part.values.name else ".")
            )


def _take(
    table: SparseTable,
    column: Column,
    parts: Sequence[HashTable],
    source: _Source,
) -> ConvertedRows:
    """Imports what has been checked."""
    limit = _rows_of_chunk(table)
    taken, read = _core.SignSet(), 0
    for part in parts:
        for keys, values in _chunks(part, limit):
            read += len(keys)
            signs, weights = _signed(column, keys, values)
            fields = {"weights": weights} | {
                field: np.full((len(signs), 1), value, np.int32)
                for field, value in source.constants.items()
            }
            if len(signs):
                table.rows.import_rows(signs, fields)
            taken.add(signs)
    notes = [source.note] if source.note else []
    notes += notes_of_weights(table, source.slots)
    alone, factors = 0, {}
    if "m" in source.slots:
        factors = table.rows.take_adam_step(source.step or 0)
        notes += notes_of_iterations(table, source.step)
    for field, slots in source.slots.items():
        for part in slots:
            for keys, values in _chunks(part, limit):
                signs, numbers = _signed(column, keys, values)
                known = np.asarray(taken.contains(signs), bool)
                alone += int(len(signs) - known.sum())
                if known.any():
                    if field in factors:
                        numbers = numbers * factors[field]
                    table.rows.import_rows(
                        signs[known], {field: numbers[known]}
                    )
    if alone:
        notes.append(
            f"{alone} rows of slots are of keys without weights, and are not "
            f"in table {table.name!r}."
        )
    names = (*source.slots, *source.constants)
    return ConvertedRows(
        len(taken),
        read - len(taken),
        np.zeros((0, table.dim), np.float32),
        tuple(f for f, _, _ in table.optimizer.slots(table.dim) if f in names),
        tuple(notes),
    )


def _signed(
    column: Column,
    keys: npt.NDArray[typing.Any],
    values: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The signs of keys, without those that the column leaves out."""
    if not len(keys):
        return np.zeros(0, np.int64), values
    kept, rows = without_missing(
        column, tf.convert_to_tensor(keys), tf.convert_to_tensor(values)
    )
    return column.signs(kept).numpy(), rows.numpy()
