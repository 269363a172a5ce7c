# SPDX-License-Identifier: Apache-2.0
"""Restricts a directory to one writer: the one that started last.

A writer creates an empty file in the directory, its claim, and removes those of
all others. A writer whose claim is gone must not write any more. So a process
that was presumed dead cannot destroy the files of its successor, and a claim
left behind by a killed process blocks nobody.
"""

import contextlib
import os
import re
import secrets
import socket
from collections.abc import Iterator

from tf_ext.snapshot.manifest import SnapshotConflictError
from tf_ext.snapshot.storage import join, storage_of

# A regular expression: the names of claims.
CLAIM_FILE = r"writer-(.+)-(\d+)-[0-9a-f]{16}\.claim"
_NAME = re.compile(CLAIM_FILE)


class Claim:
    """A process's claim to write to a directory."""

    def __init__(self, directory: str, what: str) -> None:
        """Does not take the claim yet.

        Args:
          directory: string, must exist when the claim is taken.
          what: string, the operation, for messages.
        """
        self._directory = directory
        self._what = what
        self._storage = storage_of(directory)
        host = re.sub(r"[^\w.]", "_", socket.gethostname())
        self._name = f"writer-{host}-{os.getpid()}-{secrets.token_hex(8)}.claim"

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Takes the directory from all other writers, then runs the block.

        If the file system supports locks, no other writer is in `taken` or
        `held` meanwhile.
        """
        with self._storage.lock(self._directory):
            self._storage.touch(join(self._directory, self._name))
            for name in self._others():
                # Another writer may be removing it, too.
                with contextlib.suppress(FileNotFoundError):
                    self._storage.remove(join(self._directory, name))
            yield

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Runs the block unless another writer has taken the directory.

        Raises:
          SnapshotConflictError: if another writer has. Without locks, that may
            have happened while the block ran.
        """
        with self._lock():
            self.check()
            yield
            self.check()

    def check(self) -> None:
        """Raises SnapshotConflictError if the directory is another writer's.

        Also if it was removed.
        """
        try:
            with self._storage.reader(join(self._directory, self._name)):
                return
        except FileNotFoundError:
            raise self._conflict() from None

    def release(self) -> None:
        """Removes the claim, if this process still has it."""
        with contextlib.suppress(OSError):
            self._storage.remove(join(self._directory, self._name))

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        try:
            lock = self._storage.lock(self._directory)
            lock.__enter__()
        except FileNotFoundError:
            raise self._conflict() from None
        try:
            yield
        finally:
            lock.__exit__(None, None, None)

    def _others(self) -> list[str]:
        return [
            name
            for name in self._storage.names(self._directory)
            if _NAME.fullmatch(name) and name != self._name
        ]

    def _conflict(self) -> SnapshotConflictError:
        processes = [
            "process {1} of {0}".format(*match.groups())
            for match in map(_NAME.fullmatch, self._others())
            if match
        ]
        if not processes and not self._storage.exists(self._directory):
            return SnapshotConflictError(
                f"{self._what} was aborted: the directory {self._directory} "
                "was removed meanwhile, with everything that had been "
                "written to it. Write again, and keep the directory until "
                "the write has ended."
            )
        return SnapshotConflictError(
            f"{self._what} was aborted: another writer"
            f"{f' ({processes[0]})' if processes else ''} has started to write "
            "there since, and takes precedence. A directory must have one "
            "writer at a time: stop the job that should no longer run, or use "
            "a directory of its own for each job."
        )
