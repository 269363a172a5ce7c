# SPDX-License-Identifier: Apache-2.0
"""Loads snapshots into a table, or applies them in place.

docs/snapshots.md describes the format. Each shard reads the files that it
needs, with an op on its own device.
"""

import contextlib
import dataclasses
import logging
import os
import typing
from collections.abc import Mapping

import tensorflow as tf

from tf_ext import _core
from tf_ext.ops.snapshot import update_ops
from tf_ext.snapshot import compatibility
from tf_ext.snapshot import manifest as manifests
from tf_ext.snapshot.changes import deltas_since
from tf_ext.snapshot.files import (
    Chain,
    read_again_if_replaced,
    read_base,
    read_chain,
    read_manifest,
)
from tf_ext.snapshot.manifest import Conversion, DamagedSnapshotError, Manifest
from tf_ext.snapshot.storage import normalised
from tf_ext.tables import row_counters
from tf_ext.tables.rows import TableRows
from tf_ext.tables.saving import snapshot_files
from tf_ext.tables.saving.snapshot_files import own_words

_LOG = logging.getLogger("tf_ext")


@dataclasses.dataclass(frozen=True)
class Options:
    """How a snapshot is loaded.

    Attributes:
      weights_only: bool, whether slots are reinitialized.
      in_place: bool, whether existing rows are overwritten in place.
      convert: bool, whether weights and slots of other types are converted.
      with_state: bool, whether the saved state must be one that the table can
        restore.
      with_counters: bool, whether counters are replaced, too.
    """

    weights_only: bool = False
    in_place: bool = False
    convert: bool = False
    with_state: bool = True
    with_counters: bool = True


def load(
    table_rows: TableRows,
    path: str | os.PathLike[str],
    options: Options,
    incremental: bool = False,
) -> Manifest:
    """Replaces rows with those of a snapshot; see `SparseTable.load`.

    Args:
      table_rows: TableRows.
      path: path-like, the directory.
      options: Options.
      incremental: bool, whether deltas may continue the snapshot.

    Returns:
      The snapshot's Manifest; with `convert`, it has a `conversion`.
    """
    if options.convert and incremental:
        raise ValueError(
            "Arguments `convert` and `incremental` cannot both be True: deltas "
            "of this table would have rows of other types than the snapshot "
            "that they continue. Start a new chain: pass `incremental=True` to "
            "the next save."
        )
    if options.weights_only and incremental:
        raise ValueError(
            "Arguments `weights_only` and `incremental` cannot both be True: "
            "reinitialized slots are not those of the snapshot that deltas "
            "would continue. Start a new chain: pass `incremental=True` to the "
            "next save."
        )
    path = normalised(path)
    what = f"Loading table {table_rows.name!r} from {path!r}"

    def restore(chain: Chain) -> tuple[Chain, Conversion | None]:
        update = Update(
            table_rows, what, chain, options, whole=options.in_place
        )
        update.check()
        if (
            options.in_place
            or int(table_rows.size()) != 0
            or row_counters.bytes_of(table_rows)
        ):
            update.verify()
        if options.in_place:
            update.apply()
        else:
            update.load()
        return chain, update.conversion

    chain, conversion = read_again_if_replaced(
        path, lambda: _common_chain(table_rows, path, what), restore
    )
    if incremental:
        table_rows.chain.begin(table_rows.on_each, chain)
    return _restored(table_rows, what, chain[-1][1], options, conversion)


def apply_delta(
    table_rows: TableRows, path: str | os.PathLike[str], options: Options
) -> Manifest:
    """Applies a delta in place; see `SparseTable.apply_delta`.

    Args:
      table_rows: TableRows.
      path: path-like, the delta's directory.
      options: Options.

    Returns:
      The snapshot's Manifest; with `convert`, it has a `conversion`.
    """
    path = normalised(path)
    what = f"Applying the delta {path!r} to table {table_rows.name!r}"

    def apply(links: Chain) -> tuple[Chain, Conversion | None]:
        update = Update(table_rows, what, links, options)
        update.check()
        update.verify()
        update.apply()
        return links, update.conversion

    links, conversion = read_again_if_replaced(
        path, lambda: _links_to(table_rows, path, what), apply
    )
    manifest = links[-1][1] if links else read_manifest(path)
    return _restored(table_rows, what, manifest, options, conversion)


