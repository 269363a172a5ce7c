"""Who may write in a directory: the process that began to last.

A writer puts an empty file into the directory, its claim, and removes those of
all others. One whose claim is gone has lost the directory. So a process that
was thought dead cannot destroy what its successor writes, and a claim that a
killed process left behind blocks nobody.
"""

import contextlib
import os
import re
import secrets
import socket

from tf_ext._snapshot_manifest import SnapshotConflictError
from tf_ext.snapshot.storage import join, storage_of

_NAME = re.compile(r"writer-(.+)-(\d+)-[0-9a-f]{16}\.claim")


class Claim:
    """A process's claim to write in a directory."""

    def __init__(self, directory, what):
        """Claims nothing yet.

        Args:
          directory: string, one that exists when the claim is taken.
          what: string, what is written, for messages.
        """
        self._directory = directory
        self._what = what
        self._storage = storage_of(directory)
        host = re.sub(r"[^\w.]", "_", socket.gethostname())
        self._name = f"writer-{host}-{os.getpid()}-{secrets.token_hex(8)}.claim"

    @contextlib.contextmanager
    def taken(self):
        """Takes the directory from all other writers, then runs the block.

        No other writer is in `taken` or `held` meanwhile, if the file system
        has locks.
        """
        with self._storage.lock(self._directory):
            self._storage.touch(join(self._directory, self._name))
            for name in self._others():
                # Another one may be removing it, too.
                with contextlib.suppress(FileNotFoundError):
                    self._storage.remove(join(self._directory, name))
            yield

    @contextlib.contextmanager
    def held(self):
        """Runs the block if nobody else has taken the directory.

        Raises:
          SnapshotConflictError: another writer has. If it did while the block
            ran, for want of locks, the block has been run.
        """
        with self._lock():
            self.check()
            yield
            self.check()

    def check(self):
        """Raises SnapshotConflictError if another writer took the directory."""
        try:
            with self._storage.reader(join(self._directory, self._name)):
                return
        except FileNotFoundError:
            raise self._conflict() from None

    def release(self):
        """Gives the directory back, whether it still is this process's."""
        with contextlib.suppress(OSError):
            self._storage.remove(join(self._directory, self._name))

    @contextlib.contextmanager
    def _lock(self):
        try:
            lock = self._storage.lock(self._directory)
            lock.__enter__()
        except FileNotFoundError:
            raise self._conflict() from None
        try:
            yield
        finally:
            lock.__exit__(None, None, None)

    def _others(self):
        return [
            name
            for name in self._storage.names(self._directory)
            if _NAME.fullmatch(name) and name != self._name
        ]

    def _conflict(self):
        processes = [
            "process {1} of {0}".format(*_NAME.fullmatch(name).groups())
            for name in self._others()
        ]
        return SnapshotConflictError(
            f"{self._what} was given up: another writer"
            f"{f' ({processes[0]})' if processes else ''} has begun to write "
            "there since. What it writes counts. A directory must have one "
            "writer at a time: end the job that should not run any more, or "
            "give each job a directory of its own."
        )
