# SPDX-License-Identifier: Apache-2.0
"""The chain of incremental snapshots of a table."""

import os
import threading
import typing
from collections.abc import Callable

from tf_ext.ops.snapshot import snapshot_ops
from tf_ext.snapshot.files import Chain, read_chain, read_manifest
from tf_ext.snapshot.manifest import DamagedSnapshotError
from tf_ext.snapshot.storage import normalised
from tf_ext.tables.shard import TableShard

# `TableRows.on_each`.
_OnEach: typing.TypeAlias = Callable[
    [Callable[[int, TableShard], typing.Any]], object
]
# `(path, id)` of each snapshot.
Links: typing.TypeAlias = tuple[tuple[str, str], ...]


class SnapshotChain:
    """The incremental snapshots of a table.

    The shards of the table mark what has changed since the last of them.

    An interrupt may come at any time, and leave shards that wait for the end of
    a save. So each use of the chain begins by ending the last save. The save
    counts if it is one of the links, which is set by one assignment; otherwise
    the shards go back to what they had marked before.

    Attributes:
      links: `(path, id)` of each snapshot, the full one first.
      saving: string, the id of a save that has not ended in all shards, or "".
      lock: what is held while these change.
    """

    def __init__(self) -> None:
        self.links: Links = ()
        self.saving = ""
        self.lock = threading.RLock()

    def settle(self, on_each: _OnEach) -> None:
        """Ends the last save, in shards where that has not been done.

        Args:
          on_each: of the rows whose chain this is; this thread holds `lock`.
        """
        snapshot_id = self.saving
        if not snapshot_id:
            return
        committed = bool(self.links) and self.links[-1][1] == snapshot_id
        try:
            on_each(
                lambda _, shard: shard.run(
                    snapshot_ops.sparse_table_end_save, snapshot_id, committed
                )
            )
        except Exception:
            # It is not known what the shards have marked.
            self.links = ()
            raise
        self.saving = ""

    def end(self, on_each: _OnEach) -> None:
        """Ends the chain and discards its marks; `on_each` as of `settle`."""
        with self.lock:
            self.settle(on_each)
            self.links = ()
            on_each(_mark_since(""))

    def begin(self, on_each: _OnEach, chain: Chain) -> None:
        """Lets deltas continue the snapshots that the table holds.

        Args:
          on_each: of rows without a chain.
          chain: list of `(path, Manifest)`.
        """
        with self.lock:
            self.settle(on_each)
            on_each(_mark_since(chain[-1][1].id))
            self.links = tuple((where, m.id) for where, m in chain)

    def continued_by(
        self,
        name: str,
        path: str,
        incremental: bool,
        base: str | os.PathLike[str] | None,
    ) -> Links:
        """The links that a save in `path` continues; () for none.

        Args:
          name: string, the table's, for messages.
          path: string, as returned by `storage.normalised`.
          incremental: bool, whether the save starts a chain.
          base: path-like, what is said to be the last snapshot, or None.

        Raises:
          ValueError: there is no such chain, or another one.
        """
        links = self.links
        if path in [where for where, _ in links]:
            raise ValueError(
                f"Table {name!r} cannot be saved in {path!r}: the snapshot "
                "there is part of its chain of incremental snapshots, which "
                "would be lost. Use another directory for each snapshot."
            )
        if base is not None:
            if not links or links[-1][0] != normalised(base):
                last = f"is {links[-1][0]!r}" if links else "does not exist"
                raise ValueError(
                    "Argument `base` must be the last snapshot of the chain of "
                    f"table {name!r}, which {last}; a chain begins with "
                    f"`incremental=True`. Received: base={os.fspath(base)!r}"
                )
            check_exists(name, links)
            return links
        if incremental and links:
            raise ValueError(
                f"Table {name!r} has a chain of incremental snapshots, of "
                f"which {links[-1][0]!r} is the last, and cannot have a "
                f"second. Continue it with `base={links[-1][0]!r}`, or call "
                "`end_incremental()` first. Received: incremental=True"
            )
        return ()


def _mark_since(snapshot_id: str) -> Callable[[int, TableShard], object]:
    """Lets a shard mark changes since a snapshot; "" ends the marking."""
    mark = snapshot_ops.sparse_table_set_chain
    return lambda _, shard: shard.run(mark, snapshot_id)


def check_exists(name: str, links: Links) -> None:
    """Raises ValueError unless all snapshots of a chain still exist.

    Args:
      name: string, the table's, for messages.
      links: `(path, id)` of the snapshots.
    """
    if not links:
        return
    path, snapshot_id = links[-1]
    try:
        if read_manifest(path).id == snapshot_id:
            read_chain(path)
            return
        reason = f"the snapshot in {path!r}, its last, has been replaced."
    except (FileNotFoundError, DamagedSnapshotError) as error:
        reason = str(error)
    raise ValueError(
        f"The chain of table {name!r} cannot be continued: {reason} Begin a "
        "new chain: `end_incremental()`, then save with `incremental=True`."
    )
