# SPDX-License-Identifier: Apache-2.0
"""Saves snapshots of a table on TensorFlow's file systems.

docs/snapshots.md describes the format and the order of the writes. Each shard
writes its own files, with an op on its own device.
"""

import contextlib
import dataclasses
import os
import re
import typing
import uuid
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tf_ext._checks import check_max_bytes_per_second, is_int, refuse
from tf_ext._version import __version__
from tf_ext.ops.snapshot import snapshot_ops
from tf_ext.snapshot import manifest as manifests
from tf_ext.snapshot.claims import Claim
from tf_ext.snapshot.files import (
    Chain,
    read_chain,
    read_manifest,
)
from tf_ext.snapshot.manifest import (
    DamagedSnapshotError,
    SnapshotConflictError,
)
from tf_ext.snapshot.storage import join, normalised, storage_of
from tf_ext.tables import row_counters
from tf_ext.tables.each_shard import on_each
from tf_ext.tables.rows import TableRows
from tf_ext.tables.shard import TableShard

# Files that a save writes: leftovers of earlier saves have such names.
_OWN_FILE = re.compile(
    f"{manifests.ROW_FILE}|{manifests.COUNTER_FILE}|"
    + re.escape(manifests.NAME)
    + r"\.part"
)

# The files of a shard, and the bytes of a chunk of rows.
_Saved: typing.TypeAlias = tuple[list[manifests.RowFile], int]
# `(path, id)` of each snapshot of a chain.
_Links: typing.TypeAlias = tuple[tuple[str, str], ...]


class Description(typing.NamedTuple):
    """The members of a manifest that describe the table.

    Attributes:
      table_id: string, the table's unique id.
      label: string, its name.
      state: dict of strings that the table restores.
    """

    table_id: str
    label: str
    state: dict[str, str]


def save(
    rows: TableRows,
    path: str | os.PathLike[str],
    description: Description,
    incremental: bool = False,
    base: str | os.PathLike[str] | None = None,
    step: int | None = None,
    max_bytes_per_second: int | None = None,
) -> manifests.Manifest:
    """Writes a snapshot; see `SparseTable.save`.

    Args:
      rows: TableRows.
      path: path-like, the directory.
      description: Description.
      incremental: bool, whether the snapshot starts a chain.
      base: path-like, the last snapshot of the chain, to write a delta; or
        None.
      step: int or None, for the manifest.
      max_bytes_per_second: int or None.

    Returns:
      The Manifest.
    """
    arguments = (path, description, incremental, base, step)
    if not incremental and base is None:
        return _save(rows, *arguments, max_bytes_per_second)
    with rows.chain_lock:
        settle(rows)
        return _save(rows, *arguments, max_bytes_per_second)


def _save(
    rows: TableRows,
    path: str | os.PathLike[str],
    description: Description,
    incremental: bool,
    base: str | os.PathLike[str] | None,
    step: int | None,
    max_bytes_per_second: int | None,
) -> manifests.Manifest:
    path = normalised(path)
    what = f"Saving table {description.label!r} in {path!r}"
    tracked = incremental or base is not None
    with together(rows, what):
        chain = _check_chain(rows, description.label, path, incremental, base)
        _check_step(step)
        check_max_bytes_per_second("SparseTable.save", max_bytes_per_second)
        if tracked and not chain:
            # Shards may have one that this process was interrupted to note.
            end_chain(rows)
    snapshot_id = rows.regime.from_first(uuid.uuid4().hex)
    period = (
        -1 if rows.counting is None else int(row_counters.current_period(rows))
    )
    # The first worker writes the manifest, so it holds the claim.
    claim = Claim(path, what) if rows.regime.rank == 0 else None
    try:
        if tracked:
            rows.saving = snapshot_id
        with together(rows, what):
            if claim is not None:
                storage_of(path).make_directory(path)
                with claim.taken():
                    _remove_leftovers(path)
        with together(rows, what):
            parts = _save_shards(
                rows,
                path,
                snapshot_id,
                claim,
                base=chain[-1][1] if base is not None else "",
                tracked=tracked,
                max_bytes_per_second=(max_bytes_per_second or 0)
                // rows.num_shards,
                period=period,
            )
        parts = _of_all_processes(rows, parts)
        manifest = _manifest(
            rows,
            path,
            description,
            snapshot_id,
            chain,
            base,
            step,
            period,
            parts,
        )
        with together(rows, what):
            if tracked and rows.saving != snapshot_id:
                raise RuntimeError(
                    f"{what} was aborted: its thread has begun another "
                    "incremental save of the table, in a signal handler."
                )
            if claim is not None:
                with claim.held():
                    snapshot_ops.write_file_atomically(
                        join(path, manifests.NAME), manifests.encode(manifest)
                    )
                    # Checked last, as the snapshot's bases may be replaced
                    # while it is written.
                    _check_bases(description.label, chain)
        if tracked:
            # From here on the save is one of the chain: see `settle`.
            rows.snapshot_chain = (*chain, (path, snapshot_id))
            settle(rows)
    except BaseException:
        if tracked:
            # The first error says more than one of its consequences.
            with contextlib.suppress(tf.errors.OpError):
                settle(rows)
        if claim is not None:
            with contextlib.suppress(OSError):
                _remove_leftovers(path, snapshot_id)
            claim.release()
        raise
    if claim is not None:
        # A writer that has claimed the directory since has removed them.
        with contextlib.suppress(SnapshotConflictError, TimeoutError):
            with claim.held():
                _remove_leftovers(path)
        claim.release()
    return manifest