def _restored(
    table_rows: TableRows,
    what: str,
    manifest: Manifest,
    options: Options,
    conversion: Conversion | None,
) -> Manifest:
    """Restores the state of a manifest, whose rows have been loaded.

    Returns:
      The manifest; with the Conversion of all processes, which is logged.
    """
    if conversion is not None:
        parts = table_rows.regime.processes.gather_json(
            list(dataclasses.astuple(conversion))
        )
        total = Conversion(*map(sum, zip(*parts)))
        _LOG.log(
            logging.WARNING if total.saturated else logging.INFO,
            "%s: of %d values that were of another type, %d were rounded, of "
            "which %d were limited to the largest finite value.",
            what,
            total.values,
            total.rounded,
            total.saturated,
        )
        manifest = dataclasses.replace(manifest, conversion=total)
    state = dict(manifest.state)
    if options.weights_only:
        state.pop("optimizer", None)
        compatibility.warn_of_lost_weights(table_rows.name, table_rows.names)
    table_rows.restore_state(state)
    return manifest


def update_to(table_rows: TableRows, path: str) -> "Update":
    """The update of a table to a snapshot, by deltas if possible.

    Args:
      table_rows: TableRows.
      path: string, the snapshot's directory, as returned by
        `storage.normalised`.

    Returns:
      Update; whole if the table holds no snapshot of the chain, or of the one
      before.

    Raises:
      FileNotFoundError, DamagedSnapshotError: if the chain cannot be read.
    """
    what = f"Bringing table {table_rows.name!r} to {path!r}"
    chain = _common_chain(table_rows, path, what)
    deltas = deltas_since(chain, held_by(table_rows))
    return Update(
        table_rows,
        what,
        chain if deltas is None else deltas,
        Options(with_state=False, with_counters=False),
        whole=deltas is None,
    )


def _links_to(table_rows: TableRows, path: str, what: str) -> Chain:
    """The deltas from the snapshot that a table holds to another one.

    Args:
      table_rows: TableRows.
      path: string, the snapshot's directory, as returned by
        `storage.normalised`.
      what: string, the operation, for messages.

    Returns:
      List of `(path, Manifest)`, the same in all processes; empty if the table
      holds that snapshot.

    Raises:
      FileNotFoundError: if there is no snapshot in `path`.
      ValueError: if the table holds no snapshot of the chain, or a delta is
        missing.
    """
    with table_rows.together(what):
        links = _read_links(table_rows, path)
    return _of_first(table_rows, links)


def _read_links(table_rows: TableRows, path: str) -> Chain:
    held = held_by(table_rows)
    links = [(path, read_manifest(path))]
    if not held:
        raise ValueError(
            f"Table {table_rows.name!r} cannot take the delta {path!r}: it "
            "does not hold the rows of a snapshot. It has loaded none, or rows "
            "have changed since, by training, import_rows, erase or clear, or "
            "slots were left out by weights_only=True. Load a snapshot of the "
            "chain first."
        )
    if links[0][1].id == held:
        return []
    while True:
        where, first = links[0]
        if first.base is None:
            raise ValueError(
                f"Table {table_rows.name!r} cannot take {path!r}: the table "
                f"holds the rows of snapshot {held}, and {path!r} "
                + (
                    "is not a delta. Use load, with in_place=True while others "
                    "read."
                    if len(links) == 1
                    else "is of a chain that it is not part of. Load that "
                    "chain first."
                )
            )
        if first.base[1] == held:
            return links
        try:
            links.insert(0, read_base(where, first))
        except FileNotFoundError as error:
            raise ValueError(
                f"Table {table_rows.name!r} cannot take the delta {path!r}: "
                f"the table holds the rows of snapshot {held}, and a delta in "
                f"between is missing. {error}"
            ) from None


