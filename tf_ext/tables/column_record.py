"""Which columns read a table, here and where its rows were saved."""

import json
import logging

_LOG = logging.getLogger("tf_ext")


class ColumnRecord:
    """Warns of columns that cannot find the rows they had.

    A column of another namespace, for instance, makes other signs of the same
    values: it would begin with untrained rows, and nothing would tell.

    Args:
      label: string, the table's name, for the log.
    """

    def __init__(self, label):
        self._label = label
        # {(name, how it makes signs)}, of columns of layers, and as saved.
        self._here = frozenset()
        self._saved = frozenset()

    def add(self, columns):
        """Adds the columns of a layer."""
        found = {(column.name, column.hashing_identity) for column in columns}
        self._warn(found - self._here)
        self._here |= found

    @property
    def names(self):
        """The names of the columns, in a sorted list."""
        return sorted({name for name, _ in self._here})

    def state(self):
        """What is saved with the rows: a JSON text."""
        return json.dumps(sorted(self._here or self._saved))

    def restore(self, text):
        """Compares with what was saved, a text of `state`."""
        try:
            pairs = json.loads(text)
            self._saved = frozenset(
                (str(name), str(how)) for name, how in pairs
            )
        except (TypeError, ValueError):
            _LOG.warning(
                "Which columns read table %r when it was saved cannot be told: "
                "%.80r",
                self._label,
                text,
            )
            return
        self._warn(self._here)

    def _warn(self, columns):
        known = {how for _, how in self._saved}
        if not known:
            return
        saved = ", ".join(
            f"{n!r} {_short(how)}" for n, how in sorted(self._saved)
        )
        for name, how in sorted(columns):
            if how not in known:
                _LOG.warning(
                    "Column %r of table %r makes other signs than any column "
                    "that the rows were saved with, and begins with untrained "
                    "rows. It has %s; saved were: %s. For the saved rows its "
                    "namespace, bucket_size, hashing and boundaries must be "
                    "those of then.",
                    name,
                    self._label,
                    _short(how),
                    _short(saved, 400),
                )


def _short(text, limit=120):
    return text if len(text) <= limit else text[: limit - 3] + "..."