def settle(rows: TableRows) -> None:
    """Ends the last incremental save, in shards where that has not been done.

    An interrupt may come at any time, also while this function runs, and leave
    shards that wait for the end of a save. So the next use of the chain begins
    with this function. The save counts if the chain has it, which is set by one
    assignment, and otherwise the shards go back to what they had marked before.

    Args:
      rows: TableRows; this thread holds `chain_lock`.
    """
    snapshot_id = rows.saving
    if not snapshot_id:
        return
    committed = (
        bool(rows.snapshot_chain) and rows.snapshot_chain[-1][1] == snapshot_id
    )
    try:
        on_each(rows, lambda _, shard: shard.end_save(snapshot_id, committed))
    except Exception:
        # It is not known what the shards have marked.
        rows.snapshot_chain = ()
        raise
    rows.saving = ""


def _save_shards(
    rows: TableRows,
    path: str,
    snapshot_id: str,
    claim: Claim | None,
    **options: typing.Any,
) -> list[_Saved]:
    """Writes this process's shards; returns the results of `_save_shard`."""
    try:
        return on_each(
            rows,
            lambda index, shard: _save_shard(
                shard, path, snapshot_id, index=index, **options
            ),
        )
    finally:
        if claim is not None:
            # If another writer has removed the files, say so: the op's error
            # only reports missing files.
            claim.check()


def _save_shard(
    shard: TableShard, path: str, snapshot_id: str, **options: typing.Any
) -> _Saved:
    """Writes a shard; returns `(its RowFiles, bytes of a chunk of rows)`."""
    names, numbers, chunk_bytes = shard.save(path, snapshot_id, **options)
    files = [
        manifests.RowFile(
            name.decode(),
            options["index"],
            tag % 2**64,
            count,
            erased,
            size,
            crc,
        )
        for name, (tag, count, erased, size, crc) in zip(
            names.numpy(), numbers.numpy().tolist(), strict=True
        )
    ]
    return files, int(chunk_bytes)


def _of_all_processes(rows: TableRows, parts: Sequence[_Saved]) -> list[_Saved]:
    """Gathers the results of `_save_shard` for all shards."""
    mine = [
        ([dataclasses.astuple(file) for file in files], chunk_bytes)
        for files, chunk_bytes in parts
    ]
    return [
        ([manifests.RowFile(*file) for file in files], chunk_bytes)
        for its_parts in rows.regime.gather_json(mine)
        for files, chunk_bytes in its_parts
    ]


@contextlib.contextmanager
def together(rows: TableRows, what: str) -> Iterator[None]:
    """Runs a block in all processes; all of them raise if one does."""
    try:
        with rows.regime.together(what):
            yield
    except RuntimeError as error:
        if DamagedSnapshotError.__name__ in str(error):
            raise DamagedSnapshotError(str(error)) from None
        raise


def row_fields(rows: TableRows) -> list[tuple[str, str, int]]:
    """The fields of a row as manifests list them: `[(name, dtype, count)]`."""
    return [(f.name, f.dtype.name, f.count) for f in rows.fields]


def end_chain(rows: TableRows) -> None:
    """Ends the chain of incremental snapshots and discards its marks."""
    with rows.chain_lock:
        settle(rows)
        rows.snapshot_chain = ()
        on_each(rows, lambda _, shard: shard.set_chain(""))


def begin_chain(rows: TableRows, chain: Chain) -> None:
    """Lets deltas continue what the table holds.

    Args:
      rows: TableRows, without a chain.
      chain: list of `(path, Manifest)`, the snapshots that it holds.
    """
    with rows.chain_lock:
        settle(rows)
        on_each(rows, lambda _, shard: shard.set_chain(chain[-1][1].id))
        rows.snapshot_chain = tuple((where, m.id) for where, m in chain)


