# SPDX-License-Identifier: Apache-2.0
"""Runs functions for each shard of a table, in parallel."""

import concurrent.futures
import threading
import typing
from collections.abc import Callable, Sequence

from tf_ext.tables.shard import TableShard

_T = typing.TypeVar("_T")


class EachShard:
    """Runs functions for the shards that this process accesses.

    Args:
      first_shard: int, the index of the first of them among all shards.
    """

    def __init__(self, first_shard: int) -> None:
        self._first_shard = first_shard
        self._under_way: dict[int, Tasks] = {}

    def run(
        self,
        function: Callable[[int, TableShard], _T],
        shards: Sequence[TableShard],
    ) -> list[_T]:
        """Runs `function(index, shard)` for each; see `TableRows.on_each`."""
        thread = threading.get_ident()
        if thread in self._under_way:
            self._under_way[thread].end()
        if len(shards) == 1:
            return [function(self._first_shard, shards[0])]
        tasks = self._under_way[thread] = Tasks(len(shards))
        try:
            with concurrent.futures.ThreadPoolExecutor(len(shards)) as pool:
                futures = [
                    pool.submit(tasks.run, index, function, shard)
                    for index, shard in enumerate(shards)
                ]
            return [future.result() for future in futures]
        finally:
            tasks.end()
            self._under_way.pop(thread, None)


class Tasks:
    """Functions that run in other threads, until `end`.

    A pool that an interrupt finds where it starts a thread does not know the
    thread and does not wait for it.

    Args:
      count: int, how many.
    """

    def __init__(self, count: int) -> None:
        self._running = [threading.Lock() for _ in range(count)]
        self._ended = False

    def run(
        self,
        index: int,
        function: Callable[[int, TableShard], _T],
        shard: TableShard,
    ) -> _T:
        """Returns `function(index, shard)`, unless `end` came before."""
        with self._running[index]:
            if self._ended:
                raise concurrent.futures.CancelledError
            return function(index, shard)

    def end(self) -> None:
        """Waits for those that run; no other one begins."""
        self._ended = True
        for lock in self._running:
            with lock:
                pass
