# SPDX-License-Identifier: Apache-2.0
"""Rows in Keras's own files (`.keras`, `.weights.h5`).

A table is a group of datasets: `header` (JSON: configuration, number of rows
and chunks, state, the CRC32C of each other dataset) with its own CRC32C in
`header_crc32c`, then the signs and fields of each chunk, and the signs and
counts of each chunk of counters. Only one chunk is in memory at a time. Files
written by tf_ext before November 2026 have no checksums.
"""

import contextlib
import contextvars
import json
import typing
import weakref
from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext import _core
from tf_ext._checks import is_int
from tf_ext._compat.skipped_layers import skipped_layers
from tf_ext._core import Setting
from tf_ext._keras import IS_KERAS_3
from tf_ext.snapshot.counting import counting_of
from tf_ext.tables import row_counters
from tf_ext.tables.rows import TableRows

_FORMAT = 1
# Of tables with fields of float16 or bfloat16; bfloat16, which HDF5 does not
# have, is stored as its bits, a uint16.
_SMALL_ROWS_FORMAT = 2

_BFLOAT16 = np.dtype(tf.bfloat16.as_numpy_dtype)

# {store: {id of a TableRows: message}}, of failed loads.
_failures: weakref.WeakKeyDictionary["Store", dict[int, str]] = (
    weakref.WeakKeyDictionary()
)

# Files whose model has a place for all of their variables.
_checked: weakref.WeakSet[typing.Any] = weakref.WeakSet()

# The steps of `load`: check rows, import them, or one after the other.
_steps: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar(
    "steps", default=("check", "import")
)

# Keras keeps a `.keras` file in memory until it is complete.
MAX_BYTES = 4 << 30


class Store(typing.Protocol):
    """What Keras passes to `save_own_variables` and `load_own_variables`."""

    def keys(self) -> Collection[str]:
        """The names of what it holds."""

    def __getitem__(self, key: str, /) -> typing.Any:
        """An array, or a dataset of a file."""

    def __setitem__(self, key: str, value: npt.NDArray[typing.Any], /) -> None:
        """Writes an array."""


def save(table_rows: TableRows, store: Store) -> None:
    """Writes the rows of a table, and its state.

    Args:
      table_rows: TableRows.
      store: the store that Keras passes to `save_own_variables`:
        `store[key] = array`.

    Raises:
      ValueError: if there are more rows than such a file should hold.
    """
    num_rows = int(table_rows.size())
    size = num_rows * table_rows.bytes_per_row
    size += row_counters.bytes_of(table_rows)
    if size > MAX_BYTES:
        raise ValueError(
            f"Table {table_rows.name!r} holds {num_rows:,} rows, "
            f"{size / 2**30:.1f} GiB; .keras and "
            f".weights.h5 files hold at most {MAX_BYTES >> 30} GiB per table. "
            "Save it with SparseTable.save, tf.train.Checkpoint or the "
            "callback tf_ext.callbacks.TableSnapshot."
        )
    chunk = written = 0
    checksums: dict[str, int] = {}

    def put(name: str, array: npt.NDArray[typing.Any]) -> None:
        store[name] = array
        checksums[name] = _checksum(array)

    with contextlib.closing(table_rows.chunks(stored=True)) as chunks:
        for signs, values in chunks:
            put(f"chunk_{chunk:06d}_signs", signs)
            for name, value in values.items():
                put(
                    f"chunk_{chunk:06d}_{name}",
                    value.view(_stored(value.dtype)),
                )
            written += len(signs)
            chunk += 1
    counters = _save_counters(table_rows, put)
    header = {
        "format": _format_of(table_rows),
        "config": table_rows.config,
        "rows": written,
        "chunks": chunk,
        "state": table_rows.saved_state(),
        "crc32c": checksums,
        **counters,
    }
    text = _array_of(json.dumps(header))
    store["header"] = text
    store["header_crc32c"] = np.array([_checksum(text)], np.uint32)


def _save_counters(
    table_rows: TableRows, put: Callable[[str, npt.NDArray[typing.Any]], None]
) -> dict[str, typing.Any]:
    """Writes counters by `put(name, array)`; returns members of the header."""
    if table_rows.counting is None:
        return {}
    period = int(row_counters.current_period(table_rows))
    chunk = 0
    with contextlib.closing(row_counters.chunks(table_rows, period)) as chunks:
        for signs, values in chunks:
            put(f"counters_{chunk:06d}_signs", signs)
            put(f"counters_{chunk:06d}_counts", values["count"])
            chunk += 1
    return {"counters": {"period": period, "chunks": chunk}}


