# SPDX-License-Identifier: Apache-2.0
"""Returns a store, and its trainer, to an earlier version."""

import os
import posixpath

import tensorflow as tf

from tf_ext._checks import refuse
from tf_ext.recovery import files as points
from tf_ext.serving.sinks.sink import Manifest, Sink, check_selectable
from tf_ext.snapshot.claims import Claim
from tf_ext.snapshot.storage import normalised

_OWNER = "tf_ext.serving.rollback"


def rollback(
    sink: Sink,
    version: int,
    directory: str | os.PathLike[str] | None = None,
) -> None:
    """Has readers see an earlier version, and training continue from it.

    Readers see the version at once, in one atomic step. With `directory`, its
    recovery point is the newest one from then on: a training that writes points
    there ends at its next one, with `SnapshotConflictError`, and where it is
    started again, it continues from that version. What it writes is published.

    Without `directory`, training continues as it is, and the sink is pinned:
    nothing else is published until `sink.select(version, pinned=False)`. Until
    then, the version can be any of those that the sink retains, later ones
    included. If the call fails, it can be made again.

    Args:
      sink: tf_ext.serving.Sink.
      version: int, one that the sink retains.
      directory: string or path-like, that of `TableSnapshot` whose points were
        published; or None. It still has the point of the version if its `keep`
        is at least that of the sink and all its points are published.

    Raises:
      FileNotFoundError: the directory does not have the point; nothing has
        changed.
      SinkError: the sink cannot be used now.
      ValueError: the sink does not retain the version; nothing has changed.

    Example:
      >>> import tempfile
      >>> sink = tf_ext.serving.DirectorySink(tempfile.mkdtemp())
      >>> for step in range(3):
      ...     _ = sink.write({"model": "m", "step": step, "tables": [],
      ...         "dense": "dense", "kind": "published", "tf_ext_version": "",
      ...         "tensorflow_version": ""}, {}, [], sink.versions().current)
      >>> tf_ext.serving.rollback(sink, 2)
      >>> sink.versions()
      Versions(current=2, retained=(1, 2, 3), pinned=True)
    """
    if not isinstance(sink, Sink):
        refuse(_OWNER, "sink", "a tf_ext.serving.Sink", sink)
    check_selectable(_OWNER, sink.versions(), version)
    if directory is None:
        sink.select(version, pinned=True)
        return
    root = normalised(directory, _OWNER, "directory")
    path = _point_of(root, sink.manifest(version))
    claim = Claim(root, f"Rolling back to {path}")
    with claim.taken():
        # Nothing is published until all later points are gone.
        sink.select(version, pinned=True)
        paths = points.list_points(root)
        for later in paths[paths.index(path) + 1 :]:
            tf.io.gfile.remove(posixpath.join(later, points.NAME))
        sink.select(version, pinned=False)
    claim.release()


def _point_of(root: str, manifest: Manifest) -> str:
    """The directory of a version's point.

    Raises:
      FileNotFoundError: it is not there.
    """
    name = manifest.get("point", "of no training")
    path = posixpath.join(root, name)
    if path in points.list_points(root):
        there = {id for _, id in points.read_point(path).tables}
        if {table.get("snapshot") for table in manifest["tables"]} <= there:
            return path
    raise FileNotFoundError(
        f"{root} does not have the recovery point {name} of version "
        f"{manifest['version']}: it was removed, or replaced. Roll back "
        "without `directory`, or keep more points."
    )