def held_by(table_rows: TableRows) -> str:
    """The id of the snapshot that all shards of this process hold, or ""."""
    tensors = table_rows.on_each(
        lambda _, shard: shard.run(update_ops.sparse_table_held)
    )
    held = {tensor.numpy().decode() for tensor in tensors}
    return held.pop() if len(held) == 1 else ""


class Update:
    """Updates the rows of a table to those of a snapshot.

    Args:
      table_rows: TableRows.
      what: string, the operation, for messages.
      chain: list of `(path, Manifest)`, to be applied in this order. Empty if
        there is nothing to do.
      options: Options.
      whole: bool, whether `apply` replaces all existing rows; if not, the
        chain continues the snapshot that the table holds.

    Attributes:
      conversion: Conversion, what `load` or `apply` has changed in this
        process's shards; None without `convert`.
    """

    def __init__(
        self,
        table_rows: TableRows,
        what: str,
        chain: Chain,
        options: Options,
        whole: bool = False,
    ) -> None:
        self._table_rows = table_rows
        self._what = what
        self._chain = chain
        self._options = options
        self.whole = whole
        self.conversion = Conversion(0, 0, 0) if options.convert else None
        # The fields that are read.
        self._names = {
            field.name
            for field in table_rows.fields
            if field.name in ("weights", _core.SHRUNK_FIELD)
            or not options.weights_only
        }

    def check(self) -> None:
        """Raises unless the snapshots fit the table's configuration."""
        with self._table_rows.together(self._what):
            for where, manifest in self._chain:
                self._table_rows.check_config(
                    manifest.config,
                    self._options.weights_only,
                    self._options.convert,
                )
                if not self._options.weights_only:
                    compatibility.check_fields(
                        where,
                        manifest,
                        compatibility.fields_of_dtypes(
                            self._table_rows.stored_fields, manifest.config
                        ),
                        and_others=self._table_rows.table_config.weights_only,
                    )
            if self._options.with_state and self._chain:
                compatibility.check_state(
                    *self._chain[-1], self._table_rows.check_state
                )

    def verify(self) -> None:
        """Reads all files; raises DamagedSnapshotError if one is damaged."""
        with self._table_rows.together(self._what):
            self._restore(self._chain, "verify")
            self._restore_counters(load=False)

    def load(self) -> None:
        """Clears the table and loads the rows; after an error it is empty."""
        self._table_rows.chain.end(self._table_rows.on_each)
        try:
            self._table_rows.clear()
            numbers = self._begin("", False)
            with self._table_rows.together(self._what):
                self._restore(self._chain, "load")
                self._restore_counters()
            self._table_rows.restore_clocks(self._chain[-1][1].state)
            self._end(numbers, self._id_now)
        except BaseException:
            self._table_rows.clear()
            raise

    def apply(self) -> None:
        """Overwrites rows in place, then erases those that no longer exist.

        The chain must have been verified.

        Raises:
          RuntimeError: if something else changed rows meanwhile, or a file was
            damaged after it was verified.
        """
        if not self._chain:
            return
        if self.whole:
            self._table_rows.chain.end(self._table_rows.on_each)
        # If not whole, the chain begins with a delta.
        first = typing.cast(tuple[str, str], self._chain[0][1].base)
        base = "" if self.whole else first[1]
        before: Mapping[str, str] = {}
        with self._table_rows.together(self._what):
            try:
                numbers = self._begin(base, self.whole)
            except tf.errors.FailedPreconditionError as error:
                raise RuntimeError(
                    f"{self._what}: rows were changed by something else at the "
                    f"same time. Nothing was applied: {own_words(error)}"
                ) from None
        try:
            with self._table_rows.together(self._what):
                erasing = [link for link in self._chain if link[1].erased]
                if erasing:
                    begin = self._chain.index(erasing[0])
                    self._restore(self._chain[begin:], "gather")
            with self._table_rows.together(self._what):
                if self._options.weights_only:
                    # As new rows, the ones that are made begin there.
                    before = self._table_rows.saved_state()
                    self._table_rows.reset_absent_state()
                self._restore(self._chain, "update")
                self._table_rows.restore_clocks(self._chain[-1][1].state)
        except BaseException as error:
            self._table_rows.restore_clocks(before)
            with contextlib.suppress(tf.errors.OpError):
                self._end(numbers, "", completed=False)
            if isinstance(error, DamagedSnapshotError):
                raise self._went_bad("rows", error) from None
            raise
        with self._table_rows.together(self._what):
            held = self._end(numbers, self._id_now)
            if self._id_now and not all(held):
                raise RuntimeError(
                    f"{self._what}: rows were changed by something else at the "
                    "same time. All of it has been applied, but the table does "
                    "not hold the rows of a snapshot, and cannot take deltas. "
                    "Load a snapshot, with in_place=True while others read."
                )
        try:
            with self._table_rows.together(self._what):
                # Signs of rows that were erased can have counters only now.
                self._restore_counters()
        except DamagedSnapshotError as error:
            raise self._went_bad("counters", error) from None

    def _went_bad(self, what: str, error: DamagedSnapshotError) -> RuntimeError:
        return RuntimeError(
            f"{self._what}: a file was damaged after it was checked, and only "
            f"some {what} have been replaced. {error} Load a snapshot, with "
            "in_place=True while others read."
        )

    @property
    def _id_now(self) -> str:
        """Of the snapshot that the table holds; "" if it has new slots.

        Those are slots or statistics that were not read.
        """
        has_new_slots = self._options.weights_only and (
            not self._table_rows.table_config.weights_only
            or len(self._names) < len(self._table_rows.fields)
        )
        return "" if has_new_slots else self._chain[-1][1].id

    def _begin(self, base: str, whole: bool) -> dict[int, tf.Tensor]:
        begin = update_ops.sparse_table_begin_update
        return dict(
            self._table_rows.on_each(
                lambda index, shard: (index, shard.run(begin, base, whole))
            )
        )

    def _end(
        self,
        numbers: Mapping[int, tf.Tensor],
        snapshot_id: str,
        completed: bool = True,
    ) -> list[bool]:
        end = update_ops.sparse_table_end_update
        held = self._table_rows.on_each(
            lambda index, shard: shard.run(
                end, numbers[index], snapshot_id, completed
            )
        )
        return list(map(bool, held))

    def _restore(self, chain: Chain, action: str) -> None:
        conversion = snapshot_files.restore_rows(
            self._table_rows, chain, self._names, action, self._options.convert
        )
        if self._options.convert and action in ("load", "update"):
            self.conversion = conversion

    def _restore_counters(self, load: bool = True) -> None:
        """Replaces the counters by those of the last snapshot, or checks them.

        They are removed if the snapshot has none that the table can take.
        """
        if not (
            self._chain
            and self._options.with_counters
            and self._table_rows.counting
        ):
            return
        snapshot_files.restore_counters(
            self._table_rows, *self._chain[-1], self._options.weights_only, load
        )


def _common_chain(table_rows: TableRows, path: str, what: str) -> Chain:
    """`read_chain(path)`, the same in all processes."""
    with table_rows.together(what):
        chain = read_chain(path)
    return _of_first(table_rows, chain)


def _of_first(table_rows: TableRows, chain: Chain) -> Chain:
    """Broadcasts the first process's chain to all."""
    # While a snapshot is being replaced, processes may read different ones.
    return table_rows.regime.processes.from_first(
        chain,
        lambda chain: [
            (where, manifests.encode(m).decode()) for where, m in chain
        ],
        lambda sent: [
            (where, manifests.decode(text.encode(), where))
            for where, text in sent
        ],
    )