def only(step: str) -> contextlib.AbstractContextManager[None]:
    """Restricts `load` to one of its steps in a block: "check" or "import".

    To check all tables of a file before any is changed, the file is loaded
    twice: once with "check", then with "import".
    """
    return Setting(_steps, (step,))


def checks_only() -> bool:
    """Whether nothing may change: this is a load of `only("check")`."""
    return "import" not in _steps.get()


def refuse_skipped_layers() -> None:
    """Refuses a file with variables of layers that would not load them.

    It is called when something of tf_ext is loaded from a file of Keras.

    Raises:
      ValueError: layers of the model are not built, and the file has variables
        of theirs.
    """
    skipped = skipped_layers(_checked)
    if skipped:
        names = ", ".join(repr(layer.name) for layer in skipped)
        raise ValueError(
            f"The file holds variables of the layers {names}, which are not "
            "built: they would not be loaded, but keep random values. Make "
            "the model as the program that saved it did, call it on a batch, "
            "and then load the same file with `load_weights`."
        )


def load(table_rows: TableRows, store: Store) -> None:
    """Replaces the rows of a table, and its state, with saved ones.

    If an object fails to load, Keras 3 retries it under its other paths in the
    model and reports the last error. So later calls raise the first error
    again.

    Args:
      table_rows: TableRows.
      store: the store that Keras passes to `load_own_variables`: `store[key]`.

    Raises:
      ValueError: if the file does not hold this table, was saved from a table
        of another configuration, or is damaged; the table is unchanged.
    """
    failures = _failures.setdefault(store, {}) if IS_KERAS_3 else {}
    if id(table_rows) in failures:
        raise ValueError(failures[id(table_rows)])
    try:
        refuse_skipped_layers()
        _load(table_rows, store)
    except ValueError as error:
        failures[id(table_rows)] = str(error)
        raise


def _load(table_rows: TableRows, store: Store) -> None:
    header = _read_header(store, table_rows.name)
    if "check" in _steps.get():
        _check(table_rows, store, header)
    if checks_only():
        return
    table_rows.clear()
    for chunk in range(header["chunks"]):
        prefix = f"chunk_{chunk:06d}_"
        table_rows.import_rows(
            np.asarray(store[f"{prefix}signs"]),
            {
                field.name: np.asarray(store[f"{prefix}{field.name}"]).view(
                    field.dtype.as_numpy_dtype
                )
                for field in table_rows.fields
            },
        )
    if "counters" in header and table_rows.counting is not None:
        if table_rows.counting.can_take(counting_of(header["config"])):
            _import_counters(table_rows, store, header["counters"])
    table_rows.restore_state(header["state"])


def _import_counters(
    table_rows: TableRows, store: Store, counters: dict[str, typing.Any]
) -> None:
    for chunk in range(counters["chunks"]):
        row_counters.import_counters(
            table_rows,
            np.asarray(store[f"counters_{chunk:06d}_signs"]),
            np.asarray(store[f"counters_{chunk:06d}_counts"]),
            counters["period"],
        )


def _read_header(store: Store, name: str) -> dict[str, typing.Any]:
    if "header" not in store.keys():
        raise ValueError(
            f"The file holds no rows of table {name!r}; it has "
            f"{sorted(store.keys())}. It was saved from another model."
        )
    array = np.asarray(store["header"])
    has_checksum = "header_crc32c" in store.keys()
    if has_checksum:
        saved = np.asarray(store["header_crc32c"]).ravel().tolist()
        _compare(name, "header", array, saved[0] if saved else None)
    try:
        header = json.loads(_text_of(array))
        wanted = {"format", "config", "rows", "chunks", "state"}
        if not isinstance(header, dict) or not wanted <= header.keys():
            raise ValueError(f"it lacks some of {sorted(wanted)}")
        for key in ("rows", "chunks"):
            if not is_int(header[key]) or header[key] < 0:
                raise ValueError(f"{key} is {header[key]!r}")
        if not isinstance(header["config"], str):
            raise ValueError(f"config is {header['config']!r}")
        if not _is_text_dict(header["state"]):
            raise ValueError(f"state is {header['state']!r}")
        if not isinstance(header.get("crc32c", {}), dict):
            raise ValueError(f"crc32c is {header['crc32c']!r}")
        counters = header.get("counters", {"chunks": 0})
        if (
            not isinstance(counters, dict)
            or not is_int(counters.get("chunks"))
            or counters["chunks"] < 0
        ):
            raise ValueError(f"counters is {counters!r}")
        if ("crc32c" in header) != has_checksum:
            raise ValueError("only one of header and rows has checksums")
    except (RecursionError, ValueError) as error:
        raise _damaged(name, f"'header' cannot be read: {error}") from error
    formats = (_FORMAT, _SMALL_ROWS_FORMAT)
    if header["format"] not in formats:
        raise ValueError(
            f"The rows of table {name!r} are in format {header['format']}; "
            f"this version of tf_ext reads {' and '.join(map(str, formats))}."
        )
    return header


