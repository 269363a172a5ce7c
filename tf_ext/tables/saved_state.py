# SPDX-License-Identifier: Apache-2.0
"""What is saved with the rows of a table: its rule's state, and its columns."""

import json
import logging
from collections.abc import Iterable, Mapping

from tf_ext.feature_column.column import Column
from tf_ext.tables.config import TableConfig

_LOG = logging.getLogger("tf_ext")


class SavedState:
    """The strings that are saved with the rows of a table.

    Args:
      config: TableConfig; the state of its optimizer is saved. Rows that only
        serve have none to restore.
      columns: ColumnRecord.
    """

    def __init__(self, config: TableConfig, columns: "ColumnRecord") -> None:
        self._config = config
        self._columns = columns

    def strings(self) -> dict[str, str]:
        """What to save: a dict of strings."""
        return {
            "optimizer": self._config.optimizer.state(),
            "columns": self._columns.state(),
        }

    def check(self, saved: Mapping[str, str]) -> None:
        """Raises ValueError if saved strings cannot be restored."""
        if "optimizer" in saved and not self._config.weights_only:
            self._config.optimizer.read_state(saved["optimizer"])

    def restore(self, saved: Mapping[str, str]) -> None:
        """Restores strings, of which there may be fewer than `strings`."""
        if "optimizer" in saved and not self._config.weights_only:
            self._config.optimizer.resume(saved["optimizer"], self._config.name)
        if "columns" in saved:
            self._columns.restore(saved["columns"])


class ColumnRecord:
    """Warns about columns that will not find their saved rows.

    A column with another namespace, for instance, maps the same values to
    different signs: it would silently start with untrained rows.

    Args:
      name: string, the table's name, for the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # {(name, hashing identity)}: of the layers' columns, and as saved.
        self._here: frozenset[tuple[str, str]] = frozenset()
        self._saved: frozenset[tuple[str, str]] = frozenset()

    def add(self, columns: Iterable[Column]) -> None:
        """Adds the columns of a layer."""
        found = {(column.name, column.hashing_identity) for column in columns}
        self._warn(found - self._here)
        self._here |= found

    @property
    def names(self) -> list[str]:
        """The names of the columns, a sorted list."""
        return sorted({name for name, _ in self._here})

    def state(self) -> str:
        """The record to save with the rows, as JSON text."""
        return json.dumps(sorted(self._here or self._saved))

    def restore(self, text: str) -> None:
        """Compares the columns with a saved record, a result of `state`."""
        try:
            pairs = json.loads(text)
            self._saved = frozenset(
                (str(name), str(how)) for name, how in pairs
            )
        except (RecursionError, TypeError, ValueError):
            _LOG.warning(
                "The record of the columns that read table %r when it was "
                "saved is invalid: %.80r",
                self._name,
                text,
            )
            return
        self._warn(self._here)

    def _warn(self, columns: Iterable[tuple[str, str]]) -> None:
        known = {how for _, how in self._saved}
        if not known:
            return
        saved = ", ".join(
            f"{n!r} {_short(how)}" for n, how in sorted(self._saved)
        )
        for name, how in sorted(columns):
            if how not in known:
                _LOG.warning(
                    "Column %r of table %r hashes values to other signs than "
                    "any column of the saved table and starts with untrained "
                    "rows. It has %s; the saved columns were: %s. To use the "
                    "saved rows, its namespace, bucket_size, hashing and "
                    "boundaries must be the saved ones.",
                    name,
                    self._name,
                    _short(how),
                    _short(saved, 400),
                )


def _short(text: str, limit: int = 120) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
