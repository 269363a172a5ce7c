"""Snapshots of a table: written and read on TensorFlow's file systems.

docs/snapshots.md has the format and the order in which things are written.
Each shard writes and reads its own files, by an op on its own device.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import posixpath
import re
import uuid

import numpy as np
import tensorflow as tf

from tf_ext import _snapshot_manifest as manifests
from tf_ext import ops
from tf_ext._checks import check_max_bytes_per_second, is_int
from tf_ext._snapshot_manifest import (
    DamagedSnapshotError,
    SnapshotConflictError,
)
from tf_ext._version import __version__
from tf_ext.snapshot.claims import Claim
from tf_ext.snapshot.files import (
    read_again_if_replaced,
    read_chain,
    read_manifest,
)
from tf_ext.snapshot.storage import join, normalised, storage_of

# What a save may have left behind, or replaces.
_OWN_FILE = re.compile(
    manifests.ROW_FILE + "|" + re.escape(manifests.NAME) + r"\.part"
)

Description = collections.namedtuple(
    "Description", ["table_id", "label", "state"]
)
Description.__doc__ = """What a manifest says of a table besides its rows.

table_id: string, tells it from all others; label: string, its name; state:
dict of strings, what its optimizer wants back.
"""


def save(
    rows,
    path,
    description,
    incremental=False,
    base=None,
    step=None,
    max_bytes_per_second=None,
):
    """Writes a snapshot of rows; see `SparseTable.save`.

    Args:
      rows: TableRows.
      path: path-like, the directory.
      description: Description.
      incremental: bool, whether it begins a chain.
      base: path-like or None, the last snapshot of the chain, to write a delta.
      step: int or None, for the manifest.
      max_bytes_per_second: int or None.

    Returns:
      The Manifest.
    """
    path = normalised(path)
    what = f"Saving table {description.label!r} in {path!r}"
    with _together(rows, what):
        chain = _check_chain(rows, description.label, path, incremental, base)
        _check_step(step)
        check_max_bytes_per_second(max_bytes_per_second)
    snapshot_id = _common_id(rows)
    tracked = incremental or base is not None
    # The first worker writes what is written once.
    claim = Claim(path, what) if rows.first_shard == 0 else None
    committed = False
    saved = []
    try:
        with _together(rows, what):
            if claim is not None:
                storage_of(path).make_directory(path)
                with claim.taken():
                    _remove_leftovers(path)
        with _together(rows, what):
            parts = _save_shards(
                rows,
                path,
                snapshot_id,
                claim,
                saved,
                base=chain[-1][1] if base is not None else "",
                tracked=tracked,
                max_bytes_per_second=(max_bytes_per_second or 0)
                // rows.num_shards,
            )
        parts = _of_all_workers(rows, parts)
        manifest = _manifest(
            rows, path, description, snapshot_id, chain, base, step, parts
        )
        with _together(rows, what):
            if claim is not None:
                with claim.held():
                    ops.write_file_atomically(
                        join(path, manifests.NAME), manifests.encode(manifest)
                    )
                    # Last: what this snapshot continues may be replaced while
                    # it is written.
                    _check_bases(description.label, chain)
        committed = True
    finally:
        if tracked:
            for shard in saved:
                shard.end_save(snapshot_id, committed)
        if claim is not None and not committed:
            with contextlib.suppress(OSError):
                _remove_leftovers(path, snapshot_id)
            claim.release()
    if tracked:
        rows.snapshot_chain = (*chain, (path, snapshot_id))
    if claim is not None:
        # A writer that has taken the directory since has removed them.
        with contextlib.suppress(SnapshotConflictError, TimeoutError):
            with claim.held():
                _remove_leftovers(path)
        claim.release()
    return manifest


def _save_shards(rows, path, snapshot_id, claim, saved, **options):
    """Writes the shards in reach: what `_save_shard` returned for each.

    Those that succeeded are put into `saved`.
    """
    try:
        return _on_each(
            rows,
            lambda index, shard: _save_shard(
                shard, path, snapshot_id, index=index, **options
            ),
            done=saved,
        )
    finally:
        if claim is not None:
            # Or an error would only tell of files that are gone.
            claim.check()


def _save_shard(shard, path, snapshot_id, **options):
    """Writes a shard: `(its RowFiles, bytes of a chunk)`."""
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


def _common_id(rows):
    """A new id of a snapshot, the same on all workers."""
    mine = uuid.uuid4().hex
    if rows.collectives is None:
        return mine
    return rows.collectives.gather_bytes(mine.encode())[0].decode()


def _of_all_workers(rows, parts):
    """What `_save_shard` returned for all shards."""
    if rows.collectives is None:
        return parts
    files, chunk_bytes = parts[0]
    gathered = rows.collectives.gather_bytes(
        json.dumps([dataclasses.astuple(file) for file in files]).encode()
    )
    return [
        ([manifests.RowFile(*file) for file in json.loads(part)], chunk_bytes)
        for part in gathered
    ]


@contextlib.contextmanager
def _together(rows, what):
    """Makes all workers raise if one does."""
    if rows.collectives is None:
        yield
        return
    try:
        with rows.collectives.together(what):
            yield
    except RuntimeError as error:
        if DamagedSnapshotError.__name__ in str(error):
            raise DamagedSnapshotError(str(error)) from None
        raise


def load(
    rows, path, label, weights_only=False, incremental=False, check_state=None
):
    """Replaces rows by those of a snapshot; see `SparseTable.load`.

    Args:
      rows: TableRows.
      path: path-like, the directory.
      label: string, the table's name, for messages.
      weights_only: bool, whether slots start anew.
      incremental: bool, whether deltas may continue the snapshot.
      check_state: function that is called with the state, before any row is
        changed, and raises ValueError if it cannot be taken up. None: it is
        not wanted.

    Returns:
      Its Manifest.
    """
    if weights_only and incremental:
        raise ValueError(
            "Arguments `weights_only` and `incremental` cannot both be True: "
            "slots that start anew are not those of the snapshot that deltas "
            "would continue. Begin a new chain, with `incremental=True` of the "
            "next save."
        )
    path = normalised(path)
    what = f"Loading table {label!r} from {path!r}"

    def restore(chain):
        with _together(rows, what):
            for where, manifest in chain:
                rows.check_config(label, manifest.config, weights_only)
                if not weights_only:
                    manifests.check_fields(where, manifest, _row_fields(rows))
            if check_state is not None:
                manifests.check_state(*chain[-1], check_state)
        if int(rows.size()) != 0:
            with _together(rows, what):
                _restore_all(rows, chain, weights_only, verify_only=True)
        end_chain(rows)
        rows.clear()
        try:
            with _together(rows, what):
                _restore_all(rows, chain, weights_only)
        except BaseException:
            rows.clear()
            raise
        return chain

    chain = read_again_if_replaced(
        path, lambda: _common_chain(rows, path, what), restore
    )
    if incremental:
        _on_each(rows, lambda _, shard: shard.set_chain(chain[-1][1].id))
        rows.snapshot_chain = tuple(
            (where, manifest.id) for where, manifest in chain
        )
    return chain[-1][1]


def _common_chain(rows, path, what):
    """`read_chain(path)`, the same on all workers."""
    with _together(rows, what):
        chain = read_chain(path)
    if rows.collectives is None:
        return chain
    # One that is being replaced may be another one on each worker.
    [sent, *_] = rows.collectives.gather_bytes(
        json.dumps(
            [(where, manifests.encode(m).decode()) for where, m in chain]
        ).encode()
        if rows.first_shard == 0
        else b""
    )
    return [
        (where, manifests.decode(text.encode(), where))
        for where, text in json.loads(sent)
    ]


def _row_fields(rows):
    return [(f.name, f.dtype.name, f.count) for f in rows.fields]


def end_chain(rows):
    """Ends the chain of incremental snapshots and forgets what has changed."""
    _on_each(rows, lambda _, shard: shard.set_chain(""))
    rows.snapshot_chain = ()


def _check_chain(rows, label, path, incremental, base):
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


def _check_bases(label, chain):
    """Checks that all snapshots of a table's chain are still there."""
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