def _is_text_dict(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(text, str) for text in value.values()
    )


def _check(
    table_rows: TableRows, store: Store, header: dict[str, typing.Any]
) -> None:
    name = table_rows.name
    table_rows.check_config(header["config"])
    if header["format"] != _format_of(table_rows):
        raise _damaged(
            name,
            f"the format of the header is {header['format']}, but rows of its "
            f"configuration are in format {_format_of(table_rows)}.",
        )
    num_rows = 0
    for chunk in range(header["chunks"]):
        prefix = f"chunk_{chunk:06d}_"
        dtypes = {prefix + "signs": np.dtype(np.int64)} | {
            prefix + field.name: _stored(field.dtype.as_numpy_dtype)
            for field in table_rows.fields
        }
        missing = sorted(dtypes.keys() - set(store.keys()))
        arrays = {
            key: np.asarray(store[key]) for key in dtypes if key not in missing
        }
        for field in table_rows.fields:
            array = arrays.get(prefix + field.name)
            if array is None or array.shape[-1] != field.count:
                shape = None if array is None else list(array.shape)
                raise ValueError(
                    f"Rows cannot be restored into table {name!r}: field "
                    f"{field.name!r} should be [n, {field.count}], the saved "
                    f"rows have {shape}."
                )
        if missing:
            raise _damaged(name, f"{missing[0]!r} is missing.")
        signs = arrays[prefix + "signs"]
        for key, array in arrays.items():
            if array.dtype != dtypes[key]:
                raise _damaged(
                    name, f"{key!r} is {array.dtype}, not {dtypes[key]}."
                )
            if array.ndim != (1 if array is signs else 2):
                raise _damaged(
                    name, f"{key!r} has the shape {list(array.shape)}."
                )
        if any(len(array) != len(signs) for array in arrays.values()):
            raise _damaged(
                name,
                f"chunk {chunk} has {len(signs)} signs and fields of other "
                "lengths.",
            )
        if "crc32c" in header:
            for key, array in arrays.items():
                _compare(name, key, array, header["crc32c"].get(key))
        num_rows += len(signs)
    if num_rows != header["rows"]:
        raise _damaged(
            name, f"{num_rows} found, but the header says {header['rows']}."
        )
    _check_counters(name, store, header)
    try:
        table_rows.check_state(header["state"])
    except ValueError as error:
        raise _damaged(
            name,
            "the member 'state' of 'header' must be that of a table's "
            f"optimizer, but {error}",
        ) from None


def _check_counters(
    name: str, store: Store, header: dict[str, typing.Any]
) -> None:
    if "counters" not in header:
        return
    counters = header["counters"]
    check = row_counters.Check(
        name, counting_of(header["config"]), counters.get("period")
    )
    for chunk in range(counters["chunks"]):
        arrays = []
        for part in ("signs", "counts"):
            key = f"counters_{chunk:06d}_{part}"
            if key not in store.keys():
                raise _damaged(name, f"{key!r} is missing.")
            arrays.append(np.asarray(store[key]))
            _compare(name, key, arrays[-1], header["crc32c"].get(key))
        check.add(*arrays)


def _format_of(table_rows: TableRows) -> int:
    small = any(field.dtype.size == 2 for field in table_rows.fields)
    return _SMALL_ROWS_FORMAT if small else _FORMAT


def _stored(dtype: npt.DTypeLike) -> np.dtype[typing.Any]:
    """The dtype in which a store holds values of a dtype."""
    dtype = np.dtype(dtype)
    return np.dtype(np.uint16) if dtype == _BFLOAT16 else dtype


def _compare(
    name: str, key: str, array: npt.NDArray[typing.Any], saved: object
) -> None:
    found = _checksum(array)
    if saved != found:
        raise _damaged(
            name,
            f"{key!r} has the CRC32C {found}, but was saved with {saved}.",
        )


def _checksum(array: npt.NDArray[typing.Any]) -> int:
    return _core.crc32c(np.asarray(array).tobytes())


def _damaged(name: str, what: str) -> ValueError:
    return ValueError(f"The rows of table {name!r} are damaged: {what}")


def _array_of(text: str) -> npt.NDArray[np.uint8]:
    """A string as a uint8 array, which HDF5 stores can hold."""
    return np.frombuffer(text.encode(), np.uint8)


def _text_of(array: npt.NDArray[typing.Any]) -> str:
    """The string of `_array_of`."""
    return np.asarray(array, np.uint8).tobytes().decode()
