"""Reads snapshots as NumPy arrays."""

import numpy as np

from tf_ext import _core
from tf_ext._snapshot_manifest import DamagedSnapshotError
from tf_ext.snapshot.files import (
    ATTEMPTS,
    ids,
    read_chain,
    read_chunks,
    replaced,
)
from tf_ext.snapshot.storage import normalised


def open_snapshot(path):
    """Opens a snapshot; of its rows none is read yet.

    Args:
      path: path-like, the directory that `SparseTable.save` wrote.

    Returns:
      A Snapshot.

    Raises:
      FileNotFoundError: there is no snapshot, or one of those that it
        continues is gone.
      DamagedSnapshotError: a manifest is damaged; file and byte are named.
      ModuleNotFoundError: the path is not of this machine (`gs://...`), and
        TensorFlow, which is needed then, is not installed.
    """
    return Snapshot(read_chain(normalised(path)))


class Snapshot:
    """A snapshot, with those that it continues if it is a delta.

    If a save replaces it before anything of it has been read, the new one is
    read, and the attributes are those of the new one.

    Attributes:
      path: string, its directory.
      manifest: its Manifest: `label`, `config`, `step`, `shards`, ...
      chain: tuple of `(path, Manifest)`, from the full snapshot to this one.
      fields: dict from the name of a field of a row to `(dtype, count)`.
      bytes: int, of all files of rows, those that it continues too.
    """

    def __init__(self, chain):
        """See `open_snapshot`."""
        self._set_chain(chain)

    def _set_chain(self, chain):
        self.chain = tuple(chain)
        self.path, self.manifest = chain[-1]
        self.fields = {
            field.name: (field.dtype, field.count)
            for field in self.manifest.fields[1:]
        }

    @property
    def bytes(self):
        """Bytes of all files of rows, those of the bases too."""
        return sum(manifest.bytes for _, manifest in self.chain)

    def chunks(self, fields=None, progress=None):
        """Reads the rows: each sign once, as the last snapshot has it.

        Besides a chunk it holds in memory a set of the signs in the deltas and
        of those of one file of the full snapshot, 11 to 22 bytes a sign.

        Args:
          fields: list of strings, the fields that are wanted. None: all.
          progress: function that is called with the bytes of each chunk when
            it was read. None: nothing is.

        Yields:
          `(signs, {name: values})`, int64 `[n]` and `[n, count]` of the
          field's dtype. The signs are in no order.

        Raises:
          DamagedSnapshotError: damage; file and byte are named. What came
            before is whole; `verify` tells beforehand.
          SnapshotConflictError: another save replaced it after the first chunk
            was read.
          ValueError: a field that does not exist.
        """
        wanted = list(self.fields) if fields is None else list(fields)
        for name in wanted:
            if name not in self.fields:
                raise ValueError(
                    f"Argument `fields` must name fields of {self.path}, which "
                    f"has {', '.join(self.fields)}. Received: {name!r}"
                )
        return self._chunks(wanted, progress)

    def _chunks(self, wanted, progress):
        for rows in self._latest_rows(progress or _ignore):
            table = rows.view(row_dtype(self.manifest))[:, 0]
            yield (
                np.ascontiguousarray(table["sign"]),
                {name: np.ascontiguousarray(table[name]) for name in wanted},
            )

    def _latest_rows(self, progress):
        begun = False
        for _ in range(ATTEMPTS):
            try:
                for rows in latest_rows(self.chain, progress):
                    begun = True
                    yield rows
                return
            except DamagedSnapshotError:
                if not self._was_replaced():
                    raise
            if begun:
                break
        raise replaced(self.path)

    def _was_replaced(self):
        """Whether there is another snapshot now; it is this one then."""
        chain = read_chain(self.path)
        if ids(chain) == ids(self.chain):
            return False
        self._set_chain(chain)
        return True

    def verify(self, progress=None):
        """Reads all files and checks every byte.

        Args:
          progress: see `chunks`.

        Raises:
          DamagedSnapshotError: damage; file and byte are named.
          SnapshotConflictError: other saves replaced it again and again.
        """
        for damage in self.damage(progress):
            raise damage

    def damage(self, progress=None):
        """What `verify` would raise, of each file that is damaged.

        Args:
          progress: see `chunks`.

        Yields:
          DamagedSnapshotErrors.
        """
        for _ in range(ATTEMPTS):
            for error in self._damage(progress or _ignore):
                if self._was_replaced():
                    break
                yield error
            else:
                return
        raise replaced(self.path)

    def _damage(self, progress):
        for path, manifest in self.chain:
            for file in manifest.files:
                try:
                    _verify(path, manifest, file, progress)
                except DamagedSnapshotError as error:
                    yield error


def row_dtype(manifest):
    """The dtype of a row: a structure of its fields, the sign too."""
    return np.dtype(
        {
            "names": [field.name for field in manifest.fields],
            "formats": [
                np.dtype(field.dtype).newbyteorder("<")
                if field.name == "sign"
                else (np.dtype(field.dtype).newbyteorder("<"), (field.count,))
                for field in manifest.fields
            ],
            "offsets": [field.offset for field in manifest.fields],
            "itemsize": manifest.row_bytes,
        }
    )


def signs_of(rows):
    """The signs, int64 `[n]`, of rows, uint8 `[n, row_bytes]`."""
    return np.ascontiguousarray(rows[:, :8]).view("<i8")[:, 0]


def latest_rows(chain, progress, repeated=False):
    """The rows of a full snapshot and its deltas, as the last one has them.

    What was written last is read first, so that a set of the signs that are
    settled is all that has to be kept.

    Args:
      chain: list of `(path, Manifest)`, from the full snapshot on.
      progress: function that is called with the bytes of each chunk.
      repeated: bool, whether a row that the full snapshot has twice comes
        twice, the later one later. No set of its signs is needed then.

    Yields:
      uint8 `[n, row_bytes]`.
    """
    settled = _core.SignSet()
    for path, manifest in chain[:0:-1]:
        for file in manifest.files:
            yield from _last_rows(path, manifest, file, progress, settled)
    path, manifest = chain[0]
    for file in manifest.files:
        if repeated:
            chunks = read_chunks(path, manifest, file, progress)
            rows = (chunk.rows for chunk in chunks)
        else:
            rows = _last_rows(path, manifest, file, progress, _core.SignSet())
        for some in rows:
            if len(settled):
                some = some[~settled.contains(signs_of(some))]
            if len(some):
                yield some


def _last_rows(path, manifest, file, progress, settled):
    """The rows of signs that are not settled; afterwards all signs are."""
    for chunk in read_chunks(path, manifest, file, progress, backwards=True):
        settled.add(chunk.erased_after)
        new = settled.add_from_the_end(signs_of(chunk.rows))
        settled.add(chunk.erased_before)
        if new.all():
            yield chunk.rows
        elif new.any():
            yield chunk.rows[new]


def _verify(path, manifest, file, progress):
    row = 0
    for chunk in read_chunks(path, manifest, file, progress):
        for signs in (
            chunk.erased_before,
            signs_of(chunk.rows),
            chunk.erased_after,
        ):
            shards = _core.shard_of(signs, manifest.shards)
            wrong = np.flatnonzero(shards != file.shard)
            if len(wrong):
                raise DamagedSnapshotError(
                    f"{path}/{file.name} holds the sign {signs[wrong[0]]} of "
                    f"shard {shards[wrong[0]]}, but should hold signs of shard "
                    f"{file.shard} alone (after {row} rows)."
                )
        row += len(chunk.rows)


def _ignore(_):
    pass
