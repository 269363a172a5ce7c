# SPDX-License-Identifier: Apache-2.0
"""Files of points that are kept while they are read, whatever is pruned."""

import os
import pathlib

from tf_ext.snapshot.files import Chain
from tf_ext.snapshot.manifest import DamagedSnapshotError
from tf_ext.snapshot.storage import join


class HeldFiles:
    """Keeps files of snapshots, by links to them.

    Args:
      folder: pathlib.Path of the links, on their file system; None where that
        has none.
    """

    def __init__(self, folder: pathlib.Path | None) -> None:
        self._folder = folder
        self._count = 0

    def hold(self, links: Chain) -> Chain:
        """Links the files of rows of some snapshots.

        Args:
          links: list of `(path, Manifest)`.

        Returns:
          List of `(path, Manifest)`, the same if they cannot be linked.

        Raises:
          DamagedSnapshotError: a file is missing.
        """
        if self._folder is None:
            return links
        held = []
        for path, manifest in links:
            folder = self._folder / str(self._count)
            self._count += 1
            folder.mkdir()
            for file in manifest.files:
                try:
                    os.link(join(path, file.name), folder / file.name)
                except FileNotFoundError:
                    raise DamagedSnapshotError(
                        f"{path} has no {file.name}: it was removed."
                    ) from None
                except OSError:
                    return links  # No file system for links.
            held.append((str(folder), manifest))
        return held