def _check_chain(
    rows: TableRows,
    label: str,
    path: str,
    incremental: bool,
    base: str | os.PathLike[str] | None,
) -> _Links:
    """The chain that a save continues: `((path, id), ...)`, () for none."""
    chain = rows.snapshot_chain
    if path in [where for where, _ in chain]:
        raise ValueError(
            f"Table {label!r} cannot be saved in {path!r}: the snapshot there "
            "is part of its chain of incremental snapshots, which would be "
            "lost. Use another directory for each snapshot."
        )
    if base is not None:
        if not chain or chain[-1][0] != normalised(base):
            last = f"is {chain[-1][0]!r}" if chain else "does not exist"
            raise ValueError(
                f"Argument `base` must be the last snapshot of the chain of "
                f"table {label!r}, which {last}; a chain begins with "
                f"`incremental=True`. Received: base={os.fspath(base)!r}"
            )
        _check_bases(label, chain)
        return chain
    if incremental and chain:
        raise ValueError(
            f"Table {label!r} has a chain of incremental snapshots, of which "
            f"{chain[-1][0]!r} is the last, and cannot have a second. "
            f"Continue it with `base={chain[-1][0]!r}`, or call "
            "`end_incremental()` first. Received: incremental=True"
        )
    return ()


def _check_bases(label: str, chain: _Links) -> None:
    """Raises unless all snapshots of a table's chain still exist."""
    if not chain:
        return
    path, snapshot_id = chain[-1]
    try:
        if read_manifest(path).id == snapshot_id:
            read_chain(path)
            return
        reason = f"the snapshot in {path!r}, its last, has been replaced."
    except (FileNotFoundError, DamagedSnapshotError) as error:
        reason = str(error)
    raise ValueError(
        f"The chain of table {label!r} cannot be continued: {reason} Begin a "
        "new chain: `end_incremental()`, then save with `incremental=True`."
    )


def _check_step(step: int | None) -> None:
    if step is not None and not (is_int(step) and 0 <= step < 2**63):
        allowed = "an integer from 0 to 2^63 - 1, or None"
        refuse("SparseTable.save", "step", allowed, step)


def _manifest(
    rows: TableRows,
    path: str,
    description: Description,
    snapshot_id: str,
    chain: _Links,
    base: str | os.PathLike[str] | None,
    step: int | None,
    period: int,
    parts: Sequence[_Saved],
) -> manifests.Manifest:
    files = [file for some, _ in parts for file in some]
    counters = [
        f for f in files if re.fullmatch(manifests.COUNTER_FILE, f.name)
    ]
    fields, row_bytes = manifests.row_fields(row_fields(rows))
    return manifests.Manifest(
        id=snapshot_id,
        base=None
        if base is None
        else (_relative_path(path, chain[-1][0]), chain[-1][1]),
        sequence=len(chain),
        step=None if step is None else int(step),
        tf_ext_version=__version__,
        tensorflow_version=tf.__version__,
        table_id=description.table_id,
        label=description.label,
        config=rows.config,
        state=dict(description.state),
        row_bytes=row_bytes,
        fields=fields,
        chunk_bytes=parts[0][1],
        shards=rows.num_shards,
        files=tuple(file for file in files if file not in counters),
        counters=None
        if period < 0
        else manifests.Counters(period, tuple(counters)),
    )


def _remove_leftovers(path: str, snapshot_id: str = "") -> None:
    """Removes files of saves that the manifest in the directory does not name.

    Args:
      path: string, the directory.
      snapshot_id: string, the snapshot whose files are removed; "" for the
        leftovers of all saves.
    """
    try:
        manifest = read_manifest(path)
    except FileNotFoundError:
        kept = set()
    except ValueError:
        return  # It is unknown which files the manifest names.
    else:
        kept = {file.name for file in manifest.all_files}
    storage = storage_of(path)
    for name in storage.names(path):
        if (
            _OWN_FILE.fullmatch(name)
            and name not in kept
            and (not snapshot_id or f"-{snapshot_id[:16]}-" in name)
        ):
            # A failing save may be removing its own files.
            with contextlib.suppress(FileNotFoundError):
                storage.remove(join(path, name))


def _relative_path(path: str, base: str) -> str:
    """The path of a base in a delta, so that both can be moved together."""
    if "://" in path or "://" in base:
        return base
    return os.path.relpath(base, path)
