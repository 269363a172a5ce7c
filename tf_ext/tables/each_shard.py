# SPDX-License-Identifier: Apache-2.0
"""Runs a function for each shard of a table, in parallel."""

import concurrent.futures
import threading
import typing
from collections.abc import Callable

from tf_ext.tables.shard import TableShard

if typing.TYPE_CHECKING:
    from tf_ext.tables.rows import TableRows

_T = typing.TypeVar("_T")


def on_each(
    rows: "TableRows", function: Callable[[int, TableShard], _T]
) -> list[_T]:
    """Runs `function(index, shard)` for this process's shards in parallel.

    Nothing that it has begun runs any longer when it returns or raises, also
    after an interrupt. After a second one, while it waits for that, the next
    call of the thread waits.

    Returns:
      The list of results.
    """
    shards = rows.shards
    thread = threading.get_ident()
    if thread in rows.under_way:
        rows.under_way[thread].end()
    if len(shards) == 1:
        return [function(rows.first_shard, shards[0])]
    tasks = rows.under_way[thread] = Tasks(len(shards))
    try:
        with concurrent.futures.ThreadPoolExecutor(len(shards)) as pool:
            futures = [
                pool.submit(tasks.run, index, function, shard)
                for index, shard in enumerate(shards)
            ]
        return [future.result() for future in futures]
    finally:
        tasks.end()
        rows.under_way.pop(thread, None)


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
