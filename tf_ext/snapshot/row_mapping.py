# SPDX-License-Identifier: Apache-2.0
"""Makes rows of a table of rows of another one, of another shape or rule."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tf_ext import _core
from tf_ext.snapshot import adam_steps, row_values
from tf_ext.snapshot.clocks import (
    ABSENT_STATE,
    CLOCK_FIELDS,
    NO_CLOCKS,
    SHRINKAGE_CLOCK,
    Clocks,
    caught_up,
    decoded,
)
from tf_ext.snapshot.compatibility import check_fields
from tf_ext.snapshot.counting import entries_of
from tf_ext.snapshot.manifest import (
    NAME,
    Conversion,
    DamagedSnapshotError,
    Manifest,
    RowField,
    row_fields,
)
from tf_ext.snapshot.reader import not_caught_up, signs_of
from tf_ext.snapshot.row_values import Rows

# Rows of a large dim are made in parts of this size.
_BYTES_AT_ONCE = 8 << 20
_STATISTICS = ("show", "click")
# The field with the number of a row's updates.
_STEP = "step"
# A dim by which a slot of one value in a row is told from one in a position.
_ANY_DIM = 2


class RowMapping:
    """Rows that were saved become rows of another table.

    Fields that both have keep their first values; all other values are those
    that the other table gives to new rows. The slots of a rule are taken only
    if the saved rows have all of them.

    Args:
      path: string, the snapshot's directory, for messages.
      manifest: the Manifest of the saved rows, the last of a chain.
      config: string, the configuration of the other table.
      projection: float64 `[dim, other dim]` by which weights are multiplied, or
        None. No slots are taken then.
      shrinkage: int, up to when rows of the other table are shrunk, if it
        shrinks them.

    Attributes:
      absent_state: bytes, the state of absent rows that belongs to the rows of
        the other table; b"" if it does not move them.
      config: string, in the core's form.
      fields: tuple of RowField, those of the other table's rows.
      row_bytes: int, the size of these.
      new: list of strings, the fields of them that are as in new rows.
      counted: int64 `[3]`, the counts of `conversion`.

    Raises:
      DamagedSnapshotError: the saved rows are not those of a table of their
        configuration.
      ValueError: `config` is none of a table.
    """

    def __init__(
        self,
        path: str,
        manifest: Manifest,
        config: str,
        projection: npt.NDArray[np.float64] | None = None,
        shrinkage: int = 0,
    ) -> None:
        self._saved = SavedRows(path, manifest)
        self.config, fields = _core.table_layout(config)
        self.fields, self.row_bytes = row_fields(fields)
        self._projection = projection
        self.counted = np.zeros([3], np.int64)
        taken = self._taken(manifest, entries_of(self.config))
        self.absent_state = self._absent_state(manifest, "m" in taken)
        steps = max(0, _core.absent_steps(self.absent_state))
        self._clocks = Clocks(shrinkage, steps)
        self._betas = adam_steps.saved_betas(self._saved.config, manifest.state)
        self._step = next((f for f in manifest.fields if f.name == _STEP), None)
        self.new = [
            field.name
            for field in self.fields[1:]
            if field.name not in taken and field.name not in CLOCK_FIELDS
        ]
        # `(field, saved field)`: those that are copied as they are, and others.
        self._same: list[tuple[RowField, RowField]] = []
        self._others: list[tuple[RowField, RowField]] = []
        for field in self.fields[1:]:
            saved = taken.get(field.name)
            if saved is None:
                continue
            if field.name == "weights" and projection is not None:
                continue
            same = saved.dtype == field.dtype
            (self._same if same else self._others).append((field, saved))
        self._is_same = (
            self.config == self._saved.config
            and projection is None
            and not self._saved.has_clocks
        )

    def _taken(
        self, manifest: Manifest, theirs: Mapping[str, str]
    ) -> dict[str, RowField]:
        """The fields whose saved values are taken, by name."""
        mine = entries_of(self._saved.config)
        saved = {field.name: field for field in manifest.fields}
        names = ["weights"]
        slots = _slots(theirs)
        if self._projection is None and slots <= _slots(mine):
            names += [name for name, _, _ in slots]
        if mine.get("last_seen") == theirs.get("last_seen"):
            names.append("last_seen")
        names += _STATISTICS
        return {name: saved[name] for name in names if name in saved}

    def _absent_state(self, manifest: Manifest, has_moments: bool) -> bytes:
        """Where the history of the other table's absent rows begins."""
        begun = _core.new_absent_state(self.config)
        if not begun:
            return begun
        mine, theirs = map(entries_of, (self._saved.config, self.config))
        if rule_entries(mine) == rule_entries(theirs):
            return decoded(manifest.state[ABSENT_STATE])
        # Rows are as of now, where the history of another rule begins.
        if not has_moments:
            return begun
        if self._saved.moves:
            steps = self._saved.clocks.steps
        else:
            # Rows have steps of their own, or the model's, which are not known.
            steps = adam_steps.LATE
        return _core.new_absent_state(self.config, steps)

    @property
    def conversion(self) -> Conversion:
        """What has been rounded to narrower types so far."""
        return Conversion(*self.counted.tolist())

    def __call__(self, parts: Iterable[Rows]) -> Iterator[Rows]:
        """The rows of the other table.

        Args:
          parts: uint8 `[n, row_bytes]` as SavedRows returns them.

        Yields:
          uint8 `[n, row_bytes]`, in the same order, of bounded size.
        """
        for rows in parts:
            if self._is_same:
                yield rows
                continue
            at_once = max(1, _BYTES_AT_ONCE // self.row_bytes)
            for begin in range(0, len(rows), at_once):
                yield self._made(rows[begin : begin + at_once])

    def _made(self, rows: Rows) -> Rows:
        weights, dim = self.fields[1], self._saved.weights.count
        first = min(dim, weights.count)
        if self._projection is not None:
            first = weights.count
        made = _core.new_rows(self.config, signs_of(rows), first)
        factors = self._factors(rows)
        for field, saved in self._same:
            if field.name in factors:
                values = row_values.get(rows, saved)[:, : field.count]
                row_values.put(made, field, values * factors[field.name])
            else:
                row_values.copy(made, field, rows, saved)
        for field, saved in self._others:
            values = row_values.get(rows, saved)[:, : field.count]
            values = values * factors.get(field.name, 1)
            changed = row_values.put(made, field, values)
            self.counted += (values.size, *changed)
        if self._projection is not None:
            values = row_values.get(rows, self._saved.weights)
            exact = values.astype(np.float64) @ self._projection
            row_values.put(made, weights, exact)
        self._saved.put_clocks(made, self.fields, rows, self._clocks)
        return made

    def _factors(self, rows: Rows) -> dict[str, npt.NDArray[np.float64]]:
        """What makes moments those of the step that the other table has."""
        before: npt.ArrayLike
        if not self._clocks.steps:
            return {}
        if self._saved.moves:
            before = self._saved.clocks.steps
        elif self._step is not None:
            before = row_values.get(rows, self._step)
        else:
            return {}
        found = adam_steps.factors(
            self.config, self._clocks.steps, before, self._betas
        )
        return {name: one for name, one in found.items() if np.any(one != 1)}


class SavedRows:
    """What rows of a snapshot are, and how they become whole.

    Args:
      path: string, the snapshot's directory, for messages.
      manifest: its Manifest, the last of a chain.

    Attributes:
      config: string, the configuration of the saved table in the core's form.
      fields: tuple of RowField, those of its rows.
      weights: RowField.
      clocks: Clocks, up to when its rows are changed when they are read.
      has_clocks: bool, whether they are.
      moves: bool, whether they move while they are absent.

    Raises:
      DamagedSnapshotError: rows are not those of a table of its configuration.
    """

    def __init__(self, path: str, manifest: Manifest) -> None:
        self._path = path
        self._manifest = manifest
        try:
            self.config, fields = _core.table_layout(manifest.config)
        except ValueError as error:
            raise DamagedSnapshotError(
                f"{path}/{NAME} is damaged: its member table.config: {error}"
            ) from None
        check_fields(path, manifest, fields)
        self.fields = manifest.fields
        by_name = {field.name: field for field in self.fields}
        self.weights = by_name["weights"]
        self._shrunk = by_name.get(_core.SHRUNK_FIELD)
        self.moves = _core.CAUGHT_UP_FIELD in by_name
        self.has_clocks = self._shrunk is not None or self.moves
        self.clocks = self._read_clocks() if self.has_clocks else NO_CLOCKS

    def _read_clocks(self) -> Clocks:
        state = self._manifest.state
        try:
            self(np.zeros([0, self._manifest.row_bytes], np.uint8))
            return Clocks(
                int(state[SHRINKAGE_CLOCK]) if self._shrunk else 0,
                _core.absent_steps(decoded(state[ABSENT_STATE]))
                if self.moves
                else 0,
            )
        except (KeyError, ValueError, TypeError) as error:
            raise not_caught_up(self._path, error) from None

    def __call__(self, rows: Rows) -> Rows:
        """Rows with the values that they had when they were saved."""
        if not self.has_clocks:
            return rows
        manifest = self._manifest
        return caught_up(manifest.config, rows, manifest.state)

    def put_clocks(
        self,
        made: Rows,
        fields: Sequence[RowField],
        rows: Rows,
        clocks: Clocks,
    ) -> None:
        """Sets up to when rows have been changed, of those that say so.

        Rows that were never pushed have not been shrunk.

        Args:
          made: uint8 `[n, row_bytes]`, rows of `fields`, which are set.
          fields: list of RowField.
          rows: uint8 `[n, row_bytes]`, the same rows as of this table.
          clocks: Clocks.
        """
        for field in fields:
            if field.name == _core.SHRUNK_FIELD:
                upto = np.full(len(rows), clocks.shrinkage, "<i8")
                if self._shrunk is not None:
                    before = row_values.get(rows, self._shrunk).view("<i8")
                    upto = np.where(before[:, 0] < 0, before[:, 0], upto)
                bits = upto[:, np.newaxis].view("<i4")
                row_values.put(made, field, bits)
            elif field.name == _core.CAUGHT_UP_FIELD:
                steps = np.full([len(rows), 1], clocks.steps, "<i4")
                row_values.put(made, field, steps)


def rule_entries(entries: Mapping[str, str]) -> dict[str, str]:
    """Those entries of a configuration that say the update rule."""
    return {
        key: value
        for key, value in entries.items()
        if key.partition(".")[0] == "optimizer"
    }


def _slots(entries: Mapping[str, str]) -> set[tuple[str, str, int]]:
    """The slots of a configuration's rule, as those of one dim."""
    rule = rule_entries(entries)
    lines = (f"{key}={value}\n" for key, value in rule.items())
    return set(_core.update_rule_slots("".join(lines), _ANY_DIM))
