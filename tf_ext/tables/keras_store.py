"""Rows inside Keras's own files (`.keras`, `.weights.h5`).

A table is a group of datasets: `header` (JSON: configuration, number of rows
and chunks, state), then for each chunk its signs and fields. Only one chunk is
in memory at a time.
"""

import contextlib
import json
import weakref

import numpy as np

from tf_ext._keras import IS_KERAS_3

_FORMAT = 1

# {store: {id of a table: message}}, of loads that failed.
_failures = weakref.WeakKeyDictionary()

# Keras keeps a `.keras` file in memory until it is complete.
MAX_BYTES = 4 << 30


def save(table_rows, label, state, store):
    """Writes the rows of a table.

    Args:
      table_rows: TableRows.
      label: string, the table's name, for messages.
      state: dict of strings that travel with the rows.
      store: what Keras gives to `save_own_variables`: `store[key] = array`.

    Raises:
      ValueError: more rows than such a file should hold.
    """
    rows = int(table_rows.size())
    if rows * table_rows.bytes_per_row > MAX_BYTES:
        raise ValueError(
            f"Table {label!r} holds {rows:,} rows, "
            f"{rows * table_rows.bytes_per_row / 2**30:.1f} GiB; .keras and "
            f".weights.h5 files take at most {MAX_BYTES >> 30} GiB a table. "
            "Save it with SparseTable.save, tf.train.Checkpoint or the "
            "callback tf_ext.callbacks.TableSnapshot."
        )
    chunk = written = 0
    with contextlib.closing(table_rows.chunks()) as chunks:
        for signs, values in chunks:
            store[f"chunk_{chunk:06d}_signs"] = signs
            for name, value in values.items():
                store[f"chunk_{chunk:06d}_{name}"] = value
            written += len(signs)
            chunk += 1
    header = {
        "format": _FORMAT,
        "config": table_rows.config,
        "rows": written,
        "chunks": chunk,
        "state": state,
    }
    store["header"] = _array_of(json.dumps(header))


def load(table_rows, label, store):
    """Replaces the rows of a table by saved ones.

    Keras 3 comes back to an object that it could not load, under its other
    names in the model, and reports the last error: the first one is repeated.

    Args:
      table_rows: TableRows.
      label: string, the table's name, for messages.
      store: what Keras gives to `load_own_variables`: `store[key]`.

    Returns:
      The state that was saved with the rows, a dict of strings.

    Raises:
      ValueError: a file without this table, of another identity, or damaged;
        the table is unchanged.
    """
    failures = _failures.setdefault(store, {}) if IS_KERAS_3 else {}
    if id(table_rows) in failures:
        raise ValueError(failures[id(table_rows)])
    try:
        return _load(table_rows, label, store)
    except ValueError as error:
        failures[id(table_rows)] = str(error)
        raise


def _load(table_rows, label, store):
    if "header" not in store.keys():
        raise ValueError(
            f"The file holds no rows of table {label!r}; it has "
            f"{sorted(store.keys())}. It was saved from another model."
        )
    header = json.loads(_text_of(store["header"]))
    if header["format"] != _FORMAT:
        raise ValueError(
            f"The rows of table {label!r} are in format {header['format']}; "
            f"this version of tf_ext reads {_FORMAT}."
        )
    _check(table_rows, label, store, header)
    table_rows.clear()
    for chunk in range(header["chunks"]):
        prefix = f"chunk_{chunk:06d}_"
        table_rows.import_rows(
            np.asarray(store[f"{prefix}signs"]),
            {
                field.name: np.asarray(store[f"{prefix}{field.name}"])
                for field in table_rows.fields
            },
        )
    return header["state"]


def _check(table_rows, label, store, header):
    rows = 0
    for chunk in range(header["chunks"]):
        prefix = f"chunk_{chunk:06d}_"
        wanted = {prefix + "signs"} | {
            prefix + f.name for f in table_rows.fields
        }
        missing = sorted(wanted - set(store.keys()))
        values = {
            f.name: store[prefix + f.name]
            for f in table_rows.fields
            if prefix + f.name not in missing
        }
        table_rows.check_rows(label, header["config"], values)
        if missing:
            raise ValueError(
                f"The rows of table {label!r} are damaged: {missing[0]!r} is "
                "missing."
            )
        signs = store[prefix + "signs"]
        if any(v.shape[0] != signs.shape[0] for v in values.values()):
            raise ValueError(
                f"The rows of table {label!r} are damaged: chunk {chunk} has "
                f"{signs.shape[0]} signs and fields of other lengths."
            )
        rows += signs.shape[0]
    if rows != header["rows"]:
        raise ValueError(
            f"The rows of table {label!r} are damaged: {rows} found, "
            f"{header['rows']} announced."
        )


def _array_of(text):
    """A string as the uint8 array that HDF5 stores can hold."""
    return np.frombuffer(text.encode(), np.uint8)


def _text_of(array):
    """The string of `_array_of`."""
    return np.asarray(array, np.uint8).tobytes().decode()