def _check_step(step):
    if step is not None and not (is_int(step) and 0 <= step < 2**63):
        raise ValueError(
            "Argument `step` must be an integer from 0 to 2^63 - 1, or None. "
            f"Received: step={step!r}"
        )


def _manifest(rows, path, description, snapshot_id, chain, base, step, parts):
    fields, row_bytes = manifests.row_fields(_row_fields(rows))
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
        files=tuple(file for files, _ in parts for file in files),
    )


def _restore_all(rows, chain, weights_only, verify_only=False):
    """Applies snapshots one after another, in all shards side by side."""
    shards = rows.num_shards
    for path, manifest in chain:

        def restore(index, shard, path=path, manifest=manifest):
            files = [
                file
                for number, file in enumerate(manifest.files)
                if (
                    number % shards == index
                    if verify_only
                    else _overlap(file.shard, manifest.shards, index, shards)
                )
            ]
            shard.restore(
                [posixpath.join(path, file.name) for file in files],
                _numbers(files),
                [file.shard for file in files],
                manifest,
                fields=[
                    field
                    for field in manifest.fields[1:]
                    if field.name == "weights" or not weights_only
                ],
                index=index,
                shards=shards,
                verify_only=verify_only,
            )

        try:
            _on_each(rows, restore)
        except tf.errors.DataLossError as error:
            raise DamagedSnapshotError(_own_words(error)) from None
        except tf.errors.NotFoundError as error:
            raise DamagedSnapshotError(
                f"A file of the snapshot in {path} is missing: "
                f"{_own_words(error)}"
            ) from None


def _own_words(error):
    """An op's message without what TensorFlow puts around it."""
    return re.sub(r"^\{\{.*?\}\} | \[Op:[^]]*\]$", "", error.message)


def _overlap(theirs, their_shards, mine, my_shards):
    """Whether two shards, of different numbers of them, share signs.

    Shard `s` of `n` holds the hashes from s / n to (s + 1) / n of their range.
    """
    return (
        theirs * my_shards < (mine + 1) * their_shards
        and mine * their_shards < (theirs + 1) * my_shards
    )


def _numbers(files):
    """What the ops want to know of files: int64 `[f, 5]`."""
    numbers = [(f.tag, f.rows, f.erased, f.bytes, f.crc32c) for f in files]
    return np.array(numbers, np.uint64).reshape([-1, 5]).astype(np.int64)


def _on_each(rows, function, done=None):
    """`function(index, shard)` of all shards in reach side by side, a list.

    Those that succeeded are put into `done`, also if another one failed.
    """
    done = [] if done is None else done
    shards = rows.shards
    if len(shards) == 1:
        results = [function(rows.first_shard, shards[0])]
        done.append(shards[0])
        return results
    with concurrent.futures.ThreadPoolExecutor(len(shards)) as pool:
        futures = [
            pool.submit(function, index, shard)
            for index, shard in enumerate(shards)
        ]
    done.extend(
        shard
        for shard, future in zip(shards, futures)
        if future.exception() is None
    )
    return [future.result() for future in futures]


def _remove_leftovers(path, snapshot_id=""):
    """Removes what saves have written here and no manifest names.

    Args:
      path: string, the directory.
      snapshot_id: string, the save whose files of rows are removed; "" for all
        that any save has left.
    """
    try:
        manifest = read_manifest(path)
    except FileNotFoundError:
        kept = set()
    except ValueError:
        return  # It cannot be told what it names.
    else:
        kept = {file.name for file in manifest.files}
    storage = storage_of(path)
    for name in storage.names(path):
        if (
            _OWN_FILE.fullmatch(name)
            and name not in kept
            and (not snapshot_id or name.startswith(f"rows-{snapshot_id[:16]}"))
        ):
            # A save that fails removes its own.
            with contextlib.suppress(FileNotFoundError):
                storage.remove(join(path, name))


def _relative_path(path, base):
    """How a delta names its base, so that both can be moved together."""
    if "://" in path or "://" in base:
        return base
    return os.path.relpath(base, path)
